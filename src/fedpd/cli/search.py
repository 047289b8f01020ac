"""The commands that search, solve and check: advise, tune, solve, train and reproduce."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedpd.cli.arguments import Out, Overwrite, Source, method_names

if TYPE_CHECKING:
    from fedpd.core import Problem
    from fedpd.engine.run import Run
    from fedpd.experiments.experiment import FoundProblem


def advise(
    problem: Source = "strong",
    epsilon: Annotated[float, typer.Option(help="The target for ||grad f||^2.")] = 1e-6,
    floor: Annotated[float | None, typer.Option(help="A lower bound of f, if losses can be negative.")] = None,
    pilot: Annotated[int, typer.Option(help="The rounds for which fedpd tries a setting, at most.")] = 100,
    out: Annotated[Path | None, typer.Option(help="A new file for the experiment.")] = None,
) -> None:
    """Recommend the settings of FedPD for a problem.

    fedpd measures how smooth the problem is (L), how much the agents differ (delta, Hessians) and the condition number.
    It recommends eta, the local step size, the local steps Q and the skip probability p, gives the reasons, and tries
    the setting. It also tries fedpd solve, which has nothing to tune, if all agents take part in every round.
    """
    from fedpd.base.atomic import check_replaceable
    from fedpd.cli.terminal import console, say, show_lines, steps, write
    from fedpd.experiments import calls, experiment
    from fedpd.experiments.own_code import explain_errors
    from fedpd.report import advice as report
    from fedpd.search.advise import advise as find

    if out is not None:
        check_replaceable(out)
    setting = experiment.find_problem(problem, say)
    with explain_errors(setting.code):
        built = _build(problem, setting)
        with steps() as display:
            advice = find(built, epsilon, floor=floor, pilot=pilot, progress=display, **setting.run)
    console.print(report.constants_table(advice), report.settings_table(advice))
    for note in report.advice_notes(advice):
        say(f"- {note}")
    tables = report.advised_tables(advice)
    text = report.experiment_text(calls.toml_text(setting.problem), {"rounds": pilot, **setting.run}, tables)
    show_lines(f"\nThe experiment file (fedpd run FILE):\n\n{text}")
    if out is not None:
        write(out, text)


def tune(
    problem: Source = "strong",
    target: Annotated[
        float | None, typer.Option(help="The value to reach. Default for the stationarity: 1e-10.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="T, the rounds of each try.")] = 200,
    methods: Annotated[str, typer.Option(help="Names from fedpd methods, separated by commas, or all.")] = "",
    seeds: Annotated[int, typer.Option(help="The number of seeds. All of them must reach the target.")] = 1,
    criterion: Annotated[
        str, typer.Option(help="The quantity that has to reach the target, e.g. test_accuracy.")
    ] = "stationarity",
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Find the best settings of each method.

    The best settings reach the target with the fewest communications; without a target, they have the best value at the
    end. fedpd prints a table, and saves a figure of the sensitivity and an experiment file with the tuned methods.
    """
    from fedpd.algorithms import variants
    from fedpd.base.checks import count
    from fedpd.cli.terminal import console, new_folder, say, show_lines, steps
    from fedpd.experiments import calls, experiment, run_folder
    from fedpd.experiments.own_code import explain_errors
    from fedpd.report import advice as report
    from fedpd.report import save_figure
    from fedpd.search.tune import tune as find
    from fedpd.search.tune import usable
    from fedpd.search.tuned import judged_column, target_of
    from fedpd.search.views import edge_notes

    count("--seeds", seeds, "Give the number of seeds, e.g. 3", bits=16)
    folder = out or new_folder("tune")
    run_folder.check_free(folder, overwrite)
    setting = experiment.find_problem(problem, say)
    names = method_names(methods)
    if methods == "all":
        names = usable(variants(), setting.run.get("participation", 0.5 if "cohort" in setting.run else 1.0))
    with explain_errors(setting.code):
        built = _build(problem, setting)
        judged_column(built, criterion)  # a misspelt criterion has no target either
        goal = target_of(criterion, target)
        options = {"target": goal, "rounds": rounds, "seeds": range(seeds), "criterion": criterion, **setting.run}
        with steps() as display:
            tuned = find(built, methods=names, progress=display, **options)
    console.print(report.tuning_table(tuned, goal))
    tables = [one.table for one in tuned]
    kept = {"rounds": rounds, "seeds": list(range(seeds)), **setting.run}
    text = report.experiment_text(calls.toml_text(setting.problem), kept, tables)
    run_folder.create(folder, text, overwrite=overwrite, beside=setting.beside if setting.code else None)
    for note in edge_notes(tuned):
        say(f"- {note}")
    if goal is None or any(one.reached for one in tuned):
        paths = save_figure(report.sensitivity_figure(tuned, goal, rounds), folder, "sensitivity")
        show_lines(f"Figure: {paths[0]}")
    else:
        say(f"No method reached {criterion} {goal:g} in {rounds} rounds. Give more --rounds or an easier --target.")
    show_lines(f"Tuned experiment: fedpd run {folder / run_folder.EXPERIMENT}")


