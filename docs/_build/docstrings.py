"""Docstrings are written to be read in the source: this makes them Markdown.

Lists of arguments, `name: text` with aligned or indented continuations, become lists; examples become code; what
Markdown would take for markup in a formula (<a, b>) is escaped. Fields of a class get the comments beside them.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from griffe import Class, Extension, Function, Object

ITEM = re.compile(r"^(?P<name>[A-Za-z_]\w*(?:, \w+)*(?:\([^)]*\))?)(?::\s+| (?P<arrow>->) )(?P<text>.+)$")


class Readable(Extension):
    """For mkdocstrings."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            arguments = [parameter.name for parameter in obj.parameters] if isinstance(obj, Function) else []
            obj.docstring.value = markdown(obj.docstring.value, arguments)

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """The fields that the docstring does not list, with the comments beside them."""
        if cls.docstring is None or not isinstance(cls.filepath, Path):
            return
        source = cls.filepath.read_text(encoding="utf-8").splitlines()
        members = [member for member in cls.members.values() if member.is_attribute and member.is_public]
        fields = [member for member in members if member.lineno and "property" not in member.labels]
        unsaid = [field for field in fields if not re.search(rf"^{field.name}\b", cls.docstring.value, re.MULTILINE)]
        comments = {field: source[field.lineno - 1].partition("  # ")[2] for field in unsaid}
        lines = [f"- `{field.name}`: {_escape(text) or f'`{field.annotation}`'}" for field, text in comments.items()]
        if lines:
            cls.docstring.value += "\n\n" + "\n".join(lines)


def markdown(docstring: str, arguments: Sequence[str] = ()) -> str:
    return "\n\n".join(_block(block, arguments) for block in re.split(r"\n\s*\n", docstring.strip("\n")))


def _block(block: str, arguments: Sequence[str]) -> str:
    lines = block.split("\n")
    if all(line.startswith("    ") for line in lines):
        return "\n".join(["```text", *(line[4:] for line in lines), "```"])
    if lines[0].startswith(">>>"):
        return "\n".join(["```pycon", *lines, "```"])
    if lines[0].startswith(("- ", "1. ")):
        return _escape(block)
    first = ITEM.match(lines[0])
    if first and first["name"] in arguments and not any(line.startswith(" ") for line in lines):
        return _item(first) + " " + _escape(" ".join(lines[1:]))
    indented = next((i for i, line in enumerate(lines) if line.startswith("    ")), 0)
    if indented and not first:
        end = next((i for i in range(indented, len(lines)) if not lines[i].startswith("    ")), len(lines))
        parts = lines[:indented], lines[indented:end], lines[end:]
        return "\n\n".join(_block("\n".join(part), arguments) for part in parts if part)
    items = _items(lines)
    return _escape(block) if items is None else "\n".join(items)


def _items(lines: list[str]) -> list[str] | None:
    """The lines as a list, if that is what they are: each begins an item or, indented, goes on with one."""
    items: list[str] = []
    for line in lines:
        found = ITEM.match(line)
        if found:
            items.append(_item(found))
        elif line.startswith("  ") and items:
            items[-1] += " " + _escape(line.strip())
        else:
            return None
    return items if len(lines) > 1 else None


def _item(found: re.Match[str]) -> str:
    return f"- `{found['name']}`{' → ' if found['arrow'] else ': '}{_escape(found['text'])}"


def _escape(text: str) -> str:
    """Outside of `code`."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece if piece.startswith("`") else piece.replace("<", "&lt;").replace("[", "&#91;") for piece in pieces
    )
