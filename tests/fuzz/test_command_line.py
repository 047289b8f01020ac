"""Hostile command lines: each ends with exit code 0, 1 or 2, with a sentence, and without files elsewhere."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .endings import cases, command
from .hostile import NUMBERS, TEXTS

WORDS = [str(number)[:40] for number in NUMBERS] + [text for text in TEXTS if "\0" not in text]
PATHS = ["missing", "file.txt", "folder", "x.toml", "..", "/dev/null", "/proc/x", "~", "", "a" * 300, "missing.toml"]
OPTIONS = {
    "run": ("--out", "--overwrite", "--no"),
    "resume": (),
    "report": ("--out", "--target", "--figures", "--csv"),
    "watch": ("--once", "--every"),
    "advise": ("--epsilon", "--floor", "--pilot", "--out"),
    "tune": ("--target", "--rounds", "--methods", "--seeds", "--criterion", "--out"),
    "solve": ("--target", "--max-communications", "--out"),
    "compare": ("--rounds", "--data", "--seeds", "--methods", "--target", "--out"),
    "data": ("inspect", "--client", "--features", "--label", "--out"),
    "reproduce": ("--list", "--data"),
    "benchmark": ("--list",),
    "--version": (),
    "--debug": (),
}
# Hypothesis knows the texts of this file: a command after --debug would be a valid line that runs for minutes.
TEXT = st.text(max_size=5).filter(lambda text: "\0" not in text and text not in OPTIONS)
ARGUMENT = st.sampled_from(WORDS) | st.sampled_from(PATHS) | TEXT


@st.composite
def lines(draw: st.DrawFn) -> list[str]:
    """Return the words of a command. The problem of a search does not exist, so that the command ends soon."""
    name = draw(st.sampled_from(sorted(OPTIONS)))
    words = [name]
    if name in ("advise", "tune", "solve"):
        words.append(draw(st.sampled_from(["missing", "missing.toml", "file.txt", "stron", ""])))
    if name == "compare":
        words += ["--data", draw(st.sampled_from(["missing", "", "stron"]))]
    if name in ("reproduce", "benchmark"):
        words.append("--list")
    for _ in range(draw(st.integers(0, 3))):
        option = draw(st.sampled_from([*OPTIONS[name], None]))
        words += ([] if option is None else [option]) + draw(st.lists(ARGUMENT, max_size=1))
    return words


@cases(40)
@given(words=lines())
def test_a_command_ends_with_a_sentence(words: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    outside: Path = tmp_path_factory.mktemp("outside")
    folder = outside / "here"
    (folder / "folder").mkdir(parents=True)
    (folder / "file.txt").write_text("not an experiment")
    (folder / "x.toml").write_text('[problem]\nname = "nothing"\n[run]\nrounds = 1\n[[algorithm]]\nname = "fedpd"\n')
    command(*words, folder=folder)
    assert [path.name for path in outside.iterdir()] == ["here"]
    assert (folder / "file.txt").read_text() == "not an experiment"
