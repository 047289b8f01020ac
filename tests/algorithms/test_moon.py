"""MOON: a PyTorch program with the authors' loss, reductions, absent agents, refusals."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from fedpd import FedpdError, algorithms, compare, oracles, problems, simulate

STEP, Q, MU, TEMPERATURE = 0.2, 3, 2.0, 0.5
RNG = np.random.default_rng(0)
ROWS = [{"x": RNG.normal(size=(4 + i, 3)), "y": RNG.normal(i, 1, 4 + i)} for i in range(3)]
START = {"first": RNG.normal(size=(3, 2)), "last": RNG.normal(size=2)}
GD = oracles.gd(step=STEP, iterations=Q)
SOME = np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1], [1, 1, 1]], bool)


def hidden(model: Any, batch: Any) -> Any:
    return jnp.tanh(batch["x"] @ model["first"])


def losses(model: Any, batch: Any) -> Any:
    return (hidden(model, batch) @ model["last"] - batch["y"]) ** 2 / 2


GIVEN: dict[str, Any] = {"features": hidden, "oracle": GD}
PROBLEM = problems.from_losses(losses, ROWS, START)


@pytest.mark.parametrize("present", [np.ones((4, 3), bool), SOME], ids=["everyone", "some"])
def test_it_is_a_program_with_the_authors_loss(present: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    cosine = torch.nn.CosineSimilarity(dim=-1)
    data = [{name: torch.tensor(leaf) for name, leaf in rows.items()} for rows in ROWS]
    x = {name: torch.tensor(leaf) for name, leaf in START.items()}
    before = [dict(x) for _ in data]
    for here in present:
        sent = []
        for i in np.flatnonzero(here):
            y = {name: leaf.clone().requires_grad_() for name, leaf in x.items()}
            for _ in range(Q):
                z, positive, negative = (torch.tanh(data[i]["x"] @ one["first"]) for one in (y, x, before[i]))
                scores = torch.stack([cosine(z, positive), cosine(z, negative)], dim=1) / TEMPERATURE
                contrast = torch.nn.functional.cross_entropy(scores, torch.zeros(len(z), dtype=torch.long))
                loss = ((z @ y["last"] - data[i]["y"]) ** 2 / 2).mean() + MU * contrast
                slopes = torch.autograd.grad(loss, list(y.values()))
                pairs = zip(y.items(), slopes, strict=True)
                y = {name: (leaf - STEP * slope).detach().requires_grad_() for (name, leaf), slope in pairs}
            before[i] = {name: leaf.detach() for name, leaf in y.items()}
            sent.append(before[i])
        x = {name: torch.stack([one[name] for one in sent]).mean(0) for name in x}
    method = algorithms.moon(features=hidden, mu=MU, temperature=TEMPERATURE, oracle=GD)
    run = simulate(method, PROBLEM, rounds=len(present), participation=present)
    for name, leaf in x.items():
        np.testing.assert_allclose(run.model[name], leaf.numpy(), rtol=1e-9, atol=1e-12)


def test_without_its_loss_and_in_the_first_round_it_is_fedavg() -> None:
    plain = algorithms.fedavg(oracle=GD)
    for method, rounds in (
        (algorithms.moon(features=hidden, mu=0.0, oracle=GD), 3),
        (algorithms.moon(features=hidden, mu=5.0, oracle=GD), 1),
    ):
        one, other = (simulate(each, PROBLEM, rounds=rounds).model for each in (method, plain))
        for name, leaf in other.items():
            np.testing.assert_allclose(one[name], leaf, rtol=1e-12)


def test_features_of_zeros_have_a_gradient() -> None:
    method = algorithms.moon(features=lambda model, batch: 0 * hidden(model, batch), oracle=GD)
    assert simulate(method, PROBLEM, rounds=2).diverged is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"features": 3}, "features = 3: must be a function or"),
        ({"mu": -1}, "mu = -1: must be finite and at least 0"),
        ({"temperature": 0}, "temperature = 0: must be"),
        ({"oracle": 1}, "oracle = 1: must be a local solver"),
    ],
)
def test_wrong_settings_are_refused(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(FedpdError, match=words):
        algorithms.moon(**GIVEN | setting)


def test_features_without_rows_are_refused() -> None:
    method = algorithms.moon(features=lambda model, batch: batch["y"], oracle=GD)
    with pytest.raises(FedpdError, match=r"returned an array of shape .*shape \(B, d\)"):
        simulate(method, PROBLEM, rounds=1)


def test_a_loss_of_the_whole_agent_is_refused() -> None:
    def whole(model: Any, samples: Any, mask: Any) -> Any:
        return jnp.sum(losses(model, samples) * mask) / jnp.sum(mask)

    problem = problems.from_agent_loss(whole, ROWS, START)
    with pytest.raises(FedpdError, match="Give a problem with one loss per sample"):
        simulate(algorithms.moon(features=hidden, oracle=GD), problem, rounds=1)


def test_a_comparison_of_equal_work_needs_the_features() -> None:
    with pytest.raises(FedpdError, match=r"moon.*Give a function that makes it"):
        compare(PROBLEM, methods=["moon"], budget=1, seeds=[0], rounds=2, batch=2)
