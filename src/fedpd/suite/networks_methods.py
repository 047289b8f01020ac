"""The methods of `fedpd benchmark networks`, and the settings that each may try.

All methods do the same local work: Q steps on mini-batches, by the agents of the cohort. FedPD-N has nothing to tune.
Each rival has a list of settings, of which a budget of n allows the first n:

    1 setting     step 0.1, and the first value of the second setting
    8 settings    the steps 0.025, 0.05, ..., 3.2
    32 settings   these steps with each of the four values of the second setting
"""

from collections.abc import Callable
from typing import NamedTuple

from fedpd import algorithms, oracles, transforms
from fedpd.core import Method
from fedpd.suite.networks import Task

FEDPD_N = "FedPD-N"
REFERENCE = "FedAvg"  # its final accuracy is the target of all
BUDGETS = (0, 8, 32)
STEPS = (0.1, 0.2, 0.05, 0.4, 0.8, 0.025, 1.6, 3.2)  # a short list has those in the middle


class Rival(NamedTuple):
    """A method with two settings.

    Attributes:
        make: (task, step, second setting) -> the method.
        words: What the second setting is.
        values: Its values, the usual one first.
    """

    make: Callable[[Task, float, float], Method]
    words: str
    values: tuple[float, ...]


def _sgd(task: Task, step: float) -> oracles.Oracle:
    return oracles.sgd(step=step, iterations=task.iterations, batch=task.batch)


def _fedavg(task: Task, step: float, server: float) -> Method:
    plain = algorithms.fedavg(oracle=_sgd(task, step))
    optimizer = oracles.optimizer("sgd", learning_rate=server)
    return plain if server == 1 else transforms.wrap(plain, mean=transforms.server_optimizer(optimizer))


def _momentum(task: Task, step: float, momentum: float) -> Method:
    return algorithms.fedavgm(oracle=_sgd(task, step), momentum=momentum)


def _adam(task: Task, step: float, server: float) -> Method:
    return algorithms.fedadam(oracle=_sgd(task, step), step=server, beta2=0.99, tau=1e-3)


def _fedprox(task: Task, step: float, eta: float) -> Method:
    return algorithms.fedprox(rho=1 / (eta * step * task.iterations), oracle=_sgd(task, step))


def _scaffold(task: Task, step: float, server: float) -> Method:
    return algorithms.scaffold(step=step, iterations=task.iterations, batch=task.batch, server_step=server)


def _feddyn(task: Task, step: float, eta: float) -> Method:
    return algorithms.feddyn(alpha=1 / (eta * step * task.iterations), oracle=_sgd(task, step))


def _fedpd(task: Task, step: float, eta: float) -> Method:
    return algorithms.fedpd(eta=eta * step * task.iterations, oracle=_sgd(task, step), start="server")


def _a_fedpd(task: Task, step: float, eta: float) -> Method:
    return algorithms.a_fedpd(eta=eta * step * task.iterations, oracle=_sgd(task, step))


SERVER, ETA = (1.0, 0.5, 1.5, 2.0), (5.0, 10.0, 2.0, 20.0)
RIVALS: dict[str, Rival] = {
    REFERENCE: Rival(_fedavg, "step of the server", SERVER),
    "FedAvgM": Rival(_momentum, "momentum of the server", (0.9, 0.8, 0.5, 0.95)),
    "FedAdam": Rival(_adam, "step of the server", (0.01, 0.03, 0.003, 0.1)),
    "FedProx": Rival(_fedprox, "1/rho in units of step Q", (10.0, 20.0, 5.0, 2.0)),
    "SCAFFOLD": Rival(_scaffold, "step of the server", SERVER),
    "FedDyn": Rival(_feddyn, "1/alpha in units of step Q", ETA),
    "FedPD": Rival(_fedpd, "eta in units of step Q", ETA),
    "A-FedPD": Rival(_a_fedpd, "eta in units of step Q", ETA),
}
METHODS = (FEDPD_N, *RIVALS)


def settings(label: str, task: Task, agents: int, budget: int) -> list[Method]:
    """Return a method with each of the settings that a budget allows.

    Args:
        label: One of `METHODS`.
        task: The local work.
        agents: N.
        budget: How many settings may be tried; 0: the usual setting, with no run to tune.

    Examples:
        >>> from fedpd.suite.networks_methods import BUDGETS
        >>> from fedpd.suite.networks_methods import settings
        >>> from fedpd.suite.networks import TASKS
        >>> [len(settings("FedPD", TASKS["table"], 10, budget)) for budget in BUDGETS]
        [1, 8, 32]
        >>> settings("FedPD-N", TASKS["table"], 10, 32)
        [fedpd_n(iterations=8, batch=10, cohort=10)]
    """
    if label == FEDPD_N:
        cohort = agents if task.cohort is None else task.cohort
        return [algorithms.fedpd_n(iterations=task.iterations, batch=task.batch, cohort=cohort)]
    rival = RIVALS[label]
    pairs = [(step, value) for value in rival.values for step in STEPS][: max(1, budget)]
    return [rival.make(task, step, value) for step, value in pairs]
