"""SCAFFOLD (Karimireddy et al., 2020): control variates against client drift.

    y_i  = x;  Q times  y_i = y_i - step (h_i(y_i) - c_i + c)
    c_i+ = grad f_i(x)                              option 1
    c_i+ = c_i - c + (x - y_i)/(Q step)             option 2; Q step is the sum of the step sizes of a schedule
    x    = x + server_step mean_S (y_i - x),        c = c + (|S|/N) mean_S (c_i+ - c_i)

Agents send y_i - x and c_i+ - c_i, the server sends x and c: two models each way. c_i is a gradient estimate, so it is
not CTA. Absent agents keep c_i. With full participation, option 2 and server_step 1, SCAFFOLD equals VRL-SGD. With
`epochs`, Q is that of the agent; with `weight_decay` and `clip`, its direction is that of `oracles.sgd`. With `oracle`,
Q and the step sizes are those of a training loop of your own.
Differences from the paper: batch=None uses full gradients, and option 1 uses the full gradient where the paper uses a
mini-batch.
"""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from fedpd.algorithms._rules import Q
from fedpd.base.checks import choice, positive, refuse
from fedpd.core import Array, Change, Key, LocalObjective, Method, Oracle, Subproblem, Vector, Work, makes
from fedpd.core.card import Card, Guarantee
from fedpd.core.oracle import Step, check_step, sum_of_steps
from fedpd.oracles import OwnLoop, check_decay, check_stochastic, sgd


class Agent(NamedTuple):
    x: Vector  # the server's model
    c: Vector  # the server's control variate
    y: Vector  # the local model
    own: Vector  # c_i
    new: Vector  # c_i+


class Server(NamedTuple):
    x: Vector
    c: Vector


class Scaffold(Method):
    """SCAFFOLD with option 2; option 1 differs in c_i+ only."""

    step: float | Step | None
    iterations: int | None
    batch: int | None
    option: Literal[1, 2]
    server_step: float
    epochs: int | None
    weight_decay: float
    clip: float | None
    oracle: Oracle | None
    model_first = True
    plain_steps = True

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        return Agent(x=x, c=0 * x, y=x, own=0 * x, new=0 * x)

    def server(self, x: Vector) -> Server:
        return Server(x, 0 * x)

    def local(self, f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
        oracle = self.solver
        y, _, work = oracle.solve(Subproblem(f, agent.c - agent.own), agent.x, None, r, key)
        if self.option == 1:
            new, work = f.gradient(agent.x) + self.weight_decay * agent.x, work.plus(Work.of(0, 1, f.size))
        else:
            new = agent.own - agent.c + (agent.x - y) / sum_of_steps(oracle.step, r, work.updates)
        return agent._replace(y=y, new=new), work

    @property
    def solver(self) -> Any:
        """The local solver."""
        if self.oracle is not None:
            return self.oracle
        assert self.step is not None
        decay: dict[str, Any] = {"weight_decay": self.weight_decay, "clip": self.clip}
        return sgd(self.step, self.iterations, self.batch, epochs=self.epochs, **decay)

    def send(self, agent: Agent) -> tuple[Change, Change]:
        return Change(agent.y - agent.x), Change(agent.new - agent.own)

    def aggregate(self, server: Server, mean: tuple[Vector, Vector], share: Any) -> tuple[Server, Server]:
        model_change, control_change = mean
        server = Server(server.x + self.server_step * model_change, server.c + share * control_change)
        return server, server

    def receive(self, agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c, own=agent.new)

    def missed(self, agent: Agent, server: Server) -> Agent:
        return agent._replace(x=server.x, c=server.c)

    def with_message(self, agent: Agent, message: tuple[Vector, Vector]) -> Agent:
        model_change, control_change = message
        return agent._replace(y=agent.x + model_change, new=agent.own + control_change)


@makes(Scaffold)
def scaffold(
    *,
    step: float | Step | None = None,
    iterations: int | None = None,
    batch: int | None = None,
    option: Literal[1, 2] = 2,
    server_step: float = 1.0,
    epochs: int | None = None,
    weight_decay: float = 0.0,
    clip: float | None = None,
    oracle: Oracle | None = None,
) -> Method:
    """Return SCAFFOLD with Q = `iterations` local steps on `batch` samples (None: all of them), or with `epochs`.

    For a training loop of your own give `oracle=oracles.own_loop()` in place of the steps.
    """
    check_decay(weight_decay, clip)
    positive("server_step", server_step, "1 is the mean of the local models")
    choice("option", str(option), ("1", "2"))
    if oracle is None:
        if step is None:
            refuse("step", None, "must be given", "Give the local step size, or oracle=oracles.own_loop()")
        check_step(step)
        check_stochastic(iterations, batch, epochs=epochs)
    else:
        settings = {"step": step, "iterations": iterations, "batch": batch, "epochs": epochs, "clip": clip}
        _check_own_loop(oracle, option, settings | {"weight_decay": weight_decay or None})
    return Scaffold(
        step=step,
        iterations=iterations,
        batch=batch,
        option=option,
        server_step=server_step,
        epochs=epochs,
        weight_decay=weight_decay,
        clip=clip,
        oracle=oracle,
    )


def _check_own_loop(oracle: Oracle, option: int, settings: Mapping[str, Any]) -> None:
    """Refuse what does not go with a training loop of the user's own."""
    if not isinstance(oracle, OwnLoop):
        refuse("oracle", oracle, "must be oracles.own_loop()", "Give step, iterations and batch in its place")
    for name, value in settings.items():
        if value is not None:
            refuse(name, value, "is a setting of fedpd's own local steps, and the loop is yours", f"Leave {name} out")
    if option == 1:
        refuse("option", option, "needs a full gradient outside of the loop", "Give option 2, the default")


CARD = Card.single(
    title="SCAFFOLD",
    summary="local steps corrected by control variates",
    family="corrected gradients",
    authors="Sai Praneeth Karimireddy, Satyen Kale, Mehryar Mohri, Sashank J. Reddi, Sebastian U. Stich, "
    "Ananda Theertha Suresh",
    paper="SCAFFOLD: Stochastic Controlled Averaging for Federated Learning",
    venue="Proceedings of the 37th International Conference on Machine Learning (ICML 2020), PMLR 119, "
    "5132-5143; arXiv:1910.06378",
    year=2020,
    rule=lambda L, agents, scale: scaffold(step=scale / (24 * L * Q), iterations=Q),
    guarantee=Guarantee("NC, bounded variance", "1/e", "1/e^2", "1/e^2"),
    only_models=False,
    parameters={
        "option": "1 or 2: how agents update the control variates",
        "oracle": "`oracles.own_loop()`, for a training loop of your own in place of `step` and `iterations`",
        "weight_decay": "the factor of x that local steps add to the gradient",
        "clip": "the largest norm of a corrected gradient in a local step; `None`: it is not clipped",
    },
    search={"server_step": 1.0},
)
