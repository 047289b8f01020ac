"""Compare a run with the theorem that covers it: the bound beside what was measured, and which assumptions hold.

Theorems 1 (Oracle I) and 3 (Oracle II) bound the mean of E||grad f||^2 over the rounds 0, ..., T-1 of FedPD. `check`
evaluates the proved forms, `theory.rates.bound` and `theory.variance_reduction.bound`, at every T of a run. The result
lists every assumption, and whether it holds, fails, or is not certain.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import numpy as np

from fedpd import theory
from fedpd.base.checks import FedpdError, choice, refuse
from fedpd.base.saved import save_result
from fedpd.base.spec import Spec
from fedpd.base.typed import typed
from fedpd.core import Problem, Tree
from fedpd.engine.run import Ensemble, Run
from fedpd.engine.views.entries import Frame, html_table, table_frame
from fedpd.problems.logistic import is_penalized_logistic
from fedpd.theory import max_eta, rates
from fedpd.theory import variance_reduction as vr
from fedpd.theory.constants import delta_for_all, start_gap
from fedpd.theory.points import as_model

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.figure import Figure

RECORD = 'record=["local_accuracy"]'
SETTINGS = ("eta", "oracle", "p", "memory", "drift", "start", "x0_rule", "absent")  # of algorithms.fedpd
CLOSE = 1e-4  # relative: f at the run's model, computed again, agrees with the history up to rounding of float32
ROUNDING = 1e-9  # relative: of the bound

Verdict = Literal["holds", "violated", "unknown", "not covered"]
WORDS: dict[bool | None, str] = {True: "yes", False: "NO", None: "not certain"}


class Assumption(NamedTuple):
    """One assumption of a theorem.

    Attributes:
        name: What it is about, such as "L" or "eta".
        holds: Whether the run satisfies it; None: it is not certain.
        text: The value, and how it is known.
    """

    name: str
    holds: bool | None
    text: str


class TheoryCheck(NamedTuple):
    """A run beside the theorem that covers it.

    Attributes:
        algorithm: The method's label.
        theorem: The theorem and its case; "": no theorem covers the run.
        verdict: "holds", "violated", "unknown" (a number is missing), or "not covered".
        reason: The reason in a sentence.
        assumptions: The assumptions of the theorem, and whether the run satisfies them.
        rounds: (K,) T, the number of rounds.
        communications: (K,) the communications of these rounds.
        measured: (K,) the mean of ||grad f||^2 over the rounds 0, ..., T-1 (and over the seeds).
        bound: (K,) what the theorem proves of it; NaN if no theorem covers the run.
    """

    algorithm: str
    theorem: str
    verdict: Verdict
    reason: str
    assumptions: tuple[Assumption, ...]
    rounds: np.ndarray
    communications: np.ndarray
    measured: np.ndarray
    bound: np.ndarray

    def __repr__(self) -> str:
        lines = [f"{self.theorem or 'No theorem'} on {self.algorithm}", f"  {self.verdict}: {self.reason}"]
        return "\n".join(lines + [f"  {WORDS[one.holds]:>11}  {one.name}: {one.text}" for one in self.assumptions])

    def _repr_html_(self) -> str:
        rows = [[one.name, WORDS[one.holds], one.text] for one in self.assumptions]
        caption = f"{self.theorem or 'No theorem'} on {self.algorithm}"
        return html_table(caption, ("assumption", "holds", "value"), rows, [f"{self.verdict}: {self.reason}"])

    def frame(self) -> Frame:
        """Return a pandas DataFrame with one row per T: rounds, communications, what was measured, and the bound."""
        columns = ("rounds", "communications", "measured", "bound")
        values = zip(*(getattr(self, name).tolist() for name in columns), strict=True)
        return table_frame([dict(zip(columns, row, strict=True)) for row in values])

    def plot(self, against: str = "communications") -> "Figure":
        """Return a matplotlib figure of the measured mean and the bound.

        Args:
            against: "communications" or "rounds".
        """
        from fedpd.engine.views.drawing import NotebookFigure, clear_frame, line_style, set_heading, set_log_scale

        figure = NotebookFigure(figsize=(6.4, 4.2), layout="constrained")
        axes, x = figure.subplots(), getattr(self, choice("against", against, ("communications", "rounds")))
        axes.plot(
            x, self.measured, **line_style(0), linewidth=1.9, label="measured: mean of ‖∇f‖² over the rounds so far"
        )
        if np.isfinite(self.bound).any():
            exact = any(one.name == "eps_1" and one.text.startswith("not recorded") for one in self.assumptions)
            label = f"proved: {self.theorem}" + (", for exact local solves" if exact else "")
            axes.plot(x, self.bound, **line_style(1), linewidth=1.9, label=label)
        set_log_scale(axes, "y")
        if self.rounds.size and self.rounds[-1] >= 10:
            set_log_scale(axes, "x")
        axes.set_xlabel("communications" if against == "communications" else "T, rounds")
        axes.set_ylabel("mean of ‖∇f‖² over T rounds")
        failed = ", ".join(one.name for one in self.assumptions if one.holds is False)
        heading = {
            "holds": f"{self.theorem}: the bound holds in every round",
            "violated": f"{self.theorem}: the run is above the bound",
            "unknown": f"{self.theorem}: no verdict, because the run did not record what it needs",
            "not covered": f"No theorem covers this run, because of {failed}",
        }
        set_heading(figure, heading[self.verdict], 80)
        clear_frame(axes)
        figure.legend(loc="outside lower center", ncols=1, frameon=False)
        return figure

    def save(self, folder: "str | Path", *, overwrite: bool = False) -> "Path":
        """Write the check to a folder of its own, and return the folder; `fedpd.load` reads it, exact to the bit.

        Args:
            folder: A folder that is empty or does not exist yet.
            overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.
        """
        return save_result(self, folder, overwrite=overwrite)


@typed
def check(
    run: Run | Ensemble,
    problem: Problem,
    *,
    floor: float | None = None,
    delta: float | None = None,
    nonconvexity: float | None = None,
    start: Tree | None = None,
) -> TheoryCheck:
    """Return the theorem that covers a run of FedPD, its bound beside what was measured, and which assumptions hold.

    Theorem 1 needs eps_1, the accuracy of the local solves: record it with `simulate(..., record=["local_accuracy"])`.
    Without it, the check uses the bound for exact local solves. That is smaller than the theorem's, so a run below it
    satisfies the theorem for any eps_1, and a run above it shows nothing.

    Args:
        run: A run, or one with several seeds, whose mean is compared.
        problem: The problem of the run; a run does not keep its data.
        floor: A lower bound of f; None: f at the minimiser if that is known, else 0, which is right for losses >= 0.
        delta: An upper bound of ||grad f_i(x) - grad f(x)|| for all x, if p > 0; None: the problem's own.
        nonconvexity: An m such that every f_i + (m/2)||x||^2 is convex, 0 for convex f_i; None: L, which always holds.
        start: The first model of the run, if that is not `problem.start`.

    Returns:
        The check, with `plot()` and `frame()`.

    Raises:
        FedpdError: The run is not of this problem, or began at another model.

    Examples:
        >>> from fedpd import algorithms, oracles, problems, simulate, theory
        >>> problem = problems.random_quadratic(agents=5, dimension=3)
        >>> eta = 0.9 * theory.max_eta(theory.smoothness(problem))
        >>> method = algorithms.fedpd(eta=eta, oracle=oracles.gd(step=eta / 2, iterations=8))
        >>> run = simulate(method, problem, rounds=30, record=["local_accuracy"])
        >>> theory.check(run, problem).verdict
        'holds'
    """
    runs = run.runs if isinstance(run, Ensemble) else (run,)
    first = problem.start if start is None else as_model(problem, start, "start")
    _check_problem(runs, problem, first)
    rounds, communications, measured = _means(runs)
    covered = _method(runs[0])
    theorem, bound, more = "", np.full(len(rounds), np.nan), list[Assumption]()
    if all(one.holds is not False for one in covered):
        case = _Case(runs, problem, first, floor, delta, nonconvexity)
        theorem, bound, more = case.theorem_3(rounds) if case.oracle.name == "vr" else case.theorem_1(rounds)
    assumptions = (*covered, *more, *([_rows(runs[0])] if theorem else []))
    failed = [one for one in assumptions if one.holds is False]
    if failed:
        theorem, bound = "", np.full(len(rounds), np.nan)
    verdict, reason = _verdict(assumptions, failed, rounds, measured, bound)
    return TheoryCheck(
        runs[0].algorithm, theorem, verdict, reason, assumptions, rounds, communications, measured, bound
    )


def _check_problem(runs: Sequence[Run], problem: Problem, first: Tree) -> None:
    """Refuse a problem, or a start, at which f is not what the run recorded."""
    for one in runs:
        if one.settings.get("metrics_agents") is not None:
            continue  # f was measured over some agents only
        history, again = one.history, theory.objective(problem, first)
        if not _close(history["loss"][0], again):
            rule = f"has f(x^0) = {again:.6g}, and the run began at f = {history['loss'][0]:.6g}"
            refuse(
                "problem", problem.name, rule, "Give the problem of the run, and start= if it began at another model"
            )
        if one.diverged is None and not one.settings.get("average"):
            again, last = theory.objective(problem, one.model), float(history["loss"][-1])
            if not _close(last, again):
                rule = f"has f = {again:.6g} at the run's model, and the run recorded {last:.6g}"
                refuse("problem", problem.name, rule, "Give the problem of the run")


def _close(one: float, other: float) -> bool:
    return bool(np.isclose(one, other, rtol=CLOSE, atol=1e-12))


def _means(runs: Sequence[Run]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return T, the communications, and sum_{r<T} ||grad f||^2/T over the measured rounds r, the mean over the seeds.

    Rounds that were not measured count as 0, so that the result is at most the mean over all rounds.
    """
    rows = min(len(one.history["round"]) for one in runs)
    numbers = runs[0].history["round"][:rows]
    squares = np.mean([one.history["stationarity"][:rows] for one in runs], axis=0)
    spent = np.mean([one.history["communications"][:rows] for one in runs], axis=0)
    return numbers[1:], spent[1:], np.cumsum(squares[:-1]) / np.maximum(numbers[1:], 1)


