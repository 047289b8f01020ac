"""A Flower app that does not change, with Flower's own FedAvg: equal to a simulation."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, Method, algorithms, oracles, problems, simulate
from tests.test_own_loop import AGENTS, METHODS, problem

torch = pytest.importorskip("torch")
pytest.importorskip("flwr")
from flwr.app import ArrayRecord, Context, Error, Message, MetricRecord, RecordDict  # noqa: E402
from flwr.clientapp import ClientApp  # noqa: E402
from flwr.serverapp.strategy import FedAvg  # noqa: E402

from fedpd.flower import InProcessGrid, mod  # noqa: E402

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


def trained(made: ClientApp, rounds: int = 8) -> dict[str, np.ndarray]:
    net = Net()
    torch.nn.init.zeros_(net.linear.weight)
    torch.nn.init.zeros_(net.linear.bias)
    strategy = FedAvg(fraction_evaluate=0.0)
    grid = InProcessGrid(made, len(AGENTS), {})
    result = strategy.start(grid, ArrayRecord(net.state_dict()), num_rounds=rounds)
    return {name: array.numpy() for name, array in result.arrays.items()}


@pytest.mark.parametrize("name", ["FedPD", "FedPD from the server", "FedProx", "FedAvg"])
def test_an_unchanged_app_with_flowers_average_is_the_method(name: str) -> None:
    found = trained(app(mod(METHODS[name])))
    run = simulate(METHODS[name].changed({"oracle": oracles.gd(0.05, 10)}), problem(), rounds=8)
    np.testing.assert_allclose(found["linear.weight"][0], run.model["w"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(found["linear.bias"][0], run.model["b"], rtol=0, atol=1e-13)
    plain = trained(app())
    np.testing.assert_allclose(found["mean"], plain["mean"], atol=1e-15)  # buffers travel as in the app alone


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


@pytest.mark.parametrize(
    ("method", "answer"),
    [
        (METHODS["FedDyn"], "its server does more than average"),
        (algorithms.fedpd(eta=0.1, oracle=oracles.own_loop(), p=0.5), "skips communications"),
    ],
)
def test_methods_that_need_another_server_are_refused(method: Method, answer: str) -> None:
    with pytest.raises(FedpdError, match=answer):
        mod(method)


def test_an_error_of_the_app_passes_and_the_node_keeps_its_state() -> None:
    around, state = mod(FEDPD), RecordDict()
    context = Context(1, 1, {"partition-id": 0}, state, {})
    arrays = RecordDict({"arrays": ArrayRecord(Net().state_dict())})
    message = Message(arrays, 1, "train")
    message.metadata.__dict__["_message_id"] = "one"

    def fails(given: Message, _: Context) -> Message:
        return Message(Error(0, "no data today"), reply_to=given)

    reply = around(message, context, fails)
    assert reply.has_error()
    assert not state


def test_an_app_that_trains_something_else_gets_a_sentence(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="flwr")
    assert not trained(app(mod(FEDPD), forget=True), rounds=1)  # Flower goes on without the replies
    assert "is none of the arrays that it received. Load them before training" in caplog.text
