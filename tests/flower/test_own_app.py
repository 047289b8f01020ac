"""A Flower app that does not change, with Flower's own FedAvg: equal to a simulation."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, Method, algorithms, oracles, problems, simulate, transforms
from tests.slow_cases import slow_but
from tests.test_own_loop import AGENTS, METHODS, problem, simulated

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from fedpd.flower import InProcessGrid, Settings, Strategy, federate, mod  # noqa: E402
from fedpd.flower.private import TaskIdentity, set_identity  # noqa: E402

FEDPD = METHODS["FedPD from the server"]


class Net(torch.nn.Module):  # type: ignore[name-defined]
    """A linear model, with a buffer that counts batches and one that a method must leave alone."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 1, dtype=torch.float64)
        self.register_buffer("mean", torch.zeros(3, dtype=torch.float64))
        self.register_buffer("batches", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Any) -> Any:
        self.batches += 1
        self.mean.copy_(x.mean(0))
        return self.linear(x)


def app(*mods: Any, weights: bool = False, forget: bool = False) -> ClientApp:
    """Return an ordinary app of Flower's. Nothing in it knows of fedpd but `mods`."""
    made = ClientApp(mods=list(mods))

    @made.train()
    def train(message: Message, context: Context) -> Message:
        x, y = (torch.tensor(part) for part in AGENTS[int(context.node_config["partition-id"])])
        net = Net()
        if not forget:
            net.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(net(x)[:, 0], y).backward()
            optimizer.step()
        number = int(context.node_config["partition-id"]) + 1 if weights else 1
        content = RecordDict({"arrays": ArrayRecord(net.state_dict())})
        content["metrics"] = MetricRecord({"num-examples": number})
        return Message(content, reply_to=message)

    return made


