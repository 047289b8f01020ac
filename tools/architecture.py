"""Print the numbers that measure the architecture, and fail if one exceeds its limit. `make lint` runs it.

To add a method (a metric, a loader), a developer must edit every file that lists them. A file counts as a list if it
names more than half of them. A file of tests counts only if it names all, because a test may use many methods and need
no further one. New files count too.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
MADE = re.compile(r"<!-- [\w ]+ -->\n.*?<!-- end -->", re.DOTALL)  # a part of a page that is made from the code
MAKERS = ("Column", "_accuracy")  # what makes a column in columns.py
IGNORE = re.compile(r"# type: ignore(?P<code>\[[\w, -]+\])?(?P<reason>\s+# \S.*)?")


class Number(NamedTuple):
    """A number, its limit, and the places that it counts.

    Attributes:
        words: A description of the number.
        value: The number.
        most: The limit.
        places: A text for each place.
    """

    words: str
    value: int
    most: int
    places: list[str]

    def show(self, every_place: bool) -> str:
        verdict = "" if self.value <= self.most else "  EXCEEDED"
        lines = [f"{self.value:5d}  (at most {self.most:3d})  {self.words}{verdict}"]
        return "\n".join(lines + [f"{'':24}{place}" for place in self.places if verdict or every_place])


def main() -> int:
    sources = read("src/*.py")
    numbers = [
        files_per_method(),
        files_per_metric(),
        files_per_loader(),
        fields_of("Exchange", "src/fedpd/core/method.py", most=10),  # six, and four that transforms read
        ignored_types(sources, most=6),
        ignored_without_reason(sources),
    ]
    print("\n".join(number.show("--places" in sys.argv) for number in numbers))
    return int(any(number.value > number.most for number in numbers))


def read(*patterns: str) -> dict[str, str]:
    """Return the text of the tracked files that match, by path."""
    listed = subprocess.run(["git", "ls-files", "-z", *patterns], cwd=ROOT, capture_output=True, text=True, check=True)
    paths = [path for path in listed.stdout.split("\0") if (ROOT / path).is_file()]
    return {path: (ROOT / path).read_text(encoding="utf-8") for path in paths}


def lists(files: dict[str, str], names: Iterable[str], form: str = r"\b{}\b") -> list[str]:
    """Return the files that list these names: all of them in a file of tests, more than half elsewhere."""
    patterns = [re.compile(form.format(re.escape(name))) for name in names]
    files = {path: MADE.sub("", text) for path, text in files.items()}
    found = {path: sum(bool(pattern.search(text)) for pattern in patterns) for path, text in files.items()}
    most = len(patterns)
    needed = {path: most if path.startswith("tests/") else most // 2 + 1 for path in found}
    return [f"{path} names {number} of {most}" for path, number in found.items() if number >= needed[path]]


def files_per_method() -> Number:
    """Count the method's own file, its page, and every list of methods, including the conformance suite."""
    folder = ROOT / "src/fedpd/algorithms"
    methods = sorted(path.stem for path in folder.glob("[!_]*.py"))
    places = lists(
        read("*.py", "*.md", "*.yml", "*.toml"), [name for name in methods if name != "fedpd"]
    )  # the package
    own = ["src/fedpd/algorithms/NAME.py", "docs/methods/NAME.md"]
    return Number("files to add a method", len(own + places), 4, own + places)


def files_per_metric() -> Number:
    """Count the files that list metrics, including the file that defines the columns."""
    columns = ROOT / "src/fedpd/engine/measure/columns.py"
    measured = [name for name, call in _columns(columns) if any(k.arg in ("measure", "merge") for k in call.keywords)]
    places = lists(read("*.py", "*.md"), measured, form=r"[\"'`]{}[\"'`]")
    return Number(f"files to add a metric (there are {len(measured)})", len(places), 2, places)


def _columns(path: Path) -> Iterable[tuple[str, ast.Call]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in MAKERS and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant):
                yield str(name.value), node


def files_per_loader() -> Number:
    """Count the loader's own file and every list of loaders."""
    package = (ROOT / "src/fedpd/data/__init__.py").read_text(encoding="utf-8")
    loaders = ast.literal_eval(package.partition("\nLOADERS = ")[2].partition("\n")[0])
    places = lists(read("src/*.py", "docs/reference/*.md", "mkdocs.yml"), loaders, form=r"\bdata\.{0}\b|[\"']{0}[\"']")
    own = ["src/fedpd/data/NAME.py"]
    return Number(f"files to add a data loader (there are {len(loaders)})", len(own + places), 2, own + places)


def _body(path: Path) -> list[ast.stmt]:
    return ast.parse(path.read_text(encoding="utf-8")).body


def fields_of(name: str, path: str, most: int) -> Number:
    (found,) = (node for node in _body(ROOT / path) if isinstance(node, ast.ClassDef) and node.name == name)
    fields = [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return Number(f"fields of {name}", len(fields), most, fields)


def ignored_types(sources: dict[str, str], most: int) -> Number:
    places = [place for place, _ in _ignores(sources)]
    return Number("`type: ignore` in src", len(places), most, places)


def ignored_without_reason(sources: dict[str, str]) -> Number:
    """Count the `type: ignore` without an error code in brackets or without a reason in a comment after it."""
    places = [place for place, found in _ignores(sources) if not (found["code"] and found["reason"])]
    return Number("`type: ignore` in src without a code or a reason behind it", len(places), 0, places)


def _ignores(sources: dict[str, str]) -> Iterable[tuple[str, re.Match[str]]]:
    for path, text in sources.items():
        for number, line in enumerate(text.splitlines(), 1):
            if found := IGNORE.search(line):
                yield f"{path}:{number}", found


if __name__ == "__main__":
    sys.exit(main())
