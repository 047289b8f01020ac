"""Rules that hold for every method, with one row per method."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from inspect import isfunction
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load, save
from tree_math import Vector

from fedpd import Algorithm, FedpdError, Problem, Run, algorithms, oracles, problems, simulate
from fedpd.algorithms._scaled_variables import PROBES, SETS
from fedpd.base.checkpoint import flatten, unflatten
from fedpd.base.precision import scope
from fedpd.core import Exchange, Mixing, count_samples, opened
from fedpd.core.agents import Functions, agent_key, arrays, local_objective
from fedpd.engine.loop import toss_coin as coin
from fedpd.engine.measure.history import COLUMNS
from tests.slow_cases import slow_but

GD = oracles.gd(step=0.2, iterations=3)
ROUNDS, AGENTS, DIMENSION = 6, 3, 4
MIXING = np.full((AGENTS, AGENTS), 0.2) + 0.4 * np.eye(AGENTS)


class Row(NamedTuple):
    make: Callable[[], Algorithm]
    up: int = 1  # models sent by an agent in a round that communicates
    down: int = 1
    bad: dict[str, Any] = {}  # a hyper-parameter that must be refused  # noqa: RUF012
    counts_messages: bool = True  # every agent sends the same in every round that communicates


def row(
    name: str, settings: dict[str, Any], bad: dict[str, Any], up: int = 1, down: int = 1, steady: bool = True
) -> Row:
    factory = getattr(algorithms, name)
    return Row(partial(factory, **settings), up, down, settings | bad, steady)


STEPS = {"step": 0.2, "iterations": 3, "batch": 2}
FIXED = STEPS | {"cohort": AGENTS, "adapt": False}
ROWS = {
    "fedpd": row("fedpd", {"eta": 0.5, "oracle": GD, "p": 0.4}, {"eta": 0}),
    "fedpd-vr": row("fedpd", {"eta": 0.5, "oracle": oracles.vr(gamma=0.5, iterations=3, refresh=4)}, {"p": 1}),
    "fedpd-sgd": row("fedpd", {"eta": 0.5, "oracle": oracles.sgd(0.1, 3, batch=2)}, {"eta": float("nan")}),
    "fedpd-server": row("fedpd", {"eta": 0.5, "oracle": GD, "start": "server"}, {"start": "x"}),
    "fedpd-corrected": row("fedpd", {"eta": 0.5, "oracle": GD, "p": 0.4, "drift": "corrected"}, {"drift": "x"}),
    "fedpd-exact": row(
        "fedpd", {"eta": 0.5, "oracle": GD, "p": 0.4, "drift": "corrected-exact"}, {"absent": "naive"}, 2, 2
    ),
    "fedpd-auto": row("fedpd", {"eta": 0.5, "oracle": GD, "p": "auto"}, {"drift": "paper"}, 2, 2, steady=False),
    "fedpd-lbfgs": row("fedpd", {"eta": 0.5, "oracle": oracles.lbfgs(1e-2, 9, 3)}, {"oracle": "lbfgs"}),
    "fedpd-memory": row(
        "fedpd", {"eta": "auto", "oracle": oracles.lbfgs(1e-2, 9, 3), "memory": 2}, {"memory": -1}, steady=False
    ),
    "fedpd-memory-gd": row("fedpd", {"eta": 0.5, "oracle": GD, "memory": 2}, {"p": 0.5}, steady=False),
    "fedpd_n": row("fedpd_n", {"iterations": 3, "batch": 2, "cohort": AGENTS}, {"cohort": 0}, steady=False),
    "fedpd_n-fixed": row("fedpd_n", FIXED, {"rho": 2}, steady=False),
    "fedavg": row("fedavg", {"oracle": GD}, {"oracle": None}),
    "fedadam": row("fedadam", {"oracle": GD, "step": 0.1, "tau": 0.01}, {"tau": 0}),
    "fedyogi": row("fedyogi", {"oracle": GD, "step": 0.1, "tau": 0.01}, {"beta2": 1}),
    "fedadagrad": row("fedadagrad", {"oracle": GD, "step": 0.1, "initial": 0.1}, {"initial": -1}),
    "fedavgm": row("fedavgm", {"oracle": GD, "momentum": 0.5}, {"momentum": 1}),
    "fedacg": row("fedacg", {"oracle": GD, "rho": 0.5}, {"momentum": -1}),
    "fedcm": row("fedcm", {"oracle": GD, "alpha": 0.3}, {"oracle": oracles.lbfgs()}, steady=False),
    "fedexp": row("fedexp", {"oracle": GD, "epsilon": 0.1}, {"epsilon": 0}, steady=False),
    "fednova": row("fednova", {"oracle": GD}, {"oracle": 3}, steady=False),
    "fedsam": row("fedsam", {"oracle": GD, "rho": 0.1}, {"rho": -1}),
    "moon": row("moon", {"features": "model", "mu": 0.3, "oracle": GD}, {"temperature": 0}),
    "fedbuff": row("fedbuff", {"oracle": GD, "staleness": 0.5}, {"staleness": -1}),
    "fedprox": row("fedprox", {"oracle": GD, "rho": 1.0}, {"rho": -1}),
    "local_gd": row("local_gd", {"step": 0.2, "iterations": 3}, {"step": -1}),
    "ri_sgd": row("ri_sgd", STEPS, {"batch": 0}),
    "mpr_sgd": row("mpr_sgd", STEPS | {"momentum": 0.5}, {"momentum": 1}, 2, 2),
    "coop_sgd-elastic": row("coop_sgd", {"oracle": GD, "alpha": 0.1, "beta": 0.3}, {"beta": 1.5}),
    "coop_sgd-mixing": row("coop_sgd", {"oracle": GD, "mixing": MIXING}, {"mixing": np.ones((3, 3))}),
    "vrl_sgd": row("vrl_sgd", STEPS, {"step": 0}),
    "f_svrg": row("f_svrg", STEPS, {"iterations": 0}, 2, 2),
    "pr_spider": row("pr_spider", STEPS | {"refresh": 4}, {"refresh": 0}, 3, 3, steady=False),
    "feddane": row("feddane", {"mu": 1.0, "oracle": GD}, {"mu": -1}, 2, 2),
    "lag": row("lag", {"step": 0.5}, {"memory": 0}, steady=False),
    "lag-server": row("lag", {"step": 0.5, "trigger": "server", "smoothness": 1.0}, {"smoothness": None}, steady=False),
    "cola": row("cola", {"eta": 1.0, "smoothness": 1.0}, {"decay": 1}, steady=False),
    "admm": row("admm", {"eta": 0.5, "oracle": GD}, {"eta": -1}),
    "admm-server": row("admm", {"eta": 0.5, "oracle": GD, "start": "server"}, {"start": "x"}),
    "feddyn": row("feddyn", {"alpha": 2.0, "oracle": GD}, {"alpha": 0}),
    "feddc": row("feddc", {"alpha": 2.0, "oracle": GD}, {"alpha": -1}, 2, 2),
    "fedspeed": row("fedspeed", {"alpha": 2.0, "rho": 0.1, "oracle": GD}, {"alpha": 0}),
    "feddr": row("feddr", {"eta": 0.5, "oracle": GD}, {"alpha": 2}),
    "feddr-server": row("feddr", {"eta": 0.5, "oracle": GD, "start": "server"}, {"start": None}),
    "fedadmm": row("fedadmm", {"rho": 2.0, "oracle": GD}, {"server_step": 0}),
    "fedadmm-local": row("fedadmm", {"rho": 2.0, "oracle": GD, "start": "local"}, {"start": "agent"}),
    "a_fedpd": row("a_fedpd", {"eta": 0.5, "oracle": GD}, {"eta": "1"}, 1, 2),
    "scaffold": row("scaffold", STEPS, {"option": 3}, 2, 2),
    "scaffold-1": row("scaffold", STEPS | {"option": 1}, {"server_step": -1}, 2, 2),
    "proxskip": row("proxskip", {"step": 0.3, "p": 0.5}, {"p": 1.0}),
    "tamuna": row("tamuna", {"step": 0.3, "p": 0.5, "agents": AGENTS, "copies": 2}, {"copies": 1}, steady=False),
    "scallion": row("scallion", STEPS | {"alpha": 0.5}, {"alpha": 0}, 1, 2),
    "scafcom": row("scafcom", STEPS | {"beta": 0.5}, {"beta": 2}, 1, 2),
    "locodl": row("locodl", {"step": 0.3, "p": 0.5, "strength": 0.1}, {"omega": -1}, steady=False),
    "fedlin": row("fedlin", {"step": 0.2, "iterations": 3}, {"step": float("inf")}, 2, 2),
    "stem": row("stem", STEPS | {"a": 0.1}, {"a": 1.5}, 2, 2),
    "gradient_descent": row("gradient_descent", {"step": 0.2}, {"step": 0}),
    "nesterov": row("nesterov", {"step": 0.2}, {"step": -1}),
    "barzilai_borwein": row("barzilai_borwein", {}, {"window": 0}, steady=False),
    "lbfgs": row("lbfgs", {"memory": 4}, {"memory": 0}, steady=False),
    "newton_cg": row("newton_cg", {}, {"iterations": 0}, steady=False),
    "giant": row("giant", {"iterations": 3, "damping": 1.0}, {"damping": -1}, steady=False),
    "dane": row("dane", {"mu": 1.0, "oracle": GD}, {"eta": 0}, 2, 2),
    "s_dane": row("s_dane", {"rho": 1.0, "oracle": GD}, {"rho": 0}, 2, 2),
    "acc_s_dane": row("acc_s_dane", {"rho": 1.0, "oracle": GD}, {"mu": -1}, 3, 2),
    "fedosaa": row("fedosaa", {"step": 0.2, "iterations": 1}, {"base": "x"}, 2, 2),
    "fedosaa-scaffold": row("fedosaa", {"step": 0.2, "iterations": 1, "base": "scaffold"}, {"cut": 0}, 2, 2),
    "five_gcs": row("five_gcs", {"step": 0.2, "tau": 2.0, "oracle": GD}, {"tau": 0}),
    "ditto": row("ditto", {"rho": 1.0, "oracle": GD, "own": oracles.sgd(0.1, 2, batch=2)}, {"rho": -1}),
    "pfedme": row("pfedme", {"rho": 2.0, "step": 0.2, "iterations": 2, "oracle": GD}, {"rho": 0}),
    "fedadmm_insa": row(
        "fedadmm_insa", {"beta": 1.0, "smoothness": 2.0, "convexity": 0.1}, {"convexity": 0}, steady=False
    ),
}
every_method = pytest.mark.parametrize("name", ROWS)
variants_slowly = pytest.mark.parametrize("name", slow_but([name for name in ROWS if "-" not in name], ROWS))


TRACES: list[int] = []  # one entry every time the losses are traced
FIRST: dict[str, int] = {}  # how often, in the first run of a method


def _losses(x: Any, rows: Any) -> Any:
    """Softened squares: smooth, heterogeneous and not quadratic."""
    TRACES.append(1)
    return jnp.log1p(((rows["a"] @ x - rows["b"]) ** 2) / 2)


def _data() -> list[dict[str, np.ndarray]]:
    rng = np.random.default_rng(3)
    return [{"a": rng.standard_normal((5, DIMENSION)), "b": rng.standard_normal(5) + i} for i in range(AGENTS)]


PROBLEM = problems.from_losses(_losses, _data(), np.linspace(-1, 1, DIMENSION))


@cache
def padded() -> Problem:
    """Return the same problem with a pytree as its model, and with padding that counts for nothing."""

    def losses(x: Any, rows: Any) -> Any:
        return _losses(jnp.concatenate([x["head"], x["tail"].reshape(-1)]), rows)

    start = {"head": PROBLEM.start[:1], "tail": PROBLEM.start[1:].reshape(3, 1)}
    tree = problems.from_losses(losses, _data(), start)
    return replace(tree, data=jax.tree.map(lambda leaf: np.concatenate([leaf, leaf[:, :2] + 9.0], axis=1), tree.data))


@pytest.fixture(scope="module")
def runs() -> Callable[[str], tuple[Algorithm, Run]]:
    """Each method's plain run on the padded problem, made once."""
    made: dict[str, tuple[Algorithm, Run]] = {}

    def run(name: str) -> tuple[Algorithm, Run]:
        if name not in made:
            algorithm, before = ROWS[name].make(), len(TRACES)
            made[name] = algorithm, simulate(algorithm, padded(), rounds=ROUNDS)
            FIRST[name] = len(TRACES) - before
        return made[name]

    return run


