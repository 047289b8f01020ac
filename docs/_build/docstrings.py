"""Docstrings are written to be read in the source: this makes them Markdown.

Lists of arguments, `name: text` with aligned or indented continuations, become lists; examples become code; what
Markdown would take for markup in a formula (<a, b>) is escaped. Indented blocks are code in Markdown as they are.
"""

import re
from typing import Any

from griffe import Extension, Object

ITEM = re.compile(r"^(?P<name>[A-Za-z_]\w*(?:, \w+)*(?:\([^)]*\))?(?: -> [^:]+?)?(?:; [^:]+)?)(?::\s+(?P<text>.+)|$)")


class Readable(Extension):
    """For mkdocstrings."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(docstring: str) -> str:
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", docstring.strip("\n")))


def _block(block: str) -> str:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```text", *(line[4:] for line in lines), "```"])
    if lines[0].startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if lines[0].startswith(("- ", "1. ")):
        return _escape(block)
    indented = next((i for i, line in enumerate(lines) if line.startswith("    ")), 0)
    if all(line.startswith("    ") for line in lines[indented:]) and indented and not ITEM.match(lines[0]):
        return _block("\n".join(lines[:indented])) + "\n\n" + _block("\n".join(lines[indented:]))
    items = _items(lines)
    return _escape(block) if items is None else "\n".join(items)


def _items(lines: list[str]) -> list[str] | None:
    """The lines as a list, if that is what they are: each begins an item or, indented, goes on with one."""
    items: list[str] = []
    for line in lines:
        found = ITEM.match(line)
        if found:
            text = found["text"]
            items.append(f"- `{found['name']}`" + (f": {_escape(text)}" if text else ""))
        elif line.startswith("  ") and items:
            items[-1] += " " + _escape(line.strip())
        else:
            return None
    return items if len(items) > 1 or len(lines) > 1 else None


def _escape(text: str) -> str:
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(piece if piece.startswith("`") else piece.replace("<", "&lt;").replace("[", "&#91;") for piece in pieces)
