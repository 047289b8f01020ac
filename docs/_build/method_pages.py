"""Write the parts of the documentation that describe methods, from their cards."""

import importlib
import inspect
import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

from work import ROUNDS, WorkPerRound, measure_work

from fedpd import algorithms
from fedpd.base.checks import FedpdError
from fedpd.core.card import COMMON_PARAMETERS, FAMILIES, Card, Variant
from fedpd.experiments.calls import table_of, toml_text
from fedpd.report.tables import METHOD_HEADINGS, Sizes, measure_sizes, method_rows

WIDEST = 95  # columns of code that the site shows without a scroll bar
ASSUMPTIONS = {
    "NC": "non-convex",
    "C": "convex",
    "SC": "strongly convex",
    "BG": "bounded gradients",
}


def navigation() -> list[dict[str, list[dict[str, str]]]]:
    """Return the entries of the navigation: the pages of all methods, by family."""
    cards = algorithms.cards()
    return [
        {
            family.capitalize(): [
                {card.title: f"methods/{name}.md"}
                for name, card in cards.items()
                if card.family == family
            ]
        }
        for family in FAMILIES
    ]


def list_methods() -> str:
    """Return a table of all methods: the function, its page, its family, its paper."""
    lines = ["| function | page | family | paper |", "| --- | --- | --- | --- |"]
    for name, card in algorithms.cards().items():
        page = f"[{card.title}](../methods/{name}.md)"
        paper = f"*{card.reference.title}* ({card.reference.year})"
        lines.append(f"| `algorithms.{name}` | {page} | {card.family} | {paper} |")
    return "\n".join(lines)


def compare_methods() -> str:
    """Return the table of `fedpd methods --wide`, with links to the methods' pages."""
    pages = {
        variant.label: name
        for name, card in algorithms.cards().items()
        for variant in card.variants
    }
    lines = [METHOD_HEADINGS, ["---"] * len(METHOD_HEADINGS)]
    lines += [[f"[{label}]({pages[label]}.md)", *map(_escape, row)] for label, *row in method_rows()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cite(name: str) -> str:
    """Return the reference of a method."""
    paper = _card(name).reference
    return f"{paper.authors} ({paper.year}): *{paper.title}*. {paper.venue}."


def describe(name: str, equations: int) -> str:
    """Return what follows the formulas on a method's page.

    Args:
        name: The method's function.
        equations: How many blocks of equations of the module's docstring the page has as formulas.
    """
    card = _card(name)
    parts = (_signature(name), _parameters(name), _costs(card), _theory(card), _settings(card))
    return "\n\n".join([*parts, _notes(name, equations), _see_also(name)]).rstrip()


def _card(name: str) -> Card:
    if name not in algorithms.cards():
        raise FedpdError(
            f"docs/methods/{name}.md: there is no method {name!r}. Name the page after its function."
        )
    return algorithms.cards()[name]


def _signature(name: str) -> str:
    options = "options: { heading: Parameters, toc_label: Parameters, heading_level: 2, show_docstring_description: false, show_docstring_parameters: false }"
    return f"::: fedpd.algorithms.{name}.{name}\n    {options}"


def _parameters(name: str) -> str:
    lines = ["| parameter | meaning | default |", "| --- | --- | --- |"]
    words = COMMON_PARAMETERS | dict(_card(name).parameters)
    parameters = inspect.signature(getattr(algorithms, name)).parameters
    for key in _card(name).parameters:
        if key not in parameters:
            raise FedpdError(
                f"The card of {name} describes {key!r}, which is no parameter of {name}. Remove it."
            )
    for key, parameter in parameters.items():
        if key not in words:
            raise FedpdError(
                f"The card of {name} has no words for {key!r}. Add them to its parameters."
            )
        lines.append(f"| `{key}` | {words[key]} | {_default(parameter.default)} |")
    return "\n".join(lines)


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"


@cache
def _measure(variant: Variant) -> tuple[Sizes, WorkPerRound]:
    algorithm = variant.rule(1.0, 2, 1.0)
    return measure_sizes(algorithm), measure_work(algorithm)


def _costs(card: Card) -> str:
    lines = [
        "## What it costs",
        "",
        "For one agent, in a round that communicates. Messages and state are in multiples of the model, samples are those "
        f"of an agent that has n of them; both are counted by running the method ({ROUNDS} rounds).",
        "",
        "| | sends | fetches | agent keeps | server keeps | local steps | samples | only models are sent |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for variant in card.variants:
        sizes, work = _measure(variant)
        sent = " | ".join(f"{size:g}" for size in sizes)
        only = "yes" if variant.only_models else "no"
        lines.append(f"| {variant.label} | {sent} | {work.updates:g} | {work} | {only} |")
    return "\n".join(lines)


def _theory(card: Card) -> str:
    lines = [
        "## What is assumed and proved",
        "",
        "Beyond L-smooth f_i; O(·) until ‖∇f‖² ≤ e, with M samples in all.",
        "",
        "| | assumes | rounds | local updates | samples |",
        "| --- | --- | --- | --- | --- |",
    ]
    for variant in card.variants:
        assumed, *orders = map(_escape, variant.guarantee)
        assumed = re.sub(r"\b(NC|SC|BG|C)\b", lambda found: ASSUMPTIONS[found[1]], assumed)
        lines.append(f"| {' | '.join([variant.label, assumed, *orders])} |")
    return "\n".join(lines)


def _settings(card: Card) -> str:
    tables = [
        {"label": one.label} | _rounded(table_of(one.rule(1.0, 100, 1.0).spec))
        for one in card.variants
    ]
    text = "\n\n".join(f"[[algorithm]]\n{_narrow(table)}" for table in tables)
    return (
        "## In an experiment file\n\n`fedpd compare --methods all` runs it like this if L = 1 and N = 100, by the method's own "
        f"rule: steps scale with 1/L, penalties with L.\n\n```toml\n{text}\n```"
    )


def _narrow(table: dict[str, Any]) -> str:
    """Return a table as TOML whose wide inner tables have a heading of their own, so that the site shows whole lines."""
    wide = [key for key, value in table.items() if len(toml_text({key: value})) > WIDEST]
    lines = [toml_text({key: value for key, value in table.items() if key not in wide})]
    return "\n\n".join([*lines, *(f"[algorithm.{key}]\n{toml_text(table[key])}" for key in wide)])


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _rounded(inner) for key, inner in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def _notes(name: str, equations: int) -> str:
    """Return the module's docstring after the equations that the page has as formulas."""
    blocks = re.split(
        r"\n\s*\n",
        inspect.cleandoc(importlib.import_module(f"fedpd.algorithms.{name}").__doc__ or ""),
    )
    formulas = [i for i, block in enumerate(blocks) if block.startswith("    ")]
    notes = "\n\n".join(blocks[formulas[equations - 1] + 1 if formulas else 1 :])
    return f"## Notes and differences from its paper\n\n{notes}\n\nThe source is `src/fedpd/algorithms/{name}.py`."


def _escape(text: str) -> str:
    return text.replace("|", "&#124;").replace("<", "&lt;")


def _see_also(name: str) -> str:
    """Return links to the other methods of the family and to the pages that compare them."""
    cards = algorithms.cards()
    family = cards[name].family
    others = [f"[{card.title}]({other}.md)" for other, card in cards.items() if card.family == family and other != name]
    lines = [
        "## See also",
        "",
        "- [Which method suits my problem?](../choose.md), [a fair comparison](../compare.md), [all methods](index.md)",
        f"- Other methods of the family *{family}*: {', '.join(others)}" if others else "",
    ]
    return "\n".join(lines).rstrip()
