"""Install a built package into an empty environment and use it: `python tools/smoke.py dist/*.whl`.

Run from outside of the checkout, so that the installed files are used. What a first user does must work: import, a
simulation, a figure, the command line, and an experiment file that comes with the package.
"""

import subprocess
import sys
import venv
from pathlib import Path
from tempfile import TemporaryDirectory

SCRIPT = """
import fedpd
from fedpd import algorithms, data, oracles, problems
problem = problems.penalized_logistic(*data.strongly_noniid(agents=5, samples=20, dimension=4))
run = fedpd.simulate(algorithms.fedpd(eta=0.4, oracle=oracles.gd(step=0.3, iterations=4)), problem, rounds=30)
assert run.history["stationarity"][-1] < run.history["stationarity"][0]
run.plot().savefig("figure.png")
assert fedpd.solve(problem, progress=False).history["stationarity"][-1] <= 1e-10
print(fedpd.__version__, fedpd.__file__)
"""


def main() -> None:
    """Test each package that is named on the command line."""
    for package in map(Path, sys.argv[1:]):
        with TemporaryDirectory(prefix="fedpd-smoke-") as folder:
            venv.create(Path(folder) / "venv", with_pip=True)
            programs = Path(folder) / "venv" / "bin"
            install: list[str | Path] = [
                programs / "python",
                "-m",
                "pip",
                "install",
                "--quiet",
                "--disable-pip-version-check",
            ]
            commands: list[list[str | Path]] = [
                [*install, package.resolve()],
                [programs / "python", "-c", SCRIPT],
                [programs / "fedpd", "--version"],
                [programs / "fedpd", "compare", "--rounds", "20", "--out", "runs"],
            ]
            for command in commands:
                subprocess.run(command, cwd=folder, check=True)
            assert (Path(folder) / "figure.png").exists()
        print(f"{package.name}: installed into an empty environment, and used", flush=True)


if __name__ == "__main__":
    main()
