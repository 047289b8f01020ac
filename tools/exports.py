"""Write or check the block of `algorithms/__init__.py` that lists the methods for type checkers and editors.

At run time the package finds its methods by itself. `make format` rewrites the block, `make lint` checks it.
"""

import sys
from pathlib import Path

INIT = Path(__file__).parents[1] / "src/fedpd/algorithms/__init__.py"
BEGIN = "if TYPE_CHECKING:  # written by make format, for editors; the loop below imports the methods at run time\n"
END = "\n__all__"


def main() -> int:
    text = INIT.read_text(encoding="utf-8")
    names = sorted(path.stem for path in INIT.parent.glob("*.py") if not path.stem.startswith("_"))
    block = "".join(f"    from fedpd.algorithms.{name} import {name} as {name}\n" for name in names)
    head, _, rest = text.partition(BEGIN)
    wanted = head + BEGIN + block + END + rest.partition(END)[2]
    if wanted == text:
        return 0
    if "--check" in sys.argv:
        print(f"{INIT}: the list of methods for type checkers is out of date. Run make format.")
        return 1
    INIT.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
