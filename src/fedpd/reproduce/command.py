"""The work of `fedpd reproduce`: run items, judge each, and write the results.

DIR/reproduction.json    every check and verdict of all items that were run in DIR
DIR/reproduction.md      the same as a page with the figures
"""

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from fedpd import __version__
from fedpd.base.atomic import make_folder, replace_file
from fedpd.base.checks import FedpdError, choice
from fedpd.base.progress import StepFunction
from fedpd.reproduce.items import ITEMS
from fedpd.reproduce.session import Rows, Session
from fedpd.reproduce.verdict import Check, Outcome, Verdict, judge
from fedpd.reproduce.written import markdown

RESULTS = "reproduction.json"


class Reproduction(NamedTuple):
    """The result of one item.

    Attributes:
        name: Its name on the command line.
        title: A description of the item.
        verdict: Whether it was reproduced.
        scale: The size of the runs, if it differs from the paper's.
        seconds: The wall time in seconds.
        checks: The comparisons that the verdict follows from.
        table: More numbers, headings first.
        against: What the checks compare with: "published", or "expected" if nothing was published.
    """

    name: str
    title: str
    verdict: Verdict
    scale: str
    seconds: float
    checks: list[Check]
    table: Rows = ()
    against: str = "published"


def wanted_items(names: Sequence[str]) -> list[str]:
    """Return the named items in the order of the paper; all of them if none is named."""
    for name in names:
        choice("ITEM", name, ITEMS)
    return [name for name in ITEMS if not names or name in names]


def reproduce(
    names: Sequence[str] = (),
    *,
    out: Path = Path("runs/reproduce"),
    data: Path | None = None,
    on_progress: StepFunction | None = None,
) -> list[Reproduction]:
    """Run items and write the results. Existing results are kept and continued.

    Args:
        names: Names of `ITEMS`; none means all.
        out: The folder for results and runs.
        data: FEMNIST as LEAF makes it, or Parquet with a column `writer`, for Figures 3 to 5.
        on_progress: Called with the name of the current step, the rounds done, and the rounds in total.

    Raises:
        FedpdError: If there is no such item or no such data.
    """
    chosen = wanted_items(names)
    if data is not None and not data.exists():
        raise FedpdError(f"--data {data}: there is no such file. Give LEAF's folder or json, or a Parquet file.")
    make_folder(out)
    session = Session(out, on_progress or (lambda what, done, total: None), data)
    found = []
    for name in chosen:
        found.append(_one(name, session))
        save(out, found[-1])
    return found


def _one(name: str, session: Session) -> Reproduction:
    began = time.monotonic()
    findings = ITEMS[name].run(session)
    if findings.figure is not None:
        findings.figure.savefig(session.folder / f"{name}.png", dpi=150)
    verdict = judge(findings.checks, findings.against)
    return Reproduction(
        name,
        ITEMS[name].title,
        verdict,
        findings.scale,
        time.monotonic() - began,
        list(findings.checks),
        findings.table,
        findings.against,
    )


def save(out: Path, one: Reproduction) -> None:
    """Add an item to the results in this folder."""
    stored = {item.name: item for item in load(out)} | {one.name: one}
    ordered = [stored[name] for name in ITEMS if name in stored]
    with replace_file(out / RESULTS) as file:
        file.write(json.dumps({"fedpd": __version__, "items": [_plain(item) for item in ordered]}, indent=1).encode())
    with replace_file(out / "reproduction.md") as file:
        file.write(markdown(ordered, out).encode())


def load(out: Path) -> list[Reproduction]:
    """Read the items that were run in a folder."""
    path = out / RESULTS
    if not path.exists():
        return []
    try:
        items = json.loads(path.read_text(encoding="utf-8"))["items"]
        return [_reproduction(item) for item in items]
    except (ValueError, KeyError, TypeError) as error:
        raise FedpdError(
            f"{path}: is not a file of fedpd reproduce ({error}). Remove it, or give another --out."
        ) from None


def _plain(item: Reproduction) -> dict[str, Any]:
    return item._asdict() | {"checks": [check._asdict() for check in item.checks]}


def _reproduction(item: dict[str, Any]) -> Reproduction:
    checks = [Check(**(check | {"outcome": Outcome(check["outcome"])})) for check in item["checks"]]
    return Reproduction(**(item | {"verdict": Verdict(item["verdict"]), "checks": checks}))


def listing() -> Table:
    """Return a table of all items."""
    table = Table(title="What can be reproduced", title_justify="left")
    table.add_column("item", no_wrap=True)
    table.add_column("what")
    for name, item in ITEMS.items():
        table.add_row(name, item.title)
    return table