Runs = Callable[[str], tuple[Algorithm, Run]]


def test_every_method_has_a_row() -> None:
    assert {name.partition("-")[0] for name in ROWS} == set(algorithms.__all__)
    assert all(isfunction(getattr(algorithms, name)) for name in algorithms.__all__), "a method is not imported"


@every_method
def test_bad_hyper_parameters_are_refused_with_a_sentence(name: str) -> None:
    factory = ROWS[name].make.func  # type: ignore[attr-defined]
    with pytest.raises(FedpdError, match=r"^.+ = .+: .+\. .+[.?]$"):
        factory(**ROWS[name].bad)


def test_a_mixing_matrix_is_for_so_many_agents() -> None:
    algorithm = algorithms.coop_sgd(oracle=GD, mixing=np.eye(5))
    with pytest.raises(FedpdError, match="mixes 5 agents, and the problem has 3"):
        simulate(algorithm, PROBLEM, rounds=1)


@every_method
def test_it_compiles_once(name: str, runs: Runs) -> None:
    """Later runs trace nothing: rounds, chunks and seeds do not compile again."""
    algorithm, _ = runs(name)
    counts = []
    for seed in (1, 2):
        before = len(TRACES)
        simulate(algorithm, padded(), rounds=ROUNDS, seed=seed)
        counts.append(len(TRACES) - before)
    assert counts[0] == counts[1] < FIRST[name]


