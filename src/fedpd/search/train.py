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
from fedpd.base.arrays import as_array
from fedpd.base.checks import at_least, below, count, positive, refuse
from fedpd.base.errors import warn
from fedpd.base.progress import Row
from fedpd.base.typed import typed
from fedpd.core import Method, Problem, Tree
from fedpd.engine.measure.personal import evaluate_agents
from fedpd.engine.participation import check_cohort
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate

BATCH = 20
LEAST = 5  # local steps: with fewer, momentum at the server is all that there is
PATIENCE = 20  # communications
SHARE = "Give the share of each agent's samples to hold out, e.g. 0.1; 0 holds out none"
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
        The run. Its model is the best of its rows by the column "validation_loss" of the history, without held-out
        samples the last one. The costs include those of the trials.

    Raises:
        FedpdError: An argument is not valid. The message names the value, the rule and the remedy.

    Examples:
        >>> import numpy as np
        >>> from fedpd import problems, train
        >>> features = np.random.default_rng(0).normal(size=(20, 40, 3))
        >>> problem = problems.penalized_logistic(features, np.sign(features[..., 0]))
        >>> run = train(problem, communications=20, cohort=4)
        >>> bool(run.history["loss"][-1] < 0.5 * run.history["loss"][0])
        True
    """
    count("communications", communications, "Give the most communications, e.g. 100", bits=31)
    below("validation", at_least("validation", validation, 0, SHARE), 1, SHARE)
    for name in CHOSEN:
        if name in options:
            refuse(name, options.get(name), "is what train decides by itself", "Leave it out, or call fedpd.simulate")
    rest, held = (problem, None) if validation == 0 else _held_out(problem, validation, seed)
    method = chosen_method(rest, cohort, batch, epochs, step)
    watch = None if held is None else Watch(held, communications)
    more: dict[str, Any] = {"metrics_every": max(1, communications // 50), **options}
    run = simulate(method, rest, rounds=communications, cohort=cohort, seed=seed, callback=watch, **more)
    if run.diverged is not None:
        warn(f"train did not finish: {run.diverged.message}")
    return run if watch is None else watch.best_of(run, rest)


def _held_out(problem: Problem, validation: float, seed: int) -> tuple[Problem, Problem]:
    """Return the problem to train on, and that of the held-out samples."""
    remedy = "Give 0: the run then ends at its budget"
    if problem.lazy:
        refuse("validation", validation, "needs the samples in memory", f"{remedy}; or problem.in_memory()")
    if validation * problem.sizes.max() <= 0.5 or problem.sizes.max() == 1:
        refuse("validation", validation, f"holds out no sample: the largest agent has {problem.sizes.max()}", remedy)
    return problem.hold_out(validation, seed)


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

    def best_of(self, run: Run, problem: Problem) -> Run:
        """Return the run with the best model, its values per agent, and the losses as a column of its history."""
        model, history = self.best[2], run.history | {VALIDATION: np.array(self.losses)}
        by_agent = evaluate_agents(problem, model) if run.by_agent else {}
        return replace(run, model=model, history=history, by_agent=by_agent)


def cohort_of(run: dict[str, Any], cohort: int | None) -> dict[str, Any]:
    """Return the options of the [run] table of a file that decide who takes part, with another cohort if it is given.

    Raises:
        FedpdError: The file gives a share or probabilities, and `train` needs the number of agents of a round.
    """
    if cohort is not None:
        return {"cohort": cohort, **({"sampling": run["sampling"]} if "sampling" in run else {})}
    remedy = "Give --cohort K, the number of agents of a round"
    if np.any(as_array(run.get("participation", 1.0), "participation", remedy) != 1):
        refuse("participation", run["participation"], "train needs the number of agents of a round", remedy)
    return {name: run[name] for name in ("cohort", "sampling", "stragglers") if name in run}


def model_text(run: Run) -> str:
    """Return a sentence about the model of a run of `train`."""
    losses = run.history.get(VALIDATION)
    if losses is None:
        return "The model is that of the last round."
    best = int(np.argmin(losses))
    return f"The model is that of round {run.history['round'][best]}, with validation loss {losses[best]:.4g}."


def plan_text(problem: Problem, cohort: int | None) -> str:
    """Return a sentence about what `train` will run."""
    if cohort is not None:
        check_cohort(cohort, problem.agents)
    steps, samples = local_work(problem, None, 1.0)
    present = "all agents" if cohort is None else f"{cohort} of {problem.agents} agents"
    return f"FedPD-N with {present} per round, {steps} local steps of {samples} samples; trials find the step size."


def local_work(problem: Problem, batch: int | None, epochs: float) -> tuple[int, int]:
    """Return the local steps of a round, and the samples per step."""
    positive("epochs", epochs, "Give the passes over an agent's samples in a round, e.g. 1")
    usual = min(BATCH, max(1, int(np.median(problem.sizes))))
    samples = usual if batch is None else count("batch", batch, "Give the samples per local step, e.g. 20", bits=31)
    return max(LEAST, round(epochs * float(problem.sizes.mean()) / samples)), samples


def chosen_method(
    problem: Problem, cohort: int | None, batch: int | None, epochs: float, step: float | None = None
) -> Method:
    """Return the method that `train` runs on a problem."""
    steps, samples = local_work(problem, batch, epochs)
    present = problem.agents if cohort is None else cohort
    return algorithms.fedpd_n(iterations=steps, batch=samples, cohort=present, step=step)
