"""The exact mean of LoRA's products: equal to NumPy, to peft's own products, and different from the mean of factors."""

from typing import Any, Literal

import numpy as np
import pytest
from flwr.app import Context

import fedpd
from fedpd import FedpdError, algorithms, oracles, problems, simulate, transforms
from fedpd.core import Method, Problem
from fedpd.flower import InProcessGrid, Settings, client_app, federate

STEP, STEPS, SCALE, AGENTS, M, N, RANK = 0.02, 3, 2.0, 3, 4, 5, 2
FEDAVG = algorithms.fedavg(oracle=oracles.gd(step=STEP, iterations=STEPS))
PRODUCT = transforms.Product("W", "B", "A", scale=SCALE)


def start() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(9)
    shapes = {"W": (M, N), "B": (M, RANK), "A": (RANK, N), "bias": (M,)}
    return {name: rng.normal(0, 0.5, shape) for name, shape in shapes.items()}


def samples(agent: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(agent)
    return {"x": rng.normal(size=(6, N)), "y": rng.normal(agent, 1, size=(6, M))}


def losses(model: Any, rows: Any) -> Any:
    weight = model["W"] + SCALE * model["B"] @ model["A"]
    return ((rows["x"] @ weight.T + model["bias"] - rows["y"]) ** 2).sum(1) / 2


def problem() -> Problem:
    return problems.from_losses(losses, [samples(i) for i in range(AGENTS)], start())


def exact(method: Method = FEDAVG, **options: Any) -> Method:
    return transforms.wrap(method, mean=transforms.exact_lora([PRODUCT], **options))


def in_numpy(rounds: int, present: np.ndarray, *, restart: bool = False) -> dict[str, np.ndarray]:
    """Return the model of FedAvg with exact products, in which W changes at the server only."""
    x = first = start()
    for r in range(rounds):
        sent = []
        for i in np.flatnonzero(present[r]):
            own, rows = dict(x), samples(int(i))
            for _ in range(STEPS):
                weight = own["W"] + SCALE * own["B"] @ own["A"]
                error = (rows["x"] @ weight.T + own["bias"] - rows["y"]) / len(rows["x"])
                slope = error.T @ rows["x"]
                changes = {"B": SCALE * slope @ own["A"].T, "A": SCALE * own["B"].T @ slope, "bias": error.sum(0)}
                own |= {name: own[name] - STEP * change for name, change in changes.items()}
            sent.append(own)
        mean = {name: np.mean([one[name] for one in sent], axis=0) for name in x}
        factors = {name: first[name] if restart else mean[name] for name in "BA"}
        products = np.mean([one["B"] @ one["A"] for one in sent], axis=0)
        x = mean | factors | {"W": x["W"] + SCALE * (products - factors["B"] @ factors["A"])}
    return x


EVERYONE = np.ones((4, AGENTS), bool)
SOME = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 1], [1, 1, 0]], bool)


@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.parametrize("present", [EVERYONE, SOME], ids=["everyone", "some"])
def test_it_is_that_of_numpy(present: np.ndarray, restart: bool) -> None:
    run = simulate(exact(restart=restart), problem(), rounds=4, participation=present)
    expected = in_numpy(4, present, restart=restart)
    for name, array in expected.items():
        np.testing.assert_allclose(run.model[name], array, rtol=1e-10, atol=1e-12, err_msg=name)


def test_one_round_is_the_mean_of_the_products_and_the_mean_of_the_factors_is_not() -> None:
    ends = [simulate(exact(), problems.from_losses(losses, [samples(i)], start()), rounds=1).model for i in range(3)]
    wanted = start()["W"] + SCALE * np.mean([one["B"] @ one["A"] for one in ends], axis=0)
    frozen = transforms.wrap(FEDAVG, mean=transforms.exact_lora([PRODUCT]))
    found = simulate(frozen, problem(), rounds=1).model
    np.testing.assert_allclose(found["W"] + SCALE * found["B"] @ found["A"], wanted, rtol=1e-12)
    factors = {name: np.mean([one[name] for one in ends], axis=0) for name in "BA"}
    fedit = start()["W"] + SCALE * factors["B"] @ factors["A"]
    np.testing.assert_allclose(found["B"], factors["B"], rtol=1e-12)
    assert np.abs(fedit - wanted).max() > 1e-3


def test_agents_send_factors_and_receive_the_weights_too() -> None:
    run = simulate(exact(), problem(), rounds=1)
    factors = 8 * (M * RANK + RANK * N + M)
    assert run.history["bytes_up"][-1] == AGENTS * factors
    assert run.history["bytes_down"][-1] == AGENTS * (factors + 8 * M * N)


