"""Tables become typed objects, or a sentence with the place, the value, the rule and the remedy."""

from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytest

from fedpd import FedpdError
from fedpd.flower.tables import read_table, read_toml


class Example(NamedTuple):
    host: str
    link_port: int = 8000
    share: float = 0.5
    also: tuple[str, ...] = ()
    on_timeout: Literal["fail", "stale"] = "fail"
    key: Path = Path("client.key")
    policy: Path | None = None
    cohort: int | None = None


def test_keys_have_dashes_and_paths_start_at_the_folder() -> None:
    given = {"host": "a", "link-port": 1, "share": 1, "also": ["b"], "policy": "p.toml", "cohort": 3}
    found = read_table(Example, given, folder=Path("/kit"))
    assert found == Example("a", 1, 1, ("b",), "fail", Path("/kit/client.key"), Path("/kit/p.toml"), 3)
    assert read_table(Example, {"host": "a", "policy": ""}).policy is None


def test_fields_that_are_given_are_no_keys() -> None:
    assert read_table(Example, {}, host="a") == Example("a")
    with pytest.raises(FedpdError, match="host = 'b': there is no such rule"):
        read_table(Example, {"host": "b"}, what="rule", host="a")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ([], "[x] = []: must be a table. Write name = value in it."),
        ({}, "[x]: host is missing. Add it."),
        ({"hosts": "a"}, "[x]: hosts = 'a': there is no such entry. Did you mean 'host'?"),
        ({"host": 1}, '[x]: host = 1: must be a text, not int. Write host = "...".'),
        ({"host": "a", "link-port": True}, "[x]: link-port = True: must be an integer, not bool. Write link-port = 1."),
        ({"host": "a", "cohort": "3"}, "[x]: cohort = '3': must be an integer, not str. Write cohort = 1."),
        ({"host": "a", "also": "b"}, "[x]: also = 'b': must be a list of texts, not str. Write also = [\"...\"]."),
        ({"host": "a", "key": 1}, '[x]: key = 1: must be a text, not int. Write key = "...".'),
        ({"host": "a", "on-timeout": "f"}, "[x]: on-timeout = 'f': there is no such choice. Choose from: fail, stale."),
    ],
)
def test_mistakes_are_sentences(table: Any, sentence: str) -> None:
    with pytest.raises(FedpdError) as caught:
        read_table(Example, table, "[x]")
    assert str(caught.value) == sentence


@pytest.mark.parametrize("text", ["a = ", "a = " + "[" * 10_000])
def test_a_file_that_is_no_toml(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(text)
    with pytest.raises(FedpdError, match=r"a\.toml: the rules cannot be read .*\. Repair it\.$"):
        read_toml(tmp_path / "a.toml", "Repair it", ": the rules")
