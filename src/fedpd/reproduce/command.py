"""The work of `fedpd reproduce`: run the items of the paper, judge each, and write the results.

DIR/reproduction.json    every check and verdict of all items that were run in DIR
DIR/reproduction.md      the same as a page with the figures
"""

import json
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

from fedpd import __version__
from fedpd.base.atomic import make_folder, replace_file
from fedpd.base.checks import FedpdError, choice
from fedpd.base.progress import StepFunction
from fedpd.report.tables import markdown_table, text_table
from fedpd.reproduce import better, figure_2, formulas, handwriting, theorems
from fedpd.reproduce.session import Check, Findings, Outcome, Rows, Session, Verdict, judge


class Item(NamedTuple):
    """A figure, table or claim of the paper."""

    title: str  # a description of the item
    run: Callable[[Session], Findings]  # the function that measures it


ITEMS: dict[str, Item] = {  # in the order of the paper; figures have the numbers of the journal version
    "table1": Item("communications against epsilon, by method", theorems.table_1),
    "fig1": Item("communications that may be skipped, against epsilon/delta^2", formulas.figure_1),
    "claim2.1": Item("no method needs fewer communications than 1/epsilon", theorems.claim_1),
    "claim2.2": Item("FedAvg with a constant step may diverge", theorems.claim_2),
    "theorem1": Item("the guarantees of FedPD with Oracle I", theorems.theorem_1),
    "table2": Item("skip probability, linear and logarithmic", formulas.table_2),
    "fig2a": Item("stationarity against communications, weakly non-iid", figure_2.figure_2a),
    "fig2b": Item("stationarity against communications, strongly non-iid", figure_2.figure_2b),
    "fig2c": Item("stationarity against samples, weakly non-iid (appendix)", figure_2.weak_panel),
    "fig2d": Item("stationarity against samples, strongly non-iid (appendix)", figure_2.strong_panel),
    "fig3a": Item("characters by writer: accuracy against samples", handwriting.figure_3a),
    "fig3b": Item("characters by writer: accuracy with skipped communications", handwriting.figure_3b),
    "fig4": Item(
        "characters by writer: training, stochastic solvers",
        partial(handwriting.stochastic, measure="train_accuracy", ends=".92, .96, .96, .95 and .93"),
    ),
    "fig5": Item(
        "characters by writer: test, stochastic solvers",
        partial(handwriting.stochastic, measure="test_accuracy", ends=".86, .87, .89, .87 and .87"),
    ),
    "theorem3": Item("the guarantees of FedPD with Oracle II", theorems.theorem_3),
    "remarks": Item("wrong remarks and constants in the text", formulas.remarks),
    "better": Item("beyond the paper: every method with its best step size", better.better),
}


RESULTS = "reproduction.json"


class Reproduction(NamedTuple):
    """The result of one item."""

    name: str  # its name on the command line
    title: str  # a description of the item
    verdict: Verdict  # whether it was reproduced
    scale: str  # the size of the runs, if it differs from the paper's
    seconds: float  # the wall time in seconds
    checks: list[Check]  # the comparisons that the verdict follows from
    table: Rows = ()  # more numbers, headings first
    against: str = "published"  # what the checks compare with: "published", or "expected" if nothing was published


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
        began = time.monotonic()
        checks, scale, figure, table, against, _ = ITEMS[name].run(session)
        if figure is not None:
            figure.savefig(out / f"{name}.png", dpi=150)
        verdict, seconds = judge(checks, against), time.monotonic() - began
        found.append(Reproduction(name, ITEMS[name].title, verdict, scale, seconds, list(checks), table, against))
        save(out, found[-1])
    return found


def save(out: Path, one: Reproduction) -> None:
    """Add an item to the results in this folder."""
    stored = {item.name: item for item in load(out)} | {one.name: one}
    ordered = [stored[name] for name in ITEMS if name in stored]
    plain = [item._asdict() | {"checks": [check._asdict() for check in item.checks]} for item in ordered]
    with replace_file(out / RESULTS) as file:
        file.write(json.dumps({"fedpd": __version__, "items": plain}, indent=1).encode())
    with replace_file(out / "reproduction.md") as file:
        file.write(markdown(ordered, out).encode())


