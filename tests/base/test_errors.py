"""Warnings name the line of the user, and a missing optional package is a sentence with the line that installs it."""

import re
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import TheoryWarning, algorithms, data, loggers, oracles, problems, simulate
from fedpd.base.errors import FedpdError, MissingExtraError, extra
from fedpd.experiments import experiment
from fedpd.report.data import load

ROOT = Path(__file__).parents[2]
NETWORK = """
[problem]
name = "network"
model = "MLP"
data = { name = "characters", writers = 2, samples = 4 }

[run]
rounds = 1

[[algorithm]]
name = "fedavg"
oracle = { name = "gd", step = 0.1, iterations = 1 }
"""
QUADRATIC = '[problem]\nname = "opposing_quadratics"\n' + NETWORK[NETWORK.index("[run]") :]


def fresh(name: str) -> Callable[[Path], Any]:
    """Return a function that imports a module of fedpd as if for the first time."""

    def use(folder: Path) -> Any:
        kept = {key: sys.modules.pop(key) for key in list(sys.modules) if key == name or key.startswith(f"{name}.")}
        try:
            import_module(name)
        finally:
            sys.modules.update(kept)

    return use


def csv(folder: Path) -> Any:
    (folder / "a.csv").touch()
    return data.csv(folder, client="c", label="y")


def parquet(folder: Path) -> Any:
    (folder / "a.parquet").touch()
    return load(folder / "a.parquet", client="c")


@pytest.mark.parametrize(
    ("package", "name", "use"),
    [
        ("pyarrow", "tables", parquet),
        ("pyarrow", "tables", csv),
        ("datasets", "data", lambda folder: data.hub(folder, client="c", features="x", label="y")),
        ("datasets", "data", lambda folder: data.partition(np.zeros((1, 1)), np.zeros(1), None)),
        ("flax", "networks", fresh("fedpd.problems.adapters.nnx")),
        ("torch", "torch", fresh("fedpd.problems.adapters.torch")),
        ("flax.linen", "networks", fresh("fedpd.problems.networks")),
        ("flwr", "flower", fresh("fedpd.flower")),
        ("torch", "torch", fresh("fedpd.flower.torch")),
        ("torch", "torch", fresh("fedpd.flower.torch_oracles")),
        ("tensorboard.summary", "log", loggers.tensorboard),
        ("mlflow", "log", lambda folder: loggers.mlflow()),
    ],
)
def test_the_sentence_names_the_package_and_the_line(
    package: str, name: str, use: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    top = package.partition(".")[0]
    sentence = rf'^[\w. ]+ needs {top}, which is not installed\. Run: pip install "fedpd\[{name}\]"$'
    with pytest.raises(MissingExtraError, match=sentence) as raised:
        use(tmp_path)
    assert isinstance(raised.value, FedpdError)
    assert isinstance(raised.value, ImportError), "so that try: import fedpd.flower, except ImportError works"


def test_an_experiment_file_with_a_network_says_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "flax.linen", None)
    for name in [name for name in sys.modules if name.startswith("fedpd.problems.networks")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(FedpdError, match=r'Run: pip install "fedpd\[networks\]"'):
        experiment.parse(NETWORK)


def test_a_broken_package_is_named_with_its_reason() -> None:
    sentence = r"x needs report, which cannot be imported \(no symbol\)\. Run: pip"
    with pytest.raises(MissingExtraError, match=sentence), extra("report", "x"):
        raise ImportError("no symbol")


def test_every_extra_is_one_that_pip_knows() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    sources = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    used = set(re.findall(r'with extra\("(\w+)"', sources))
    known = set(project["optional-dependencies"])
    assert used <= known
    (everything,) = project["optional-dependencies"]["all"]
    assert set(everything.removeprefix("fedpd[").removesuffix("]").split(",")) == known - {"all", "dev", "docs"}


def test_an_experiment_needs_no_extra(tmp_path: Path) -> None:
    hidden = ("datasets", "flax", "flwr", "mlflow", "pandas", "psutil", "pyarrow", "tensorboard", "torch")
    (tmp_path / "small.toml").write_text(QUADRATIC)
    program = (
        f"import sys; sys.modules.update(dict.fromkeys({hidden}));"
        "from fedpd.cli import main; sys.argv = ['fedpd', 'run', 'small.toml', '--out', 'out']; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "comparison.png").exists()
    assert (tmp_path / "out" / "history.parquet").exists()


def test_a_warning_names_the_line_outside_of_fedpd() -> None:
    problem = problems.random_quadratic(agents=2, dimension=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        warnings.filterwarnings("ignore", message="Error reading persistent compilation cache entry")  # of JAX
        simulate(algorithms.fedpd(eta=90.0, oracle=oracles.gd(0.01, 1)), problem, rounds=1, progress=False)
        algorithms.fedpd(eta=90.0, oracle=oracles.gd(0.01, 1), absent="naive")
    assert [Path(one.filename).name for one in caught] == ["test_errors.py"] * 2
    assert caught[0].category is TheoryWarning
