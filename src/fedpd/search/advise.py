"""Recommend the step sizes, local steps and communications of FedPD for any problem.

The advice has up to three settings of FedPD. Theorem 1 proves the *guaranteed* one (theory.rates, corrected), which is
pessimistic by orders of magnitude. The *recommended* one is a heuristic, eta = 1/L, which fedpd tries on the problem
first. If L is exact, every round communicates, because nothing saves more than a large eta. If L is an estimate,
p="auto" saves the communications that an eta below 1/L would waste. The *untuned* one is FedPD with memory, as `solve`
runs it. fedpd tries it too if it applies: all agents do all their steps in every round, and its whole memory fits.

A setting whose trial did not reach epsilon is not recommended. If it diverged or made no progress, fedpd tries a
smaller eta. `Advice.failed` has the trials that did not reach epsilon, and what happened in them.
"""

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from fedpd import theory
from fedpd.base.checks import TheoryWarning, count, positive, refuse
from fedpd.base.progress import StepFunction
from fedpd.base.saved import save_result
from fedpd.base.typed import typed
from fedpd.core import Problem
from fedpd.engine.config import Participating, RunOptions
from fedpd.engine.participation import Sampling, attendance_rule, straggler_rule
from fedpd.engine.run import Run
from fedpd.engine.simulate import simulate
from fedpd.engine.views.entries import Frame, table_frame
from fedpd.experiments.calls import build_algorithm, table_of
from fedpd.problems.logistic import is_penalized_logistic
from fedpd.search.solve import MEMORY, chosen_method, ended_higher, memory_for, model_bytes, rise_text
from fedpd.search.sweep import first_below
from fedpd.search.views import advice_figure, advice_html, advice_text
from fedpd.theory import Hessians, Similarity, Smoothness, max_eta, printed, rates
from fedpd.theory.constants import delta_for_all, start_gap

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ITERATIONS = 8  # local steps of the recommended setting: at eta = 1/L the gradient of L_i falls by 2^8 or more
SHARE = 0.9  # of the largest eta that Theorem 1 allows
RETRIES = 6  # trials with a smaller eta, if the recommended setting fails
STALLED = 0.5  # a trial made no progress if this part of ||grad f||^2 or more is left
WORTHWHILE = 1e-3  # a smaller p saves too little, so the guaranteed setting uses 0


class Setting(NamedTuple):
    """A method, and its costs to reach epsilon.

    Attributes:
        table: The method as a table of an experiment file.
        reached: Whether it reaches epsilon.
        rounds: Rounds until then.
        communications: Communications until then.
        samples: Sample gradients until then.
        transfer: Bytes until then, up and down.
        ended: ||grad f||^2 at the end of the trial, relative to the start; None: there was no trial.
        how: The origin of these numbers: a theorem or a trial.
    """

    table: dict[str, Any]
    reached: bool
    rounds: float
    communications: float
    samples: float
    transfer: float
    ended: float | None
    how: str


