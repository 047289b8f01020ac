"""Draw one case from one integer: a problem, a method, a way to run it, and everything random in that run.

Seeds of one group (`seed // GROUP`) share what selects a compiled program: the kind of problem, the sizes, the method
and the way to run it. They differ in the data, in the number of rounds and in who takes part. So a group costs little
more than one case.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from fedpd import Problem, data

from .objectives import KINDS, Kind
from .pairs import PAIRS, Numbers, Pair

GROUP = 8
MOST_ROUNDS = 7
MODES = (
    *("plain", "plain", "sequential", "parallel", "debug", "store"),
    *("devices", "resumed", "continued", "sweep", "seeds", "until"),
)
PARTICIPATION = ("everyone", "everyone", "share", "cohort", "by size", "probabilities", "array")
LAYOUTS = ("list", "stacked", "ragged", "lazy")
FIRST: dict[str, Problem] = {}  # the first problem of each kind


class Case(NamedTuple):
    """One case.

    Attributes:
        seed: The integer from which all of it follows; also the seed of the run.
        kind: The name of the kind of problem.
        layout: How the samples are given.
        sizes: The number of samples of each agent.
        weights: `weights=` of the problem.
        double: Whether in float64.
        method: The name of the method.
        numbers: Its numbers.
        mode: How it runs.
        participation: The name of the rule.
        options: The options of `simulate`.
        rounds: T.
    """

    seed: int
    kind: str
    layout: str
    sizes: tuple[int, ...]
    weights: Any
    double: bool
    method: str
    numbers: Numbers
    mode: str
    participation: str
    options: dict[str, Any]
    rounds: int

    @property
    def agents(self) -> int:
        return len(self.sizes)

    @property
    def objective(self) -> Kind:
        return KINDS[self.kind]

    @property
    def pair(self) -> Pair:
        return PAIRS[self.method]

    @property
    def dtype(self) -> Any:
        return np.float64 if self.double else np.float32

    def scale(self) -> list[float]:
        """Return w_i |D_i| of each agent."""
        if self.weights is None:
            return [1.0] * self.agents
        if isinstance(self.weights, str):
            return [size * self.agents / sum(self.sizes) for size in self.sizes]
        return [weight * size for weight, size in zip(self.weights, self.sizes, strict=True)]

    def __str__(self) -> str:
        shown = {name: value for name, value in self.numbers.items() if value is not None}
        weights = self.weights if self.weights is None or isinstance(self.weights, str) else "numbers"
        return (
            f"{self.method} {shown} on {self.kind} ({self.layout}, sizes {self.sizes}, weights {weights}, "
            f"{self.dtype.__name__}), {self.rounds} rounds, {self.participation}, {self.mode}, {self.options}"
        )


def draw(seed: int, method: str | None = None, mode: str | None = None) -> Case:
    """Return the case of a seed; `method` and `mode` replace what the seed says."""
    shared, own = np.random.default_rng([1, seed // GROUP]), np.random.default_rng([2, seed])
    drawn = shared.choice(list(PAIRS)).item()
    name = drawn if method is None else method
    pair = PAIRS[name]
    kind = shared.choice(list(KINDS)).item()
    drawn = shared.choice(MODES).item()
    mode = drawn if mode is None else mode
    rule = "everyone" if pair.everyone else shared.choice(PARTICIPATION).item()
    sizes = draw_sizes(shared, small=mode == "debug")
    if len(sizes) == 1:
        rule = "everyone"
    layout = draw_layout(shared, kind, sizes, in_memory=rule == "everyone" or mode == "debug")
    double = bool(shared.random() < 0.8) or name in ("lag", "nesterov")  # they branch on numbers
    weights = draw_weights(shared, sizes)
    case = Case(seed, kind, layout, sizes, weights, double, name, {}, mode, rule, {}, 1)
    numbers = draw_numbers(shared, case)
    options = draw_options(shared, case)
    rounds = int(own.integers(1, 4 if mode == "debug" else MOST_ROUNDS + 1))
    if mode in ("resumed", "continued"):
        rounds = max(rounds, 2)
    case = case._replace(numbers=numbers, options=options, rounds=rounds)
    return case._replace(options=options | draw_participation(shared, own, case))


def draw_sizes(rng: np.random.Generator, *, small: bool) -> tuple[int, ...]:
    agents = int(rng.integers(1, 4 if small else 9))
    form = rng.choice(["equal", "different", "one huge"])
    if form == "equal":
        return (int(rng.integers(1, 8)),) * agents
    sizes = rng.integers(1, 9, agents)
    if form == "one huge":
        sizes[rng.integers(agents)] = 150
    return tuple(sizes.tolist())


def draw_layout(rng: np.random.Generator, kind: str, sizes: tuple[int, ...], *, in_memory: bool) -> str:
    layout = rng.choice(LAYOUTS).item()
    if layout == "stacked" and (len(set(sizes)) > 1 or KINDS[kind].federated):
        return "list"
    if layout == "lazy" and (in_memory or kind == "penalised logistic"):
        return "ragged"
    return layout


def draw_weights(rng: np.random.Generator, sizes: tuple[int, ...]) -> Any:
    form = rng.choice(["none", "none", "samples", "numbers"])
    if form == "numbers":
        return tuple((rng.uniform(0.5, 2, len(sizes)) / np.array(sizes)).tolist())
    return None if form == "none" else "samples"


def draw_numbers(rng: np.random.Generator, case: Case) -> Numbers:
    """Return the numbers of a method, with a step that rarely diverges."""
    safe = float(rng.uniform(0.3, 1.0)) / (15 * max(case.scale()))
    numbers: Numbers = {"step": safe, "Q": int(rng.integers(1, 4)), "batch": None, "schedule": "constant"}
    if rng.random() < 0.5:
        numbers["batch"] = int(rng.integers(1, 3))
    if case.pair.oracle:
        numbers["oracle"] = rng.choice(case.pair.oracle).item()
        numbers["schedule"] = rng.choice(["constant", "inverse_sqrt", "own"]).item()
        numbers["refresh"] = int(rng.integers(1, 4))
        numbers["batch"] = None if numbers["oracle"] == "gd" else numbers["batch"]
    return numbers | case.pair.numbers(rng, safe)


def draw_options(rng: np.random.Generator, case: Case) -> dict[str, Any]:
    """Return the options of a run that do not depend on who takes part."""
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        options["metrics_every"] = int(rng.integers(2, 4))
    if rng.random() < 0.2:
        options["stragglers"] = 0.5
    if rng.random() < 0.15 and case.agents > 1 and not case.objective.federated:
        options["metrics_agents"] = int(rng.integers(1, case.agents))
    if rng.random() < 0.25 and case.layout != "lazy" and not case.objective.federated:
        options["record"] = ["heterogeneity"]
    return options


def draw_participation(shared: np.random.Generator, own: np.random.Generator, case: Case) -> dict[str, Any]:
    """Return the options that say who takes part."""
    agents, rule = case.agents, case.participation
    cohort = int(shared.integers(1, agents)) if agents > 1 else 1
    if rule in ("cohort", "by size"):
        return {"cohort": cohort} | ({"sampling": "size"} if rule == "by size" else {})
    if rule == "share":
        return {"participation": cohort / agents}
    if rule == "probabilities":
        return {"participation": own.uniform(0.3, 1.0, agents)}
    if rule == "array":
        present = own.random((case.rounds, agents)) < 0.6
        present[0, 0] = False  # so that somebody is absent in some round
        return {"participation": present}
    return {}


def draw_samples(case: Case) -> tuple[list[dict[str, np.ndarray]], list[dict[str, np.ndarray] | None], np.ndarray]:
    """Return the training samples of each agent, the test samples (None: it has none), and x^0."""
    rng = np.random.default_rng([3, case.seed])
    kind = case.objective
    shifts = rng.uniform(-1, 1, case.agents)

    def some(n: int, shift: float) -> dict[str, np.ndarray]:
        return {name: in_precision(leaf, case.dtype) for name, leaf in kind.samples(rng, n, shift).items()}

    train = [some(n, shift) for n, shift in zip(case.sizes, shifts, strict=True)]
    test = [
        some(int(rng.integers(1, 9)), shift) if i == 0 or rng.random() < 0.7 else None for i, shift in enumerate(shifts)
    ]
    start = rng.normal(size=kind.dimension) / 2
    if case.kind == "softmax":
        start = np.zeros(kind.dimension)  # its own start
        for one in train[:1]:
            one["y"][0] = 2
    return train, test, in_precision(start, case.dtype)


def in_precision(leaf: np.ndarray, dtype: Any) -> np.ndarray:
    return leaf.astype(dtype) if leaf.dtype.kind == "f" else leaf


def build(case: Case) -> Problem:
    """Return the problem of a case as fedpd has it."""
    train, test, start = draw_samples(case)
    kind = case.objective
    held: Any = train
    if kind.federated:
        held = federated(case, train, test)
    elif case.layout == "stacked":
        held = {name: np.stack([one[name] for one in train]) for name in train[0]}
    elif case.layout == "ragged":
        held = data.ragged(joined(train), case.sizes)
    elif case.layout == "lazy":
        held = data.lazy(train.__getitem__, case.sizes)
    weights = case.weights if case.weights is None or isinstance(case.weights, str) else np.array(case.weights)
    return with_shared_functions(case.kind, kind.build(held, kind.tree(start), weights))


def with_shared_functions(kind: str, problem: Problem) -> Problem:
    """Return the problem with the functions of the first problem of its kind, so that fedpd compiles once for both."""
    first = FIRST.setdefault(kind, problem)
    tests, others = problem.evaluation, first.evaluation
    if tests is not None and others is not None:
        tests = tests._replace(correct=others.correct, losses=others.losses, metrics=others.metrics)
    return replace(problem, losses=first.losses, penalty=first.penalty, evaluation=tests)


def joined(agents: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([one[name] for one in agents]) for name in agents[0]}


def federated(case: Case, train: list[Any], test: list[Any]) -> data.Federated:
    classes: Any = 3 if case.kind == "softmax" else False
    if case.layout == "list":
        tests = {f"agent {i}": one for i, one in enumerate(test) if one is not None}
        return data.from_arrays({f"agent {i}": one for i, one in enumerate(train)}, tests, classes=classes)
    number = [0 if one is None else len(one["x"]) for one in test]
    some = [one for one in test if one is not None]
    if case.layout == "ragged":
        return data.from_rows(
            data.ragged(joined(train), case.sizes), data.ragged(joined(some), number), classes=classes
        )
    empty = {name: leaf[:0] for name, leaf in train[0].items()}
    return data.from_rows(
        data.lazy(train.__getitem__, case.sizes),
        data.lazy(lambda i: empty if test[i] is None else test[i], number),
        classes=classes,
    )
