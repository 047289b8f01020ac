"""Experiment files that name the user's own code: what they run, who is told, and what a mistake is answered with."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.experiments import experiment, own_code, run_folder, runner
from fedpd.experiments.recorded import read
from fedpd.report import write_report
from fedpd.report.pages import rebuild

MODULE = """
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from fedpd import Column, Measure, algorithms, oracles, regularizers
from fedpd.core import Algorithm, makes
import {helper}

Path({mark!r}).write_text("imported")
FACTOR = 1.0
ROWS = []

def load(agents, shift=0.0):
    return np.random.default_rng(0).normal(shift, 1, (agents, 5, 2))

def losses(x, batch):
    return FACTOR * {helper}.half(batch - x)

def method(eta, rounds, **others):
    assert rounds == 6
    return algorithms.fedpd(eta=eta, oracle=oracles.gd(step=0.1, iterations=2), **others)

@makes()
def sealed(step):
    return algorithms.local_gd(step=step, iterations=int(2 * FACTOR))

def slow(iterations):
    return lambda r, q: 0.1 / (1 + r)

def half(r):
    return 0.5 + 0 * r

def wrong():
    return 1 / 0

def log(rows):
    ROWS.extend(rows)

def stop(round, model, row):
    return round == 4

largest = Column("largest", "largest loss", measure=Measure(agent=lambda view, x: (None, view.f.value(x))),
                 merge=lambda total, each, agents: each.max())
"""
HELPER = "def half(x):\n    return (x**2).sum(axis=1) / 2\n"
FILE = """
[problem]
name = "from_losses"
losses = "{m}:losses"
data = {{ name = "{m}:load", agents = 3 }}
start = [1.0, 2.0]

[run]
rounds = 6
checkpoint_every = 2
record = ["heterogeneity", "{m}:largest"]

[[algorithm]]
name = "{m}:method"
eta = 0.5
p = "{m}:half"

[[algorithm]]
label = "schedule"
name = "fedavg"
oracle = {{ name = "gd", step = {{ name = "{m}:slow" }}, iterations = 2 }}