def load(out: Path) -> list[Reproduction]:
    """Read the items that were run in a folder."""
    path = out / RESULTS
    if not path.exists():
        return []
    try:
        items = json.loads(path.read_text(encoding="utf-8"))["items"]
        for item in items:
            item["checks"] = [Check(**(one | {"outcome": Outcome(one["outcome"])})) for one in item["checks"]]
        return [Reproduction(**(item | {"verdict": Verdict(item["verdict"])})) for item in items]
    except (ValueError, KeyError, TypeError) as error:
        raise FedpdError(
            f"{path}: is not a file of fedpd reproduce ({error}). Remove it, or give another --out."
        ) from None


def listing() -> Table:
    """Return a table of all items."""
    rows = [(name, item.title) for name, item in ITEMS.items()]
    return text_table("What can be reproduced", ("item", "what"), rows, whole=("item",))


STYLES = {
    Verdict.REPRODUCED: "green",
    Verdict.EXPECTED: "green",
    Verdict.CORRECTED: "yellow",
    Verdict.WRONG: "dark_orange",
    Verdict.NOT: "red",
    Verdict.SKIPPED: "dim",
    Outcome.AGREES: "green",
    Outcome.CORRECTED: "yellow",
    Outcome.DIFFERS: "red",
}
RULES = """A check *agrees* if the printed statement holds, is *corrected* if only a stated correction of it holds, and
*differs* if neither holds. An item is reproduced if all its checks agree, and not reproduced if one differs. Otherwise
it is reproduced with a correction, or, if no check agrees, wrong as printed and holds as corrected. A curve counts as
the published one if it is within a factor of 3 of every value."""


def verdict_table(items: Sequence[Reproduction]) -> Table:
    """Return a table with one row per item."""
    numbers = (*map(str, Outcome), "time")
    rows: list[Sequence[str | Text]] = []
    for item in items:
        counts = [str(sum(check.outcome == outcome for check in item.checks)) for outcome in Outcome]
        verdict = Text(item.verdict, STYLES[item.verdict])
        rows.append((item.name, item.title, verdict, *counts, f"{item.seconds:.0f} s"))
    headings = ("item", "what", "verdict", *numbers)
    return text_table("The paper, measured", headings, rows, right=numbers, whole=("item", *numbers))


def checks_table(item: Reproduction) -> Table:
    """Return a table with one row per check of an item."""
    rows = [
        (Text(check.what), Text(check.published), Text(check.measured), Text(check.outcome, STYLES[check.outcome]))
        for check in item.checks
    ]
    headings = ("check", item.against, "measured", "")
    return text_table(f"{item.name}: {item.title}", headings, rows, caption=item.scale or None)


def markdown(items: Sequence[Reproduction], folder: Path) -> str:
    """Return Markdown with all verdicts, then each item with its checks, reasons and figure."""
    listed = [(f"[{item.name}](#{item.name.replace('.', '')})", item.title, item.verdict) for item in items]
    parts = [f"# The paper, reproduced\n\n{RULES}\n", markdown_table(("item", "what", "verdict"), listed)]
    for item in items:
        parts.append(f"## {item.name}\n\n{_sentence(item.title)} **{_sentence(item.verdict)}**\n")
        parts += [f"Scale: {item.scale}.\n"] if item.scale else []
        before = ["", *(check.why for check in item.checks)]
        checks = [
            check._replace(why="as above") if check.why and check.why == last else check
            for check, last in zip(item.checks, before, strict=False)
        ]
        parts.append(markdown_table(("check", item.against, "measured", "outcome", "why"), checks))
        parts += [markdown_table(item.table[0], item.table[1:])] if item.table else []
        if (folder / f"{item.name}.png").exists():
            parts.append(f"![{item.title}]({item.name}.png)\n")
    return "\n".join(parts)


def rows_table(item: Reproduction) -> Table:
    """Return the further numbers of an item as a table."""
    (first, *others), *rows = item.table
    texts = [tuple(map(Text, row)) for row in rows]
    return text_table(f"{item.name}: {item.title}", (first, *others), texts, right=others, whole=(first,))


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."
