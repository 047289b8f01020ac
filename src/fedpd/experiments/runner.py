"""Run an experiment into a run folder, method by method; resume an interrupted one."""

from pathlib import Path
from typing import NamedTuple

from fedpd.base.checks import FedpdError
from fedpd.base.progress import Event, Listener
from fedpd.engine.run import Ensemble, Run
from fedpd.engine.simulate import simulate
from fedpd.experiments import experiment, own_code, run_folder
from fedpd.experiments.experiment import Experiment, Method, OnCode


class Result(NamedTuple):
    """A method's runs, one per seed."""

    label: str
    runs: tuple[Run, ...]


def open_folder(folder: Path, on_code: OnCode | None = None) -> Experiment:
    """Return the experiment of a run folder; `on_code` is given a sentence before code of the user's own runs."""
    text = run_folder.read_experiment(folder)
    try:
        return experiment.parse(text, run_folder.modules_of(folder), on_code)
    except FedpdError as error:
        raise FedpdError(f"{folder / run_folder.EXPERIMENT}: {error}") from None


def run(plan: Experiment, folder: Path, listen: Listener) -> list[Result]:
    """Run every method that is not finished yet, and save checkpoints; the listener gets events with its label."""
    results: list[Result] = []
    for number, method in enumerate(plan.methods, 1):
        run_folder.check_same_method(folder, number, method.label)
    for number, method in enumerate(plan.methods, 1):
        with own_code.blamed(plan.code):
            results.append(_run_method(plan, number, method, folder, listen))
        histories = {(result.label, run.seed): run.history for result in results for run in result.runs}
        run_folder.write_histories(folder, histories)
    return results


def _run_method(plan: Experiment, number: int, method: Method, folder: Path, listen: Listener) -> Result:
    settings = plan.settings
    outcome = simulate(
        method.algorithm,
        plan.problem,
        rounds=settings.rounds,
        seed=settings.seeds if len(settings.seeds) > 1 else settings.seeds[0],
        participation=settings.participation,
        stragglers=settings.stragglers,
        metrics_every=settings.metrics_every,
        record=settings.record,
        store=settings.store,
        log=settings.log,
        callback=settings.callback,
        execution=settings.execution,
        devices=settings.devices,
        checkpoints=run_folder.checkpoints_of(folder, number, method.label),
        checkpoint_every=settings.checkpoint_every,
        progress=lambda *how_far: listen(Event(method.label, *how_far)),
    )
    runs = outcome.runs if isinstance(outcome, Ensemble) else (outcome,)
    for run in runs:
        run_folder.write_model(folder, number, method.label, run)
    return Result(method.label, runs)
