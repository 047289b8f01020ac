"""Keep some parameters at their agent: FedPer, FedRep, FedBN, LG-FedAvg, around any method with a server.

    min over s, v_1, ..., v_N of (1/N) sum_i f_i(s, v_i)

The method runs on the shared parameters s as it is. On its personal parameters v_i, agent i is a federation of its own:
it runs the same method with itself as the only agent, and keeps that server's state. So with nothing personal this is
the method, and with everything personal it is N separate runs. With FedAvg, v_i simply stays as the local steps leave
it. An absent agent keeps its v_i. No message and no broadcast contains personal parameters.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.errors import warn
from fedpd.base.spec import Spec
from fedpd.core import Exchange, LocalObjective, Method, Mixing, Tree, form_with_absent, vectors_of
from fedpd.core.message import IsPersonal, is_vector, merged, names_of, part_of
from fedpd.core.method import WithInner, inside


class Agent(NamedTuple):
    """An agent with personal parameters."""

    inner: Any  # the method's own state, of the whole model
    alone: Any  # the state of the server of its personal parameters


class Personal(WithInner):
    """A method some of whose parameters stay at their agent."""

    keeps: IsPersonal  # which parameters do

    @property
    def is_personal(self) -> IsPersonal:
        return self.keeps

    @property
    def spec(self) -> Spec:
        return self.method.spec.plus(personal=self.keeps)

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Method:
        return Personal(method=self.method.changed(changes, within), keeps=self.keeps)

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        _check_paths(self.keeps, names_of(x.tree))
        return Agent(self.method.init(f, x), self.method.server(part_of(x, self.keeps, personal=True)))

    def server(self, x: Vector) -> Any:
        return self.method.server(part_of(x, self.keeps, personal=False))

    def partial(self) -> Method:
        return Personal(method=form_with_absent(self.method), keeps=self.keeps)

    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(_exchange(one, self.keeps) for one in self.method.exchanges())


def with_personal_parameters(algorithm: Method, personal: Any) -> Method:
    """Return the method with personal parameters; refuse one that they do not go with."""
    if not callable(personal):
        remedy = 'Give e.g. personal=lambda path: path.startswith("head")'
        refuse("personal", personal, "must be a function of the path of a parameter", remedy)
    name = algorithm.description
    if any(exchange.mixes for exchange in algorithm.exchanges()):
        refuse("algorithm", name, "its agents mix their models without a server", "Choose e.g. fedavg(...)")
    for rule, found in (
        ("has a server that delivers a model of its own", algorithm.delivers),
        ("has a server that decides when nothing is communicated", algorithm.waits),
        ("has agents that change the model by themselves", algorithm.only_at_agents),
    ):
        if found:
            refuse("algorithm", name, f"{rule}, which does not go with personal=", "Choose e.g. fedavg or fedpd")
    x = Vector(jnp.zeros(1))
    for broadcast in jax.eval_shape(lambda: _broadcasts(algorithm, x)):
        if any(not isinstance(part, Vector) for part in jax.tree.leaves(broadcast, is_leaf=is_vector)):
            rule = "has a server that sends numbers beside models, which does not go with personal="
            refuse("algorithm", name, rule, "Choose e.g. fedavg, or fedpd with memory=0")
    return Personal(method=algorithm, keeps=personal)


def _broadcasts(algorithm: Method, x: Vector) -> list[Tree]:
    agent, server, found = algorithm.init(LocalObjective.without_samples(x), x), algorithm.server(x), []
    for exchange in algorithm.exchanges():
        assert not isinstance(exchange.aggregate, Mixing)
        server, broadcast = exchange.aggregate(server, vectors_of(exchange.send(agent)), 1.0)
        found.append(broadcast)
    return found


def _check_paths(keeps: IsPersonal, names: list[str]) -> None:
    """Refuse answers that are not True or False, and warn if nothing is personal."""
    answers = [keeps(name) for name in names]
    wrong = [(name, answer) for name, answer in zip(names, answers, strict=True) if not isinstance(answer, bool)]
    if wrong:
        rule = f"returns {wrong[0][1]!r} for the path {wrong[0][0]!r}, but must return True or False"
        refuse("personal", keeps, rule, 'Give e.g. lambda path: path.startswith("head")')
    if not any(answers) and names != [""]:  # one array without a name: also fedpd's own example of a message
        shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
        warn(f"personal: it is false for all paths, so all parameters are shared. The paths are {shown}.")


def _exchange(own: Exchange, keeps: IsPersonal) -> Exchange:
    """Return an exchange whose messages have the shared parameters only."""
    step: Any = own.aggregate
    missed, speaks = own.missed or own.receive, own.speaks

    def send(agent: Agent) -> Tree:
        return part_of(own.send(agent.inner), keeps, personal=False)

    def alone(agent: Agent) -> tuple[Any, Tree]:
        """Return the agent's own server after its message, and that server's broadcast."""
        message = part_of(vectors_of(own.send(agent.inner)), keeps, personal=True)
        if speaks is None:
            return step(agent.alone, message, 1.0)
        sent = speaks(agent.inner)
        return step(agent.alone, jax.tree.map(lambda leaf: jnp.where(sent, leaf, 0), message), sent.astype(float))

    def receive(agent: Agent, broadcast: Tree) -> Agent:
        server, echo = alone(agent)
        return Agent(own.receive(agent.inner, merged(broadcast, echo)), server)

    def absent(agent: Agent, broadcast: Tree) -> Agent:
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), jax.eval_shape(alone, agent)[1])
        heard = missed(agent.inner, merged(broadcast, nothing))
        shared, old = (part_of(one, keeps, personal=kept) for one, kept in ((heard, False), (agent.inner, True)))
        return agent._replace(inner=merged(shared, old))

    def with_message(agent: Agent, message: Tree) -> Agent:
        assert own.with_message is not None  # it is used only then
        whole = merged(message, part_of(vectors_of(own.send(agent.inner)), keeps, personal=True))
        return agent._replace(inner=own.with_message(agent.inner, whole))

    fitted = None if own.with_message is None else with_message
    return inside(own)._replace(send=send, receive=receive, missed=absent, with_message=fitted, mean=None, restore=None)
