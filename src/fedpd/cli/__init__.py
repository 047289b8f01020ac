"""The command line."""

import logging
import sys
import tomllib
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Annotated, TextIO

import typer
from rich.console import Console
from rich.logging import RichHandler
from rich.progress import TaskID
from rich.text import Text

from fedpd import __version__, theory
from fedpd.algorithms import variants
from fedpd.base.atomic import replace_file
from fedpd.base.checks import FedpdError, choice, count, positive
from fedpd.base.progress import Event, StepFunction, bars, show_event
from fedpd.cli import benchmark, deploy
from fedpd.experiments import calls, experiment, run_folder, runner
from fedpd.experiments.calls import toml_text
from fedpd.experiments.experiment import Experiment

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Federated optimisation for clients whose data differ: FedPD and the methods it is compared with.",
)
console = Console()
data_app = typer.Typer(no_args_is_help=True, help="Federated data in files.")
app.add_typer(data_app, name="data")
deploy.register(app)
benchmark.register(app)

Out = Annotated[Path | None, typer.Option(help="The run's folder; by default a new one under runs/.")]
Source = Annotated[
    str, typer.Argument(metavar="PROBLEM", help="An experiment file, whose problem is taken, or: strong, weak.")
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Start afresh if the folder holds a run already.")]


def _show_version(wanted: bool) -> None:
    if wanted:
        console.print(f"fedpd {__version__}", highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True)]


@app.callback()
def options(version: Version = False) -> None: ...


