"""Run an experiment into a run folder, method by method; an interrupted run is resumed."""

import re
from pathlib import Path
from typing import NamedTuple

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError
from fedpd.base.progress import Event, Listener
from fedpd.engine.history import write_parquet
from fedpd.engine.run import Ensemble, Run
from fedpd.engine.simulate import simulate
from fedpd.experiments import experiment
from fedpd.experiments.experiment import Experiment, Method
from fedpd.experiments.run_folder import CHECKPOINTS, EXPERIMENT, HISTORY, MODELS, is_run_folder


class Result(NamedTuple):
    """A method's runs, one per seed."""

    label: str
    runs: tuple[Run, ...]


def open_folder(folder: Path) -> Experiment:
    """Return the experiment of a run folder; those of fedpd 0.1 have no marker, but checkpoints."""
    if not (folder / EXPERIMENT).exists() or not (is_run_folder(folder) or (folder / CHECKPOINTS).is_dir()):
        raise FedpdError(f"{folder}: fedpd did not make this folder for a run. Start a run: fedpd run FILE.")
    return experiment.load(folder / EXPERIMENT)


def run(plan: Experiment, folder: Path, listen: Listener) -> list[Result]:
    """Run every method that is not finished yet, saving as it goes; the listener is told of each by its label."""
    results: list[Result] = []
    for number, method in enumerate(plan.methods, 1):
        results.append(_run_method(plan, method, folder, method_name(number, method.label), listen))
        histories = {(result.label, run.seed): run.history for result in results for run in result.runs}
        write_parquet(folder / HISTORY, histories)
    return results


def _run_method(plan: Experiment, method: Method, folder: Path, name: str, listen: Listener) -> Result:
    seeds = plan.settings.seeds
    outcome = simulate(
        method.algorithm,
        plan.problem,
        rounds=plan.settings.rounds,
        seed=seeds if len(seeds) > 1 else seeds[0],
        participation=plan.settings.participation,
        stragglers=plan.settings.stragglers,
        metrics_every=plan.settings.metrics_every,
        record=plan.settings.record,
        checkpoints=folder / CHECKPOINTS / name,
        checkpoint_every=plan.settings.checkpoint_every,
        progress=lambda *how_far: listen(Event(method.label, *how_far)),
    )
    runs = outcome.runs if isinstance(outcome, Ensemble) else (outcome,)
    for run in runs:
        meta = {"label": method.label, "algorithm": run.algorithm, "seed": run.seed, "rounds": plan.settings.rounds}
        path = folder / MODELS / f"{name}-seed-{run.seed}.safetensors"
        checkpoint.write(path, checkpoint.flatten("model", run.model), meta)
    return Result(method.label, runs)


def method_name(number: int, label: str) -> str:
    """Return what the files of an experiment's method are called; methods are counted from 1."""
    return f"{number:02d}-{file_name(label)}"


def file_name(label: str) -> str:
    """Return a label as a file name: "FedPD-GD p=0.5" -> "fedpd-gd-p-0.5"."""
    return re.sub(r"[^a-z0-9.]+", "-", label.lower()).strip("-.") or "method"
