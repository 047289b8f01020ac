"""Run experiments and comparisons for the command line, with bars, tables, figures, and the paths of all results."""

import inspect
import sys
import tomllib
from importlib.resources import files
from pathlib import Path
from shutil import rmtree
from string import Template
from typing import Any

import numpy as np
from rich.text import Text

from fedpd import report, theory
from fedpd.algorithms import variants
from fedpd.base.checks import FedpdError, choice, count, positive
from fedpd.base.progress import Event, plain_lines, terminal_bars
from fedpd.base.saved import FILE
from fedpd.base.value import parts_of
from fedpd.cli.arguments import method_names
from fedpd.cli.terminal import console, interruptible, new_folder, say, show_lines, steps, write
from fedpd.experiments import calls, run_folder, runner
from fedpd.experiments.experiment import TAKING_PART, Experiment, FoundComparison, find_comparison, parse
from fedpd.experiments.own_code import explain_errors
from fedpd.report.advice import experiment_text
from fedpd.report.tables import text_table
from fedpd.search.candidates import FromTable
from fedpd.search.compare import Comparison, compare
from fedpd.search.tuned import TRIES
from fedpd.search.views import comparison_notes, comparison_rows, comparison_title, setting_lines, target_rows


def paper_comparison(rounds: int, data: str, seeds: int, methods: str, target: float) -> Experiment:
    """Return the paper's first experiment, which `fedpd compare` runs without a file, after a check of its options."""
    count("--rounds", rounds, "Give the rounds of each method, e.g. 600", bits=31)
    count("--seeds", seeds, "Give the number of seeds, e.g. 5", bits=16)
    choice("--data", data, calls.DATA)
    choice("--methods", methods, ("paper", "all"))
    positive("--target", target, "Give a stationarity, e.g. 1e-10")
    template = Template(files("fedpd.cli").joinpath("compare.toml").read_text(encoding="utf-8"))
    text = template.substitute(data=data, rounds=rounds, seeds=list(range(seeds)))
    if methods == "all":
        problem = calls.build_problem(tomllib.loads(text)["problem"])
        L = theory.smoothness(problem)
        made = {label: variant.rule(L, problem.agents, 1.0) for label, variant in variants().items()}
        tables = [{"label": label} | calls.table_of(algorithm.spec) for label, algorithm in made.items()]
        every = "\n\n".join(f"[[algorithm]]\n{calls.toml_text(table)}" for table in tables) + "\n"
        text = text.partition("[[algorithm]]")[0] + every
    return parse(text)


def start(experiment: Experiment, folder: Path, overwrite: bool, target: float | None = None) -> None:
    """Check every method, make the run folder, and run the experiment."""
    run_folder.check_free(folder, overwrite)
    with console.status("checking every method"):
        runner.check(experiment)
    beside = experiment.beside if experiment.code else None
    run_folder.create(folder, experiment.text, overwrite=overwrite, beside=beside)
    execute(experiment, folder, target)


def execute(experiment: Experiment, folder: Path, target: float | None = None) -> None:
    """Run the methods that are not finished, and show the results of all, with the costs to a target if it is given."""
    problem, number, rounds = experiment.problem, len(experiment.methods), experiment.settings.rounds
    say(
        f"{problem.name}: {problem.agents} agents, {problem.samples:,} samples, {problem.dimension:,} parameters, "
        f"{'float64' if problem.double else 'float32'}; {number} methods, {rounds} rounds"
    )
    for note in batch_notes(experiment):
        say(f"note: {note}")
    results = _with_bars(experiment, folder)
    for result in results:
        for outcome in result.runs:
            if outcome.diverged is not None:
                say(Text.assemble((result.label, "yellow"), ": ", outcome.diverged.message))
    _show(results, folder, target)


def batch_notes(experiment: Experiment) -> list[str]:
    """Return a sentence for each method whose batch is larger than the samples of an agent."""
    sizes = np.asarray(experiment.problem.sizes)
    notes = []
    for method in experiment.methods:
        batches = [getattr(part, "batch", None) for part in parts_of(method.algorithm)]
        largest = max((batch for batch in batches if isinstance(batch, int)), default=0)
        if few := int((sizes < largest).sum()):
            notes.append(
                f"{method.label}: batch = {largest} is larger than the samples of {few} of {len(sizes)} agents (the "
                f"smallest has {sizes.min()}). A step then uses "
                "samples more than once, or with epochs all of them."
            )
    return notes


def _with_bars(experiment: Experiment, folder: Path) -> list[runner.Result]:
    """Run the methods, with one bar per method; without a terminal, with a line per minute."""
    labels = [method.label for method in experiment.methods]
    asked = dict.fromkeys([*(experiment.settings.until or {}), "test_accuracy", "central_accuracy"])
    columns = [name for name in asked if name != "stationarity"]
    bars = terminal_bars(console, labels, experiment.settings.rounds)
    interrupted = interruptible(f"Interrupted. Resume it: fedpd resume {folder}")
    with interrupted as check_interrupt, bars if console.is_terminal else plain_lines(show_lines, columns) as listen:

        def show(event: Event) -> None:
            check_interrupt()
            listen(event)

        return runner.run(experiment, folder, show)