@app.command()
def compare(
    rounds: Annotated[int, typer.Option(help="T, the rounds of each method.")] = 600,
    data: Annotated[str, typer.Option(help="strong, weak, or strong_program (the authors' program's).")] = "strong",
    seeds: Annotated[int, typer.Option(help="How many seeds, run at once; the table then shows mean and spread.")] = 1,
    methods: Annotated[str, typer.Option(help="paper: its eight; all: every method, steps by its own rule.")] = "paper",
    target: Annotated[float, typer.Option(help="Show what it costs to bring the stationarity down to this.")] = 1e-10,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Compare FedPD, FedAvg and FedProx (or all methods) on the paper's first experiment: table, figure, histories."""
    count("--rounds", rounds, "Give the rounds of each method, e.g. 600")
    count("--seeds", seeds, "Give how many seeds, e.g. 5")
    choice("--data", data, calls.DATA)
    choice("--methods", methods, ("paper", "all"))
    positive("--target", target, "Give a stationarity, e.g. 1e-10")
    template = Template(files("fedpd.cli").joinpath("compare.toml").read_text(encoding="utf-8"))
    text = template.substitute(data=data, rounds=rounds, seeds=list(range(seeds)))
    if methods == "all":
        problem = calls.build_problem(tomllib.loads(text)["problem"])
        text = text.partition("[[algorithm]]")[0] + _all_methods(theory.smoothness(problem), problem.agents)
    _start(experiment.parse(text), out or _new_folder("compare"), overwrite, target)


def _all_methods(L: float, agents: int) -> str:
    """Every method with steps by its own rule, as tables of an experiment file."""
    made = {label: variant.rule(L, agents, 1.0) for label, variant in variants().items()}
    tables = [{"label": label} | calls.table_of(algorithm.spec) for label, algorithm in made.items()]
    return "\n\n".join(f"[[algorithm]]\n{toml_text(table)}" for table in tables) + "\n"


@app.command()
def run(
    file: Annotated[Path, typer.Argument(help="An experiment file (TOML).")],
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Run an experiment file; it is checked whole before anything runs."""
    _start(experiment.load(file), out or _new_folder(file.stem), overwrite)


@app.command()
def resume(folder: Annotated[Path, typer.Argument(help="The folder of a run that was interrupted.")]) -> None:
    """Resume an interrupted run. The result is the same, bit for bit, as without the interruption."""
    _execute(runner.open_folder(folder), folder)


@app.command()
def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, finished or not.")],
    out: Annotated[Path | None, typer.Option(help="The page; by default RUN/report.html, or report.html here.")] = None,
    target: Annotated[float | None, typer.Option(help="The stationarity where the page's slider stands.")] = None,
    figures: Annotated[list[str] | None, typer.Option(help="Figures for a paper too: pdf, svg or png.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Histories and costs as CSV too.")] = False,
) -> None:
    """One page on what came out: curves, costs to any target, the problem, and how to repeat it. Opens offline."""
    from fedpd.report import write_report

    with console.status("writing the report"):
        written = write_report(runs, out, target=target, figures=figures or (), csv=csv)
    console.print(Text(written.finding), soft_wrap=True)
    for path in (written.page, *written.others):
        console.print(Text(f"Saved: {path}"), soft_wrap=True)


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that goes on, or has ended.")],
    once: Annotated[bool, typer.Option("--once", help="Show it as it is now, and end.")] = False,
    every: Annotated[float, typer.Option(help="Refresh interval in seconds.")] = 1.0,
) -> None:
    """The curves and latest numbers of a run while it goes on, from its checkpoints. Ctrl-C ends only the view."""
    from fedpd.report.watch import watch as show

    show(run, console, once=once, every=positive("--every", every, "Give seconds, e.g. 1"))


@app.command()
def advise(
    problem: Source = "strong",
    epsilon: Annotated[float, typer.Option(help="The target for ||grad f||^2.")] = 1e-6,
    floor: Annotated[float | None, typer.Option(help="A lower bound of f, if losses may be negative.")] = None,
    pilot: Annotated[int, typer.Option(help="Rounds for which the recommended setting is tried.")] = 100,
    out: Annotated[Path | None, typer.Option(help="Save the experiment file here too.")] = None,
) -> None:
    """Measure L and delta of a problem, and say which eta, local step, Q and p to use for FedPD, and why."""
    from fedpd.report import advice as report
    from fedpd.search.advise import advise as find

    table = experiment.find_problem(problem)
    built = calls.build_problem(table)
    with _steps() as display:
        advice = find(built, epsilon, floor=floor, pilot=pilot, progress=display)
    console.print(report.constants_table(advice), report.settings_table(advice))
    for note in report.advice_notes(advice):
        console.print(Text(f"- {note}"), soft_wrap=True)
    settings = [setting.table for setting in (advice.recommended, advice.guaranteed)]
    text = report.experiment_text(toml_text(table), pilot, settings)
    console.print(Text(f"\nThe experiment file (fedpd run FILE):\n\n{text}"), soft_wrap=True)
    if out is not None:
        _write(out, text)


@app.command()
def tune(
    problem: Source = "strong",
    target: Annotated[float, typer.Option(help="The stationarity to reach with the fewest communications.")] = 1e-10,
    rounds: Annotated[int, typer.Option(help="T, the rounds of each try.")] = 200,
    methods: Annotated[str, typer.Option(help="Labels, separated by commas (see fedpd methods), or all.")] = "",
    seeds: Annotated[int, typer.Option(help="How many seeds; all must reach the target.")] = 1,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Find each method's best step size by communications to a target: table, sensitivity figure, experiment file."""
    from fedpd.report import advice as report
    from fedpd.report import save_figure
    from fedpd.search.tune import METHODS
    from fedpd.search.tune import tune as find

    count("--seeds", seeds, "Give how many seeds, e.g. 3")
    table = experiment.find_problem(problem)
    built = calls.build_problem(table)
    chosen = list(variants()) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    with _steps() as display:
        wanted = chosen or METHODS
        tuned = find(built, methods=wanted, target=target, rounds=rounds, seeds=range(seeds), progress=display)
    console.print(report.tuning_table(tuned, target))
    folder = out or _new_folder("tune")
    text = report.experiment_text(toml_text(table), rounds, [one.table for one in tuned])
    run_folder.create(folder, text, overwrite=overwrite)
    paths = save_figure(report.sensitivity_figure(tuned, target, rounds), folder, "sensitivity")
    tuned_file = folder / run_folder.EXPERIMENT
    console.print(Text(f"Figure: {paths[0]}\nTuned experiment: fedpd run {tuned_file}"), soft_wrap=True)


@app.command()
def reproduce(
    items: Annotated[list[str] | None, typer.Argument(metavar="[ITEM]...", help="See --list; by default all.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Show the items, and end.")] = False,
    out: Annotated[Path, typer.Option(help="The folder; existing results are kept and continued.")] = Path(
        "runs/reproduce"
    ),
    data: Annotated[Path | None, typer.Option(help="FEMNIST (LEAF) or Parquet by writer, for Figures 3 to 5.")] = None,
) -> None:
    """Every figure, table and claim of the paper, measured, with a verdict each: reproduced, corrected, or not."""
    from fedpd.reproduce.command import listing, reproduce, wanted_items
    from fedpd.reproduce.written import checks_table, rows_table, verdict_table

    if show:
        console.print(listing())
        return
    wanted_items(items or ())
    try:
        with _steps() as display:
            found = reproduce(items or (), out=out, data=data, tell=display)
    except KeyboardInterrupt:
        console.print(Text(f"Interrupted. The same command goes on where it stopped, in {out}"), soft_wrap=True)
        raise typer.Exit(130) from None
    for item in found:
        console.print(checks_table(item), *([rows_table(item)] if item.table else []))
    console.print(verdict_table(found))
    console.print(Text(f"Reasons and figures: {out / 'reproduction.md'}"), soft_wrap=True)


@data_app.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="A LEAF json file or folder (train, or train/ and test/), or Parquet.")],
    client: Annotated[str | None, typer.Option(help="Parquet: the column with the client's name.")] = None,
    features: Annotated[str | None, typer.Option(help="Parquet: the column(s) of features, by commas.")] = None,
    label: Annotated[str, typer.Option(help="Parquet: the column of labels.")] = "label",
    split: Annotated[str | None, typer.Option(help='Parquet: the column that says "train" or "test".')] = None,
    out: Annotated[Path, typer.Option(help="The folder of the figure.")] = Path("runs/data"),
) -> None:
    """Show agents, samples, labels, a figure, and how much the agents' gradients differ."""
    from fedpd.data.files import load
    from fedpd.report import save_figure
    from fedpd.report.data import data_figure, summary_table

    with console.status("reading"):
        found = load(path, client=client, features=features, label=label, split=split)
        table = summary_table(found)
    console.print(table)
    out.mkdir(parents=True, exist_ok=True)
    saved = save_figure(data_figure(found), out, path.name.split(".")[0])
    console.print(Text(f"Figure: {saved[0]}"), soft_wrap=True)


