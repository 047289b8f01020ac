"""Problems with one loss per agent, for losses that couple the samples of an agent: Cox, ranking, contrastive."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import check_takes, refuse
from fedpd.base.typed import explained
from fedpd.core import UNKNOWN, Answer, Array, Penalty, Problem, Tree
from fedpd.core.agent_loss import AgentLoss, LossOfAgent
from fedpd.data.lazy import Lazy
from fedpd.data.ragged import Ragged
from fedpd.problems.build import Weights, from_losses, scale_of
from fedpd.problems.second_opinion import check_agent_loss


@explained
def from_agent_loss(
    loss: LossOfAgent,
    data: list[Tree] | Ragged | Lazy | Tree,
    start: Tree,
    *,
    penalty: Penalty | None = None,
    weights: Weights = None,
    answer: Answer = UNKNOWN,
    name: str = "problem",
    check: bool = True,
) -> Problem:
    """Return a problem with one loss per agent, which may couple the agent's samples: f_i(x) = w_i (loss_i + penalty).

    Use it for a Cox partial likelihood, a ranking loss or a contrastive loss. If the loss of a sample does not depend
    on the other samples, use `from_losses`.

    A full gradient is exact for agents of all sizes. A stochastic gradient of an oracle with batches of B samples is
    that of loss(model, the B samples, mask of ones). In general its expectation is not the gradient of f_i.

    Args:
        loss: (model, samples with leaves (n, ...), mask (n,)) -> scalar. The mask is 1 for samples and 0 for padding,
            which repeats samples: multiply by it, or use jnp.where, in every sum over samples.
        data: As for `from_losses`.
        start: The model x^0, any pytree of floating-point arrays.
        penalty: (model) -> scalar, a part of f_i that does not depend on the samples.
        weights: (N,) the w_i. None: 1, which makes f the plain mean of the agents. "samples": N |D_i| / M, which makes
            f = sum_i |D_i|/M loss_i.
        answer: The known facts about the problem: a minimiser, L, delta.
        name: The name of the problem in tables and figures.
        check: Whether to check once that padding does not change the loss, and that the compiled loss and gradient of
            an agent equal those of JAX without compilation and padding.

    Raises:
        FedpdError: If shapes do not fit, a number is not finite, or padding changes the loss.

    Examples:
        The Cox partial likelihood: samples with features a, time t, and d = 1 for an event or 0 for a censored time.

        >>> def cox(x, samples, mask):
        ...     score, t, d = samples["a"] @ x, samples["t"], samples["d"] * mask
        ...     at_risk = (t[None, :] >= t[:, None]) * mask[None, :]
        ...     return jnp.sum(d * (jnp.log(at_risk @ jnp.exp(score)) - score)) / jnp.sum(d)
        >>> rng = np.random.default_rng(0)
        >>> hospitals = [{"a": rng.normal(size=(n, 2)), "t": rng.random(n), "d": np.ones(n)} for n in (3, 5)]
        >>> problem = from_agent_loss(cox, hospitals, start=np.zeros(2))
        >>> problem.agents, problem.samples
        (2, 8)
    """
    check_takes("loss", loss, 3, "Write it as a function of (model, samples, mask)")

    def one_per_sample(model: Tree, batch: Tree) -> Array:
        """Return the form that `from_losses` checks."""
        rows = len(jax.tree.leaves(batch)[0])
        mask = jnp.ones(rows, jnp.result_type(*jax.tree.leaves(model)))
        found = loss(model, batch, mask)
        if np.shape(found):
            refuse("shape of the loss", np.shape(found), "must be (), one number per agent", "Sum over the samples")
        return jnp.full(rows, found)

    held = from_losses(one_per_sample, data, start, penalty=penalty, answer=answer, name=name, check=False)
    scale = scale_of(weights, held.sizes if isinstance(weights, str) else np.ones_like(held.sizes))
    problem = replace(held, losses=AgentLoss(loss), scale=scale, block=int(held.sizes.max()))
    return check_agent_loss(problem) if check else problem
