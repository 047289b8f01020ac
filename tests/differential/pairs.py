"""Every method twice: as fedpd makes it and as `methods` has it, from the same numbers."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from fedpd import Algorithm, algorithms, oracles, regularizers, schedules

from . import methods, primal_dual
from .methods import Given, Round

Numbers = dict[str, Any]
L1 = 0.03
SLOWER = 0.5  # of the last step, relative to the first, in a schedule of the user


class Pair(NamedTuple):
    """One method in both forms.

    Attributes:
        numbers: (random numbers, a safe step) -> the numbers of the method, without those of its oracle.
        package: The method of fedpd; its argument has the numbers and "oracle" if the method has one.
        plain: The NumPy form.
        oracle: The oracles that it takes, "" where it has none.
        everyone: Whether it needs all agents.
        sweeps: The number that a sweep varies.
        exchange: The exchange in which it draws samples.
        first: (x^0, numbers) -> the model of row 0; a proximal step with a regulariser.
    """

    numbers: Callable[[np.random.Generator, float], Numbers]
    package: Callable[[Numbers], Algorithm]
    plain: Callable[..., Iterator[Round]]
    oracle: tuple[str, ...] = ("gd", "sgd", "vr")
    everyone: bool = False
    sweeps: str = "eta"
    exchange: int = 0
    first: Callable[[Any, Numbers], Any] = lambda start, numbers: start


def schedule(numbers: Numbers, *, package: bool) -> Any:
    """Return the step size of an oracle: a number, a schedule of fedpd, or a function of the user."""
    step, Q, rule = numbers["step"], numbers["Q"], numbers["schedule"]
    if rule == "inverse_sqrt":
        return schedules.inverse_sqrt(step, Q) if package else lambda r, q: step / (Q * r + q + 1) ** 0.5
    if rule == "own":
        return lambda r, q: step / (1 + SLOWER * r + q)
    return step if package else lambda r, q: step


def package_oracle(numbers: Numbers) -> Any:
    name, Q, batch = numbers["oracle"], numbers["Q"], numbers["batch"]
    if name == "vr":
        return oracles.vr(numbers["step"], Q, numbers["refresh"], batch)
    step = schedule(numbers, package=True)
    return oracles.gd(step, Q) if name == "gd" else oracles.sgd(step, Q, batch)


def plain_oracle(numbers: Numbers) -> methods.Oracle:
    name, Q = numbers["oracle"], numbers["Q"]
    if name == "vr":
        return methods.vr(numbers["step"], Q, numbers["refresh"])
    step = schedule(numbers, package=False)
    return methods.gd(step, Q) if name == "gd" else methods.sgd(step, Q)


def with_oracle(factory: Callable[..., Algorithm], *names: str, **fixed: Any) -> Callable[[Numbers], Algorithm]:
    """Return how fedpd makes a method that has an oracle and the numbers of these names."""
    return lambda numbers: factory(
        oracle=package_oracle(numbers), **fixed, **{name: numbers[name] for name in names if name in numbers}
    )


def plain_with_oracle(method: Callable[..., Iterator[Round]], *names: str) -> Callable[..., Iterator[Round]]:
    def run(given: Given, numbers: Numbers) -> Iterator[Round]:
        return method(given, oracle=plain_oracle(numbers), **{name: numbers[name] for name in names if name in numbers})

    return run


def without_oracle(factory: Callable[..., Algorithm], *names: str, **renamed: str) -> Callable[[Numbers], Algorithm]:
    """Return how fedpd makes a method from the numbers of these names; `renamed`: its own name of a number."""
    return lambda numbers: factory(
        **{name: numbers[name] for name in names}, **{own: numbers[name] for own, name in renamed.items()}
    )


def plain_without_oracle(method: Callable[..., Iterator[Round]], *names: str) -> Callable[..., Iterator[Round]]:
    return lambda given, numbers: method(given, **{name: numbers[name] for name in names})


def skipping(numbers: Numbers) -> Any:
    return recorded if (recorded := numbers.get("p_of_round")) is not None else numbers["p"]


def package_fedpd(numbers: Numbers) -> Algorithm:
    more = {"x0_rule": numbers["x0_rule"]} if numbers["x0_rule"] != "paper" else {}
    oracle = package_oracle(numbers)
    return algorithms.fedpd(eta=numbers["eta"], oracle=oracle, p=skipping(numbers), start=numbers["start"], **more)


def plain_fedpd(given: Given, numbers: Numbers) -> Iterator[Round]:
    eta, oracle, start = numbers["eta"], plain_oracle(numbers), numbers["start"]
    if given.present.all():
        return primal_dual.fedpd(given, eta=eta, oracle=oracle, x0_rule=numbers["x0_rule"], start=start)
    skips = numbers["p"] > 0 or "p_of_round" in numbers
    return primal_dual.fedpd_some_present(given, eta=eta, oracle=oracle, skips=skips, start=start)


def draw_fedpd(rng: np.random.Generator, safe: float) -> Numbers:
    numbers: Numbers = {"eta": 2 * safe, "start": some_start(rng), "x0_rule": "paper"}
    numbers["p"] = rng.choice([0.0, 0.0, 0.3, 0.7]).item()
    if rng.random() < 0.2:
        numbers["p"], numbers["p_of_round"] = 0.5, schedules.every(2)
    return numbers


def draw_fedpd_matlab(rng: np.random.Generator, safe: float) -> Numbers:
    return draw_fedpd(rng, safe) | {"x0_rule": "matlab"}


def corrected(drift: Any) -> Callable[[Numbers], Algorithm]:
    return lambda numbers: algorithms.fedpd(
        eta=numbers["eta"], oracle=package_oracle(numbers), p=skipping(numbers), drift=drift
    )


def regularised(factory: Callable[..., Algorithm], *names: str) -> Callable[[Numbers], Algorithm]:
    return lambda numbers: with_oracle(factory, *names, g=regularizers.l1(numbers["l1"]) if numbers["l1"] else None)(
        numbers
    )


def some_start(rng: np.random.Generator) -> str:
    return rng.choice(["local", "server"]).item()


def some_l1(rng: np.random.Generator) -> float:
    return rng.choice([0.0, L1]).item()


def after_proximal_step(start: Any, numbers: Numbers) -> Any:
    return methods.soft(start, numbers["eta"] * numbers["l1"])


def package_lag(numbers: Numbers) -> Algorithm:
    L = numbers["smoothness"]
    more: Any = {} if L is None else {"trigger": "server", "smoothness": L}
    return algorithms.lag(step=numbers["step"], threshold=numbers["threshold"], memory=numbers["memory"], **more)


def package_proxskip(numbers: Numbers) -> Algorithm:
    g = regularizers.l1(numbers["l1"]) if numbers["l1"] else None
    control, batch = numbers["control"], numbers["batch"]
    return algorithms.proxskip(step=numbers["step"], p=numbers["p"], batch=batch, g=g, control=control)


PAIRS: dict[str, Pair] = {
    "fedpd": Pair(draw_fedpd, package_fedpd, plain_fedpd),
    "fedpd, matlab": Pair(draw_fedpd_matlab, package_fedpd, plain_fedpd, everyone=True),
    "fedpd, corrected": Pair(
        draw_fedpd,
        corrected("corrected"),
        plain_with_oracle(primal_dual.fedpd_corrected, "eta"),
        everyone=True,
    ),
    "fedpd, corrected-exact": Pair(
        draw_fedpd,
        corrected("corrected-exact"),
        plain_with_oracle(primal_dual.fedpd_corrected_exact, "eta"),
    ),
    "a_fedpd": Pair(
        lambda rng, safe: {"eta": 2 * safe},
        with_oracle(algorithms.a_fedpd, "eta"),
        plain_with_oracle(primal_dual.a_fedpd, "eta"),
        oracle=("gd", "sgd"),
    ),
    "s_dane": Pair(
        lambda rng, safe: {"rho": 0.5 / safe, "mu": rng.choice([0.0, 0.05]).item()},
        with_oracle(algorithms.s_dane, "rho", "mu"),
        plain_with_oracle(methods.s_dane, "rho", "mu"),
        oracle=("gd", "sgd"),
        sweeps="rho",
        exchange=1,
    ),
    "scallion": Pair(
        lambda rng, safe: {"alpha": rng.choice([1.0, 0.6]).item(), "server_step": rng.choice([1.0, 0.7]).item()},
        without_oracle(algorithms.scallion, "step", "batch", "alpha", "server_step", iterations="Q"),
        plain_without_oracle(methods.scallion, "step", "Q", "alpha", "server_step"),
        oracle=(),
        sweeps="step",
    ),
    "mpr_sgd": Pair(
        lambda rng, safe: {"momentum": rng.choice([0.0, 0.5]).item()},
        without_oracle(algorithms.mpr_sgd, "step", "batch", "momentum", iterations="Q"),
        plain_without_oracle(methods.mpr_sgd, "step", "Q", "momentum"),
        oracle=(),
        sweeps="step",
    ),
    "fedavg": Pair(
        lambda rng, safe: {},
        with_oracle(algorithms.fedavg),
        plain_with_oracle(methods.fedavg),
        oracle=("gd", "sgd"),
        sweeps="step",
    ),
    "fedprox": Pair(
        lambda rng, safe: {"rho": rng.choice([0.0, 0.5 / safe]).item()},
        with_oracle(algorithms.fedprox, "rho"),
        plain_with_oracle(methods.fedprox, "rho"),
        oracle=("gd", "sgd"),
        sweeps="step",
    ),
    "feddyn": Pair(
        lambda rng, safe: {"alpha": 0.5 / safe, "start": some_start(rng)},
        with_oracle(algorithms.feddyn, "alpha", "start"),
        plain_with_oracle(primal_dual.feddyn, "alpha", "start"),
        sweeps="alpha",
    ),
    "admm": Pair(
        lambda rng, safe: {"eta": 2 * safe, "l1": some_l1(rng), "start": some_start(rng)},
        regularised(algorithms.admm, "eta", "start"),
        plain_with_oracle(primal_dual.admm, "eta", "start", "l1"),
        first=after_proximal_step,
    ),
    "fedadmm": Pair(
        lambda rng, safe: {
            "rho": 0.5 / safe,
            "start": some_start(rng),
            **({"server_step": 0.8} if rng.random() < 0.5 else {}),
        },
        with_oracle(algorithms.fedadmm, "rho", "start", "server_step"),
        plain_with_oracle(primal_dual.fedadmm, "rho", "start", "server_step"),
        sweeps="rho",
    ),
    "feddr": Pair(
        lambda rng, safe: {
            "eta": 2 * safe,
            "alpha": rng.choice([1.0, 1.4]).item(),
            "l1": some_l1(rng),
            "start": some_start(rng),
        },
        regularised(algorithms.feddr, "eta", "alpha", "start"),
        plain_with_oracle(primal_dual.feddr, "eta", "alpha", "start", "l1"),
        first=after_proximal_step,
    ),
    "five_gcs": Pair(
        lambda rng, safe: {"server": safe, "tau": 0.5 / safe, "mu": rng.choice([0.0, 0.05]).item()},
        lambda numbers: with_oracle(algorithms.five_gcs, "tau", "mu", step=numbers["server"])(numbers),
        lambda given, numbers: primal_dual.five_gcs(
            given, step=numbers["server"], tau=numbers["tau"], mu=numbers["mu"], oracle=plain_oracle(numbers)
        ),
        sweeps="tau",
    ),
    "scaffold": Pair(
        lambda rng, safe: {"option": int(rng.integers(1, 3)), "server_step": rng.choice([1.0, 0.7]).item()},
        without_oracle(algorithms.scaffold, "step", "batch", "option", "server_step", iterations="Q"),
        plain_without_oracle(methods.scaffold, "step", "Q", "option", "server_step"),
        oracle=(),
        sweeps="step",
    ),
    "vrl_sgd": Pair(
        lambda rng, safe: {},
        without_oracle(algorithms.vrl_sgd, "step", "batch", iterations="Q"),
        plain_without_oracle(methods.vrl_sgd, "step", "Q"),
        oracle=(),
        sweeps="step",
    ),
    "fedlin": Pair(
        lambda rng, safe: {},
        without_oracle(algorithms.fedlin, "step", "batch", iterations="Q"),
        plain_without_oracle(methods.fedlin, "step", "Q"),
        oracle=(),
        sweeps="step",
        exchange=1,
    ),
    "f_svrg": Pair(
        lambda rng, safe: {},
        without_oracle(algorithms.f_svrg, "step", "batch", iterations="Q"),
        plain_without_oracle(methods.f_svrg, "step", "Q"),
        oracle=(),
        sweeps="step",
        exchange=1,
    ),
    "dane": Pair(
        lambda rng, safe: {"mu": 0.5 / safe, "eta": rng.choice([1.0, 0.8]).item()},
        with_oracle(algorithms.dane, "mu", "eta"),
        plain_with_oracle(methods.dane, "mu", "eta"),
        oracle=("gd", "sgd"),
        sweeps="mu",
        exchange=1,
    ),
    "feddane": Pair(
        lambda rng, safe: {"mu": 0.5 / safe},
        with_oracle(algorithms.feddane, "mu"),
        plain_with_oracle(methods.dane, "mu"),
        oracle=("gd", "sgd"),
        sweeps="mu",
        exchange=1,
    ),
    "local_gd": Pair(
        lambda rng, safe: {"batch": None, "schedule": "constant", "oracle": "gd"},
        without_oracle(algorithms.local_gd, "step", iterations="Q"),
        plain_with_oracle(methods.fedavg),
        oracle=(),
        sweeps="step",
    ),
    "proxskip": Pair(
        lambda rng, safe: {
            "Q": 1,
            "p": rng.choice([0.3, 0.6]).item(),
            "l1": some_l1(rng),
            "control": rng.choice(["learned", "frozen"]).item(),
        },
        package_proxskip,
        plain_without_oracle(methods.proxskip, "step", "p", "l1", "control"),
        oracle=(),
        sweeps="step",
    ),
    "gradient_descent": Pair(
        lambda rng, safe: {"batch": None},
        without_oracle(algorithms.gradient_descent, "step"),
        plain_without_oracle(methods.gradient_descent, "step"),
        oracle=(),
        sweeps="step",
    ),
    "nesterov": Pair(
        lambda rng, safe: {"batch": None, "restart": bool(rng.integers(2))},
        without_oracle(algorithms.nesterov, "step", "restart"),
        plain_without_oracle(methods.nesterov, "step", "restart"),
        oracle=(),
        everyone=True,
        sweeps="step",
    ),
    "lag": Pair(
        lambda rng, safe: {
            "batch": None,
            "threshold": rng.choice([0.0, 0.3, 1.0]).item(),
            "memory": int(rng.integers(1, 4)),
            "smoothness": [None, 0.7 / safe][rng.integers(2)],
        },
        package_lag,
        plain_without_oracle(methods.lag, "step", "threshold", "memory", "smoothness"),
        oracle=(),
        sweeps="step",
    ),
    "fedavgm": Pair(
        lambda rng, safe: {"server": rng.choice([1.0, 0.7]).item(), "momentum": rng.choice([0.0, 0.6]).item()},
        lambda numbers: with_oracle(algorithms.fedavgm, "momentum", step=numbers["server"])(numbers),
        plain_with_oracle(methods.fedavgm, "server", "momentum"),
        oracle=("gd", "sgd"),
        sweeps="server",
    ),
    "fedadam": Pair(
        lambda rng, safe: {"server": safe, "beta2": rng.choice([0.9, 0.99]).item(), "tau": 0.1},
        lambda numbers: with_oracle(algorithms.fedadam, "beta2", "tau", step=numbers["server"])(numbers),
        plain_with_oracle(methods.fedadam, "server", "beta2", "tau"),
        oracle=("gd", "sgd"),
        sweeps="server",
    ),
    "fednova": Pair(
        lambda rng, safe: {},
        with_oracle(algorithms.fednova),
        plain_with_oracle(methods.fednova),
        oracle=("gd", "sgd"),
        sweeps="step",
    ),
    "fedcm": Pair(
        lambda rng, safe: {"alpha": rng.choice([0.1, 0.5]).item(), "server_step": rng.choice([1.0, 0.7]).item()},
        lambda numbers: algorithms.fedcm(
            oracle=oracles.sgd(numbers["step"], numbers["Q"], numbers["batch"]),
            alpha=numbers["alpha"],
            server_step=numbers["server_step"],
        ),
        plain_without_oracle(methods.fedcm, "step", "Q", "alpha", "server_step"),
        oracle=(),
        sweeps="step",
    ),
    "feddc": Pair(
        lambda rng, safe: {"alpha": 0.5 / safe},
        lambda numbers: algorithms.feddc(
            oracle=oracles.sgd(numbers["step"], numbers["Q"], numbers["batch"]), alpha=numbers["alpha"]
        ),
        plain_without_oracle(methods.feddc, "step", "Q", "alpha"),
        oracle=(),
        sweeps="alpha",
    ),
}