def _method(run: Run) -> list[Assumption]:
    """Return the assumptions about the method and who took part. Both theorems have them."""
    spec, kept = run.spec, run.settings
    if not isinstance(spec, Spec) or spec.name != "fedpd":
        return [Assumption("method", False, f"{run.algorithm} is not FedPD; Theorems 1 and 3 are about FedPD")]
    given = dict(spec.settings)
    other = [name for name in given if name not in SETTINGS]
    usual = {"memory": (0,), "drift": (None, "paper"), "x0_rule": ("paper",), "absent": ("mean_of_duals", "naive")}
    other += [name for name, values in usual.items() if given.get(name, values[0]) not in values]
    if given["eta"] == "auto":
        other.append("eta")
    if not isinstance(given.get("p", 0.0), int | float):
        other.append("p")
    changes = ", ".join(f"{name} = {_word(given[name])}" for name in other)
    text = "Algorithm 2" if not other else f"Algorithm 2 was changed, and no theorem is about {changes}"
    everyone = kept.get("participation") is None and kept.get("buffer") is None and kept.get("deadline") is None
    whole = kept.get("metrics_agents") is None and not kept.get("average")
    return [
        Assumption("method", not other, text),
        Assumption(
            "participation", everyone, "all agents in every round" if everyone else "some agents were absent in a round"
        ),
        Assumption(
            "measured",
            whole,
            "||grad f||^2 of all agents, at the server's model"
            if whole
            else "not ||grad f||^2 at the server's model (metrics_agents or average)",
        ),
    ]