[[algorithm]]
label = "sealed"
name = "{m}:sealed"
step = 0.1
"""
NUMBER = iter(range(1000))


class Place:
    """A folder with an experiment file and the modules that it names, under names that no other test has."""

    def __init__(self, folder: Path) -> None:
        number = next(NUMBER)
        self.folder, self.module, self.helper = folder, f"mine_{number}", f"helper_{number}"
        self.mark = folder / "imported.txt"
        self.write(MODULE.format(helper=self.helper, mark=str(self.mark)))
        (folder / f"{self.helper}.py").write_text(HELPER)
        self.file = folder / "own.toml"
        self.file.write_text(FILE.format(m=self.module))

    def write(self, text: str) -> None:
        (self.folder / f"{self.module}.py").write_text(text)

    def edit(self, old: str, new: str, path: Path | None = None) -> None:
        path = path or self.file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))

    def forget(self) -> None:
        """Let the next import be as in another process."""
        for name in (self.module, self.helper):
            sys.modules.pop(name, None)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    before = list(sys.path)
    made = Place(tmp_path)
    sys.dont_write_bytecode, written = True, sys.dont_write_bytecode
    yield made
    made.forget()
    sys.path[:], sys.dont_write_bytecode = before, written


def run(place: Place, folder: Path) -> list[runner.Result]:
    plan = experiment.load(place.file)
    run_folder.create(folder, plan.text, beside=plan.beside)
    return runner.run(plan, folder, lambda event: None)


def test_it_runs_says_so_first_and_resumes(place: Place, tmp_path: Path) -> None:
    said: list[str] = []

    def listen(sentence: str) -> None:
        assert not place.mark.exists()  # nothing has run yet
        said.append(sentence)

    plan = experiment.load(place.file, listen)
    path = place.folder / f"{place.module}.py"
    assert said == [f"Running code of {place.module} ({path}), which the experiment file names."]
    assert [method.label for method in plan.methods] == [
        f"{place.module}:method(eta=0.5, p={place.module}:half)",
        "schedule",
        "sealed",
    ]
    assert plan.problem.agents == 3
    folder = tmp_path / "runs" / "out"
    run_folder.create(folder, plan.text, beside=plan.beside)
    first = runner.run(plan, folder, lambda event: None)
    assert {"heterogeneity", "largest"} <= set(first[0].runs[0].history)
    place.forget()
    again = runner.run(runner.open_folder(folder), folder, lambda event: None)
    for one, other in zip(first, again, strict=True):
        np.testing.assert_array_equal(one.runs[0].model, other.runs[0].model)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("oracles.gd(step=0.1", "oracles.gd(step=0.2"),
        ("return FACTOR *", "return 2 * FACTOR *"),
        ("int(2 *", "int(3 *"),
    ],
)
def test_changed_code_refuses_to_resume(place: Place, tmp_path: Path, old: str, new: str) -> None:
    run(place, tmp_path / "out")
    place.edit(old, new, place.folder / f"{place.module}.py")
    place.forget()
    with pytest.raises(FedpdError, match="belongs to another run"):
        runner.run(runner.open_folder(tmp_path / "out"), tmp_path / "out", lambda event: None)


def test_reports_and_watching_never_run_it(place: Place, tmp_path: Path) -> None:
    run(place, tmp_path / "out")
    place.mark.unlink()
    place.forget()
    record = read(tmp_path / "out")
    assert [entry.label for entry in record.entries][1:] == ["schedule", "sealed"]
    assert record.problem is not None
    assert "reading results never runs it" in str(rebuild(record.problem))
    written = write_report([tmp_path / "out"])
    assert "reading results never runs it" in written.page.read_text(encoding="utf-8")
    assert not place.mark.exists()
    assert place.module not in sys.modules


MISTAKES = [
    (
        "own.toml",
        '"{m}:losses"',
        '"{m}:loses"',
        r"losses = '{m}:loses': .*{m}.py has no 'loses'. Did you mean 'losses'\?",
    ),
    ("own.toml", '"{m}:losses"', '"nowhere_x:losses"', r"there is no module 'nowhere_x' in .* nor on Python's path"),
    (
        "own.toml",
        '"{m}:losses"',
        '"losses"',
        r"losses = 'losses': must be a function. Write losses = \"my_module:losses",
    ),
    ("own.toml", "eta = 0.5\n", "", r"\[\[algorithm\]\] 1 {m}:method: eta is missing"),
    ("own.toml", "agents = 3", "agnets = 3", r"\[problem\] data {m}:load: agnets = 3: .* Did you mean 'agents'\?"),
    (
        "own.toml",
        '"{m}:sealed"\nstep = 0.1',
        '"{m}:wrong"',
        r"{m}.py, line 36, in wrong: ZeroDivisionError: division by",
    ),
    ("own.toml", '"{m}:sealed"\nstep = 0.1', '"{m}:load"\nagents = 2', r"returns ndarray. Return a method"),
    ("own.toml", '"{m}:sealed"\nstep = 0.1', '"{m}:FACTOR"', r"name = '{m}:FACTOR': is not a function"),
    ("own.toml", '"{m}:largest"', '"{m}:gone"', r"\[run\] record = '{m}:gone': .* has no 'gone'"),
    ("own.toml", "rounds = 6", 'rounds = 6\nlog = "rows"', r"\[run\] log = 'rows': must name a function"),
    ("{m}.py", "FACTOR = 1.0", "FACTOR = 1.0 +", r"{m}.py, line 12: SyntaxError: invalid syntax. Correct the module"),
    ("{m}.py", "FACTOR = 1.0", "FACTOR = missing", r"{m}.py, line 12, in <module>: NameError: name 'missing' is not"),
    (
        "{m}.py",
        "FACTOR = 1.0",
        "import no_such_x",
        r"line 12, in <module>: ModuleNotFoundError: No module named 'no_such_x",
    ),
    ("{m}.py", "FACTOR = 1.0", "raise SystemExit(3)", r"line 12, in <module>: SystemExit: 3"),
    (
        "{m}.py",
        "batch - x",
        "batch @ x",
        r"losses cannot be called with arrays .* \(.*{m}.py, line 19, in losses: ValueError\)",
    ),
    ("{m}.py", "(agents, 5, 2)", "(agents, 5, '2')", r"{m}.py, line 16, in load: TypeError: 'str' object cannot"),
]


@pytest.mark.parametrize(("name", "old", "new", "sentence"), MISTAKES)
def test_a_mistake_is_answered_with_a_sentence(place: Place, name: str, old: str, new: str, sentence: str) -> None:
    old, new, name, sentence = (text.replace("{m}", place.module) for text in (old, new, name, sentence))
    place.edit(old, new, place.folder / name)
    with pytest.raises(FedpdError, match=sentence):
        experiment.load(place.file)


def test_an_error_in_the_middle_of_a_run_names_the_line(place: Place, tmp_path: Path) -> None:
    place.edit("return 0.5 + 0 * r", "return r.no_such_field", place.folder / f"{place.module}.py")
    with pytest.raises(FedpdError, match=rf"{place.module}.py, line 33, in half: AttributeError: .*no_such_field"):
        run(place, tmp_path / "out")


@pytest.mark.parametrize("name", ["json", "numpy", "tomlkit"])
def test_a_module_never_hides_another_one(place: Place, name: str) -> None:
    (place.folder / f"{name}.py").write_text("losses = 1\n")
    place.edit(f'"{place.module}:losses"', f'"{name}:losses"')
    with pytest.raises(FedpdError, match=rf"{name}.py: there is another module of that name, .*Rename your module"):
        experiment.load(place.file)
    assert sys.path[0] != str(place.folder)


def test_a_module_of_the_same_name_that_is_in_use_is_refused(place: Place, tmp_path: Path) -> None:
    experiment.load(place.file)
    other = tmp_path / "other"
    other.mkdir()
    for name in (place.file.name, f"{place.module}.py", f"{place.helper}.py"):
        (other / name).write_bytes((place.folder / name).read_bytes())
    sys.path.remove(str(place.folder))
    with pytest.raises(FedpdError, match=r"this process has already imported another module 'mine_\d+'"):
        experiment.load(other / place.file.name)


def test_a_package_on_pythons_path(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    package = place.folder / "lib" / f"pack_{place.module}"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner.py").write_text(
        "class Space:\n    losses = staticmethod(lambda x, batch: ((batch - x) ** 2).sum(1))\n"
    )
    monkeypatch.syspath_prepend(place.folder / "lib")
    place.edit(f'"{place.module}:losses"', f'"{package.name}.inner:Space.losses"')
    code = experiment.load(place.file).code
    assert code[0] == own_code.Code(f"{package.name}.inner", package / "inner.py")


def test_a_log_and_a_callback(place: Place, tmp_path: Path) -> None:
    place.edit("rounds = 6", f'rounds = 6\nlog = "{place.module}:log"\ncallback = "{place.module}:stop"')
    results = run(place, tmp_path / "out")
    assert [int(one.runs[0].history["round"][-1]) for one in results] == [4, 4, 4]
    rows: list[Any] = sys.modules[place.module].ROWS
    assert {row["round"] for row in rows} == {0, 1, 2, 3, 4}


def test_one_loss_per_agent(place: Place, tmp_path: Path) -> None:
    plain = run(place, tmp_path / "plain")
    module = place.folder / f"{place.module}.py"
    one = "def one(model, samples, mask):\n    return (losses(model, samples) * mask).sum() / mask.sum()\n"
    module.write_text(f"{module.read_text()}\n{one}")
    place.forget()
    place.edit(
        f'name = "from_losses"\nlosses = "{place.module}:losses"',
        f'name = "from_agent_loss"\nloss = "{place.module}:one"',
    )
    for wanted, found in zip(plain, run(place, tmp_path / "one"), strict=True):
        np.testing.assert_allclose(found.runs[0].model, wanted.runs[0].model, rtol=1e-10)


def test_a_text_with_a_colon_is_no_code_elsewhere() -> None:
    assert not own_code.is_reference("FedPD: half")
    assert not own_code.is_reference("C:\\data")
    assert list(own_code.references({"label": "a:b", "title": "a:b", "data": {"name": "parquet", "path": "a:b"}})) == []
