"""The federated part of a PyTorch loop that does not change.

    with fedpd.torch.local(method, net, agent):
        my_train(net, loader)

On entry, the parameters of `net` are the model that the agent received. PyTorch calls a hook before each step of an
optimiser, and the hook adds the method's terms to the gradients, so that the loop minimises the method's local problem:
for FedPD, f_i(x) + <lambda, x - x_0> + ||x - x_0||^2 / (2 eta). On exit, the parameters are what the agent sends. A
server that averages them, such as any FedAvg server, is then the server of FedPD with p = 0, FedProx and others whose
server sends the mean; `fedpd.Server` is that of the rest.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import extra
from fedpd.core import Method
from fedpd.own_loop import Agent as Agent
from fedpd.own_loop import Server as Server
from fedpd.own_loop import Step
from fedpd.own_loop import local as own_local

with extra("torch", "fedpd.torch"):
    import torch
    from torch import Tensor, nn
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_pre_hook

__all__ = ["Agent", "Server", "load", "local", "parameters_of"]


def parameters_of(module: nn.Module) -> dict[str, np.ndarray]:
    """Return the parameters that are trained, by name, as arrays; half precision becomes float32."""
    return {name: _array(parameter) for name, parameter in _trained(module).items()}


def load(module: nn.Module, model: dict[str, np.ndarray]) -> None:
    """Copy arrays into the parameters that are trained."""
    trained = _trained(module)
    if set(model) != set(trained):
        refuse("model", sorted(model)[:3], "has other names than the module's parameters", "Give those of the module")
    with torch.no_grad():
        for name, parameter in trained.items():
            parameter.copy_(torch.as_tensor(np.asarray(model[name])))


@contextmanager
def local(method: Method, module: nn.Module, agent: Agent) -> Iterator[Step]:
    """Run the block as the local work of a method. The loop in it does not change.

    The terms are added after your own gradient clipping, which therefore clips the gradient of the loss alone. Gradient
    accumulation, several optimisers, parameter groups, frozen and shared parameters, AMP's scaler and closures (L-BFGS)
    work. Buffers, such as those of batch normalisation, stay as the loop leaves them.

    Args:
        method: The method, whose oracle stands for your loop: `algorithms.fedpd(eta=0.2, oracle=oracles.own_loop())`.
            With few noisy steps give `start="server"`.
        module: The module. On entry it has the model that the agent received, on exit what the agent sends.
        agent: What the agent keeps between rounds: one `fedpd.torch.Agent()` for each, saved with it. It changes when
            the block ends, and not if the block raises.

    Yields:
        The round, whose `updates` counts the steps and whose `message` is what the agent sends.

    Raises:
        FedpdError: The method needs more than a local problem; no optimiser took a step; or parameters are sparse,
            sharded or replaced.
    """
    trained = _trained(module)
    if not trained:
        refuse("module", type(module).__name__, "has no parameter that requires a gradient", "Unfreeze some")
    with own_local(method, parameters_of(module), agent) as step:
        load(module, step.start)
        terms = Terms(step)
        for name, parameter in trained.items():
            terms.include(name, parameter)
        with terms.added():
            yield step
        if any(_trained(module).get(name) is not parameter for name, parameter in trained.items()):
            rule = "has other parameters than when the block began"
            refuse("module", type(module).__name__, rule, "Freeze, replace or wrap them before the block")
        if not terms.counts:
            rule = "no optimizer of PyTorch took a step on its parameters"
            refuse("module", type(module).__name__, rule, "Train the same module inside the block")
        step.result, step.updates = parameters_of(module), max(terms.counts.values())
    if not isinstance(step.message, dict):
        refuse("method", method.description, "sends more than a model", "Use fedpd.local, whose step has the message")
    load(module, step.message)


class Terms:
    """Adds linear + curvature x to the gradients of a module's parameters before each step of an optimiser.

    Attributes:
        counts: The steps of each optimiser that has one of the parameters.
    """

    def __init__(self, step: Step) -> None:
        self.counts = dict[int, int]()
        self._step, self._linear = step, dict[int, Tensor | None]()

    def include(self, name: str, parameter: Tensor) -> None:
        """Add the terms of a parameter from now on."""
        linear = self._step.linear
        part = None if linear is None else torch.as_tensor(np.array(linear[name]))
        self._linear[id(parameter)] = None if part is None else part.to(parameter.device, parameter.dtype)

    @contextmanager
    def added(self) -> Iterator[None]:
        """Add the terms inside the block, to the steps of this thread: other threads may train other agents."""
        thread = threading.get_ident()

        def before(optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            return self.before_step(optimizer, args, kwargs) if threading.get_ident() == thread else None

        handle = register_optimizer_step_pre_hook(before)
        try:
            yield
        finally:
            handle.remove()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Add the terms; with a closure, which computes new gradients, after each of its calls."""
        own = [one for one in self.parameters(optimizer) if id(one) in self._linear]
        if not own:
            return None
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        optimizer_args = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure", optimizer_args[0] if optimizer_args else None)
        if closure is None:
            self._add(own, getattr(optimizer, "grad_scale", None))
            return None
        wrapped = self._around(closure, own)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (*args[: len(args) - len(optimizer_args)], wrapped, *optimizer_args[1:]), kwargs

    def parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Return the parameters of an optimiser."""
        return [one for group in optimizer.param_groups for one in group["params"]]

    def _around(self, closure: Callable[[], Any], own: list[nn.Parameter]) -> Callable[[], Any]:
        def with_terms() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._add(own, None)
            return None if loss is None else loss + self._value(own)  # a line search compares values

        return with_terms

    @torch.no_grad()
    def _add(self, own: list[nn.Parameter], scale: Tensor | None) -> None:
        """Add the terms to the gradients. A fused step unscales gradients itself, so its terms have AMP's scale."""
        factor = 1.0 if scale is None else float(scale)
        for parameter in own:
            if not parameter.requires_grad:
                continue
            if parameter.grad is None:  # the loss does not depend on it, but the method's terms do
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                refuse("gradient", "sparse", "cannot be that of a dense term", "Give sparse=False to the embedding")
            linear = self._linear[id(parameter)]
            if linear is not None:
                parameter.grad.add_(linear, alpha=factor)
            if self._step.curvature:
                parameter.grad.add_(parameter, alpha=factor * self._step.curvature)

    @torch.no_grad()
    def _value(self, own: list[nn.Parameter]) -> float:
        """Return <linear, x> + (curvature/2) ||x||^2."""
        total = 0.0
        for parameter in own:
            linear = self._linear[id(parameter)]
            total += 0.0 if linear is None else float((linear * parameter).sum())
            total += self._step.curvature / 2 * float((parameter * parameter).sum())
        return total


def _trained(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that require a gradient, shared ones once."""
    found = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name, parameter in found.items():
        if type(parameter).__name__ not in ("Parameter", "UninitializedParameter") and hasattr(
            parameter, "full_tensor"
        ):
            refuse("module", name, "is sharded over devices", "Train it without FSDP inside the block")
        if isinstance(parameter, nn.UninitializedParameter):
            refuse("module", name, "has no shape yet", "Run the module once before the block")
    return found


def _array(parameter: Tensor) -> np.ndarray:
    plain = parameter.detach().cpu()
    plain = plain.float() if plain.dtype in (torch.float16, torch.bfloat16) else plain
    return plain.numpy().copy()  # the tensor changes later
