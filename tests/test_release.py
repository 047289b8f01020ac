"""The files of a release agree with each other."""

import re
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement

import fedpd

ROOT = Path(__file__).parents[1]


def test_every_file_names_the_same_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## (\S+) - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert (citation["version"], citation["date-released"]) == newest.groups()
    assert fedpd.__version__ == newest[1]


def test_the_lock_file_has_every_package_within_its_bounds() -> None:
    """A bound that was changed without `make lock` shows here."""
    locked = dict(re.findall(r"^([\w.-]+)==([\w.]+)", (ROOT / "requirements-dev.lock").read_text(), re.MULTILINE))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["dev"], *extras["docs"]]
    for requirement in map(Requirement, asked):
        if requirement.name != "fedpd":
            assert locked[requirement.name] in requirement.specifier, requirement
