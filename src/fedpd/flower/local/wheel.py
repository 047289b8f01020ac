"""A wheel of the fedpd that runs, so that a kit needs no index for it: on an index, a stranger could take its name.

The wheel has the files of the installed package, whether pip installed it from a wheel or as a link to its source.
"""

import hashlib
import io
import zipfile
from base64 import urlsafe_b64encode
from functools import lru_cache
from importlib.metadata import distribution
from pathlib import Path

import fedpd

LEFT_OUT = ("__pycache__",)
DATE = (2020, 1, 1, 0, 0, 0)  # the same files make the same wheel
TAG = "Wheel-Version: 1.0\nGenerator: fedpd\nRoot-Is-Purelib: true\nTag: py3-none-any\n"


def wheel_name() -> str:
    """Return the name of the wheel's file."""
    return f"fedpd-{fedpd.__version__}-py3-none-any.whl"


def write_wheel(folder: Path) -> str:
    """Write the wheel into a folder, and return its SHA-256 hash."""
    content = _content()
    (folder / wheel_name()).write_bytes(content)
    return hashlib.sha256(content).hexdigest()


@lru_cache(maxsize=1)
def _content() -> bytes:
    package, about = Path(fedpd.__file__).parent, f"fedpd-{fedpd.__version__}.dist-info"
    files = {
        f"fedpd/{path.relative_to(package).as_posix()}": path.read_bytes()
        for path in sorted(package.rglob("*"))
        if path.is_file() and not set(LEFT_OUT) & set(path.parts)
    }
    installed = distribution("fedpd")
    for name in ("METADATA", "entry_points.txt"):
        files[f"{about}/{name}"] = (installed.read_text(name) or "").encode()
    files[f"{about}/WHEEL"] = TAG.encode()
    lines = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in files.items()]
    files[f"{about}/RECORD"] = "\n".join([*lines, f"{about}/RECORD,,", ""]).encode()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, DATE), content, zipfile.ZIP_DEFLATED)
    return whole.getvalue()


def _digest(content: bytes) -> str:
    return urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