def _show(results: list[runner.Result], folder: Path, target: float | None) -> None:
    """Print the tables, save the figures, and print their paths."""
    console.print(report.comparison_table(results))
    if target is not None:
        console.print(report.target_table(results, target))
    # The figure's finding and the page's first target are those of the table above.
    paths = report.save_figure(report.comparison_figure(results, target=target), folder, "comparison")
    if all("test_accuracy" in run.history for result in results for run in result.runs):
        paths = report.save_figure(report.comparison_figure(results, quantity="test_accuracy"), folder, "accuracy")
    again = "" if target is None else f" --target {target:g}"
    show_lines(f"Figure: {paths[0]}\nHistories: {folder / run_folder.HISTORY}\nAs a page: fedpd report {folder}{again}")


TUNED = "tuned.toml"  # the experiment file with the tuned methods
WRITTEN = (TRIES, FILE, TUNED, "report.html", "comparison.png", "comparison.svg", "checkpoints")
# The options of [run] that a comparison sets by itself.
UNUSED = ("checkpoint_every", "until", "log", "callback", "store")


def compare_file(source: str, methods: str, given: dict[str, Any], out: Path | None, overwrite: bool) -> None:
    """Compare methods on the problem of a file.

    Args:
        methods: The names of methods, separated by commas; "": those of the file, or the usual ones.
        given: The options of the command line, which precede those of the file.
    """
    folder = out or new_folder("compare")
    found = find_comparison(source, say)
    options = _options(source, found, given)
    tables = {label: FromTable(table, found.problem.find) for label, table in found.methods.items()} or None
    chosen = method_names(methods) or options.pop("methods", None) or tables
    options.pop("methods", None)
    _prepare(folder, overwrite)
    with explain_errors(found.problem.code):
        problem = calls.build_problem(found.problem.problem, found.problem.find)
        again = " ".join(one for one in sys.argv[1:] if one != "--overwrite")
        again += "" if out is not None else f" --out {folder}"
        with interruptible(f"Interrupted. Continue: fedpd {again}") as check_interrupt, steps() as display:

            def show(what: str, done: int, total: int) -> None:
                check_interrupt()
                display("comparison", done, total)

            result = compare(problem, chosen, folder=folder, progress=show, **options)
    _show_comparison(result, folder)
    _write_tuned(result, found, options, folder)
    report.page(result, problem, name=comparison_title(result)).save(folder / "report.html")
    show_lines(f"Page: {folder / 'report.html'}\nIn Python: fedpd.load({str(folder)!r})")


def _options(source: str, found: FoundComparison, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fedpd.compare`: those of [run], of [compare] and of the command line, the last first."""
    taken = {name: one for name, one in inspect.signature(compare).parameters.items() if one.kind is one.KEYWORD_ONLY}
    known = ["methods", *(name for name in taken if name not in ("folder", "progress", "record"))]
    calls.known_keys(f"{source}: [compare]", found.compare, known, required=())
    options = {name: value for name, value in found.run.items() if name not in UNUSED}
    options |= {**found.compare, **given}
    if "seeds" in options and isinstance(options["seeds"], int):
        options["seeds"] = range(count("--seeds", options["seeds"], "Give the number of seeds, e.g. 5", bits=16))
    return options


def _prepare(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something else, and remove an earlier comparison if it is to be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FedpdError(f"--out {folder}: this is a file, not a folder. Choose another folder.")
    others = [path.name for path in folder.iterdir() if path.name not in WRITTEN and not path.name.startswith(".")]
    if others or (any(folder.iterdir()) and not (folder / TRIES).exists()):
        what = f"it holds {others[0]!r}" if others else "it holds no comparison"
        raise FedpdError(f"--out {folder}: {what}, and fedpd never mixes results. Choose another folder.")
    for name in WRITTEN if overwrite else ():
        path = folder / name
        rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _show_comparison(result: Comparison, folder: Path) -> None:
    """Print the tables and the notes, and save the figure."""
    head, rows = comparison_rows(result)
    console.print(text_table(comparison_title(result), head, rows, right=head[1:], fold=head))
    if result.targets:
        head, rows = target_rows(result)
        title = "Costs until the target was reached and kept, means over the seeds that kept it"
        console.print(text_table(title, head, rows, right=head[2:], fold=head))
    show_lines("\n".join(setting_lines(result)))
    for note in comparison_notes(result):
        say(f"- {note}")
    show_lines(f"Figure: {report.save_figure(result.plot(), folder, 'comparison')[0]}")


def _write_tuned(result: Comparison, found: FoundComparison, options: dict[str, Any], folder: Path) -> None:
    """Write the experiment file with the tuned methods and the same seeds, if a file can hold them."""
    tables = [one.table for one in result.methods]
    if not all(tables):
        return
    rounds = int(max(run.history["round"][-1] for one in result.methods for run in one.runs))
    kept = {name: value for name, value in found.run.items() if name in TAKING_PART or name == "average"}
    run = {"rounds": rounds, "seeds": list(result.seeds), **kept}
    write(folder / TUNED, experiment_text(calls.toml_text(found.problem.problem), run, tables))
