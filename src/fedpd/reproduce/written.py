"""Write the results of a reproduction: tables for the terminal, and Markdown with the figures."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from fedpd.reproduce.session import Rows
from fedpd.reproduce.verdict import Outcome, Verdict

if TYPE_CHECKING:
    from fedpd.reproduce.command import Reproduction

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


def verdict_table(items: Sequence["Reproduction"]) -> Table:
    """Return a table with one row per item."""
    table = Table(title="The paper, measured", title_justify="left")
    table.add_column("item", no_wrap=True)
    table.add_column("what")
    table.add_column("verdict")
    for name in (*Outcome, "time"):
        table.add_column(str(name), justify="right", no_wrap=True)
    for item in items:
        counts = [sum(check.outcome == outcome for check in item.checks) for outcome in Outcome]
        verdict = Text(item.verdict, STYLES[item.verdict])
        table.add_row(item.name, item.title, verdict, *map(str, counts), f"{item.seconds:.0f} s")
    return table


def checks_table(item: "Reproduction") -> Table:
    """Return a table with one row per check of an item."""
    title = f"{item.name}: {item.title}"
    table = Table(title=title, caption=item.scale or None, title_justify="left", caption_justify="left")
    for name in ("check", item.against, "measured", ""):
        table.add_column(name)
    for check in item.checks:
        outcome = Text(check.outcome, STYLES[check.outcome])
        table.add_row(Text(check.what), Text(check.published), Text(check.measured), outcome)
    return table


def markdown(items: Sequence["Reproduction"], folder: Path) -> str:
    """Return Markdown with all verdicts, then each item with its checks, reasons and figure."""
    lines = ["# The paper, reproduced", "", RULES, "", "| item | what | verdict |", "| --- | --- | --- |"]
    lines += [f"| [{item.name}](#{_anchor(item.name)}) | {_cell(item.title)} | {item.verdict} |" for item in items]
    for item in items:
        lines += ["", f"## {item.name}", "", f"{_sentence(item.title)} **{_sentence(item.verdict)}**", ""]
        lines += [f"Scale: {item.scale}.", ""] if item.scale else []
        lines += [f"| check | {item.against} | measured | outcome | why |", "| --- | --- | --- | --- | --- |"]
        lines += [f"| {' | '.join(map(_cell, check))} |" for check in item.checks]
        lines += ["", *_markdown_rows(item.table)] if item.table else []
        if (folder / f"{item.name}.png").exists():
            lines += ["", f"![{item.title}]({item.name}.png)"]
    return "\n".join(lines) + "\n"


def rows_table(item: "Reproduction") -> Table:
    """Return the further numbers of an item as a table."""
    headings, *rows = item.table
    table = Table(title=f"{item.name}: {item.title}", title_justify="left")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=number == 0)
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _markdown_rows(rows: Rows) -> list[str]:
    headings, *rest = rows
    return [f"| {' | '.join(map(_cell, row))} |" for row in (headings, ["---"] * len(headings), *rest)]


def _sentence(words: str) -> str:
    return f"{words[0].upper()}{words[1:]}."


def _anchor(name: str) -> str:
    return name.replace(".", "")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
