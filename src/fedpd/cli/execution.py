"""Run an experiment for the command line, with bars, a table, a figure, and the paths of all results."""

import tomllib
from importlib.resources import files
from pathlib import Path
from string import Template

import numpy as np
from rich.text import Text

from fedpd import theory
from fedpd.algorithms import variants
from fedpd.base.checks import choice, count, positive
from fedpd.base.progress import Event, plain_lines, terminal_bars
from fedpd.base.value import parts_of
from fedpd.cli.terminal import console, interruptible, say, show_lines
from fedpd.experiments import calls, run_folder, runner
from fedpd.experiments.experiment import Experiment, parse


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
        text = text.partition("[[algorithm]]")[0] + _all_methods(theory.smoothness(problem), problem.agents)
    return parse(text)


def _all_methods(L: float, agents: int) -> str:
    """Return every method with steps by its own rule, as tables of an experiment file."""
    made = {label: variant.rule(L, agents, 1.0) for label, variant in variants().items()}
    tables = [{"label": label} | calls.table_of(algorithm.spec) for label, algorithm in made.items()]
    return "\n\n".join(f"[[algorithm]]\n{calls.toml_text(table)}" for table in tables) + "\n"


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
    from fedpd.report import comparison_figure, comparison_table, save_figure, target_table

    console.print(comparison_table(results))
    if target is not None:
        console.print(target_table(results, target))
    # The figure's finding and the page's first target are those of the table above.
    paths = save_figure(comparison_figure(results, target=target), folder, "comparison")
    if all("test_accuracy" in run.history for result in results for run in result.runs):
        paths = save_figure(comparison_figure(results, quantity="test_accuracy"), folder, "accuracy")
    again = "" if target is None else f" --target {target:g}"
    show_lines(f"Figure: {paths[0]}\nHistories: {folder / run_folder.HISTORY}\nAs a page: fedpd report {folder}{again}")
