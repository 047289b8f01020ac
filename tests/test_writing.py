"""The documentation and the docstrings are free of phrases that are hard to read.

Most readers read English as a second language. `PHRASES` lists what they stumble over, each with what to write instead.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
COUNTED = (
    "rows?|columns?|values?|losses|labels|seconds|milliseconds|ms|bytes|samples|images|models?|messages?|exchanges?|"
    "communications?|evaluations?|gradients?|steps|entries|figures?|one"
)
UNITS = (
    "round|step|message|communication|quantity|agent|client|sample|batch|byte|method|item|seed|run|pass|process|class"
)


class Phrase(NamedTuple):
    """A phrase to avoid.

    Attributes:
        pattern: A regular expression. A space in it also matches a line break with the signs of a comment or a string.
        instead: What to write instead.
    """

    pattern: str
    instead: str


PHRASES = (
    Phrase(r"unlike", "'differ', or 'in contrast to'"),
    Phrase(r"alike", "'similar', 'equal' or 'differ'"),
    Phrase(r"(?:go|goes|going|gone|went) on with", "'resume' or 'continue'"),
    Phrase(r"whose an? \w+ (?:is|are|was)", "'which client a sample belongs to'"),
    Phrase(
        rf"(?:{COUNTED}) an? (?:{UNITS})(?! (?:has|have|had|keeps?|can|is|takes?|needs?))", "'per': 'one row per round'"
    ),
    Phrase(r"what of", "'which part of', or 'which ... apply'"),
    Phrase(r"(?-i:That) a run", "a sentence with a subject and a verb: 'Warns that no theorem covers this run.'"),
    Phrase(r"the (?:more|less)\b[^.;|]{1,90}? the (?:more|less)", "'X matters more when Y'"),
    Phrase(r"(?:is|are) answered with", "'the message names ...', with the one who does it"),
    Phrase(r"makes? up for", "what it does: 'saves', 'replaces'"),
    Phrase(r"between two looks", "'refresh interval'"),
    Phrase(r"if need be", "'if needed', or 'may'"),
)
NOT_A_SENTENCE = ("That", "What", "Whose")
INSTEAD_OF_A_NOUN = "'Return ...', or another sentence that says what it does or is"


def compiled(phrase: Phrase) -> re.Pattern[str]:
    """Return the pattern of a phrase: whole words, also over the end of a line or of a string."""
    return re.compile(r"\b" + phrase.pattern.replace(" ", r"[\s#\"']+") + r"\b", re.IGNORECASE)


PATTERNS = [(compiled(phrase), phrase.instead) for phrase in PHRASES]


def found_phrases(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the phrase and its replacement for every phrase to avoid in a text."""
    for pattern, instead in PATTERNS:
        for match in pattern.finditer(text):
            yield text.count("\n", 0, match.start()) + 1, " ".join(match[0].split()), instead


def found_docstrings(source: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the first words and the remedy for every docstring whose first line is no sentence."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            words = (ast.get_docstring(node) or "").split()
            if words and words[0] in NOT_A_SENTENCE:
                yield node.body[0].lineno, f'"""{" ".join(words[:4])} ...', INSTEAD_OF_A_NOUN


def pages() -> list[Path]:
    """Return the Markdown files that readers see."""
    return [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *sorted((ROOT / "docs").rglob("*.md")),
    ]


def programs() -> list[Path]:
    """Return the Python files whose docstrings, comments and messages readers see."""
    folders = ("src", "examples", "benchmarks", "docs", "tools")
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def complaints(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = [*found_phrases(text), *(found_docstrings(text) if path.suffix == ".py" else ())]
    place = path.relative_to(ROOT).as_posix()
    return [f"{place}:{line}: {phrase!r}. Write {instead}." for line, phrase, instead in sorted(found)]


@pytest.mark.parametrize("area", ["pages", "src", "examples", "benchmarks", "docs", "tools"])
def test_no_phrase_is_hard_to_read(area: str) -> None:
    paths = pages() if area == "pages" else [path for path in programs() if path.relative_to(ROOT).parts[0] == area]
    assert paths
    found = [complaint for path in paths for complaint in complaints(path)]
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("text", "phrase"),
    [
        ("Federated optimisation for data that is not alike", "alike"),
        ("measures how unlike the agents are", "unlike"),
        ("Go on with an interrupted run", "Go on with"),
        ("The column that says whose a sample is", "whose a sample is"),
        ("one column a quantity, one row a round", "column a quantity"),
        ("Milliseconds a round of FedPD", "Milliseconds a round"),
        ("two models a\n    # message", "models a # message"),
        ("says what of it is guaranteed", "what of"),
        ("That a run is outside of what is proved", "That a run"),
        ("the floor is the more in the way the\nmore exact the answer has to be", "the more in the way the more"),
        ("a wrong key is answered with its place", "is answered with"),
        ("Seconds between two looks", "between two looks"),
    ],
)
def test_a_phrase_of_the_list_is_found(text: str, phrase: str) -> None:
    assert phrase in [found for _, found, _ in found_phrases(text)]


@pytest.mark.parametrize(
    "text",
    [
        "one row per round, two models per message",
        "seconds a process has to end by itself",
        "the fewest samples of all methods; a round later",
        "Resume an interrupted run. It goes on after the last checkpoint.",
        "a client whose data differ",
        "the settings that a run needs",
    ],
)
def test_plain_english_is_let_through(text: str) -> None:
    assert list(found_phrases(text)) == []


def test_a_docstring_that_is_no_sentence_is_found() -> None:
    source = '"""Return this."""\n\n\nclass Divergence:\n    """That a run diverged, and when."""\n'
    assert [(line, words) for line, words, _ in found_docstrings(source)] == [(5, '"""That a run diverged, ...')]
