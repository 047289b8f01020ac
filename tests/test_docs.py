"""The documentation holds together, and what it says in Python runs."""

import importlib.util
import inspect
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

import fedpd
from fedpd import algorithms, data, oracles, problems
from fedpd.report.methods import example_methods, measure_work
from tests.algorithms import test_conformance as conformance
from tests.algorithms.test_conformance import Runs
from tests.algorithms.test_conformance import runs as runs  # a fixture

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
GUIDE = DOCS / "guide"


def nav_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from nav_pages(inner)


def test_every_page_is_in_the_nav_once() -> None:
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    assert sorted(nav_pages(nav)) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


@pytest.mark.parametrize("name", algorithms.__all__)
def test_every_method_has_a_page(name: str) -> None:
    page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert f"\n::: fedpd.algorithms.{name}.{name}\n" in page
    assert re.search(rf"\n<!-- facts: {name}(, \d)? -->\n", page)
    assert page.count("$$") >= 2  # its equations


def test_every_argument_of_a_method_is_explained() -> None:
    explained = runpy.run_path(str(DOCS / "_build" / "parameters.py"))
    found = {
        (name, key)
        for name in algorithms.__all__
        for key in inspect.signature(getattr(algorithms, name)).parameters
        if explained["parameters"](name)
    }
    assert set(explained["OF"]) <= found
    assert set(explained["EVERYWHERE"]) <= {key for _, key in found}


def test_the_work_of_a_round_is_counted() -> None:
    methods = dict(example_methods())
    assert str(measure_work(methods["FedPD-GD"])) == "8 n"
    assert str(measure_work(methods["FedPD-VR"])) == "0.05 n + 16"  # a full gradient in 20 rounds
    assert str(measure_work(methods["FedLin"])) == "9 n"
    assert str(measure_work(methods["MPR-SGD"])) == "8"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_relative_links_lead_somewhere(page: str) -> None:
    """`make docs` checks those within docs/."""
    links = re.findall(r"\]\(([^)#]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert len(links) >= 1
    assert [link for link in links if "://" not in link and not (ROOT / link).exists()] == []


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_in_the_documentation_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, str(page), "exec")


def test_the_readmes_ten_lines_run() -> None:
    (block,) = blocks(ROOT / "README.md")
    assert len(block.strip().splitlines()) <= 10
    names: dict[str, Any] = {}
    exec(block.replace("rounds=600", "rounds=60"), names)
    assert names["run"].history["stationarity"][-1] < 1e-4


def test_five_minutes_run() -> None:
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "start.md"):
        exec(block, names)
    assert names["better"].history["stationarity"][20] < 1e-3 * names["run"].history["stationarity"][20]


def test_experiment_files_in_the_documentation_are_valid() -> None:
    from fedpd.experiments.experiment import read_outline

    files = [block for page in PAGES for block in blocks(page, "toml") if "[run]" in block]
    assert files
    for text in files:
        assert read_outline(text).methods


@pytest.fixture(scope="module")
def fedavgm() -> Callable[..., fedpd.Algorithm]:
    spec = importlib.util.spec_from_file_location("skeleton", GUIDE / "skeleton.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.fedavgm


def test_the_skeleton_runs_as_the_guide_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(GUIDE))
    names: dict[str, Any] = {}
    for block in blocks(GUIDE / "add_a_method.md"):
        exec(block, names)
    sys.modules.pop("skeleton", None)
    history = names["run"].history["stationarity"]
    assert history[-1] < 1e-2 * history[0]


def test_the_skeleton_without_momentum_is_fedavg(fedavgm: Callable[..., fedpd.Algorithm]) -> None:
    oracle = oracles.gd(step=0.1, iterations=3)
    problem = problems.penalized_logistic(*data.weakly_noniid(agents=3, samples=5, dimension=2))
    mine, theirs = (
        fedpd.simulate(algorithm, problem, rounds=5).history["loss"]
        for algorithm in (fedavgm(momentum=0.0, oracle=oracle), algorithms.fedavg(oracle=oracle))
    )
    assert mine == pytest.approx(theirs, abs=1e-14)


CHECKS = (
    conformance.test_bad_hyper_parameters_are_refused_with_a_sentence,
    conformance.test_it_compiles_once,
    conformance.test_resume_equals_uninterrupted,
    conformance.test_agent_by_agent_with_serialised_messages_is_the_simulation,
    conformance.test_padding_and_pytrees_change_nothing,
    conformance.test_everyone_present_is_full_participation,
)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_skeleton_conforms(
    check: Callable[..., None],
    fedavgm: Callable[..., fedpd.Algorithm],
    runs: Runs,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = {"momentum": 0.5, "oracle": conformance.GD}
    row = conformance.Row(partial(fedavgm, **settings), bad=settings | {"momentum": 1})
    monkeypatch.setitem(conformance.ROWS, "skeleton", row)
    available = {"name": "skeleton", "runs": runs, "tmp_path": tmp_path}
    check(**{name: available[name] for name in inspect.signature(check).parameters})
