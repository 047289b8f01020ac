"""The documentation holds together, and what it says in Python runs."""

import importlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

import fedpd
from fedpd import algorithms, data, oracles, problems
from fedpd.core.card import COMMON_PARAMETERS
from fedpd.report.tables import example_methods
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


@pytest.fixture(scope="module")
def hooks() -> Iterator[ModuleType]:
    """The module that fills in the pages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(DOCS / "_build"))
        yield importlib.import_module("hooks")


def by_hand(text: str) -> str:
    """Return a page without the parts that are made from the code."""
    return re.sub(r"^<!-- [a-z :]+ -->\n(?:(?!<!--).*\n)*<!-- end -->$", "", text, flags=re.MULTILINE)


def settings() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


def test_every_page_is_in_the_navigation_once(hooks: ModuleType) -> None:
    nav = settings()["nav"]
    hooks.add_methods(nav)
    assert sorted(nav_pages(nav)) == sorted(page.relative_to(DOCS).as_posix() for page in PAGES)


def test_pages_that_moved_lead_to_a_heading(hooks: ModuleType) -> None:
    for old, new in hooks.MOVED.items():
        target, _, heading = new.partition("#")
        assert not (DOCS / old).with_suffix(".md").exists()
        titles = re.findall(
            r"^## (.*)$", (DOCS / old).parent.joinpath(target).resolve().with_suffix(".md").read_text("utf-8"), re.M
        )
        assert heading in [title.lower().replace(" ", "-") for title in titles]


def test_the_card_of_the_site_has_the_size_that_networks_show(hooks: ModuleType) -> None:
    card = hooks.pictures.card()
    assert card.startswith(b"\x89PNG")
    assert (int.from_bytes(card[16:20]), int.from_bytes(card[20:24])) == (1200, 630)


@pytest.fixture(scope="module")
def notebooks(hooks: ModuleType) -> ModuleType:
    return hooks.notebooks


def test_every_notebook_is_in_the_gallery_and_in_the_navigation(notebooks: ModuleType) -> None:
    assert sorted(path.stem for path in (DOCS / "notebooks").iterdir() if path.suffix == ".py") == sorted(
        notebooks.NAMES
    )
    assert [page for entry in notebooks.navigation() for page in entry.values()] == [
        f"notebooks/{name}.md" for name in notebooks.NAMES
    ]
    assert notebooks.gallery().count("](notebooks/own_data.md)") == 2  # the title and the picture


def test_cells_of_a_notebook(notebooks: ModuleType) -> None:
    source = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\nx = 1  # one\n\n# %%\nx\n"
    assert notebooks.read_cells(source) == [("markdown", "# Title\n\ntext"), ("code", "x = 1  # one"), ("code", "x")]
    with pytest.raises(ValueError, match="the notebook starts with 'import os'"):
        notebooks.read_cells("import os\n" + source)


@pytest.mark.slow
def test_a_notebook_has_its_outputs_and_a_cell_that_fails_ends_the_build(notebooks: ModuleType, tmp_path: Path) -> None:
    errors = pytest.importorskip("nbclient").exceptions
    head = "# %% [markdown]\n# # Title\n#\n# text\n\n# %%\n"
    (tmp_path / "good.py").write_text(f"{head}print('one')\nprint('two')\n1 + 2\n", encoding="utf-8")
    done = notebooks.run("good", tmp_path)
    assert "```text\none\ntwo\n```\n\n```text\n3\n```" in done.page
    assert done.page.startswith("# Title\n\n[Download this notebook with its outputs](good.ipynb).\n\ntext")
    assert done.seconds > 0
    (tmp_path / "bad.py").write_text(f"{head}1 / 0\n", encoding="utf-8")
    with pytest.raises(errors.CellExecutionError, match="ZeroDivisionError"):
        notebooks.run("bad", tmp_path)


@pytest.mark.parametrize("page", ["README.md", "mkdocs.yml", "docs/reference/algorithms.md", "docs/_build/hooks.py"])
def test_no_list_of_methods_is_written_by_hand(page: str) -> None:
    text = by_hand((ROOT / page).read_text(encoding="utf-8"))
    assert [name for name in ("a_fedpd", "coop_sgd", "mpr_sgd", "pr_spider", "vrl_sgd") if name in text] == []


@pytest.mark.parametrize("name", algorithms.__all__)
def test_every_method_has_a_page(name: str) -> None:
    page = (DOCS / "methods" / f"{name}.md").read_text(encoding="utf-8")
    assert page.startswith(f"# {algorithms.cards()[name].title}\n\n<!-- paper -->\n")
    assert re.search(r"\n<!-- facts(: \d)? -->\n", page)
    assert page.count("$$") >= 2  # its equations


@pytest.mark.parametrize("name", algorithms.__all__)
def test_notes_are_ordinary_markdown(name: str) -> None:
    """Outside of equations and code, "<a" would be a tag and "[i][j]" a reference."""
    text = inspect.getdoc(importlib.import_module(f"fedpd.algorithms.{name}")) or ""
    paragraphs = [block for block in re.split(r"\n\s*\n", text) if not block.startswith("    ")]
    assert [block for block in paragraphs if re.search(r"<\w|\]\[", re.sub(r"`[^`]*`", "", block))] == []


def test_a_page_is_filled_in_from_the_card(hooks: ModuleType) -> None:
    page = hooks.fill_in((DOCS / "methods" / "fedprox.md").read_text(encoding="utf-8"), "fedprox")
    assert "Virginia Smith (2020): *Federated Optimization in Heterogeneous Networks*" in page
    assert "| `rho` | ρ ≥ 0, the weight of the proximal term; 0 is FedAvg | required |" in page
    assert "| FedProx | 1 | 1 | 1 | 1 | 8 | 8 n | yes |" in page
    assert "## What was checked" in page


def test_tables_that_are_made_from_the_code_are_in_the_files(hooks: ModuleType) -> None:
    """A strict build checks that they are current; here the quick ones."""
    for name in ("networks.md", "reference/algorithms.md", "reference/commands.md", "reference/data.md", "suite.md"):
        text = (DOCS / name).read_text(encoding="utf-8")
        assert hooks.written(text) == text, f"docs/{name} is not current. Run: make pages"
        assert re.search(r"^<!-- [a-z :]+ -->\n(?:(?!<!--).*\n){5,}<!-- end -->$", text, re.MULTILINE)


def test_a_parameter_without_words_fails_the_build(hooks: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = algorithms.cards()
    without = cards | {"feddane": cards["feddane"]._replace(parameters={})}
    monkeypatch.setattr(algorithms, "cards", lambda: without)
    with pytest.raises(fedpd.FedpdError, match="card of feddane has no words for 'mu'"):
        hooks.fill_in("<!-- facts -->", "feddane")


def test_every_parameter_of_a_method_has_words() -> None:
    for name, card in algorithms.cards().items():
        parameters = inspect.signature(getattr(algorithms, name)).parameters
        assert set(parameters) <= COMMON_PARAMETERS.keys() | card.parameters.keys(), name


def test_every_page_says_what_was_checked() -> None:
    for name in algorithms.__all__:
        _, _, said = (ROOT / f"docs/methods/{name}.md").read_text(encoding="utf-8").partition("## What was checked")
        assert re.findall(r"^- \*\*(\w+)\.\*\* \S", said, re.MULTILINE) == ["Reference", "Guarantees", "Equations"], (
            name
        )


def test_a_strict_build_fails_on_a_dead_anchor() -> None:
    """Mkdocs counts warnings only if it may log them: with --quiet, --strict finds nothing."""
    validation = settings()["validation"]
    assert validation["links"]["anchors"] == validation["links"]["not_found"] == "warn"
    (command,) = re.findall(r"^\t.*mkdocs build.*$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert "--strict" in command
    assert "--quiet" not in command


def test_outcomes_of_the_reproduction_are_marked(hooks: ModuleType) -> None:
    marked = hooks.mark_outcomes("<td>agrees</td><td>wrong as printed, holds as corrected</td><td>3.1, 2</td>")
    assert '<td class="outcome agrees">agrees</td>' in marked
    assert '<td class="outcome wrong">wrong as printed' in marked
    assert "<td>3.1, 2</td>" in marked


def test_examples_have_the_heading_that_mkdocstrings_knows() -> None:
    """Under "Example:" it would take ">>>" for a quotation."""
    sources = (ROOT / "src").rglob("*.py")
    assert [
        path for path in sources if re.search(r"^ *Example:$", path.read_text(encoding="utf-8"), re.MULTILINE)
    ] == []


LABEL = re.compile(r"\b(?:eq|th|le|as|iid|cl|re):\w|\bth_comm_")


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_label_of_the_papers_source_is_shown(page: Path) -> None:
    assert LABEL.findall(page.read_text(encoding="utf-8")) == []


def test_the_work_of_a_round_is_counted(hooks: ModuleType) -> None:
    methods, measure_work = dict(example_methods()), hooks.method_pages.measure_work
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


@pytest.mark.parametrize("module", ["fedpd", "fedpd.data", "fedpd.flower", "fedpd.problems", "fedpd.report"])
def test_the_reference_lists_every_public_function_and_class(module: str, hooks: ModuleType) -> None:
    pages = "\n".join(
        hooks.fill_in(page.read_text(encoding="utf-8"), page.stem) for page in sorted((DOCS / "reference").glob("*.md"))
    )
    listed = {name.rpartition(".")[2] for name in re.findall(r"^::: ([\w.]+)", pages, re.MULTILINE)}
    listed |= {name for members in re.findall(r"members: \[([^\]]*)\]", pages) for name in members.split(", ")}
    home = importlib.import_module(module)
    defined = {name for name in home.__all__ if getattr(getattr(home, name), "__module__", "").startswith("fedpd")}
    assert len(defined) >= 5  # constants and modules are left out
    assert sorted(defined - listed) == []


def blocks(page: Path, language: str = "python") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_python_in_the_documentation_is_python(page: Path) -> None:
    for block in blocks(page):
        compile(block, str(page), "exec")


WIDEST = 95  # columns of code that the site shows without a scroll bar


@pytest.mark.parametrize("page", [ROOT / "README.md", *PAGES], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_code_fits_its_column(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    indented = [re.sub(r"^    ", "", one, flags=re.MULTILINE) for one in re.findall(r"(?<=\n\n)((?:    .*\n)+)", text)]
    lines = "".join([*blocks(page, r"\w*"), *indented]).splitlines()
    assert [line for line in lines if len(line) > WIDEST] == []


def test_the_examples_of_docstrings_fit_their_column() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    lines = [line for text in texts for line in re.findall(r"^ *((?:>>>|\.\.\.) .*)$", text, re.MULTILINE)]
    assert len(lines) > 200
    assert [line for line in lines if len(line) > WIDEST] == []


def test_the_readme_has_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_the_readmes_ten_lines_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (block,) = blocks(ROOT / "README.md")
    assert len(block.strip().splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(block, names)
    assert names["run"].history["stationarity"][-1] <= 1e-10
    assert capsys.readouterr().out == "5 communications\n"
    assert (tmp_path / "run.png").stat().st_size > 1000


# The first block of these pages is a whole program. Those that take seconds to compile run with the slow tests.
PROGRAMS = [
    "coupled.md",
    "data.md",
    "data/sources.md",
    "data/scaling.md",
    "data/weights.md",
    "theory/check.md",
    "theory/constants.md",
    "theory/rates.md",
    "theory/skipping_proofs.md",
    "theory/skipping_different.md",
    *(
        pytest.param(page, marks=pytest.mark.slow)
        for page in (
            "guide/personalisation.md",
            "networks.md",
            "networks/batch_norm.md",
            "networks/frozen.md",
            "networks/large.md",
            "networks/lora.md",
            "networks/modules.md",
            "networks/random_layers.md",
            "results.md",
            "search.md",
            "tasks.md",
            "theory/fedavg.md",
            "theory/lower_bound.md",
            "theory/skipping.md",
        )
    ),
]


@pytest.mark.parametrize("page", PROGRAMS)
def test_the_first_program_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if page == "networks/lora.md":
        pytest.importorskip("peft")
    monkeypatch.chdir(tmp_path)
    exec(blocks(DOCS / page)[0], {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_has_at_most_three_screens(page: Path) -> None:
    assert len(by_hand(page.read_text(encoding="utf-8")).splitlines()) <= 150


def test_five_minutes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "start.md"):
        exec(block, names)
    assert names["better"].history["stationarity"][20] < 1e-3 * names["run"].history["stationarity"][20]


@pytest.mark.slow
def test_the_programs_of_the_page_about_clocks_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "clock.md"):
        exec(block, names)
    seconds = [names[name].history["network_seconds"][-1] for name in ("asynchronous", "waiting")]
    assert seconds[0] < 0.7 * seconds[1]


@pytest.mark.slow
def test_the_programs_of_the_page_about_own_loops_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "own_loop.md"):
        exec(block, names)
    assert names["step"].message["w"].shape == (2,)


@pytest.mark.slow
def test_the_programs_of_the_page_about_hugging_face_run() -> None:
    pytest.importorskip("transformers")
    names: dict[str, Any] = {}
    for block in blocks(DOCS / "networks" / "tokens.md"):
        exec(block, names)
    assert np.isfinite(names["run"].history["perplexity"]).all()
    assert names["local"] is not None


def test_experiment_files_in_the_documentation_are_valid(tmp_path: Path) -> None:
    from fedpd.experiments.experiment import find_comparison, read_outline

    files = [block for page in PAGES for block in blocks(page, "toml") if "[run]" in block]
    assert files
    for text in files:
        if "[compare]" in text:
            (tmp_path / "file.toml").write_text(text)
            assert set(find_comparison(str(tmp_path / "file.toml")).compare) <= set(signature_of(fedpd.compare))
        else:
            assert read_outline(text).methods


def signature_of(function: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(function).parameters)


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


def test_the_skeleton_is_short() -> None:
    """At most 40 lines of code, without docstrings and comments."""
    code = re.sub(r'""".*?"""', "", (GUIDE / "skeleton.py").read_text(encoding="utf-8"), flags=re.DOTALL)
    lines = [line for line in code.splitlines() if line.strip() and not line.strip().startswith("#")]
    assert 20 < len(lines) <= 40


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


ADDED = """
import sys
from pathlib import Path
from typer.testing import CliRunner
from fedpd import cli