class Advice(NamedTuple):
    """The measured constants of a problem, and settings for it.

    Attributes:
        epsilon: The target for ||grad f||^2.
        smoothness: L, and how it is known.
        similarity: How much the agents' gradients differ at the measured points.
        hessians: The condition number of the mean Hessian, and how much the agents' Hessians differ, at the start and
            where a trial ended.
        delta: An upper bound of ||grad f_i - grad f|| for all x; infinite if none is known.
        gap: An upper bound of f(x^0) - inf f.
        gap_how: How the gap is known.
        paper_p: The skip probability of the paper's rule, C(p) <= epsilon/(3 delta^2), at the measured delta.
        guaranteed: The setting that Theorem 1 proves.
        recommended: The heuristic setting, with the costs of the trial; None: no such setting reached epsilon.
        untuned: The setting of `solve`, with the costs of the trial; None: it does not apply, or did not reach epsilon.
        features: The smallest and the largest root mean square of a feature; None: the problem has no features.
        failed: The settings whose trial did not reach epsilon, and how, in the order of the trials.
    """

    epsilon: float
    smoothness: Smoothness
    similarity: Similarity
    hessians: Hessians
    delta: float
    gap: float
    gap_how: str
    paper_p: float
    guaranteed: Setting
    recommended: Setting | None
    untuned: Setting | None
    features: tuple[float, float] | None = None
    failed: tuple[Setting, ...] = ()

    @property
    def settings(self) -> dict[str, Setting]:
        """Return the settings that reach epsilon, by name: the guaranteed one, and those whose trial reached it."""
        named = {"guaranteed": self.guaranteed, "recommended": self.recommended, "untuned": self.untuned}
        return {name: setting for name, setting in named.items() if setting is not None}

    @property
    def shown(self) -> dict[str, Setting]:
        """Return the settings, and the last trial that failed if nothing is recommended, under the name "tried"."""
        return self.settings if self.recommended is not None else {**self.settings, "tried": self.failed[-1]}

    @property
    def hints(self) -> list[str]:
        """Return what else to try: for a problem whose L is only estimated, such as a network, mini-batches."""
        known = self.smoothness.exact or self.smoothness.bound
        return [] if known else ["All settings use full gradients. For a network with mini-batches, use fedpd.train."]

    def __repr__(self) -> str:
        return "\n".join([advice_text(self.epsilon, self.settings, self.failed), *(f"  {hint}" for hint in self.hints)])

    def _repr_html_(self) -> str:
        return advice_html(self.epsilon, self.shown)

    def plot(self) -> "Figure":
        """Return a matplotlib figure of the costs of each setting to reach epsilon."""
        return advice_figure(self.epsilon, self.shown)

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per setting."""
        rows = [(name, setting._asdict()) for name, setting in self.shown.items()]
        return table_frame([{"setting": name, **{k: v for k, v in row.items() if k != "table"}} for name, row in rows])

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write the advice to a folder of its own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.
        """
        return save_result(self, folder, overwrite=overwrite)


@typed
def advise(
    problem: Problem,
    epsilon: float = 1e-6,
    *,
    floor: float | None = None,
    pilot: int = 100,
    progress: StepFunction | None = None,
    participation: Participating = 1.0,
    stragglers: float = 0.0,
    cohort: int | None = None,
    sampling: Sampling = "uniform",
) -> Advice:
    """Measure L and delta, and return settings of FedPD that reach ||grad f||^2 <= epsilon, with their costs.

    `participation`, `cohort`, `sampling` and `stragglers` are as for `simulate`, in the trials.

    Args:
        problem: The problem.
        epsilon: The target for ||grad f||^2.
        floor: A lower bound of f; None: f at the minimiser if that is known, else 0, which is right for losses >= 0.
        pilot: The number of rounds of each trial, at most.
        progress: A function of (name of the step, done, total).

    Returns:
        The constants of the problem, a guaranteed setting, a recommended one if a trial reached epsilon, an untuned one
        where it applies, and the trials that failed.
    """
    positive("epsilon", epsilon, "Give the target for ||grad f||^2, e.g. 1e-6")
    count("pilot", pilot, "Give the rounds of the trial, e.g. 100", bits=31)

    def progress_of(what: str) -> Callable[[int, int], None]:
        return lambda done, total: None if progress is None else progress(what, done, total)

    everyone = attendance_rule(cohort, sampling, participation, problem.sizes, pilot) is None
    idle = straggler_rule(stragglers) is not None
    taking_part: RunOptions = {"participation": participation, "cohort": cohort, "sampling": sampling}
    conditions: RunOptions = {**taking_part, "stragglers": stragglers}
    gap, gap_how = start_gap(problem, theory.objective(problem, problem.start), floor)
    smoothness = theory.smoothness_constants(problem, progress=progress_of("measuring L"))
    if smoothness.value == 0:
        rule = "has no curvature around its start (L = 0), because f is linear or all its outputs are saturated"
        refuse("problem", problem.name, rule, "Scale the features (data.standardise), or start from another model")
    similarity = theory.similarity(problem, epsilon=epsilon, progress=progress_of("measuring delta"))
    table = _recommended(smoothness, everyone)
    run = _trial(table, problem, pilot, conditions, progress_of("trying the recommended setting"))
    first, ends, tried = _tried(table, run, epsilon), run, [run]
    trials, untuned = [first], None
    if everyone and not idle and memory_for(problem) == MEMORY:
        table = {"label": "FedPD, untuned"} | table_of(chosen_method(problem).spec)
        options: RunOptions = {"until": {"stationarity": epsilon}}
        run = _trial(table, problem, pilot, options, progress_of("trying the untuned setting"))
        untuned, ends = _tried(table, run, epsilon), run
        tried.append(run)
    _check_bounded(problem, gap, tried)
    # If L is exact, eta = 1/L is not too long for slow progress, but may be for a non-convex f, which it then leaves.
    rose = first.ended is None or not first.ended < 1
    if not makes_progress(first) and (rose or not smoothness.exact):
        found = [run.model for run in tried if run.diverged is None]
        known = [model for model in found if all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(model))]
        show = progress_of("measuring L where the trials went")
        smoothness = theory.smoothness_constants(problem, points=[problem.start, *known], progress=show)
        show = progress_of("trying a smaller eta")
        try_again = partial(_trial, problem=problem, pilot=pilot, conditions=conditions, progress=show)
        trials += _careful(first, smoothness.value, try_again, epsilon)
    recommended = trials.pop() if trials[-1].reached else None
    if untuned is not None and not untuned.reached:
        trials, untuned = [untuned, *trials], None
    eta = SHARE * max_eta(smoothness.value)
    points = [problem.start] + ([ends.model] if ends.diverged is None else [])
    hessians = theory.hessians(problem, points, progress=progress_of("measuring Hessians"))
    return Advice(
        epsilon,
        smoothness,
        similarity,
        hessians,
        delta_for_all(problem),
        gap,
        gap_how,
        printed.skip_probability(epsilon, similarity.centred, smoothness.value, eta),
        _guaranteed(problem, epsilon, smoothness, similarity, gap, eta, everyone and not idle),
        recommended,
        untuned,
        feature_sizes(problem),
        tuple(one._replace(table=one.table | {"label": "FedPD, tried"}) for one in trials),
    )


