"""Write the blocks that tell type checkers and editors which names a package finds at run time.

`__init__.py` of `fedpd`, `fedpd/flower` and `fedpd/report` imports a name when it is first used, from the module that
`_HOMES` lists. `fedpd/algorithms/__init__.py` finds its methods by itself. `make format` rewrites the blocks, and
`make lint` checks them.
"""

import ast
import sys
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
BEGIN = "if TYPE_CHECKING:  # written by make format: what follows is found at run time\n"
END = "\n\n"
HOMES = "_HOMES"


def main() -> int:
    """Rewrite the blocks, or with `--check` return 1 if one of them is out of date."""
    out_of_date = []
    methods = sorted(path.stem for path in (SOURCE / "fedpd/algorithms").glob("*.py") if not path.stem.startswith("_"))
    found = {
        "fedpd": _homes("fedpd"),
        "fedpd/flower": _homes("fedpd/flower"),
        "fedpd/report": _homes("fedpd/report"),
        "fedpd/algorithms": {name: f"fedpd.algorithms.{name}" for name in methods},
    }
    for package, homes in found.items():
        path = SOURCE / package / "__init__.py"
        text = path.read_text(encoding="utf-8")
        head, _, rest = text.partition(BEGIN)
        wanted = f"{head}{BEGIN}{_block(package, homes)}\n{rest.partition(END)[2]}"
        if wanted == text:
            continue
        out_of_date.append(path)
        if "--check" not in sys.argv:
            path.write_text(wanted, encoding="utf-8")
    if "--check" not in sys.argv:
        return 0
    for path in out_of_date:
        print(f"{path}: the names for type checkers are out of date. Run make format.")
    return 1 if out_of_date else 0


def _homes(package: str) -> dict[str, str]:
    """Return the module of each name, as `_HOMES` of the package lists them."""
    tree = ast.parse((SOURCE / package / "__init__.py").read_text(encoding="utf-8"))
    assigned = [node for node in tree.body if isinstance(node, ast.Assign)]
    return ast.literal_eval(next(node.value for node in assigned if ast.unparse(node.targets[0]) == HOMES))


def _block(package: str, homes: Mapping[str, str]) -> str:
    """Return one import per name, sorted as ruff sorts them."""
    dotted = package.replace("/", ".")
    modules = {name for name, home in homes.items() if home == f"{dotted}.{name}" and package == "fedpd"}
    pairs = sorted((dotted if name in modules else home, name) for name, home in homes.items())
    return "".join(f"    from {home} import {name} as {name}\n" for home, name in pairs)


if __name__ == "__main__":
    sys.exit(main())