def test_cohorts_and_the_debug_backend_agree() -> None:
    hows: tuple[Literal["auto", "debug"], ...] = ("auto", "debug")
    for cohort in (2, None):
        one, other = (simulate(exact(), problem(), rounds=3, execution=how, cohort=cohort).model for how in hows)
        for name in one:
            np.testing.assert_allclose(one[name], other[name], rtol=1e-10, err_msg=name)


def test_the_running_mean_is_that_of_the_models() -> None:
    models = [start(), *(simulate(exact(), problem(), rounds=r).model for r in (1, 2))]
    found = simulate(exact(), problem(), rounds=2, average=True).model
    for name, array in found.items():
        first = models[0][name] + 5 / 6 * (models[1][name] - models[0][name])
        np.testing.assert_allclose(array, first + 5 / 7 * (models[2][name] - first), rtol=1e-10, err_msg=name)


def test_a_federation_is_the_simulation() -> None:
    def local(context: Context) -> Problem:
        i = int(context.node_config["partition-id"])
        return problems.from_losses(losses, [samples(i)], start())

    def method(config: Any = None) -> Method:
        return exact()

    def model(config: Any = None) -> Any:
        return start()

    settings = Settings(agents=AGENTS, rounds=3, deadline=60.0, poll=0.001)
    there = federate(InProcessGrid(client_app(method, model, local), AGENTS, {}), exact(), start(), settings)
    here = simulate(exact(), problem(), rounds=3)
    for column in ("loss", "bytes_up", "bytes_down"):
        np.testing.assert_allclose(there.history[column], here.history[column], rtol=1e-10, err_msg=column)
    for name, array in here.model.items():
        np.testing.assert_allclose(there.model[name], array, rtol=1e-10, err_msg=name)


def test_equal_agents_leave_the_weights_as_they_are() -> None:
    alike = problems.from_losses(losses, [samples(0)] * 3, start())
    found = simulate(exact(), alike, rounds=3).model
    np.testing.assert_allclose(found["W"], start()["W"], atol=1e-13)


def test_the_products_of_peft() -> None:
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes: Any = {"vocab_size": 20, "n_positions": 8, "n_embd": 4, "n_layer": 1, "n_head": 1}
    base = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    net: Any = get_peft_model(base, LoraConfig(r=2, lora_alpha=6, target_modules=["c_proj"], fan_in_fan_out=True))
    products = transforms.exact_lora(net).products
    assert len(products) == 2  # the first one is square, so that its shape does not say whether it is transposed
    parameters = dict(net.named_parameters())
    for one in products:
        torch.nn.init.normal_(parameters[one.B])
        layer = net.get_submodule(one.weight.removesuffix(".base_layer.weight"))
        factors = {path: parameters[path].detach().numpy() for path in (one.B, one.A)}
        np.testing.assert_allclose(one.of(factors), layer.get_delta_weight("default").detach().numpy(), rtol=1e-5)
        assert one.weight in parameters


@pytest.mark.parametrize(
    ("method", "word"),
    [
        (algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=0.1, iterations=1)), "products have no meaning"),
        (algorithms.fedadam(oracle=oracles.gd(step=0.1, iterations=1)), "products have no meaning"),
        (transforms.wrap(FEDAVG, mean=transforms.weighted()), "goes alone"),
        (transforms.wrap(FEDAVG, mean=transforms.exact_lora([PRODUCT])), "goes alone"),
    ],
)
def test_methods_whose_products_have_no_mean_are_refused(method: Method, word: str) -> None:
    with pytest.raises(FedpdError, match=word):
        exact(method)


@pytest.mark.parametrize(
    ("products", "word"),
    [
        ([], "must be a model with LoRA layers"),
        (np.ones(2), "must be a model with LoRA layers"),
        ([PRODUCT, PRODUCT], "'W', but is there twice|is there twice"),
    ],
)
def test_wrong_products_are_refused(products: Any, word: str) -> None:
    with pytest.raises(FedpdError, match=word):
        transforms.exact_lora(products)


@pytest.mark.parametrize(
    ("product", "word"),
    [
        (transforms.Product("V", "B", "A"), "'V' is no parameter|is no parameter of the model"),
        (transforms.Product("W", "B", "A", transposed=True), r"has the shape \(4, 5\)"),
        (transforms.Product("W", "A", "B"), r"has the shape \(4, 5\)"),
    ],
)
def test_products_that_do_not_fit_the_model_are_refused(product: Any, word: str) -> None:
    with pytest.raises(FedpdError, match=word):
        simulate(transforms.wrap(FEDAVG, mean=transforms.exact_lora([product])), problem(), rounds=1)


def test_an_own_loop_is_refused() -> None:
    method = exact(algorithms.fedavg(oracle=oracles.own_loop()))
    with pytest.raises(FedpdError, match="exact"), fedpd.local(method, start(), fedpd.Agent()):
        pass