def feature_sizes(problem: Problem) -> tuple[float, float] | None:
    """Return the smallest and the largest root mean square of a feature, without those of 0; None: no features."""
    x = problem.data.get("x") if isinstance(problem.data, dict) else None
    x = problem.data if is_penalized_logistic(problem) else x
    if x is None or x.dtype.kind != "f" or x.ndim < 3:
        return None
    sizes = np.sqrt(np.mean(np.square(x, dtype=np.float64), axis=(0, 1))).ravel()
    sizes = sizes[sizes > 0]
    return (float(sizes.min()), float(sizes.max())) if sizes.size else None


def makes_progress(setting: Setting) -> bool:
    """Return whether a trial reached epsilon or came closer; not if it diverged, stalled or ended at a maximum."""
    return setting.reached or (setting.ended is not None and setting.ended <= STALLED)


def _careful(failed: Setting, L: float, trial: Callable[[dict[str, Any]], Run], epsilon: float) -> list[Setting]:
    """Return trials with eta = 1/L, 1/(4L) and so on, up to the first that makes progress.

    Args:
        L: The smoothness where the trials went.
    """
    eta, trials = failed.table["eta"], list[Setting]()
    for _ in range(RETRIES):
        eta = min(1 / L, eta / 4)
        step = failed.table["oracle"] | {"step": eta / 2}
        table = failed.table | {"eta": eta, "oracle": step}
        tried = _tried(table, trial(table), epsilon)
        if makes_progress(tried):
            return [*trials, tried._replace(how=f"{tried.how}; eta = {failed.table['eta']:.2g} failed before")]
        trials.append(tried)
    return trials


def _check_bounded(problem: Problem, gap: float, runs: list[Run]) -> None:
    """Refuse a problem whose f fell below its floor in a trial: all settings build on the floor."""
    start = float(runs[0].history["loss"][0])
    floor, lowest = start - gap, min(float(np.nanmin(run.history["loss"])) for run in runs)
    rounding = 1e-5 * (abs(start) + abs(floor))
    if problem.answer.minimiser is None and lowest < floor - rounding - 1e-3 * gap:
        rule = f"has f = {lowest:.3g} in a trial, below the floor {floor:.3g}, so f may be unbounded below"
        refuse("problem", problem.name, rule, "Add a penalty, e.g. l2=0.01, or give a floor that f never falls below")