def _build(source: str, setting: "FoundProblem") -> "Problem":
    """Return the problem of a file or of a name. An error begins with the file."""
    from fedpd.base.checks import FedpdError
    from fedpd.experiments.calls import build_problem

    try:
        return build_problem(setting.problem, setting.find)
    except FedpdError as error:
        if not source.endswith(".toml"):
            raise
        raise FedpdError(f"{source}: {error}") from error.__cause__


def solve(
    problem: Source = "strong",
    target: Annotated[float, typer.Option(help="The ||grad f||^2 at which the run stops.")] = 1e-10,
    max_communications: Annotated[int, typer.Option(help="The most communications.")] = 1000,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Minimise f with nothing to choose.

    fedpd runs FedPD with a memory of past rounds, and finds eta during the run. This needs full gradients, and all
    agents in every round. The folder gets the run, for fedpd.load in Python, and a figure.
    """
    from fedpd.base.checks import count, positive
    from fedpd.base.saved import check_free
    from fedpd.cli.terminal import new_folder, say
    from fedpd.experiments import experiment
    from fedpd.experiments.own_code import explain_errors
    from fedpd.search.solve import check_everyone, memory_for
    from fedpd.search.solve import solve as minimise

    positive("--target", target, "Give the ||grad f||^2 at which the run stops, e.g. 1e-10")
    count("--max-communications", max_communications, "Give the most communications, e.g. 1000", bits=31)
    setting = experiment.find_problem(problem, say)
    check_everyone(**setting.run)
    folder = out or new_folder("solve")
    check_free(folder, overwrite)
    with explain_errors(setting.code):
        built = _build(problem, setting)
        memory = memory_for(built)
        rounds = "1 round" if memory == 1 else f"{memory} rounds"
        say(f"FedPD with a memory of {rounds}; L-BFGS solves the local problems; eta is found during the run.")
        run = minimise(built, target, max_communications)
    _save(run, folder, overwrite, str(run))


def train(
    problem: Source,
    communications: Annotated[int, typer.Option(help="The most communications.")] = 100,
    cohort: Annotated[int | None, typer.Option(help="The agents of a round. Default: the file's, or all.")] = None,
    seed: Annotated[int, typer.Option(help="The seed of all draws.")] = 0,
    validation: Annotated[
        float, typer.Option(help="The share of each agent's samples that decides when to stop; 0: none.")
    ] = 0.1,
    out: Out = None,
    overwrite: Overwrite = False,
) -> None:
    """Train a network with nothing to choose.

    fedpd runs FedPD-N with mini-batches: trials find the step size, and losses guard it. It stops when the loss on
    held-out samples does not come down any more, and keeps the best model. The folder gets the run, for fedpd.load in
    Python, and a figure.
    """
    from fedpd.base.checks import count
    from fedpd.base.saved import check_free
    from fedpd.cli.terminal import new_folder, say
    from fedpd.experiments import experiment
    from fedpd.experiments.own_code import explain_errors
    from fedpd.search.train import cohort_of, model_text, plan_text
    from fedpd.search.train import train as fit

    count("--communications", communications, "Give the most communications, e.g. 100", bits=31)
    setting = experiment.find_problem(problem, say)
    folder = out or new_folder("train")
    check_free(folder, overwrite)
    with explain_errors(setting.code):
        built = _build(problem, setting)
        options = cohort_of(setting.run, cohort)
        say(plan_text(built, options.get("cohort")))
        run = fit(built, communications, seed=seed, validation=validation, **options)
    _save(run, folder, overwrite, f"{run}\n{model_text(run)}")


def _save(run: "Run", folder: Path, overwrite: bool, text: str) -> None:
    """Save a run and its figure, and print a text and where they are."""
    from fedpd.cli.terminal import show_lines
    from fedpd.report import save_figure

    run.save(folder, overwrite=overwrite)
    (figure, _) = save_figure(run.plot(), folder, "run")
    show_lines(f"{text}\nFigure: {figure}\nIn Python: fedpd.load({str(folder)!r})")


def reproduce(
    items: Annotated[
        list[str] | None, typer.Argument(metavar="[ITEM]...", help="Items of --list. Default: all.")
    ] = None,
    show: Annotated[bool, typer.Option("--list", help="List the items and exit.")] = False,
    out: Annotated[Path, typer.Option(help="The folder. Existing results are kept and continued.")] = Path(
        "runs/reproduce"
    ),
    data: Annotated[Path | None, typer.Option(help="FEMNIST for Figures 3 to 5: LEAF, or Parquet by writer.")] = None,
) -> None:
    """Check the figures, tables and claims of the paper.

    fedpd measures each of them and gives a verdict: reproduced, corrected, or not.
    """
    from fedpd.cli.terminal import console, interruptible, show_lines, steps
    from fedpd.reproduce.command import checks_table, listing, rows_table, verdict_table, wanted_items
    from fedpd.reproduce.command import reproduce as measure

    if show:
        console.print(listing())
        return
    wanted_items(items or ())
    with interruptible(f"Interrupted. The same command resumes the work in {out}"), steps() as display:
        found = measure(items or (), out=out, data=data, on_progress=display)
    for item in found:
        console.print(checks_table(item), *([rows_table(item)] if item.table else []))
    console.print(verdict_table(found))
    show_lines(f"Reasons and figures: {out / 'reproduction.md'}")
