"""Import paths of fedpd 0.1 still work, and importing fedpd does not change other libraries."""

import subprocess
import sys
from importlib import import_module

import pytest

from fedpd._moved import MOVED


@pytest.mark.parametrize(("old", "new"), MOVED.items())
def test_an_old_path_gives_the_same_objects_and_a_warning(old: str, new: str) -> None:
    sys.modules.pop(f"fedpd.{old}", None)
    with pytest.warns(DeprecationWarning, match=rf"fedpd\.{old} is now fedpd\.{new}"):
        moved = import_module(f"fedpd.{old}")
    names = [name for name in vars(import_module(f"fedpd.{new}")) if not name.startswith("_")]
    assert all(getattr(moved, name) is getattr(import_module(f"fedpd.{new}"), name) for name in names)


@pytest.mark.parametrize("name", ["simulate", "sweep", "tune", "advise"])
def test_a_function_of_the_package_is_no_module(name: str) -> None:
    with pytest.raises(ModuleNotFoundError):
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
