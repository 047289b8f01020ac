"""Measure a problem for the report: its size, L, delta, and how much its agents differ at the start x^0."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedpd import theory
from fedpd.base.checks import FedpdError, shown
from fedpd.core import Problem
from fedpd.engine.measure.divergence import LARGE_PROBLEM
from fedpd.experiments.calls import build_problem
from fedpd.theory.dissimilarity import start_gradients

MOST_NUMBERS = 25_000_000  # parameters x agents of the gradients in memory; beyond, only some agents are measured
MOST_SHOWN = 100  # agents or labels in a picture; more cannot be seen


class Facts(NamedTuple):
    """The facts about a problem that the report shows.

    Attributes:
        rows: Names and values, such as "smoothness L" and "1.3 (known)".
        distances: ||grad f_i(x^0) - grad f(x^0)|| of n agents, the largest first (n,).
        alignment: Cosines of the angles between the gradients of m agents at x^0, similar agents side by side (m, m).
        labels: The shares of K labels of these agents (K, m); None if the data have no labels.
        shown: Which agents were measured, such as "all 100 agents".
    """

    rows: Mapping[str, str]
    distances: np.ndarray
    alignment: np.ndarray
    labels: np.ndarray | None
    shown: str


def rebuild(table: Mapping[str, Any], *, download: bool = False) -> Problem | str:
    """Return the problem of an experiment file, or the reason why it is not built, such as missing data.

    Args:
        table: The [problem] table.
        download: Whether its data may be fetched from the network.
    """
    data = table.get("data")
    if not download and isinstance(data, Mapping) and data.get("name") == "hub" and not _is_folder(data.get("source")):
        source = shown(data.get("source"))
        return f"Its data {source} come from the network, and a report fetches nothing unless you give --download."
    try:
        return build_problem(table)
    except (FedpdError, OSError) as error:
        return str(error)


def _is_folder(source: Any) -> bool:
    try:
        return isinstance(source, str) and Path(source).is_dir()
    except (OSError, ValueError):
        return False


def facts(problem: Problem) -> Facts:
    """Return the facts about a problem, measured at its start; for a very large problem, from some agents only."""
    number = min(problem.agents, max(2, MOST_NUMBERS // problem.dimension))
    every = number == problem.agents
    some = problem if every else problem.subset(_spread(problem.agents, number))
    gradients = start_gradients(some)
    centred = gradients - gradients.mean(axis=0)
    distances = np.sort(np.linalg.norm(centred, axis=1))[::-1]
    chosen = _spread(some.agents, min(some.agents, MOST_SHOWN))
    alignment, order = _alignment(gradients[chosen])
    shares = _label_shares(some.subset(chosen[order]))
    whom = f"all {problem.agents:,} agents" if every else f"{some.agents:,} of {problem.agents:,} agents"
    rows = {
        "problem": problem.name.replace("_", " "),
        "agents N": f"{problem.agents:,}",
        "samples": f"{problem.samples:,}, {_each(problem.sizes)}",
        "parameters": f"{problem.dimension:,}, {'float64' if problem.double else 'float32'}",
        "smoothness L": _smoothness(problem),
        "heterogeneity δ": _heterogeneity(problem, distances, whom),
        "‖∇f(x⁰)‖": f"{np.linalg.norm(gradients.mean(axis=0)):.3g}",
    }
    return Facts(rows, distances, alignment, shares, whom)


def _spread(agents: int, number: int) -> np.ndarray:
    """Return `number` of the agents, evenly spread over all of them."""
    return np.linspace(0, agents - 1, number).round().astype(int)


def _each(sizes: np.ndarray) -> str:
    equal = sizes.min() == sizes.max()
    return f"{sizes.min():,} per agent" if equal else f"{sizes.min():,} to {sizes.max():,} per agent"


def _smoothness(problem: Problem) -> str:
    if problem.answer.smoothness is not None:
        how = "known"
    elif problem.dimension * problem.samples < LARGE_PROBLEM:
        how = "an estimate near the start; the true L may be larger"
    else:
        return "not estimated, because the problem is large; theory.smoothness(problem) estimates it"
    try:
        L = theory.smoothness(problem)
    except FedpdError as error:
        return f"not estimated: {error}"
    return f"{L:.3g} ({how})" + (f"; 1/L = {1 / L:.3g}" if L > 0 else "")


def _heterogeneity(problem: Problem, distances: np.ndarray, whom: str) -> str:
    measured = f"max ‖∇fᵢ − ∇f‖ over {whom} at the start"
    if problem.answer.heterogeneity is not None:
        return f"{problem.answer.heterogeneity:.3g} (known); {distances[0]:.3g}, {measured}"
    return f"{distances[0]:.3g} ({measured}, a lower bound)"


def _alignment(gradients: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the cosines (m, m) and the order of the agents, by their angle in the plane of the two main directions."""
    norms = np.linalg.norm(gradients, axis=1, keepdims=True)
    units = gradients / np.where(norms > 0, norms, 1)
    cosines = units @ units.T
    _, vectors = np.linalg.eigh(cosines)
    plane = vectors[:, -2:] if len(cosines) > 1 else np.zeros((len(cosines), 2))
    order = np.argsort(np.arctan2(plane[:, 0], plane[:, -1]), kind="stable")
    return cosines[np.ix_(order, order)], order


def _label_shares(problem: Problem) -> np.ndarray | None:
    """Return the shares (K, m) of each agent's labels, if the samples have whole numbers called y."""
    shown = problem.data.get("y") if isinstance(problem.data, dict) and problem.load is None else None
    if shown is None or shown.ndim != (2 if problem.offsets is None else 1) or shown.dtype.kind not in "iu":
        return None
    labels = replace(problem, data=shown).rows_of(np.arange(problem.agents))[0]
    classes = int(labels.max()) + 1
    if labels.min() < 0 or not 2 <= classes <= MOST_SHOWN:
        return None
    agents = np.repeat(np.arange(problem.agents), problem.sizes)
    counts = np.bincount(agents * classes + labels, minlength=problem.agents * classes).reshape(-1, classes)
    return (counts / problem.sizes[:, None]).T
