"""Names that are imported when they are first used: Python finds them in the list for type checkers."""

import subprocess
import sys
from pathlib import Path

import pytest

INIT = """
from typing import TYPE_CHECKING
from fedpd.base.lazy import lazy_names
if TYPE_CHECKING:
    from lazy_house.rooms import Room as Room, door as door
    from lazy_house import rooms as rooms
__getattr__, __dir__, __all__ = lazy_names(__name__, submodules=("cellar",))
"""
PROGRAM = """
import sys, lazy_house
right = {"Room", "cellar"} <= set(dir(lazy_house)) and lazy_house.__all__ == ["Room", "door", "rooms"]
right &= "lazy_house.rooms" not in sys.modules
right &= lazy_house.door == 1 and lazy_house.Room is lazy_house.rooms.Room
right &= lazy_house.cellar.__name__ == "lazy_house.cellar" and not hasattr(lazy_house, "attic")
sys.exit(not right)
"""


@pytest.mark.parametrize("options", [[], ["-OO"]], ids=["plain", "without docstrings"])
def test_the_list_for_type_checkers_is_the_only_one(tmp_path: Path, options: list[str]) -> None:
    house = tmp_path / "lazy_house"
    house.mkdir()
    (house / "__init__.py").write_text(INIT, encoding="utf-8")
    (house / "rooms.py").write_text("class Room: ...\ndoor = 1", encoding="utf-8")
    (house / "cellar.py").touch()
    subprocess.run([sys.executable, *options, "-c", PROGRAM], cwd=tmp_path, check=True)
