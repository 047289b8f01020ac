"""The cost of importing: which packages each use of fedpd loads, and the time beside the packages that it needs."""

import ast
import re
import subprocess
import sys
import time
import tomllib
from importlib import import_module
from pathlib import Path
from statistics import median

import pytest

import fedpd

ROOT = Path(__file__).parents[1]
EXTRAS = ("datasets", "flax", "flwr", "mlflow", "pandas", "pyarrow", "tensorboard", "torch")
HEAVY = ("arro3", "matplotlib", "rich", *EXTRAS)
SIMULATION = """
import fedpd
problem = fedpd.problems.random_quadratic(agents=2, dimension=2)
oracle = fedpd.oracles.gd(step=0.1, iterations=1)
fedpd.simulate(fedpd.algorithms.fedpd(eta=0.1, oracle=oracle), problem, rounds=1)
"""


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import fedpd; dir(fedpd)", ("jax", "numpy", *HEAVY)),
        ("import fedpd.cli", ("jax", "numpy", *HEAVY)),
        ("import fedpd\nfor name in fedpd.__all__: getattr(fedpd, name)", HEAVY),
        (
            "import fedpd.experiments.runner; from fedpd.report import comparison_table",
            ("arro3", "matplotlib", *EXTRAS),
        ),
        (SIMULATION, HEAVY),
    ],
)
def test_it_does_not_import_what_it_does_not_use(program: str, absent: tuple[str, ...]) -> None:
    check = f"{program}\nimport sys\nprint(*sorted(set({absent!r}) & sys.modules.keys()))"
    assert subprocess.check_output([sys.executable, "-c", check], text=True).split() == []


def seconds(program: str, *arguments: str) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", program, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def ratio(program: str, *arguments: str, than: str) -> float:
    """Return the time of a program in multiples of another's: the median of three ratios, taken in turns."""
    seconds(program, *arguments)  # the first time, Python may compile files
    return median(seconds(program, *arguments) / seconds(than) for _ in range(3))


@pytest.mark.slow
def test_importing_fedpd_takes_no_longer_than_what_it_needs() -> None:
    assert ratio("import fedpd", than="import jax, optax") <= 1.15


def test_the_help_comes_soon() -> None:
    assert ratio("from fedpd.cli import main; main()", "--help", than="import typer, rich") <= 2.5


def test_every_public_name_is_found() -> None:
    assert set(fedpd.__all__) <= set(dir(fedpd))
    for name in fedpd.__all__:
        assert getattr(fedpd, name) is not None
    names: dict[str, object] = {}
    exec("from fedpd import *", names)
    assert set(fedpd.__all__) <= names.keys()
    with pytest.raises(AttributeError, match="module 'fedpd' has no attribute 'simulat'"):
        fedpd.simulat  # noqa: B018


@pytest.mark.parametrize("name", ["simulate", "sweep", "tune", "advise"])
def test_a_function_of_the_package_is_no_module(name: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named 'fedpd.{name}'"):
        import_module(f"fedpd.{name}")


def test_importing_changes_neither_jax_nor_matplotlib() -> None:
    program = (
        "import jax, matplotlib; before = dict(jax.config.values); matplotlib.use('pdf');"
        "import fedpd, fedpd.report, fedpd.cli;"
        "changed = {k: v for k, v in jax.config.values.items() if before.get(k, v) != v};"
        "assert not changed, changed;"
        "assert matplotlib.get_backend() == 'pdf', matplotlib.get_backend()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


@pytest.mark.slow
@pytest.mark.parametrize(
    "first",
    [
        "fedpd.theory.smoothness(fedpd.problems.opposing_quadratics())",
        "fedpd.problems.network(fedpd.networks.MLP(62, (2,)), fedpd.data.characters(2, 4))",
        "p = fedpd.problems.opposing_quadratics();"
        "fedpd.simulate(fedpd.algorithms.fedavg(oracle=fedpd.oracles.gd(0.1, 1)), p, rounds=1)",
    ],
)
def test_the_cores_are_devices_once_fedpd_computes(first: str) -> None:
    program = (
        "import os; os.environ.pop('JAX_NUM_CPU_DEVICES', None);"
        f"import fedpd, fedpd.networks, jax; {first};"
        "assert len(jax.devices()) == os.cpu_count(), jax.devices()"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_without_extras_every_module_that_is_not_of_one_can_be_imported() -> None:
    """A dependency of a dependency may be gone in its next version: typer 0.29 does not need click any more."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    core = {re.split(r"[^\w-]", one)[0].split("-")[0] for one in project["dependencies"]} | {"fedpd", "tree_math"}
    of_extras = ("flower/", "problems/adapters/", "suite/networks.py")
    for path in (ROOT / "src" / "fedpd").rglob("*.py"):
        if path.relative_to(ROOT / "src" / "fedpd").as_posix().startswith(of_extras):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            named = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            named += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            outside = {name.split(".")[0] for name in named} - set(sys.stdlib_module_names) - core
            assert not outside, (path, outside)