@variants_slowly
def test_resume_equals_uninterrupted(name: str, runs: Runs, tmp_path: Path) -> None:
    algorithm, whole = runs(name)

    def interrupt(done: int, rounds: int, stationarity: float) -> None:
        if done >= 3:
            raise InterruptedError

    options: dict[str, Any] = {"rounds": ROUNDS, "checkpoints": tmp_path, "checkpoint_every": 2}
    with pytest.raises(InterruptedError):
        simulate(algorithm, padded(), progress=interrupt, **options)
    resumed = simulate(algorithm, padded(), **options)
    assert all(np.array_equal(whole.history[column], resumed.history[column]) for column in COLUMNS)
    assert jax.tree.all(jax.tree.map(np.array_equal, whole.model, resumed.model))


class ByHand(NamedTuple):
    """The result of rounds by hand: each agent's copy of the model, and the totals of all agents."""

    models: list[np.ndarray]
    up: int
    down: int
    updates: np.ndarray
    samples: int


@variants_slowly
def test_agent_by_agent_with_serialised_messages_is_the_simulation(name: str, runs: Runs) -> None:
    """The rounds by hand have no padding, and a vector as the model, so neither changes the simulation."""
    algorithm, run = runs(name)
    with scope(True):
        found = by_hand(algorithm)
    model = np.concatenate([run.model["head"], run.model["tail"].reshape(-1)])
    np.testing.assert_allclose(model, np.mean(found.models, axis=0), atol=1e-13)
    assert run.history["bytes_up"][-1] == found.up
    assert run.history["bytes_down"][-1] == found.down
    assert run.history["samples"][-1] == found.samples
    assert np.array_equal(run.updates, found.updates)
    if ROWS[name].counts_messages:
        size = 8 * DIMENSION * AGENTS * np.count_nonzero(run.history["communicated"])
        assert (found.up, found.down) == (ROWS[name].up * size, ROWS[name].down * size)


