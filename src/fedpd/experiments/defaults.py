"""Every method with step sizes by its own rule, from the smoothness L of the f_i and the number of agents N.

Each entry is a table of an experiment file, so that what `fedpd compare --methods all` runs can be read and changed.
Q = 8 local steps throughout; stochastic methods take one sample a step. The rules are the step sizes that the methods'
own papers allow (or, where they only say "small enough", their most usual choice), not tuned ones. `scale` multiplies
the step size of each of them (eta, step, 1/rho): the one knob that `fedpd.tune` turns. Local solvers always step by
1/(L + penalty).
"""

import math
from typing import Any

Table = dict[str, Any]

Q = 8


def method_tables(L: float, agents: int, scale: Any = 1.0) -> list[Table]:
    """One table a method; `scale` may be traced."""
    groups = (_fedpd(L, scale), _averaging(L, agents, scale), _primal_dual(L, scale), _corrected(L, scale))
    return [table for group in (*groups, _triggered(L, scale)) for table in group]


def _oracle(L: float, penalty: Any) -> Table:
    """Gradient descent with the step 1/(L + penalty) of an (L + penalty)-smooth local problem."""
    return {"name": "gd", "step": 1 / (L + penalty), "iterations": Q}


def _fedpd(L: float, scale: Any) -> list[Table]:
    eta = scale * 0.9 * (math.sqrt(5) - 1) / (4 * L)  # inside Theorem 1
    vr = {"name": "vr", "gamma": eta, "iterations": Q, "refresh": 20}
    return [
        {"label": "FedPD-GD", "name": "fedpd", "eta": eta, "oracle": _oracle(L, 1 / eta)},
        {"label": "FedPD-GD p=0.5", "name": "fedpd", "eta": eta, "p": 0.5, "oracle": _oracle(L, 1 / eta)},
        {"label": "FedPD-GD p=auto", "name": "fedpd", "eta": eta, "p": "auto", "oracle": _oracle(L, 1 / eta)},
        {"label": "FedPD-VR", "name": "fedpd", "eta": eta, "oracle": vr},
    ]


def _averaging(L: float, agents: int, scale: Any) -> list[Table]:
    step = scale / (4 * L * Q)  # Khaled et al.
    gd = {"name": "gd", "step": step, "iterations": Q}
    sgd = {"name": "sgd", "step": {"name": "inverse_sqrt", "initial": step}, "iterations": Q}
    elastic = {"alpha": 0.9 / agents, "beta": 0.9}
    return [
        {"label": "FedAvg-SGD", "name": "fedavg", "oracle": sgd},
        {"label": "Local GD", "name": "local_gd", "step": step, "iterations": Q},
        {"label": "FedProx", "name": "fedprox", "rho": L / scale, "oracle": _oracle(L, L / scale)},
        {"label": "MPR-SGD", "name": "mpr_sgd", "step": step / 10, "momentum": 0.9, "iterations": Q},
        {"label": "RI-SGD", "name": "ri_sgd", "step": step, "iterations": Q},
        {"label": "Cooperative SGD", "name": "coop_sgd", "oracle": gd, **elastic},
    ]


def _primal_dual(L: float, scale: Any) -> list[Table]:
    eta, rho = scale / L, L / scale
    oracle = _oracle(L, rho)
    return [
        {"label": "ADMM", "name": "admm", "eta": eta, "oracle": oracle},
        {"label": "FedDyn", "name": "feddyn", "alpha": rho, "oracle": oracle},
        {"label": "FedDR", "name": "feddr", "eta": eta, "oracle": oracle},
        {"label": "FedADMM", "name": "fedadmm", "rho": rho, "oracle": oracle},
        {"label": "A-FedPD", "name": "a_fedpd", "eta": eta, "oracle": oracle},
        {"label": "ProxSkip p=0.8", "name": "proxskip", "step": eta, "p": 0.8},
    ]


def _corrected(L: float, scale: Any) -> list[Table]:
    step, mu = scale / (L * Q), L / scale
    return [
        {"label": "SCAFFOLD", "name": "scaffold", "step": step / 24, "iterations": Q},
        {"label": "VRL-SGD", "name": "vrl_sgd", "step": step / (6 * math.sqrt(2)), "iterations": Q},
        {"label": "FedLin", "name": "fedlin", "step": step / 6, "iterations": Q},
        {"label": "FedDANE", "name": "feddane", "mu": mu, "oracle": _oracle(L, mu)},
        {"label": "F-SVRG", "name": "f_svrg", "step": step / 6, "iterations": Q},
        {"label": "PR-SPIDER", "name": "pr_spider", "step": step / 8, "iterations": Q, "refresh": 5},
        {"label": "STEM", "name": "stem", "step": step / 16, "a": 0.1, "iterations": Q},
    ]


def _triggered(L: float, scale: Any) -> list[Table]:
    step = scale / L
    return [
        {"label": "LAG-WK", "name": "lag", "step": step},
        {"label": "LAG-PS", "name": "lag", "step": step, "trigger": "server", "smoothness": L},
        {"label": "COLA", "name": "cola", "eta": step, "smoothness": L, "threshold": 0.01, "decay": 0.97},
    ]


def toml(table: Table) -> str:
    """The lines of a table."""
    return "\n".join(f"{key} = {_value(value)}" for key, value in table.items())


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(inner)}" for key, inner in value.items()) + " }"
    return f'"{value}"' if isinstance(value, str) else repr(value)