def _guaranteed(
    problem: Problem,
    epsilon: float,
    smoothness: Smoothness,
    similarity: Similarity,
    gap: float,
    eta: float,
    everyone: bool,
) -> Setting:
    """Return the setting that Theorem 1 proves, with gradient descent; p > 0 only if delta is known for all x."""
    L, delta = smoothness.value, delta_for_all(problem)
    p = rates.guaranteed_skip_probability(epsilon, delta, L, eta) if np.isfinite(delta) else 0.0
    p = p if p >= WORTHWHILE else 0.0
    accuracy = rates.local_accuracy(epsilon, L=L, eta=eta, p=p, delta=delta)
    rounds = rates.rounds_for(epsilon, gap, L=L, eta=eta, gradients=similarity.G**2, p=p, delta=delta)
    # ||grad L_i||^2 at the start of a local solve: G^2 in round 0, and smaller later unless the run diverges.
    iterations = max(1, rates.local_iterations(accuracy, similarity.G**2, L, eta))
    oracle = {"name": "gd", "step": 1 / (L + 1 / eta), "iterations": iterations, "tolerance": accuracy}
    table = {"label": "FedPD, guaranteed", "name": "fedpd", "eta": eta, "p": p, "oracle": oracle}
    communications = rounds * (1 - p)
    upper = "L is exact" if smoothness.exact else "L is an upper bound"
    known = upper if smoothness.exact or smoothness.bound else "if L is not larger than estimated"
    return Setting(
        table,
        True,
        rounds,
        communications,
        float(rounds) * iterations * problem.samples,
        communications * 2 * problem.agents * model_bytes(problem),
        None,
        f"Theorem 1, corrected: the mean of ||grad f||^2 over the rounds; {known}"
        + (
            "" if everyone else "; it assumes that all agents do all their steps in every round, which they do not here"
        ),
    )


def _recommended(smoothness: Smoothness, everyone: bool) -> dict[str, Any]:
    """Return the setting with eta = 1/L, as a table. It uses p="auto" only if all agents take part."""
    L = smoothness.value
    oracle = {"name": "gd", "step": 1 / (2 * L), "iterations": ITERATIONS}
    table = {"label": "FedPD, recommended", "name": "fedpd", "eta": 1 / L, "oracle": oracle}
    return table | ({} if smoothness.exact or not everyone else {"p": "auto"})


def _trial(
    table: dict[str, Any], problem: Problem, pilot: int, conditions: RunOptions, progress: Callable[[int, int], None]
) -> Run:
    """Return a run of a setting on the problem."""
    options: RunOptions = {**conditions, "progress": lambda done, total, _: progress(done, total)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TheoryWarning)  # `Setting.how` says that no theorem covers it
        return simulate(build_algorithm(table, pilot), problem, rounds=pilot, **options)


def _tried(table: dict[str, Any], run: Run, epsilon: float) -> Setting:
    reached = not np.isnan(first_below(run, epsilon)) and not ended_higher(run)
    columns = ("round", "communications", "samples", "bytes_up", "bytes_down")
    spent = [first_below(run, epsilon, name) if reached else float(run.history[name][-1]) for name in columns]
    rounds, communications, samples, up, down = spent
    stationarity = run.history["stationarity"]
    ended = float(stationarity[-1] / stationarity[0]) if stationarity[0] > 0 else 0.0
    return Setting(table, reached, rounds, communications, samples, up + down, ended, _how(table, run, reached, ended))


def _how(table: dict[str, Any], run: Run, reached: bool, ended: float) -> str:
    """Return where the costs of a trial come from, or how it failed."""
    rounds, first, last = run.history["round"][-1], *run.history["stationarity"][[0, -1]]
    kind = "nothing to tune" if table["eta"] == "auto" else "a heuristic, with a larger eta than Theorem 1 allows"
    if run.diverged is not None:
        return f"{kind}; its trial FAILED: it diverged at round {run.diverged.round}; use another setting"
    if ended_higher(run):
        return f"{kind}; its trial FAILED: {rise_text(run)}"
    if reached:
        return f"{kind}; these are the costs of a trial on this problem"
    if ended > STALLED:
        return f"{kind}; its trial made NO PROGRESS: ||grad f||^2 = {first:.1e} became {last:.1e} in {rounds} rounds"
    return f"{kind}; its trial reached ||grad f||^2 = {last:.1e} after {rounds} rounds, and needs more"
