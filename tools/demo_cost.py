"""Measure what `make demo` costs: seconds and disk, in a fresh clone of the last commit.

pip's downloads and compiled programs of earlier runs are not used: the clone has a cache folder of its own.
"""

import os
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Print the seconds of the installation and of two demos, and the size of `.venv` after them."""
    with TemporaryDirectory(prefix="fedpd-demo-") as folder:
        clone = Path(folder) / "fedpd"
        subprocess.run(["git", "clone", "--quiet", str(ROOT), str(clone)], check=True)
        environment = os.environ | {"XDG_CACHE_HOME": str(Path(folder) / "cache")}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)  # compiled files are a part of the disk
        for name, target in (
            ("installation", ".venv/installed-core"),
            ("first demo", "demo"),
            ("second demo", "demo"),
        ):
            began = time.perf_counter()
            done = subprocess.run(["make", target], cwd=clone, env=environment, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"make {target} failed:\n{done.stdout}{done.stderr}")
            print(f"{name:13} {time.perf_counter() - began:6.1f} s", flush=True)
        print(f"{'.venv':13} {_megabytes(clone / '.venv'):6.0f} MB")


def _megabytes(folder: Path) -> float:
    """Return the disk that a folder takes, as `du` counts it."""
    return sum(path.lstat().st_blocks for path in folder.rglob("*")) * 512 / 2**20


if __name__ == "__main__":
    main()
