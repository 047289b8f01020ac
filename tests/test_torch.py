"""A PyTorch loop that does not change: equal to a simulation, and right with what loops do."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError, algorithms, oracles, simulate
from tests.test_own_loop import AGENTS, METHODS, MORE, problem, simulated

torch = pytest.importorskip("torch")
import fedpd.torch  # noqa: E402  # it needs PyTorch

FEDPD = METHODS["FedPD from the server"]
Train = Callable[[Any, Any, Any], None]


@pytest.fixture(autouse=True)
def double() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def loss_of(net: Any, x: Any, y: Any) -> Any:
    return torch.nn.functional.mse_loss(net(x)[:, 0], y)


def plain(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        loss_of(net, x, y).backward()
        optimizer.step()


def federated(method: Any, train: Train, rounds: int = 12, make: Any = lambda: torch.nn.Linear(3, 1)) -> Any:
    """Train by a loop; a plain average is the server."""
    nets, agents = [make() for _ in AGENTS], [fedpd.torch.Agent() for _ in AGENTS]
    model = {name: np.zeros_like(part) for name, part in fedpd.torch.parameters_of(nets[0]).items()}
    for _ in range(rounds):
        for net, agent, (x, y) in zip(nets, agents, AGENTS, strict=True):
            fedpd.torch.load(net, model)
            with fedpd.torch.local(method, net, agent):
                train(net, torch.tensor(x), torch.tensor(y))
        sent = [fedpd.torch.parameters_of(net) for net in nets]
        model = {name: np.mean([one[name] for one in sent], axis=0) for name in model}
    return model


def assert_simulated(model: Any, method: Any = FEDPD, rounds: int = 12) -> None:
    run = simulate(method.changed({"oracle": oracles.gd(0.05, 10)}), problem(), rounds=rounds)
    np.testing.assert_allclose(model["weight"][0], run.model["w"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(model["bias"][0], run.model["b"], rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", ["FedPD", "FedPD from the server", "FedProx", "FedAvg"])
def test_an_unchanged_loop_and_a_plain_average_are_the_method(name: str) -> None:
    assert_simulated(federated(METHODS[name], plain), METHODS[name])


QUICK = ("scaffold", "fednova", "fedcm", "fedacg")  # the others differ from the loops in NumPy by nothing


@pytest.mark.parametrize(
    "method",
    [pytest.param(one, id=name, marks=[] if name in QUICK else pytest.mark.slow) for name, one in MORE.items()],
)
def test_a_server_of_its_own(method: Any) -> None:
    nets, agents = [torch.nn.Linear(3, 1) for _ in AGENTS], [fedpd.torch.Agent() for _ in AGENTS]
    server = fedpd.torch.Server(method, {"weight": np.zeros((1, 3)), "bias": np.zeros(1)})
    for _ in range(5):
        messages = []
        for net, agent, (x, y) in zip(nets, agents, AGENTS, strict=True):
            fedpd.torch.load(net, server.model)
            with fedpd.torch.local(method, net, agent, server.broadcast) as step:
                plain(net, torch.tensor(x), torch.tensor(y))
            messages.append(step.message)
        server.update(messages)
    run = simulated(method, 5)
    np.testing.assert_allclose(server.result["weight"][0], run.model["w"], rtol=0, atol=1e-13)
    np.testing.assert_allclose(server.result["bias"][0], run.model["b"], rtol=0, atol=1e-13)


def accumulated(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    for _ in range(10):
        optimizer.zero_grad()
        for part in range(2):
            (loss_of(net, x[part::2], y[part::2]) / 2).backward()
        optimizer.step()


def two_optimizers(net: Any, x: Any, y: Any) -> None:
    both = [torch.optim.SGD([one], lr=0.05) for one in net.parameters()]
    for _ in range(10):
        net.zero_grad()
        loss_of(net, x, y).backward()
        for optimizer in both:
            optimizer.step()


def groups(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD([{"params": [net.weight]}, {"params": [net.bias]}], lr=0.05, foreach=True)
    for _ in range(10):
        optimizer.zero_grad(set_to_none=False)
        loss_of(net, x, y).backward()
        optimizer.step()


def by_closure(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = loss_of(net, x, y)
        loss.backward()
        return loss

    for _ in range(10):
        optimizer.step(closure)


def scaled(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()


def scaled_and_fused(net: Any, x: Any, y: Any) -> None:
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, fused=True)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    for _ in range(10):
        optimizer.zero_grad()
        scaler.scale(loss_of(net, x, y)).backward()
        scaler.step(optimizer)
        scaler.update()


@pytest.mark.parametrize(
    "train", [accumulated, two_optimizers, groups, by_closure, scaled, scaled_and_fused], ids=lambda one: one.__name__
)
def test_what_loops_do_changes_nothing(train: Train) -> None:
    assert_simulated(federated(FEDPD, train, rounds=5), rounds=5)


def test_lbfgs_with_a_line_search_minimises_the_local_problem() -> None:
    def train(net: Any, x: Any, y: Any) -> None:
        optimizer = torch.optim.LBFGS(
            net.parameters(), max_iter=100, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
        )

        def closure() -> Any:
            optimizer.zero_grad()
            loss = loss_of(net, x, y)
            loss.backward()
            return loss

        optimizer.step(closure)

    model = federated(FEDPD, train, rounds=6)
    run = simulate(FEDPD.changed({"oracle": oracles.gd(0.05, 2000)}), problem(), rounds=6)
    np.testing.assert_allclose(model["weight"][0], run.model["w"], atol=1e-7)  # of the line search


def test_clipping_is_of_the_gradient_of_the_loss_alone() -> None:
    def train(net: Any, x: Any, y: Any) -> None:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
            optimizer.step()

    x, y = (torch.tensor(part) for part in AGENTS[3])
    net, agent, eta = torch.nn.Linear(3, 1), fedpd.torch.Agent(), 0.3
    torch.nn.init.zeros_(net.weight), torch.nn.init.zeros_(net.bias)
    with fedpd.torch.local(algorithms.fedpd(eta=eta, oracle=oracles.own_loop(), start="server"), net, agent):
        train(net, x, y)
    w, a = np.zeros(4), np.c_[AGENTS[3][0], np.ones(20)]
    for _ in range(10):
        gradient = 2 * a.T @ (a @ w - AGENTS[3][1]) / 20
        gradient *= min(1, 0.5 / (np.linalg.norm(gradient) + 1e-6))
        w = w - 0.05 * (gradient + w / eta)
    np.testing.assert_allclose(net.weight.detach().numpy()[0], 2 * w[:3], atol=1e-12)  # x + eta lambda, lambda = x/eta


def test_frozen_shared_and_unused_parameters() -> None:
    class Net(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(3, 3, bias=False)
            self.same = self.one
            self.frozen = torch.nn.Linear(3, 1)
            self.unused = torch.nn.Linear(2, 2)
            self.frozen.requires_grad_(False)

        def forward(self, x: Any) -> Any:
            return self.frozen(self.same(self.one(x)))

    net, agent = Net(), fedpd.torch.Agent()
    before = net.frozen.weight.clone()
    with fedpd.torch.local(FEDPD, net, agent) as step:
        optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.ones(2, 3)).sum().backward()
            optimizer.step()
    assert set(step.message) == {"one.weight", "unused.weight", "unused.bias"}
    assert torch.equal(net.frozen.weight, before)
    assert step.updates == 3


def _no_step(net: Any) -> None:
    loss_of(net, torch.ones(2, 3), torch.ones(2)).backward()


def _replaced(net: Any) -> None:
    net.weight = torch.nn.Parameter(torch.ones(1, 3))


def _steps(optimizer: Any, net: Any) -> None:
    loss_of(net, torch.ones(2, 3), torch.ones(2)).backward()
    optimizer.step()


def _uphill(net: Any) -> None:
    _steps(torch.optim.SGD(net.parameters(), lr=0.1, maximize=True), net)


def _by_hand(net: Any) -> None:
    _steps(torch.optim.SGD([net.bias], lr=0.1), net)
    with torch.no_grad():
        net.weight -= 0.1 * net.weight.grad


def _momentum(net: Any) -> None:
    _steps(torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9), net)


def _adam(net: Any) -> None:
    _steps(torch.optim.Adam(net.parameters()), net)


def _two_lengths(net: Any) -> None:
    _steps(torch.optim.SGD([{"params": [net.weight], "lr": 0.2}, {"params": [net.bias]}], lr=0.1), net)


@pytest.mark.parametrize(
    ("method", "train", "answer"),
    [
        (FEDPD, _no_step, "no optimizer of PyTorch took a step on its parameters"),
        (FEDPD, _replaced, "has other parameters than when the block began"),
        (FEDPD, _uphill, "Minimise the negative of your objective"),
        (FEDPD, _by_hand, "weight': changed without a step of an optimizer"),
        (MORE["scaffold"], _momentum, "takes steps that are no plain gradient steps"),
        (MORE["fednova"], _adam, "takes steps that are no plain gradient steps"),
        (MORE["feddc"], _two_lengths, "Give all parameters the same step sizes"),
    ],
)
def test_loops_that_would_be_wrong_without_a_word_are_refused(
    method: Any, train: Callable[[Any], None], answer: str
) -> None:
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    with pytest.raises(FedpdError, match=answer), fedpd.torch.local(method, net, agent):
        train(net)
    assert agent.rounds == 0


def _one_step(net: Any) -> None:
    net(torch.ones(3)).square().sum().backward()
    torch.optim.SGD(net.parameters(), lr=0.1).step()


def _in_block(net: Any) -> int:
    with fedpd.torch.local(FEDPD, net, fedpd.torch.Agent()) as step:
        _one_step(net)
    return step.updates


def test_a_block_in_a_block_of_the_same_module_is_refused() -> None:
    net = torch.nn.Linear(3, 1)
    with fedpd.torch.local(FEDPD, net, fedpd.torch.Agent()) as step:
        with pytest.raises(FedpdError, match="is in another block already, and both would add their terms"):
            _in_block(net)
        assert _in_block(torch.nn.Linear(3, 1)) == 1
        _one_step(net)
    assert step.updates == _in_block(net) == 1


def test_the_step_sizes_of_a_schedule_add_up() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[0])
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    with fedpd.torch.local(MORE["scaffold"], net, agent) as step:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()
            schedule.step()
    assert step.length == pytest.approx(0.1 + 0.05 + 0.025)
    np.testing.assert_allclose(step.message[1]["weight"], -step.message[0]["weight"] / step.length)  # c_i+, c_i = c = 0


def test_the_steps_of_one_optimizer_per_epoch_add_up() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[0])
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    with fedpd.torch.local(MORE["scaffold"], net, agent) as step:
        plain(net, x, y)
        both = [torch.optim.SGD([one], lr=0.1) for one in net.parameters()]
        loss_of(net, x, y).backward()
        for optimizer in both:
            optimizer.step()
    assert step.updates == 11
    assert step.length == pytest.approx(10 * 0.05 + 0.1)


def test_parameters_that_are_unfrozen_in_the_block_get_their_terms() -> None:
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    with torch.no_grad():
        net.weight.fill_(1.0), net.bias.fill_(1.0)
    method = algorithms.fedprox(rho=1.0, oracle=oracles.own_loop())
    with fedpd.torch.local(method, net, agent) as step:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.5)
        net.bias.requires_grad_(False)
        for _ in range(2):
            optimizer.zero_grad()
            net(torch.ones(1, 3)).sum().backward()
            optimizer.step()
            net.bias.requires_grad_(True)
    assert step.updates == 2
    np.testing.assert_allclose(step.message["weight"], np.full((1, 3), 1 - 0.5 - 0.5 * (1 - 0.5)))  # g = 1, x - 1 = -.5
    np.testing.assert_allclose(step.message["bias"], [1 - 0.5])  # its first step begins where the pull is 0


def test_an_optimizer_around_another_adds_the_terms_once() -> None:
    class Around(torch.optim.Optimizer):  # type: ignore[name-defined]
        def __init__(self, inner: Any) -> None:
            super().__init__(inner.param_groups, {})
            self.inner = inner

        def step(self, closure: Any = None) -> Any:
            return self.inner.step(closure)

    def train(net: Any, x: Any, y: Any) -> None:
        optimizer = Around(torch.optim.SGD(net.parameters(), lr=0.05))
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()

    assert_simulated(federated(FEDPD, train, rounds=5), rounds=5)


def test_an_optimizer_whose_step_calls_that_of_its_class_adds_the_terms_once() -> None:
    class Own(torch.optim.SGD):  # type: ignore[name-defined]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def train(net: Any, x: Any, y: Any) -> None:
        torch.optim.SGD(net.parameters())  # PyTorch then runs hooks around the step of the class, too
        optimizer = Own(net.parameters(), lr=0.05)
        for _ in range(10):
            optimizer.zero_grad()
            loss_of(net, x, y).backward()
            optimizer.step()

    assert_simulated(federated(FEDPD, train, rounds=5), rounds=5)


def test_after_a_step_that_raises_another_optimizer_gets_the_terms() -> None:
    def train(net: Any, x: Any, y: Any) -> None:
        with pytest.raises(RuntimeError, match="out of memory"):
            torch.optim.LBFGS(net.parameters()).step(_out_of_memory)
        plain(net, x, y)

    assert_simulated(federated(FEDPD, train, rounds=5), rounds=5)


def _out_of_memory() -> float:
    raise RuntimeError("out of memory")


@pytest.mark.parametrize("name", ["scaffold", "fednova", "feddc"])
@pytest.mark.parametrize("is_last", [False, True], ids=["between the steps", "after the last step"])
def test_where_the_method_divides_by_the_steps_nothing_else_may_move_parameters(name: str, is_last: bool) -> None:
    x, y = (torch.tensor(part) for part in AGENTS[0])
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    begin = {key: value.clone() for key, value in net.state_dict().items()}

    def train() -> None:
        net.load_state_dict(begin)  # the same values, before the first step
        plain(net, x, y)
        net.load_state_dict(begin)
        if not is_last:
            plain(net, x, y)

    answer = "'weight': changed between or after the steps of its optimizer"
    with pytest.raises(FedpdError, match=answer), fedpd.torch.local(MORE[name], net, agent):
        train()
    assert agent.rounds == 0


def test_an_agent_of_another_method_or_module_is_refused() -> None:
    x, y = (torch.tensor(part) for part in AGENTS[0])
    net, agent = torch.nn.Linear(3, 1), fedpd.torch.Agent()
    dyn = algorithms.feddyn(alpha=1.0, oracle=oracles.own_loop())
    with fedpd.torch.local(FEDPD, net, agent):
        plain(net, x, y)
    for method, module in [(dyn, net), (FEDPD, torch.nn.Sequential(net)), (FEDPD, torch.nn.Linear(3, 2))]:
        with (
            pytest.raises(FedpdError, match="has the state of another method or of a model with other arrays"),
            fedpd.torch.local(method, module, agent),
        ):
            plain(module, x, y)
    assert agent.rounds == 1


def test_arrays_of_another_shape_are_refused() -> None:
    with pytest.raises(FedpdError, match="Give the arrays of the same module"):
        fedpd.torch.load(torch.nn.Linear(3, 1), {"weight": np.ones((1, 1)), "bias": np.ones(1)})


def test_sparse_gradients_and_modules_without_parameters_are_refused() -> None:
    net = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SparseAdam(net.parameters())

    def train() -> None:
        net(torch.tensor([1])).sum().backward()
        optimizer.step()

    with pytest.raises(FedpdError, match="sparse"), fedpd.torch.local(FEDPD, net, fedpd.torch.Agent()):
        train()
    with pytest.raises(FedpdError, match="has no parameter that requires a gradient"):
        fedpd.torch.local(FEDPD, torch.nn.ReLU(), fedpd.torch.Agent()).__enter__()
    with pytest.raises(FedpdError, match="has other names than the module's parameters"):
        fedpd.torch.load(net, {"x": np.ones(3)})


def test_half_precision_keeps_its_state_in_float32() -> None:
    net, agent = torch.nn.Linear(3, 1, dtype=torch.bfloat16), fedpd.torch.Agent()
    with fedpd.torch.local(FEDPD, net, agent) as step:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
        net(torch.ones(2, 3, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
    assert step.message["weight"].dtype == np.float32
    assert net.weight.dtype == torch.bfloat16
