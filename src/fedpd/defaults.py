"""Every method with step sizes by its own rule, from the smoothness L of the f_i and the number of agents N.

Each entry is a table of an experiment file, so that what `fedpd compare --methods all` runs can be read and changed.
Q = 8 local steps throughout; stochastic methods take one sample a step. The rules are the step sizes that the methods'
own papers allow (or, where they only say "small enough", their most usual choice), not tuned ones.
"""

import math
from typing import Any

Table = dict[str, Any]

Q = 8


def method_tables(L: float, agents: int) -> list[Table]:
    """One table a method."""
    return [*_fedpd(L), *_averaging(L, agents), *_primal_dual(L), *_corrected(L), *_triggered(L)]


def _oracle(L: float, penalty: float) -> Table:
    """Gradient descent with the step 1/(L + penalty) of an (L + penalty)-smooth local problem."""
    return {"name": "gd", "step": 1 / (L + penalty), "iterations": Q}


def _fedpd(L: float) -> list[Table]:
    eta = 0.9 * (math.sqrt(5) - 1) / (4 * L)  # inside Theorem 1
    vr = {"name": "vr", "gamma": eta, "iterations": Q, "refresh": 20}
    return [
        {"label": "FedPD-GD", "name": "fedpd", "eta": eta, "oracle": _oracle(L, 1 / eta)},
        {"label": "FedPD-GD p=0.5", "name": "fedpd", "eta": eta, "p": 0.5, "oracle": _oracle(L, 1 / eta)},
        {"label": "FedPD-VR", "name": "fedpd", "eta": eta, "oracle": vr},
    ]


def _averaging(L: float, agents: int) -> list[Table]:
    step = 1 / (4 * L * Q)  # Khaled et al.
    gd = {"name": "gd", "step": step, "iterations": Q}
    sgd = {"name": "sgd", "step": {"name": "inverse_sqrt", "initial": step}, "iterations": Q}
    elastic = {"alpha": 0.9 / agents, "beta": 0.9}
    return [
        {"label": "FedAvg-SGD", "name": "fedavg", "oracle": sgd},
        {"label": "Local GD", "name": "local_gd", "step": step, "iterations": Q},
        {"label": "FedProx", "name": "fedprox", "rho": L, "oracle": _oracle(L, L)},
        {"label": "MPR-SGD", "name": "mpr_sgd", "step": step / 10, "momentum": 0.9, "iterations": Q},
        {"label": "RI-SGD", "name": "ri_sgd", "step": step, "iterations": Q},
        {"label": "Cooperative SGD", "name": "coop_sgd", "oracle": gd, **elastic},
    ]


def _primal_dual(L: float) -> list[Table]:
    eta, oracle = 1 / L, _oracle(L, L)
    return [
        {"label": "ADMM", "name": "admm", "eta": eta, "oracle": oracle},
        {"label": "FedDyn", "name": "feddyn", "alpha": L, "oracle": oracle},
        {"label": "FedDR", "name": "feddr", "eta": eta, "oracle": oracle},
        {"label": "FedADMM", "name": "fedadmm", "rho": L, "oracle": oracle},
        {"label": "A-FedPD", "name": "a_fedpd", "eta": eta, "oracle": oracle},
        {"label": "ProxSkip p=0.8", "name": "proxskip", "step": 1 / L, "p": 0.8},
    ]


def _corrected(L: float) -> list[Table]:
    return [
        {"label": "SCAFFOLD", "name": "scaffold", "step": 1 / (24 * L * Q), "iterations": Q},
        {"label": "VRL-SGD", "name": "vrl_sgd", "step": 1 / (6 * math.sqrt(2) * L * Q), "iterations": Q},
        {"label": "FedLin", "name": "fedlin", "step": 1 / (6 * L * Q), "iterations": Q},
        {"label": "FedDANE", "name": "feddane", "mu": L, "oracle": _oracle(L, L)},
        {"label": "F-SVRG", "name": "f_svrg", "step": 1 / (6 * L * Q), "iterations": Q},
        {"label": "PR-SPIDER", "name": "pr_spider", "step": 1 / (8 * L * Q), "iterations": Q, "refresh": 5},
        {"label": "STEM", "name": "stem", "step": 1 / (16 * L * Q), "a": 0.1, "iterations": Q},
    ]


def _triggered(L: float) -> list[Table]:
    return [
        {"label": "LAG-WK", "name": "lag", "step": 1 / L},
        {"label": "LAG-PS", "name": "lag", "step": 1 / L, "trigger": "server", "smoothness": L},
        {"label": "COLA", "name": "cola", "eta": 1 / L, "smoothness": L, "threshold": 0.01, "decay": 0.97},
    ]


def toml(table: Table) -> str:
    """The lines of a table."""
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)