for command in (
    "methods --markdown",
    "compare --methods all --rounds 2 --out compared",
    "tune strong --methods FedAvgM --rounds 3 --target 0.5 --out tuned",
):
    result = CliRunner().invoke(cli.app, command.split())
    assert result.exit_code == 0, (command, result.output, result.exception)
    assert "FedAvgM" in result.output, command
assert 'name = "fedavgm"' in Path("compared/experiment.toml").read_text(encoding="utf-8")

import hooks

nav = [{"Methods": ["methods/index.md"]}]
hooks.add_methods(nav)
assert {"FedAvgM": "methods/fedavgm.md"} in nav[0]["Methods"][2]["Averaging"], nav
assert "[FedAvgM](fedavgm.md)" in hooks.fill_in("<!-- methods -->\\n<!-- end -->", "index")
assert "[FedAvgM](../methods/fedavgm.md)" in hooks.fill_in("<!-- method list -->\\n<!-- end -->", "algorithms")
page = hooks.fill_in(Path("docs/methods/fedavgm.md").read_text(encoding="utf-8"), "fedavgm")
for words in ("Matthew Brown (2019)", "::: fedpd.algorithms.fedavgm.fedavgm", "| `momentum` |", 'name = "fedavgm"'):
    assert words in page, words
"""


def test_a_method_is_its_file_and_its_page(tmp_path: Path) -> None:
    """The skeleton in a copy of the package is found by the commands and the documentation; FedAvg is its company."""
    copy = tmp_path / "fedpd"
    shutil.copytree(ROOT / "src" / "fedpd", copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name in set(algorithms.__all__) - {"fedavg"}:
        (copy / "algorithms" / f"{name}.py").unlink()
    shutil.copy(GUIDE / "skeleton.py", copy / "algorithms" / "fedavgm.py")
    (tmp_path / "docs" / "methods").mkdir(parents=True)
    page = "# FedAvgM\n\n<!-- paper -->\n\n$$v = \\mu v + \\bar x - x$$\n\n<!-- facts -->\n"
    (tmp_path / "docs" / "methods" / "fedavgm.md").write_text(page, encoding="utf-8")
    paths = os.pathsep.join(map(str, (tmp_path, DOCS / "_build")))
    environment = os.environ | {"PYTHONPATH": paths, "JAX_DISABLE_MOST_OPTIMIZATIONS": "1", "MPLBACKEND": "agg"}
    done = subprocess.run(
        [sys.executable, "-c", ADDED], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
