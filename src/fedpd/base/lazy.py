"""Names that are imported when they are first used, so that a program pays only for what it uses."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Any


def lazy_names(
    package: str, submodules: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return `__getattr__`, `__dir__` and `__all__` of a package whose names are imported when first used (PEP 562).

    The names are those that the module imports for type checkers, under `if TYPE_CHECKING:`: Python reads that list
    too, so there is no second one. They may be modules.

    Args:
        submodules: Modules of it that are attributes too, without being among its main names.
    """
    loader: Any = sys.modules[package].__loader__
    (block,) = (node for node in ast.parse(loader.get_source(package)).body if isinstance(node, ast.If))
    imports = [node for node in block.body if isinstance(node, ast.ImportFrom)]
    homes = {alias.name: str(node.module) for node in imports for alias in node.names}
    known = {**homes, **dict.fromkeys(submodules, package)}

    def find(name: str) -> Any:
        if name not in known:
            near = get_close_matches(name, known, n=1)
            meant = f". Did you mean {near[0]!r}?" if near and not name.startswith("_") else ""
            raise AttributeError(f"module {package!r} has no attribute {name!r}{meant}")
        home = known[name]  # the package itself if the name is a module: `from fedpd import data`
        is_module = home == package or not hasattr(import_module(home), name)
        value = import_module(f"{home}.{name}") if is_module else getattr(import_module(home), name)
        setattr(sys.modules[package], name, value)  # the next use finds it without this function
        return value

    return find, lambda: sorted({*vars(sys.modules[package]), *known}), sorted(homes)


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