def _word(value: Any) -> str:
    return value.label() if isinstance(value, Spec) else str(getattr(value, "word", lambda: value)())


def _rows(run: Run) -> Assumption:
    every = int(run.settings.get("metrics_every", 1))
    if every == 1:
        return Assumption("rounds", True, "all rounds were measured")
    text = f"only every {every}th round was measured: the mean counts the others as 0, and is too small"
    return Assumption("rounds", None, text)


class _Case(NamedTuple):
    """A run of FedPD with all agents, and the numbers that the user gave."""

    runs: Sequence[Run]
    problem: Problem
    first: Tree
    floor: float | None
    delta: float | None
    nonconvexity: float | None

    @property
    def spec(self) -> Spec:
        return cast(Spec, self.runs[0].spec)

    @property
    def oracle(self) -> Spec:
        return cast(Spec, self.spec["oracle"])

    def theorem_1(self, rounds: np.ndarray) -> tuple[str, np.ndarray, list[Assumption]]:
        """Return the case of Theorem 1, its bound at every T, and its assumptions."""
        eta, p = float(self.spec["eta"]), float(dict(self.spec.settings).get("p", 0.0))
        L, known = self._smoothness()
        most = max_eta(L) if L > 0 else np.inf
        gap, lowest = self._gap()
        accuracy, recorded = self._accuracy()
        found = [
            known,
            _limit("eta", eta, most, f"(sqrt(5)-1)/(4L) = {most:.3g}"),
            Assumption("oracle", True, f"Oracle I: {self.oracle.label()}, {self._noise()}"),
            recorded,
            lowest,
        ]
        delta = np.inf if p == 0 else delta_for_all(self.problem) if self.delta is None else self.delta
        if p > 0:
            text = (
                f"{delta:.4g}, an upper bound for all x" if np.isfinite(delta) else "no upper bound for all x is known"
            )
            found.append(Assumption("delta", bool(np.isfinite(delta)), f"{text}; needed because p > 0"))
        found.append(self._skipping(p, L, eta, eta < most))
        name = f"Theorem 1, case {'II (p > 0)' if p else 'I (p = 0)'}"
        if any(one.holds is False for one in found):
            return name, np.full(len(rounds), np.nan), found
        settings: dict[str, Any] = {"L": L, "eta": eta, "p": p, "epsilon_1": accuracy, "delta": delta}
        settings |= {"gradients": self._gradients(), "agents": self.problem.agents, "nonconvexity": self.nonconvexity}
        return name, np.array([rates.bound(int(T), gap, **settings) for T in rounds]), found

    def theorem_3(self, rounds: np.ndarray) -> tuple[str, np.ndarray, list[Assumption]]:
        """Return Theorem 3, its bound at every T, and its assumptions."""
        oracle, eta, p = dict(self.oracle.settings), float(self.spec["eta"]), self.spec["p"]
        gamma, plan = float(oracle["gamma"]), vr.Schedule(oracle["iterations"], oracle["refresh"], oracle["batch"])
        L, known = self._smoothness(per_sample=True)
        most = vr.max_eta(L, *plan) if L > 0 else np.inf
        gap, lowest = self._gap()
        whole = oracle["tolerance"] is None and not self.runs[0].settings.get("stragglers")
        text = "Q steps in every solve" if whole else "solves may end before Q steps (tolerance or stragglers)"
        found = [
            known,
            _limit("eta", eta, most, f"1/(3 (Q + sqrt(Q I/B)) L) = {most:.3g}"),
            Assumption("oracle", whole, f"Oracle II: {self.oracle.label()}, {text}"),
            lowest,
            Assumption("p", p == 0, "0: every round communicates" if p == 0 else f"{p:g}: Theorem 3 needs p = 0"),
        ]
        if eta < most and L > 0:
            least = vr.min_gamma(L, eta, *plan)
            wide = f"{gamma:.3g}, {'' if gamma > least else 'not '}above variance_reduction.min_gamma = {least:.3g}"
            found.insert(2, Assumption("gamma", gamma > least, wide))
        if plan.batch is not None and len(self.runs) == 1:
            found.append(Assumption("seeds", None, "one seed, and the theorem is about the mean over the draws"))
        name = "Theorem 3 (p = 0)"
        if any(one.holds is False for one in found):
            return name, np.full(len(rounds), np.nan), found
        settings: dict[str, Any] = {"L": L, "eta": eta, "gamma": gamma, **plan._asdict()}
        gradients = self._gradients()
        return name, np.array([vr.bound(int(T), gap, gradients, **settings) for T in rounds]), found

    def _skipping(self, p: float, L: float, eta: float, allowed: bool) -> Assumption:
        """Return whether p is below the largest that Theorem 1 covers, and whether the seeds show a mean."""
        if p == 0:
            return Assumption("p", True, "0: every round communicates")
        about, number = "the theorem is about the mean over the coins", len(self.runs)
        seeds = f"one seed, and {about}" if number == 1 else f"the mean of {number} seeds; {about}"
        if not allowed:  # an eta beyond the theorem has no such limit
            return Assumption("p", None, f"{p:g}; {seeds}")
        most = rates.max_skip_probability(L, eta, self.nonconvexity)
        below = _limit("p", p, most, f"rates.max_skip_probability = {most:.3g}; {seeds}")
        return below._replace(holds=None) if below.holds and number == 1 else below

    def _smoothness(self, per_sample: bool = False) -> tuple[float, Assumption]:
        """Return L of the f_i, or of the samples, and how it is known. An estimate also looks where the run ended."""
        ends = [one.model for one in self.runs if one.diverged is None]
        settings: dict[str, Any] = {"average": False, "points": [self.first, *ends], "per_sample": per_sample}
        try:
            found = theory.smoothness_constants(self.problem, **settings)
            if per_sample and found.per_sample is None:  # the problem knows an upper bound for the f_i only
                found = theory.estimate_smoothness(self.problem, **settings)
        except FedpdError as error:
            return 0.0, Assumption("L", False, f"it cannot be found: {error}")
        L = found.per_sample if per_sample else found.value
        assert L is not None
        if L == 0:
            return L, Assumption("L", False, "0: f has no curvature where it was measured")
        certain = True if found.exact or found.bound else None
        return L, Assumption("L", certain, f"{L:.4g}{' of the samples' * per_sample}, {found.kind}")

    def _gap(self) -> tuple[float, Assumption]:
        """Return an upper bound of D_0, and whether the run stayed above the lower bound of f."""
        start = float(self.runs[0].history["loss"][0])
        gap, how = start_gap(self.problem, start, self.floor)
        lowest = min(float(np.nanmin(one.history["loss"])) for one in self.runs)
        if lowest < start - gap - 1e-5 * (abs(start) + abs(start - gap)):
            text = f"f = {lowest:.4g} in the run is below the lower bound {start - gap:.4g}; give floor="
            return gap, Assumption("lower bound of f", False, text)
        known = self.problem.answer.minimiser is not None or is_penalized_logistic(self.problem)
        certain = True if known or self.floor is not None else None
        return gap, Assumption("lower bound of f", certain, f"f(x^0) - inf f <= {gap:.4g}: {how}")

    def _gradients(self) -> float:
        """Return mean_i ||grad f_i(x^0)||^2."""
        return float(theory.profile(self.problem, [self.first]).squares[0]) / self.problem.agents

    def _accuracy(self) -> tuple[float, Assumption]:
        """Return eps_1 as recorded; 0 and an assumption that is not certain if it was not recorded."""
        if any("local_accuracy" not in one.history for one in self.runs):
            text = f"not recorded: the bound is that of exact local solves. Run simulate(..., {RECORD})"
            return 0.0, Assumption("eps_1", None, text)
        found = np.concatenate([one.history["local_accuracy"][1:] for one in self.runs])
        if not len(found) or not np.isfinite(found).all():
            return 0.0, Assumption(
                "eps_1", False, "the recorded ||grad L_i||^2 is not finite: the local solves diverged"
            )
        every = int(self.runs[0].settings.get("metrics_every", 1)) == 1
        text = f"{found.max():.3g}, the largest ||grad L_i||^2 of all agents and {'' if every else 'measured '}rounds"
        return float(found.max()), Assumption("eps_1", True if every else None, text)

    def _noise(self) -> str:
        batch = dict(self.oracle.settings).get("batch")
        return "full gradients, deterministic" if batch is None else f"stochastic, {batch} samples per step"