@app.command(name="methods")
def show_methods(
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown table, for documentation.")] = False,
) -> None:
    """The methods there are: what they send and keep, what they assume, and their complexity."""
    from fedpd.report.methods import methods_markdown, methods_table

    if markdown:
        typer.echo(methods_markdown(), nl=False)
    else:
        console.print(methods_table())


@contextmanager
def _steps() -> Iterator[StepFunction]:
    """Show a bar for each thing that is done, which appears when it begins."""
    with bars(console, "") as display:
        tasks: dict[str, TaskID] = {}
        yield lambda what, done, total: show_event(display, tasks, Event(what, done, total))


def _write(path: Path, text: str) -> None:
    with replace_file(path) as file:
        file.write(text.encode())
    console.print(Text(f"Saved: {path}"), soft_wrap=True)


def _new_folder(name: str) -> Path:
    return Path("runs") / f"{name}-{datetime.now():%Y%m%d-%H%M%S}"


def _start(plan: Experiment, folder: Path, overwrite: bool, target: float | None = None) -> None:
    run_folder.create(folder, plan.text, overwrite=overwrite)
    _execute(plan, folder, target)


def _execute(plan: Experiment, folder: Path, target: float | None = None) -> None:
    problem = plan.problem
    summary = (
        f"{problem.name}: {problem.agents} agents, {problem.samples:,} samples, {problem.dimension:,} parameters, "
        f"{'float64' if problem.double else 'float32'}; {len(plan.methods)} methods, {plan.settings.rounds} rounds"
    )
    console.print(Text(summary), soft_wrap=True)
    try:
        results = _with_bars(plan, folder)
    except KeyboardInterrupt:
        console.print(Text(f"Interrupted. Resume it: fedpd resume {folder}"), soft_wrap=True)
        raise typer.Exit(130) from None
    for result in results:
        for outcome in result.runs:
            if outcome.diverged is not None:
                console.print(Text.assemble((result.label, "yellow"), ": ", outcome.diverged.message), soft_wrap=True)
    _show(results, plan, folder, target)


def _show(results: list[runner.Result], plan: Experiment, folder: Path, target: float | None) -> None:
    from fedpd.report import comparison_figure, comparison_table, save_figure, target_table  # takes a second to import

    console.print(comparison_table(results))
    if target is not None:
        console.print(target_table(results, target))
    problem = plan.problem
    title = f"{problem.name.replace('_', ' ')}, {problem.agents} agents"
    paths = save_figure(comparison_figure(results, title), folder, "comparison")
    if all("test_accuracy" in run.history for result in results for run in result.runs):
        paths = save_figure(comparison_figure(results, title, "test_accuracy"), folder, "accuracy")
    saved = f"Figure: {paths[0]}\nHistories: {folder / run_folder.HISTORY}\nAs a page: fedpd report {folder}"
    console.print(Text(saved), soft_wrap=True)


def _with_bars(plan: Experiment, folder: Path) -> list[runner.Result]:
    with bars(console) as display:
        tasks = {
            method.label: display.add_task(method.label, total=plan.settings.rounds, start=False, note="")
            for method in plan.methods
        }

        return runner.run(plan, folder, partial(show_event, display, tasks))


def _note(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """A warning as a sentence."""
    Console(stderr=True).print(Text.assemble(("note: ", "bold yellow"), str(message)), soft_wrap=True)


def main(function: Callable[[], None] = app) -> None:
    """The entry point: a mistake in what was asked for is a sentence and exit code 2, not a traceback."""
    handler = RichHandler(console=Console(stderr=True), show_time=False, show_path=False)
    warnings.showwarning = _note
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        function()
    except FedpdError as error:
        Console(stderr=True).print(Text.assemble(("error: ", "bold red"), str(error)), soft_wrap=True)
        sys.exit(2)
