"""The common parts of methods whose server averages models: FedAvg and FedProx, Ditto and pFedMe."""

from collections.abc import Callable
from typing import Any, NamedTuple

from tree_math import Vector

from fedpd.core import Algorithm, Array, Away, Exchange, Key, LocalObjective, Oracle, Subproblem, Work, check_oracle


class Agent(NamedTuple):
    x: Vector  # x^r on arrival, x_i^{r,Q} after the local steps
    memory: Any  # the oracle's memory between rounds


def local_averaging(oracle: Oracle, subproblem: Callable[[LocalObjective, Vector], Subproblem]) -> Algorithm:
    """Return the method x_i = oracle(subproblem(f_i, x^r)) from x^r, x^{r+1} = (1/N) sum_i x_i; one model each way."""
    check_oracle(oracle)

    def init(f: LocalObjective, x: Vector) -> Agent:
        return Agent(x, oracle.init(f, x))

    def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        x, memory, work = oracle.solve(subproblem(f, agent.x), agent.x, agent.memory, r, key)
        return Agent(x, memory), work

    def send(agent: Agent) -> Vector:
        return agent.x

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        return mean, mean

    def receive(agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    def with_message(agent: Agent, x: Vector) -> Agent:
        return agent._replace(x=x)

    def rebuild(f: LocalObjective, agent: Agent) -> Agent:
        return agent._replace(memory=oracle.init(f, agent.x))

    return Algorithm(
        "averaging",
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive, sends="model", with_message=with_message),),
        model=lambda agent: agent.x,
        away=Away(rebuild=rebuild, repeats=True),
    )


def beside_personal_models(
    name: str,
    init: Callable[[LocalObjective, Vector], Any],
    local: Callable[[LocalObjective, Any, Array, Key], tuple[Any, Work]],
    server_step: Callable[[Vector, Vector], Vector],
) -> Algorithm:
    """Return the method whose agents send x and keep a personal model, which they lose if their state is lost.

    Args:
        name: The name of the method.
        init: (f_i, x^0) -> the agent's state, which has a field x.
        local: (f_i, state, round, key) -> the state after the local steps, and their work.
        server_step: (x^r, the mean of the agents' x) -> x^{r+1}.
    """

    def send(agent: Any) -> Vector:
        return agent.x

    def aggregate(server: Vector, mean: Vector, share: Any) -> tuple[Vector, Vector]:
        x = server_step(server, mean)
        return x, x

    def receive(agent: Any, x: Vector) -> Any:
        return agent._replace(x=x)

    def rebuild(f: LocalObjective, agent: Any) -> Any:
        return init(f, agent.x)

    return Algorithm(
        name,
        init=init,
        server=lambda x: x,
        exchanges=(Exchange(local, send, aggregate, receive),),
        model=lambda agent: agent.x,
        away=Away(rebuild=rebuild, repeats=True),
    )
