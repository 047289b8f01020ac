"""Old import paths of fedpd 0.1. They work, with a DeprecationWarning, until version 0.3."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType

MOVED = {
    "agents": "core.agents",
    "atomic": "base.atomic",
    "checkpoint": "base.checkpoint",
    "costs": "engine.costs",
    "deploy": "cli.deploy",
    "execution": "engine.execution",
    "experiment": "experiments.experiment",
    "flower.agent": "flower.method.agent",
    "flower.app": "flower.method.app",
    "flower.certificates": "flower.local.certificates",
    "flower.client": "flower.clients.client",
    "flower.federation": "flower.method.federation",
    "flower.inprocess": "flower.carry.inprocess",
    "flower.new_app": "flower.local.new_app",
    "flower.programs": "flower.local.programs",
    "flower.roll": "flower.carry.directory",
    "flower.settings": "flower.method.settings",
    "flower.strategy": "flower.method.strategy",
    "history": "engine.history",
    "metrics": "engine.metrics",
    "participation": "engine.participation",
    "precision": "base.precision",
    "progress": "base.progress",
    "rounds": "engine.rounds",
    "runner": "experiments.runner",
    "sampling": "core.sampling",
    "statistics": "core.statistics",
    "versions": "base.versions",
}


class _Moved(MetaPathFinder, Loader):
    """Finds a module by its old name and returns a module that reads everything from the new one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, name = fullname.partition(".")
        return spec_from_loader(fullname, self) if package == "fedpd" and name in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        new = f"fedpd.{MOVED[module.__name__.partition('.')[2]]}"
        warnings.warn(f"{module.__name__} is now {new}; change the import.", DeprecationWarning, stacklevel=6)
        module.__dict__["__getattr__"] = lambda name: getattr(import_module(new), name)


def install() -> None:
    """Make Python look for moved modules after it has searched everywhere else."""
    if not any(isinstance(finder, _Moved) for finder in sys.meta_path):
        sys.meta_path.append(_Moved())