def trained(made: ClientApp, rounds: int = 8, grid: Any = InProcessGrid) -> dict[str, np.ndarray]:
    strategy = FedAvg(fraction_evaluate=0.0)
    result = strategy.start(grid(made, len(AGENTS), {}), ArrayRecord(start().state_dict()), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("name", ["FedPD", "FedPD from the server", "FedProx", "FedAvg"])
def test_an_unchanged_app_with_flowers_average_is_the_method(name: str) -> None:
    found = trained(app(mod(METHODS[name])))
    run = simulate(METHODS[name].changed({"oracle": oracles.gd(0.05, 10)}), problem(), rounds=8)
    np.testing.assert_allclose(found["linear.weight"][0], run.model["w"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found["linear.bias"][0], run.model["b"], rtol=0, atol=1e-13)
    plain = trained(app())
    np.testing.assert_allclose(found["mean"], plain["mean"], atol=1e-15)  # buffers travel as in the app alone


@pytest.mark.slow
def test_weights_by_examples_are_those_of_the_objective() -> None:
    found = trained(app(mod(FEDPD), weights=True), rounds=60)

    def losses(model: Any, batch: Any) -> Any:
        return (batch["x"] @ model["w"] + model["b"] - batch["y"]) ** 2

    start = {"w": np.zeros(3), "b": np.zeros(())}
    rows = [{"x": x, "y": y} for x, y in AGENTS]
    weighted = problems.from_losses(losses, rows, start, weights=np.array([1, 2, 3, 4]) * 4 / 10 / 20)
    model = {"w": found["linear.weight"][0], "b": found["linear.bias"][0]}
    method = algorithms.fedavg(oracle=oracles.gd(0.05, 1))
    ends = [simulate(method, weighted, rounds=1, start=one).history["stationarity"][0] for one in (model, start)]
    assert ends[0] < 1e-6 * ends[1]


def test_a_method_that_needs_another_server_is_refused_by_flowers_average(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")
    assert not trained(app(mod(METHODS["FedDyn"])), rounds=1)
    assert "its server does more than average, and Flower's FedAvg does not. Use fedpd.flower.Strategy" in caplog.text


def test_methods_that_a_loop_cannot_run_are_refused() -> None:
    with pytest.raises(FedpdError, match="has several exchanges in a round"):
        mod(algorithms.dane(mu=1.0, oracle=oracles.own_loop()))


def start() -> Net:
    net = Net()
    torch.nn.init.zeros_(net.linear.weight)
    torch.nn.init.zeros_(net.linear.bias)
    return net


def federated(method: Method, made: Any, rounds: int, grid: Any = InProcessGrid, **settings: Any) -> Any:
    quick: dict[str, Any] = {"poll": 0.001, "deadline": 5.0}
    chosen = Strategy(method, start(), Settings(agents=len(AGENTS), rounds=rounds, **quick, **settings))
    chosen.start(grid(made, len(AGENTS), {}), chosen.arrays, num_rounds=rounds)
    return chosen.result()


def assert_simulated(model: Any, method: Method, rounds: int, **options: Any) -> None:
    run = simulated(method, rounds, **options)
    np.testing.assert_allclose(model["linear.weight"][0], run.model["w"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(model["linear.bias"][0], run.model["b"], rtol=0, atol=1e-13)


OWN = oracles.own_loop()
SERVED = {
    "FedPD with a cohort": (FEDPD, {"cohort": 2}),
    "FedPD that skips": (algorithms.fedpd(eta=0.3, oracle=OWN, p=0.5, start="server"), {}),
    "FedPD that skips, without an error floor": (algorithms.fedpd(eta=0.3, oracle=OWN, p=0.5, drift="corrected"), {}),
    "SCAFFOLD with a cohort": (algorithms.scaffold(oracle=OWN), {"cohort": 2}),
    "FedDyn": (METHODS["FedDyn"], {}),
    "FedADMM with a cohort": (METHODS["FedADMM"], {"cohort": 3}),
    "FedNova": (algorithms.fednova(oracle=OWN), {}),
}


@pytest.mark.parametrize("name", slow_but(["SCAFFOLD with a cohort", "FedDyn", "FedNova"], SERVED))
def test_an_unchanged_app_with_fedpds_strategy_is_the_method(name: str) -> None:
    method, options = SERVED[name]
    found = federated(method, app(mod(method)), 8, **options)
    rounds = int(found.history["round"][-1])  # the last one with a communication
    assert_simulated(found.model, method, rounds, **options)


class Silent(InProcessGrid):
    """Node 2 does not answer the second communication."""

    orders = 0

    def deliver(self, message: Message) -> Message | None:
        config: Any = message.content.config_records["config"]
        if message.metadata.dst_node_id == 2 and config.get("fedpd-number") == 1:
            return None
        return super().deliver(message)


def test_a_node_may_be_absent() -> None:
    found = federated(FEDPD, app(mod(FEDPD)), 5, Silent, on_timeout="partial")
    present = np.ones((5, 4))
    present[1, 1] = 0
    assert_simulated(found.model, FEDPD, 5, participation=present)


class Killed(InProcessGrid):
    """Node 3 dies after its second training: its reply is lost, and so is all that Flower keeps for it."""

    deaths = 0

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        config: Any = message.content.config_records["config"]
        if message.metadata.dst_node_id == 3 and 2 in (config.get("fedpd-number"), config.get("server-round")):
            self.contexts[3].state.clear()
            type(self).deaths += 1
            return super().deliver(message)  # the server asks again
        return reply


def test_duals_survive_a_crash_between_training_and_reply() -> None:
    assert_simulated(federated(FEDPD, app(mod(FEDPD)), 5, Killed).model, FEDPD, 5)
    found = trained(app(mod(FEDPD)), 5, Killed)
    assert_simulated(found, FEDPD, 5)
    assert Killed.deaths == 2


def test_buffers_stay_at_their_node() -> None:
    seen: dict[int, list[float]] = {}

    def watch(message: Message, context: Context, call_next: Any) -> Message:
        if "arrays" in message.content.array_records:
            arrays = message.content.array_records["arrays"]
            seen.setdefault(int(context.node_config["partition-id"]), []).append(float(arrays["batches"].numpy()))
        return call_next(message, context)

    federated(FEDPD, app(mod(FEDPD), watch), 3)
    assert seen == {i: [0.0, 10.0, 20.0] for i in range(4)}


def test_samples_weigh_the_mean_of_fedpds_strategy() -> None:
    method = transforms.wrap(algorithms.fedavg(oracle=OWN), mean=transforms.weighted("samples"))
    found = federated(method, app(mod(method), weights=True), 3).model["linear.weight"]
    plain = trained(app(mod(METHODS["FedAvg"]), weights=True), 3)["linear.weight"]  # Flower's own weights
    np.testing.assert_allclose(found, plain, rtol=0, atol=1e-14)


def test_a_node_that_missed_rounds_is_refused_by_flowers_average(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")

    class Absent(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            config: Any = message.content.config_records["config"]
            return (
                None if message.metadata.dst_node_id == 2 and config["server-round"] == 2 else super().deliver(message)
            )

    trained(app(mod(FEDPD)), 3, Absent)
    assert "this node missed the rounds from 2 to 2, and the mean of those present is then biased" in caplog.text


def test_evaluations_and_other_starts_are_refused() -> None:
    with pytest.raises(FedpdError, match="give evaluate_fn to start"):
        federated(FEDPD, app(mod(FEDPD)), 1, evaluate_every=1)
    with pytest.raises(FedpdError, match="Give the module that the apps train"):
        Strategy(FEDPD, np.zeros(3), Settings(agents=4, rounds=1))
    with pytest.raises(FedpdError, match=r"Use fedpd\.flower\.Strategy and mod"):
        federate(InProcessGrid(app(mod(FEDPD)), 4, {}), FEDPD, {"w": np.zeros(3)}, Settings(agents=4, rounds=1))


def test_a_client_with_another_method_cannot_take_part() -> None:
    other = METHODS["FedProx"]
    with pytest.raises(FedpdError, match="fedprox"):
        federated(FEDPD, app(mod(other)), 1)


def received(kind: str) -> Message:
    """Return a message with a model, as an app receives it."""
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict({"arrays": ArrayRecord(Net().state_dict())}), 1, kind)
    set_identity(message, "one")
    return message


def test_an_error_of_the_app_passes_and_the_node_keeps_its_state() -> None:
    around, state = mod(FEDPD), RecordDict()
    context = Context(1, 1, {"partition-id": 0}, state, {})
    message = received("train")

    def fails(given: Message, _: Context) -> Message:
        return Message(Error(0, "no data today"), reply_to=given)

    reply = around(message, context, fails)
    assert reply.has_error()
    assert not state


@pytest.mark.parametrize("kind", ["train", "evaluate"])
def test_the_text_of_an_error_of_the_app_stays_at_its_site(kind: str) -> None:
    def fails(given: Message, _: Context) -> Message:
        return Message(RecordDict({"metrics": MetricRecord({"age": float("born 1961")})}), reply_to=given)

    context, message = Context(1, 1, {"partition-id": 0}, RecordDict(), {}), received(kind)
    with pytest.raises(Exception, match=r"^ValueError in test_own_app\.py, line \d+") as raised:
        mod(FEDPD)(message, context, fails)
    assert "born" not in str(raised.value)


def test_an_app_that_trains_something_else_gets_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")
    assert not trained(app(mod(FEDPD), forget=True), rounds=1)  # Flower goes on without the replies
    assert "is none of the arrays that it received. Load them before training" in caplog.text
