"""Load results from folders that `save`, `fedpd run`, `fedpd compare` or a federation's server wrote."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedpd.base.checks import FedpdError
from fedpd.base.saved import is_saved, load_result
from fedpd.base.typed import explained
from fedpd.core import Tree
from fedpd.engine.run import Ensemble, Run, ensemble
from fedpd.engine.views.entries import Measured
from fedpd.experiments import federated
from fedpd.experiments.recorded import Recorded, read
from fedpd.experiments.run_folder import SavedModel, read_models


@explained
def load(folder: str | Path, *, like: Tree | None = None) -> Any:
    """Return the result that a folder holds. fedpd runs no code from the folder.

    Args:
        folder: A folder that `save` wrote, the run folder of `fedpd run` or `fedpd compare`, or a federation's `out`.
        like: A model of the same structure, e.g. `problem.start`. It is needed only if the model is a pytree of classes
            that a file cannot describe, such as a module of a neural network; the error message then asks for it.

    Returns:
        The `Run`, `Ensemble`, `Sweep`, `Tuned` or `Advice` that was saved, exact to the bit. A run folder gives a dict
        from the label of each method to its `Run`, or to its `Ensemble` if there are several seeds, with the rows so
        far. These runs have no state of the agents (`fedpd resume` continues them), and unfinished ones have no model.

    Raises:
        FedpdError: The folder holds no result, or fedpd cannot read it.
    """
    folder = Path(folder)
    if is_saved(folder):
        return load_result(folder, like)
    record, models = read(folder), _models(folder, like)
    if not record.entries:
        raise FedpdError(
            f"{folder}: the folder holds an experiment file without results, as fedpd tune writes it, or of a run "
            f"without a checkpoint yet. Run it: fedpd resume {folder}."
        )
    runs = {entry.label: [_run(entry.label, one, models) for one in entry.runs] for entry in record.entries}
    return {label: own[0] if len(own) == 1 else ensemble(tuple(own)) for label, own in runs.items()}


@explained
def load_model(
    folder: str | Path, *, method: str | None = None, seed: int | None = None, like: Tree | None = None
) -> Tree:
    """Return the trained model that a folder holds: the user's own pytree with NumPy leaves.

    The leaves are tensors if a federation trained a PyTorch module: `module.load_state_dict(fedpd.load_model(out))`.

    Args:
        folder: As for `load`; or a file with one model, such as best.safetensors of a federation.
        method: The label of the method; None if there is only one.
        seed: The seed; None if there is only one.
        like: As for `load`.

    Raises:
        FedpdError: There is no model, or there are several and the arguments do not select one. The message lists them.
    """
    if Path(folder).is_file():
        return federated.read_model(Path(folder), like).model
    found = [run for run in _labelled(load(folder, like=like)) if run[1].model is not None]
    chosen = [(label, run) for label, run in found if method in (None, label) and seed in (None, run.seed)]
    if len(chosen) == 1:
        return chosen[0][1].model
    if not found:
        raise FedpdError(f"{folder}: there is no model yet. Finish the run first, e.g. with fedpd resume {folder}.")
    asked = ", ".join(f"{name}={value!r}" for name, value in (("method", method), ("seed", seed)) if value is not None)
    labels = ", ".join(repr(label) for label in dict.fromkeys(label for label, _ in found))
    seeds = ", ".join(str(seed) for seed in dict.fromkeys(run.seed for _, run in found))
    which = f"none of its {len(found)} models has {asked}" if not chosen else f"the folder holds {len(chosen)} models"
    raise FedpdError(f"{folder}: {which}. Select one: method= one of {labels}, and seed= one of {seeds}.")


def _models(folder: Path, like: Tree | None) -> dict[tuple[str, int], SavedModel]:
    """Return the models of a run folder or of a federation's folder, by label and seed."""
    path = folder / federated.MODEL
    if not federated.is_federation(folder):
        return read_models(folder, like)
    if not path.is_file():
        return {}
    model, spec, meta = federated.read_model(path, like)
    return {(meta["label"], meta["seed"]): SavedModel(model, meta["algorithm"], spec, np.zeros(0, np.int64))}


def _labelled(result: Any) -> Iterator[tuple[str, Run]]:
    """Yield all runs of a result with their labels."""
    if isinstance(result, Mapping):
        for label, one in result.items():
            yield from ((label, run) for run in (one.runs if isinstance(one, Ensemble) else [one]))
    elif hasattr(result, "entries"):
        yield from ((entry.label, run) for entry in result.entries() for run in entry.runs)


def _run(label: str, recorded: Measured, models: Mapping[tuple[str, int], SavedModel]) -> Run:
    """Return the run of a method of a run folder; one that is not finished has no model."""
    saved = models.get((label, recorded.seed), SavedModel(None, label, "", np.zeros(0, np.int64)))
    return Run(
        algorithm=saved.algorithm,
        seed=recorded.seed,
        model=saved.model,
        history=recorded.history,
        agents=None,
        updates=saved.updates,
        seconds=float(recorded.elapsed[-1]),
        elapsed=recorded.elapsed,
        diverged=recorded.diverged,
        spec=saved.spec,
        settings=recorded.settings if isinstance(recorded, Recorded) else {},
    )
