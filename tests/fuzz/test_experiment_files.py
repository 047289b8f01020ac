"""Experiment files of every kind with mistakes of every kind: each is refused with a sentence, or can run."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd.experiments import runner
from fedpd.experiments.experiment import parse

from .endings import SCALE, cases, command, ends_well
from .experiment_files import document, largest_number, texts, trees


def check(text: str) -> None:
    runner.check(parse(text))


@cases(30)
@given(texts())
def test_a_file_is_refused_or_every_method_can_be_traced(text: str) -> None:
    ends_well(check, text)


@cases(30)
@given(st.text(max_size=200) | st.binary(max_size=200).map(lambda content: content.decode(errors="replace")))
def test_any_text_is_refused(text: str) -> None:
    assert ends_well(parse, text) is None


@pytest.mark.skipif(SCALE == 1, reason="compiles every method; make fuzz runs it")
@cases(2)
@given(tree=trees())
def test_a_file_that_is_accepted_runs_and_is_reported(tree: dict, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("run")
    if largest_number(tree) > 1000:
        return  # it may ask for more rounds than a test has time for
    (folder / "x.toml").write_text(document(tree), errors="replace")
    ended = command("run", "x.toml", "--out", "out", folder=folder)
    assert {path.name for path in folder.iterdir()} <= {"x.toml", "out"}
    if ended.code == 0:
        assert command("report", "out", "--csv", folder=folder).code == 0
