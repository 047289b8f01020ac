"""The history and the model that a run must have, computed by the NumPy forms alone."""

from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from . import randomness
from .draw import Case, draw_samples, in_precision
from .methods import Agent, Given, Round
from .objectives import LOGISTIC, Kind, saturating

EXACT = ("round", "communicated", "communications", "local_updates", "samples", "bytes_up", "bytes_down")


class Expected(NamedTuple):
    """What a run must return."""

    model: np.ndarray
    history: dict[str, np.ndarray]
    updates: np.ndarray


def make_agent(kind: Kind, rows: dict[str, np.ndarray], scale: float) -> Agent:
    """Return f_i(x) = scale (mean of the losses + penalty)."""
    size = len(next(iter(rows.values())))

    def value(x: Any) -> Any:
        return scale * (np.mean(kind.losses(x, rows)) + kind.penalty(x)[0])

    def gradient(x: Any, some: Any = None) -> Any:
        chosen = rows if some is None else {name: leaf[some] for name, leaf in rows.items()}
        return scale * (np.mean(kind.gradients(x, chosen), axis=0) + kind.penalty(x)[1])

    return Agent(size, value, gradient)


def logistic_agents(features: Any, labels: Any, alpha: float = 1.0, beta: float = 0.1) -> list[Agent]:
    """Return the agents of penalised logistic regression, with the constants of the paper."""
    kind = LOGISTIC._replace(penalty=lambda x: saturating(x, alpha, beta))
    return [make_agent(kind, {"a": a, "y": b}, 1.0) for a, b in zip(features, labels, strict=True)]


def expected(case: Case, seed: int, dtype: Any) -> Expected:
    """Return the result of a case, computed in this precision."""
    train, test, start = draw_samples(case)
    train = [{name: in_precision(leaf, dtype) for name, leaf in rows.items()} for rows in train]
    agents = [make_agent(case.objective, *pair) for pair in zip(train, case.scale(), strict=True)]
    present = randomness.present(case, seed)
    given = Given(
        agents,
        in_precision(start, dtype),
        present,
        randomness.skipped(case, seed),
        randomness.local_steps(case, seed, everyone=is_whole(case)),
        randomness.sample_numbers(case, seed),
    )
    rounds = list(case.pair.plain(given, case.numbers))
    copies = np.stack([case.pair.first(given.start, case.numbers)] * case.agents)
    first = Round(copies, np.zeros(case.agents, int), np.zeros(case.agents, int), [], {})
    measured = randomness.measured_agents(case, case.seed)  # drawn from the first seed
    rows = [measure(case, [agents[i] for i in measured], one.models, train, test) for one in [first, *rounds]]
    history = {name: np.array([row[name] for row in rows]) for name in rows[0]} | counted([first, *rounds], case)
    if "metrics_agents" in case.options:
        history["metrics_agents"] = np.full(len(rows), len(measured))
    every = case.options.get("metrics_every", 1)
    kept = [r for r in range(case.rounds + 1) if r % every == 0 or r == case.rounds]
    history = {name: column[kept] for name, column in history.items()}
    updates = np.sum([one.updates for one in rounds], axis=0)
    return Expected(rounds[-1].models.mean(axis=0), history, updates)


def is_whole(case: Case) -> bool:
    """Return whether the run is one of full participation, where fedpd draws stragglers in another way."""
    participation = np.asarray(case.options.get("participation", 1.0))
    if "cohort" in case.options:
        return case.options["cohort"] == case.agents
    if participation.ndim == 0:
        return max(1, round(float(participation) * case.agents)) == case.agents
    return bool((participation == 1).all())


def measure(case: Case, agents: list[Agent], copies: np.ndarray, train: Any, test: Any) -> dict[str, Any]:
    """Return the measured columns at the mean of the copies of the model."""
    x = copies.mean(axis=0)
    gradients = [agent.gradient(x) for agent in agents]
    mean = np.mean(gradients, axis=0)
    row = {
        "loss": np.mean([agent.value(x) for agent in agents]),
        "stationarity": mean @ mean,
        "consensus": max((np.linalg.norm(a - b) for a, b in combinations(copies, 2)), default=0.0),
    }
    if "record" in case.options:
        return row | {"heterogeneity": max(np.linalg.norm(own - mean) for own in gradients)}
    return row | ({} if case.objective.tested is None else case.objective.tested(x, train, test))


def counted(rounds: list[Round], case: Case) -> dict[str, np.ndarray]:
    """Return the counted columns; row 0 is the start."""
    item = np.dtype(case.dtype).itemsize
    per_round = {
        "communications": [sum(message.receivers > 0 for message in one.messages) for one in rounds],
        "local_updates": [one.updates.max() for one in rounds],
        "samples": [one.samples.sum() for one in rounds],
        "bytes_up": [sum(message.senders * message.up * item for message in one.messages) for one in rounds],
        "bytes_down": [sum(message.receivers * message.down * item for message in one.messages) for one in rounds],
    }
    columns = {name: np.cumsum(values) for name, values in per_round.items()}
    communicated = np.array([bool(one.messages) for one in rounds])
    return {"round": np.arange(len(rounds)), "communicated": communicated, **columns}