def by_hand(algorithm: Algorithm) -> ByHand:
    """Return the result of rounds done as in a deployment: no vmap, no shared memory, messages as bytes."""
    functions, everything = Functions(PROBLEM.losses, PROBLEM.penalty), arrays(PROBLEM)
    ones = [jax.tree.map(lambda leaf, i=i: leaf[i], everything) for i in range(AGENTS)]
    start, key = Vector(PROBLEM.start), jax.random.key(0)
    agents = [algorithm.init(local_objective(functions, one), start) for one in ones]
    server, up, down, updates, samples = algorithm.server(start), 0, 0, np.zeros(AGENTS, int), 0
    exchanges = [
        (
            exchange,
            jax.jit(lambda one, agent, r, key, e=exchange: e.local(local_objective(functions, one), agent, r, key)),
            exchange.aggregate if isinstance(exchange.aggregate, Mixing) else jax.jit(exchange.aggregate),
        )
        for exchange in algorithm.exchanges()
    ]
    for r in range(ROUNDS):
        skipped = bool(coin(algorithm, key, r, server))
        for number, (exchange, local, aggregate) in enumerate(exchanges):
            for i, one in enumerate(ones):
                agents[i], work = local(one, agents[i], jnp.int32(r), agent_key(key, r, i, number))
                updates[i] += int(work.updates)
                samples += int(count_samples(work))
            if skipped or (exchange.when is not None and not exchange.when(jnp.int32(r))):
                continue
            agents, server, sent, fetched = meet(exchange, aggregate, agents, server)
            up, down = up + sent, down + fetched
    models = [algorithm.model(agent) for agent in agents]
    models = models if algorithm.delivers is None else [algorithm.delivers(server)]
    return ByHand([np.asarray(model.tree) for model in models], up, down, updates, samples)


