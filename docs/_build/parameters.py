"""What the methods' arguments are, in words: the table under Parameters on a method's page.

A name means the same wherever it stands, unless a method says otherwise. `hooks.py` takes names and defaults from the
signatures, and fails where one has no words here.
"""

import importlib
import inspect
from typing import Any

EVERYWHERE = {
    "oracle": "the local solver: [`gd`, `sgd`, `vr`, `optax`](../reference/oracles.md)",
    "eta": "η: the penalty is 1/η. 1/L is a good start, L the smoothness of the f_i",
    "step": "γ, the local step size",
    "iterations": "Q, the local steps of a round",
    "batch": "samples of a local step; `None`: all of the agent's",
    "g": "a regulariser at the server, from `fedpd.regularizers`; `None`: none",
    "rho": "ρ, the weight of the proximal term",
    "smoothness": "L of the f_i, e.g. `theory.smoothness(problem)`",
    "server_step": "γ_s, the server's step; 1 is the mean of the local models",
}
OF = {
    ("fedpd", "p"): 'the probability of skipping a communication: a number in [0, 1), a function of r, or `"auto"`',
    ("fedpd", "drift"): 'where a skipped round moves: `"paper"` (the default), `"corrected"`, `"corrected-exact"`',
    ("fedpd", "start"): 'where the oracle begins: `"local"`, at x_i, or `"server"`, at the copy of the server\'s model',
    ("fedpd", "x0_rule"): '`"paper"`, or `"matlab"`, the server step of the authors\' program',
    ("fedpd", "absent"): 'when agents come and go: `"mean_of_duals"`, or `"naive"`, the published form',
    ("feddyn", "alpha"): "α, the weight of the regulariser; 1/η of FedPD",
    ("feddr", "eta"): "η, of the proximal operators",
    ("feddr", "alpha"): "α in (0, 2), the relaxation",
    ("fedadmm", "rho"): "ρ, the penalty; 1/η of FedPD",
    ("fedadmm", "server_step"): "the server's step; `None`: the share of agents that are present",
    ("fedprox", "rho"): "ρ ≥ 0, the weight of the proximal term; 0 is FedAvg",
    ("feddane", "mu"): "μ ≥ 0, the weight of the proximal term",
    ("mpr_sgd", "momentum"): "μ in [0, 1)",
    ("coop_sgd", "alpha"): "α in (0, 1], how far agents move to z; with β, elastic averaging",
    ("coop_sgd", "beta"): "β in (0, 1], how far z moves to the agents; Nα makes it symmetric",
    ("coop_sgd", "mixing"): "W (N, N), symmetric and doubly stochastic, in place of α and β",
    ("scaffold", "option"): "1 or 2, how control variates are renewed",
    ("proxskip", "p"): "the probability of skipping a communication, a number in [0, 1)",
    ("proxskip", "control"): '`"learned"`, or `"frozen"`: c_i = 0, which leaves a floor',
    ("pr_spider", "refresh"): "I, the rounds between two full gradients",
    ("stem", "a"): "a in [0, 1], 1 minus the momentum: 0 is SPIDER's recursion, 1 plain stochastic gradients",
    ("lag", "step"): "γ, the step size; 1/L is gradient descent's",
    ("lag", "threshold"): "how much change is worth a message; 0 is gradient descent",
    ("lag", "memory"): "D, the movements of the model that it is compared with",
    ("lag", "trigger"): 'who decides: `"worker"` or `"server"`',
    ("lag", "smoothness"): 'L of the f_i; `trigger="server"` needs it',
    ("cola", "threshold"): "changes below threshold · decay^r are not sent; 0: all are",
    ("cola", "decay"): "in (0, 1)",
}


def parameters(name: str) -> str:
    """A table of a method's arguments."""
    factory = getattr(importlib.import_module(f"fedpd.algorithms.{name}"), name)
    lines = ["| parameter | what it is | default |", "| --- | --- | --- |"]
    for key, parameter in inspect.signature(factory).parameters.items():
        words = OF.get((name, key)) or EVERYWHERE[key]
        lines.append(f"| `{key}` | {words} | {_default(parameter.default)} |")
    return "\n".join(lines)


def _default(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    return f'`"{value}"`' if isinstance(value, str) else f"`{value!r}`"
