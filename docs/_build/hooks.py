"""What the site reads off the code: the facts of a method's page, and the commands.

A page says where with a line `<!-- facts: NAME -->` or `<!-- commands -->`. `<!-- facts: NAME, 2 -->` says that it has
the first two blocks of equations of the method's docstring.
"""

import importlib
import inspect
import os
import re
import sys
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")  # most of the time is compilation
sys.path.insert(0, str(Path(__file__).parent))

from docstrings import markdown as docstring_markdown
from parameters import parameters

from fedpd import cli
from fedpd.experiments.defaults import method_tables, toml
from fedpd.report.methods import CLAIMS, ROUNDS, Claim, Sizes, Worked, example_methods, measure_sizes, measure_work

NAMES = {table["label"]: table["name"] for table in method_tables(1.0, 2)}
ASSUMPTIONS = {
    "NC": "non-convex",
    "C": "convex",
    "SC": "strongly convex",
    "BG": "bounded gradients",
}
SOURCE = "src/fedpd/algorithms/{}.py"


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    markdown = re.sub(r"<!-- facts: (\w+)(?:, (\d))? -->", lambda found: facts(found[1], int(found[2] or 1)), markdown)
    markdown = _display_formulas(markdown)
    if page.file.src_uri == "methods/index.md":
        for label, name in NAMES.items():
            markdown = markdown.replace(f"\n| {label} |", f"\n| [{label}]({name}.md) |")
    return markdown.replace("<!-- commands -->", commands()) if "<!-- commands -->" in markdown else markdown


def _display_formulas(markdown: str) -> str:
    """Displayed formulas inside of lists, as GitHub takes them, for Python-Markdown: paragraphs, indented by four."""
    lines: list[str] = []
    inside = formula = code = loose = False
    for line in markdown.split("\n"):
        code ^= line.lstrip().startswith("```")
        if code or not line.startswith("  "):
            inside = not code and bool(re.match(r"(\d+\.|-) ", line))
            lines += ["", line] if inside and loose else [line]
            loose = False
            continue
        if not inside:
            lines.append(line)
            continue
        text = line.strip()
        opens = text.startswith("$$") and not formula
        if opens:
            lines.append("")
            loose = True
        lines.append("    " + text)
        formula = (formula or opens) and not text.removeprefix("$$" if opens else "").endswith("$$")
        if text.endswith("$$") and not formula:
            lines.append("")
    return "\n".join(lines)


@cache
def measured() -> dict[str, tuple[str, Claim, Sizes, Worked]]:
    """By label."""
    methods = example_methods()
    return {label: (NAMES[label], CLAIMS[label], measure_sizes(a), measure_work(a)) for label, a in methods}


def facts(name: str, equations: int) -> str:
    rows = {label: row[1:] for label, row in measured().items() if row[0] == name}
    return "\n\n".join([parameters(name), _costs(rows), _theory(rows), _settings(name), _notes(name, equations)])


def _costs(rows: dict[str, Any]) -> str:
    lines = [
        "## What it costs",
        "",
        "An agent, in a round that communicates; messages and state in multiples of the model, samples on an agent with "
        f"n of them, as counted (the mean over the first {ROUNDS} rounds).",
        "",
        "| | sends | fetches | agent keeps | server keeps | local steps | samples | only models are sent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for label, (claim, sizes, work) in rows.items():
        sent = " | ".join(f"{size:g}" for size in sizes)
        lines.append(f"| {label} | {sent} | {work.updates:g} | {work} | {'yes' if claim.cta else 'no'} |")
    return "\n".join(lines)


def _theory(rows: dict[str, Any]) -> str:
    lines = [
        "## What its paper assumes and proves",
        "",
        "Beyond L-smooth f_i; O(·) until ‖∇f‖² ≤ e, of M samples in all.",
        "",
        "| | assumes | rounds | local updates | samples |",
        "| --- | --- | --- | --- | --- |",
    ]
    for label, (claim, *_) in rows.items():
        assumed = re.sub(r"\b(NC|SC|BG|C)\b", lambda found: ASSUMPTIONS[found[1]], claim.assumes)
        lines.append(f"| {label} | {assumed} | {claim.rounds} | {claim.updates} | {claim.samples} |")
    return "\n".join(lines)


def _settings(name: str) -> str:
    tables = [toml(_rounded(table)) for table in method_tables(1.0, 100) if table["name"] == name]
    text = "\n\n".join(f"[[algorithm]]\n{table}" for table in tables)
    return (
        "## In an experiment file\n\nAs `fedpd compare --methods all` would run it where L = 1 and N = 100, by the method's own "
        f"rule: steps scale with 1/L, penalties with L.\n\n```toml\n{text}\n```"
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _notes(name: str, equations: int) -> str:
    """The module's docstring after the equations, which the page has as formulas."""
    docstring = inspect.cleandoc(importlib.import_module(f"fedpd.algorithms.{name}").__doc__ or "")
    blocks = re.split(r"\n\s*\n", docstring)
    formulas = [i for i, block in enumerate(blocks) if block.startswith("    ")]
    first = formulas[equations - 1] if formulas else 0
    notes = docstring_markdown("\n\n".join(blocks[first + 1 :]))
    return f"## Notes and differences from its paper\n\n{notes}\n\nThe source is `{SOURCE.format(name)}`."


def commands() -> str:
    """The help of every command, as `fedpd COMMAND --help` has it."""
    import typer

    group = typer.main.get_command(cli.app)
    return "\n\n".join(_command("fedpd", command, name) for name, command in sorted(group.commands.items()))  # type: ignore[attr-defined]


def _command(parents: str, command: Any, name: str) -> str:
    if hasattr(command, "commands"):
        inner = sorted(command.commands.items())
        return "\n\n".join(_command(f"{parents} {name}", each, below) for below, each in inner)
    lines = [f"## {parents} {name}", "", _escape(command.help or ""), "", "| | | default |", "| --- | --- | --- |"]
    for parameter in command.params:
        if parameter.name == "help":
            continue
        if parameter.param_type_name == "argument":
            spelled = f"`{parameter.metavar or parameter.name.upper()}`"
        else:
            spelled = ", ".join(f"`{option}`" for option in parameter.opts)
        unsaid = parameter.default is None or callable(parameter.default) or parameter.default is False
        default = "required" if parameter.required else "" if unsaid else f"`{parameter.default}`"
        lines.append(f"| {spelled} | {_escape(getattr(parameter, 'help', None) or '')} | {default} |")
    return "\n".join(lines)


def _escape(text: str) -> str:
    return text.replace("<", "&lt;").replace("|", "&#124;")
