"""The place of Flower's programs, which is not always the folder of Python."""

import sysconfig
from pathlib import Path

import pytest

from fedpd.flower.warm import program


@pytest.mark.parametrize("scheme", ["scripts", "user"])
def test_flowers_programs_are_found_where_pip_installs_them(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with the Python of Debian, /usr/bin/python3, whose pip installs programs into /usr/local/bin."""
    folders = {name: tmp_path / name for name in ("python", "scripts", "user")}
    for folder in folders.values():
        folder.mkdir()
    monkeypatch.setattr(program.sys, "executable", str(folders["python"] / "python3"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _, user=None: str(folders["user" if user else "scripts"]))
    assert program.bin_folder() == folders["python"]
    (folders[scheme] / program.CLIENT).touch()
    assert program.bin_folder() == folders[scheme]
    (folders["python"] / program.CLIENT).touch()
    assert program.bin_folder() == folders["python"]
