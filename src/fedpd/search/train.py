"""Train a network with nothing to choose: FedPD-N, by the rules below.

method    fedpd_n: trials find the step size, and losses guard it; see `algorithms/fedpd_n.py`
batch     BATCH samples per step, or as many as half of the agents have
steps     one pass over the samples of an agent of mean size, at least LEAST steps
stop      at the budget; or when the loss on held-out samples has not come down for a quarter of the run, but at least
          PATIENCE communications
model     that with the smallest loss on held-out samples
"""

from dataclasses import replace
from typing import Any

import numpy as np

from fedpd import algorithms, theory
from fedpd.base.checks import at_least, below, count, positive, refuse
from fedpd.base.errors import warn
from fedpd.base.progress import Row
from fedpd.base.typed import typed
from fedpd.core import Method, Problem, Tree
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate

BATCH = 20
LEAST = 5  # local steps: with fewer, momentum at the server is all that there is
PATIENCE = 20  # communications
# The options that train decides by itself, or that its best model, which no checkpoint holds, does not go with.
CHOSEN = ("average", "until", "buffer", "callback", "checkpoints", "checkpoint_every", "participation")
VALIDATION = "validation_loss"


@typed
def train(
    problem: Problem,
    communications: int = 100,
    cohort: int | None = None,
    seed: int = 0,
    *,
    batch: int | None = None,
    epochs: float = 1.0,
    validation: float = 0.1,
    step: float | None = None,
    **options: Any,
) -> Run:
    """Train a network, with nothing to tune: mini-batches, few agents per round.

    Args:
        problem: The problem, e.g. from `problems.network`.
        communications: The most communications.
        cohort: K, the agents of a round; None: all agents.
        seed: The seed of all draws.
        batch: Samples per local step; None: 20, or as many as half of the agents have.
        epochs: The passes of an agent of mean size over its samples in a round.
        validation: The share of each agent's samples that is held out: the run stops when their loss does not come down
            any more, and its model is the one with the smallest. 0: none, so that the run ends at the budget.
        step: The first step size; None: trials find it. The run corrects one that is wrong.

    Keyword Args:
        options: The other options of `fedpd.simulate`, except those that train decides by itself.

    Returns:
        The run. Its history has the column "validation_loss", and all costs, those of the trials included.

    Examples:
        >>> from fedpd import data, problems
        >>> problem = problems.penalized_logistic(*data.strongly_noniid(agents=20, samples=40, dimension=5))
        >>> run = train(problem, communications=20, cohort=4)
        >>> bool(run.history["loss"][-1] < run.history["loss"][0])
        True
    """
    count("communications", communications, "Give the most communications, e.g. 100", bits=31)
    below("validation", at_least("validation", validation, 0, SHARE), 1, SHARE)
    for name in CHOSEN:
        if name in options:
            refuse(name, options.get(name), "is what train decides by itself", "Leave it out, or call fedpd.simulate")
    method = chosen_method(problem, cohort, batch, epochs, step)
    rest, held = (problem, None) if validation == 0 or problem.lazy else problem.hold_out(validation, seed)
    watch = None if held is None else Watch(held, communications)
    more: dict[str, Any] = {"metrics_every": max(1, communications // 50), **options}
    run = simulate(method, rest, rounds=communications, cohort=cohort, seed=seed, callback=watch, **more)
    if run.diverged is not None:
        warn(f"train did not finish: {run.diverged.message}")
    return run if watch is None else watch.best_of(run)


SHARE = "Give the share of each agent's samples to hold out, e.g. 0.1; 0 holds out none"


class Watch:
    """Watches the loss on held-out samples, stops a run on a plateau, and keeps the best model."""

    def __init__(self, held: Problem, communications: int) -> None:
        self.held, self.patience = held, max(PATIENCE, communications // 4)
        self.losses: list[float] = []
        self.best: tuple[float, int, Tree] = (np.inf, 0, None)

    def __call__(self, r: int, model: Tree, row: Row) -> bool:
        """Return whether the run ends: (round, model, row) are those of a callback of `simulate`."""
        loss = float(theory.objective(self.held, model))
        self.losses.append(loss)
        if self.best[2] is None or loss < self.best[0]:
            self.best = loss, r, model
        return r - self.best[1] >= self.patience

    def best_of(self, run: Run) -> Run:
        """Return the run with the best model, and with the losses as a column of its history."""
        return replace(run, model=self.best[2], history=run.history | {VALIDATION: np.array(self.losses)})


def chosen_method(
    problem: Problem, cohort: int | None, batch: int | None, epochs: float, step: float | None = None
) -> Method:
    """Return the method that `train` runs on a problem."""
    positive("epochs", epochs, "Give the passes over an agent's samples in a round, e.g. 1")
    size = float(problem.sizes.mean())
    usual = min(BATCH, max(1, int(np.median(problem.sizes))))
    samples = usual if batch is None else count("batch", batch, "Give the samples per local step, e.g. 20", bits=31)
    steps = max(LEAST, round(epochs * size / samples))
    present = problem.agents if cohort is None else cohort
    return algorithms.fedpd_n(iterations=steps, batch=samples, cohort=present, step=step)