def meet(exchange: Exchange, aggregate: Any, agents: list[Any], server: Any) -> tuple[list[Any], Any, int, int]:
    speakers = [agent for agent in agents if exchange.speaks is None or exchange.speaks(agent)]
    like = exchange.send(agents[0])
    envelopes = [wire(exchange.send(agent)) for agent in speakers]
    messages = [opened(unwire(envelope, like)) for envelope in envelopes]
    sent = sum(payload(envelope) for envelope in envelopes)
    if isinstance(aggregate, Mixing):
        weights = [np.asarray(aggregate.weights(jnp.int32(i))) for i in range(AGENTS)]
        mixed = [
            jax.tree.map(lambda *m, w=w: sum(a * b for a, b in zip(w, m, strict=True)), *messages) for w in weights
        ]
        return [exchange.receive(a, m) for a, m in zip(agents, mixed, strict=True)], server, sent, sent
    nothing = jax.tree.map(jnp.zeros_like, opened(like))
    mean = jax.tree.map(lambda *m: sum(m) / len(m), *messages) if messages else nothing
    server, broadcast = aggregate(server, mean, len(messages) / AGENTS)
    envelope = wire(broadcast)
    answers = [exchange.receive(agent, unwire(envelope, broadcast)) for agent in agents]
    return answers, server, sent, AGENTS * payload(envelope)


def wire(message: Any) -> bytes:
    return save(flatten("message", message))


def unwire(envelope: bytes, like: Any) -> Any:
    return unflatten("message", like, load(envelope))


def payload(envelope: bytes) -> int:
    return sum(array.nbytes for array in load(envelope).values())


@variants_slowly
@pytest.mark.filterwarnings("ignore:a round of this run has as few as 2 agents")  # the last one
def test_everyone_present_is_full_participation(name: str, runs: Runs) -> None:
    algorithm, full = runs(name)
    present = np.ones((ROUNDS, AGENTS), bool)
    present[-1, 0] = False  # the program for partial participation, with everybody there until the last round
    if name == "coop_sgd-mixing" or algorithm.needs_everyone:
        with pytest.raises(FedpdError, match=r"all must take part|needs all agents"):
            simulate(algorithm, padded(), rounds=ROUNDS, participation=present)
        return
    run = simulate(algorithm, padded(), rounds=ROUNDS, participation=present)
    np.testing.assert_allclose(run.history["loss"][:-1], full.history["loss"][:-1], atol=1e-13)
    probes = SETS * PROBES * PROBLEM.samples if name == "fedpd-memory" else 0  # variables are scaled for everyone only
    assert np.array_equal(run.history["samples"][1:-1] + probes, full.history["samples"][1:-1])
    assert run.history["samples"][-1] <= full.history["samples"][-1]
