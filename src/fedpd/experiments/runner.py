"""Run an experiment method by method, with its results in a run folder; resume an interrupted run."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax

from fedpd.base import checkpoint
from fedpd.base.atomic import held
from fedpd.base.checks import FedpdError
from fedpd.base.precision import scope
from fedpd.base.progress import Event, Listener
from fedpd.base.typed import explained_error
from fedpd.engine.backends.memory import compile_ahead
from fedpd.engine.checks import trace_round
from fedpd.engine.config import RunConfig
from fedpd.engine.plan import Plan
from fedpd.engine.run import Run
from fedpd.engine.simulate import make_plan, run_plan
from fedpd.experiments import own_code, run_folder
from fedpd.experiments.experiment import Experiment, Labelled, OnCode, RunTable, parse

SMALL_DATA = 2**27  # bytes; compiling ahead needs a second copy of the data, so it is only for smaller data


class Result(NamedTuple):
    """A method's runs, one per seed."""

    label: str
    runs: tuple[Run, ...]


def open_folder(folder: Path, on_code: OnCode | None = None) -> Experiment:
    """Return the experiment of a run folder; `on_code` receives a sentence before the user's own code runs."""
    text = run_folder.read_experiment(folder)
    try:
        return parse(text, run_folder.modules_of(folder), on_code)
    except FedpdError as error:
        raise FedpdError(f"{folder / run_folder.EXPERIMENT}: {error}") from None


def check(experiment: Experiment, listen: Listener | None = None) -> None:
    """Plan every method and trace one round of it, so that nothing runs if one of them cannot run.

    Raises:
        FedpdError: A method cannot run on the problem. The message names the method.
    """
    for number, method in enumerate(experiment.methods, 1):
        if listen is not None:
            listen(Event(method.label, number - 1, len(experiment.methods), compiling=True))
        place = f"[[algorithm]] {number} ({method.label})"
        with own_code.explain_errors(experiment.code):
            try:
                trace_round(_plan(experiment, method, _options(experiment.settings, None)))
            except FedpdError as error:
                raise FedpdError(f"{place}: {error}") from error.__cause__
            except Exception as error:
                if own_code.error_in_code(error, experiment.code) is not None:
                    raise
                remedy = "Change its settings, or leave it out"
                raise explained_error(f"{place} cannot run on this problem", error, remedy) from error


def run(experiment: Experiment, folder: Path, listen: Listener) -> list[Result]:
    """Run every method that is not finished yet, with checkpoints, and return the results of all methods.

    While a method runs, a thread compiles the programs of the methods after it.

    Raises:
        FedpdError: Another process runs in the folder, or the folder holds other methods.
    """
    with held(folder, folder / run_folder.MODELS, *(folder / run_folder.CHECKPOINTS).glob("*")):
        return _run_held(experiment, folder, listen)


def _run_held(experiment: Experiment, folder: Path, listen: Listener) -> list[Result]:
    """Run the methods in a folder that no other process writes to."""
    for number, method in enumerate(experiment.methods, 1):
        run_folder.check_same_method(folder, number, method.label)
    labels = enumerate((method.label for method in experiment.methods), 1)
    options = [_options(experiment.settings, run_folder.checkpoints_of(folder, *numbered)) for numbered in labels]
    with own_code.explain_errors(experiment.code):
        plans = [_plan(experiment, method, chosen) for method, chosen in zip(experiment.methods, options, strict=True)]
    results: list[Result] = []
    with ThreadPoolExecutor(1, "compile") as pool:
        compiled = [pool.submit(_compile, own, chosen) for own, chosen in zip(plans, options, strict=True)]
        try:
            for i, method in enumerate(experiment.methods):
                listen(Event(method.label, 0, experiment.settings.rounds, compiling=True))
                with own_code.explain_errors(experiment.code):
                    compiled[i].result()
                    runs = run_plan(plans[i], options[i], partial(_relabelled, listen, method.label))
                results.append(Result(method.label, runs))
                for one in runs:
                    run_folder.write_model(folder, i + 1, method.label, one)
                histories = {(result.label, one.seed): one.history for result in results for one in result.runs}
                run_folder.write_histories(folder, histories)
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    run_folder.mark_finished(folder, experiment.text)
    return results


def _options(settings: RunTable, checkpoints: Path | None) -> RunConfig:
    """Return the options of `simulate` for a method."""
    options = {field.name: getattr(settings, field.name) for field in fields(RunConfig)}
    return RunConfig.of(options | {"checkpoints": checkpoints})


def _plan(experiment: Experiment, method: Labelled, options: RunConfig) -> Plan:
    seeds = list(experiment.settings.seeds)
    return make_plan(method.algorithm, experiment.problem, experiment.settings.rounds, seeds, len(seeds) > 1, options)


def _compile(plan: Plan, options: RunConfig) -> None:
    """Compile the program of a method that is not finished yet."""
    saved = checkpoint.peek(Path(options.checkpoints or ""))
    finished = saved is not None and saved[1]["round"] >= plan.rounds
    if not finished and sum(leaf.nbytes for leaf in jax.tree.leaves(plan.problem.data)) <= SMALL_DATA:
        with scope(plan.problem.double):  # each thread has its own precision
            compile_ahead(plan)


def _relabelled(listen: Listener, label: str, event: Event) -> Any:
    return listen(event._replace(what=label))
