"""Names that are imported when they are first used, so that a program pays only for what it uses."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package whose names are imported when they are first used (PEP 562).

    Args:
        package: The name of the package.
        modules: The module of each name. The name of a submodule is mapped to that module itself.
    """

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = import_module(modules[name])
        value = module if modules[name] == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *modules})


class LazyMapping(Mapping[str, Any]):
    """Maps names to what a module defines under them, and imports the module when one of them is first looked up."""

    def __init__(self, module: str, names: Sequence[str]) -> None:
        self.module, self.names = module, tuple(names)

    def __getitem__(self, name: str) -> Any:
        if name not in self.names:
            raise KeyError(name)
        return getattr(import_module(self.module), name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        return name in self.names  # without an import