def _limit(name: str, value: float, most: float, words: str) -> Assumption:
    return Assumption(name, value < most, f"{value:.4g}, {'' if value < most else 'not '}below {words}")


def _verdict(
    assumptions: Sequence[Assumption],
    failed: Sequence[Assumption],
    rounds: np.ndarray,
    measured: np.ndarray,
    bound: np.ndarray,
) -> tuple[Verdict, str]:
    """Return the verdict, and the reason in a sentence."""
    if failed:
        return "not covered", "no theorem covers this run: " + "; ".join(f"{one.name}: {one.text}" for one in failed)
    if not len(rounds):
        return "unknown", "the run has no rounds"
    above = ~(measured <= bound * (1 + ROUNDING))  # NaN, after a divergence, is above
    doubts = [one.name for one in assumptions if one.holds is None]
    if not above.any() and "rounds" in doubts:
        return "unknown", "the measured rounds are below the bound, and the others may not be. Use metrics_every=1"
    if not above.any():
        times = bound[-1] / measured[-1] if measured[-1] > 0 else np.inf
        words = f"mean of ||grad f||^2 over {rounds[-1]} rounds = {measured[-1]:.3g} <= {bound[-1]:.3g}, the bound"
        unsure = [name.replace("lower bound", "the lower bound") for name in doubts if name != "eps_1"]
        also = ", for any eps_1" if "eps_1" in doubts else ""
        also += f", if {' and '.join(unsure)} {'are' if len(unsure) > 1 else 'is'} right" if unsure else ""
        larger = f"{float(f'{times:.2g}'):,g}" if times < 1e6 else f"{times:.1e}"
        return "holds", f"{words}, which is {larger} times larger, at every T{also}"
    row = int(np.argmax(above))
    words = f"mean of ||grad f||^2 over {rounds[row]} rounds = {measured[row]:.3g} > {bound[row]:.3g}"
    if "eps_1" in doubts:
        return "unknown", f"{words}, the bound as far as eps_1 is known. Use {RECORD} and metrics_every=1"
    why = f", so one of these is wrong: {', '.join(doubts)}" if doubts else ", which contradicts the theorem"
    return "violated", f"{words}, the bound{why}"
