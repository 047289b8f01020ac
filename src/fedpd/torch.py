"""The federated part of a PyTorch loop that does not change.

    with fedpd.torch.local(method, net, agent):
        my_train(net, loader)

On entry, the parameters of `net` are the model that the agent received. PyTorch calls a hook before each step of an
optimiser, and the hook adds the method's terms to the gradients, so that the loop minimises the method's local problem:
for FedPD, f_i(x) + <lambda, x - x_0> + ||x - x_0||^2 / (2 eta). On exit, the parameters are what the agent sends. A
server that averages them, such as any FedAvg server, is then the server of FedPD with p = 0, FedProx and others whose
server sends the mean; `fedpd.Server` is that of the rest. What SCAFFOLD and others send is more: `step.message`.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np

from fedpd.base.checks import refuse
from fedpd.base.errors import extra
from fedpd.core import Method
from fedpd.own_loop import Agent as Agent
from fedpd.own_loop import Server as Server
from fedpd.own_loop import Step, has_plain_steps
from fedpd.own_loop import local as own_local

with extra("torch", "fedpd.torch"):
    import torch
    from torch import Tensor, nn
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

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
            array = np.asarray(model[name])
            if array.shape != tuple(parameter.shape):
                rule = f"has the shape {array.shape}, and the module's parameter {tuple(parameter.shape)}"
                refuse("model", name, rule, "Give the arrays of the same module")
            parameter.copy_(torch.as_tensor(np.array(array)))


@contextmanager
def local(method: Method, module: nn.Module, agent: Agent, received: Any = None) -> Iterator[Step]:
    """Run the block as the local work of a method. The loop in it does not change.

    The terms are added after your own gradient clipping, which therefore clips the gradient of the loss alone. Gradient
    accumulation, several optimisers, parameter groups, frozen and shared parameters, AMP's scaler and closures (L-BFGS)
    work. Buffers, such as those of batch normalisation, stay as the loop leaves them. With DistributedDataParallel,
    every process runs the block with an `Agent` of its own. `torch.compile` of the module works.

    Args:
        method: The method, whose oracle stands for your loop: `algorithms.fedpd(eta=0.2, oracle=oracles.own_loop())`.
            With few noisy steps give `start="server"`.
        module: The module. On entry it has the model that the agent received, on exit what the agent sends, if that is
            a model, and else where the loop ended.
        agent: What the agent keeps between rounds: one `fedpd.torch.Agent()` for each, saved with it. It changes when
            the block ends, and not if the block raises.
        received: What the agent received, if the method's server sends more than a model: `Server.broadcast`.

    Yields:
        The round, whose `updates` counts the steps and whose `message` is what the agent sends.

    Raises:
        FedpdError: The method needs more than a local problem; no optimiser took a step; parameters are sparse,
            sharded, replaced, or changed without an optimiser; or the method divides by the steps, and they are not
            plain gradient steps.
    """
    trained = _trained(module)
    if not trained:
        refuse("module", type(module).__name__, "has no parameter that requires a gradient", "Unfreeze some")
    if isinstance(module, DistributedDataParallel):
        _check_equal_processes(trained, agent)
    with own_local(method, parameters_of(module), agent, received) as step:
        load(module, step.start)
        terms = Terms(step, plain=has_plain_steps(method))
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
        step.result = parameters_of(module)
        terms.check_others(trained, step.result)
        step.updates, step.length = max(terms.counts.values()), terms.length()
    if isinstance(step.message, dict):
        load(module, step.message)


class Terms:
    """Adds linear + curvature x to the gradients of a module's parameters before each step of an optimiser.

    Args:
        step: The local problem.
        plain: Whether the method divides by the steps, which must then be plain gradient steps.

    Attributes:
        counts: The steps of each optimiser that has one of the parameters.
    """

    def __init__(self, step: Step, *, plain: bool = False) -> None:
        self.counts = dict[int, int]()
        self._step, self._plain, self._linear = step, plain, dict[int, Tensor | None]()
        self._lengths = dict[tuple[int, int], float]()  # by optimiser and group of parameters
        self._stepped = set[int]()
        self._running: list[int] = []  # optimisers whose step has begun: one may call another

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
            if torch.compiler.is_compiling():
                rule = "is inside of torch.compile, which would keep the terms of this round"
                refuse("optimizer.step", type(optimizer).__name__, rule, "Compile the module, and call step outside")
            return self.before_step(optimizer, args, kwargs) if threading.get_ident() == thread else None

        def after(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            if id(optimizer) in self._running and threading.get_ident() == thread:
                del self._running[self._running.index(id(optimizer)) :]

        handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Add the terms; with a closure, which computes new gradients, after each of its calls."""
        own = [one for one in self.parameters(optimizer) if id(one) in self._linear]
        if not own:
            return None
        is_inner = bool(self._running) and self._running[0] != id(optimizer)
        self._running = [*self._running, id(optimizer)] if is_inner else [id(optimizer)]
        if is_inner:  # the optimiser that called this one has the terms in its gradients
            return None
        self._note(optimizer, own)
        optimizer_args = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure", optimizer_args[0] if optimizer_args else None)
        if closure is None:
            self._add(own, getattr(optimizer, "grad_scale", None))
            return None
        wrapped = self._around(closure, own)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (*args[: len(args) - len(optimizer_args)], wrapped, *optimizer_args[1:]), kwargs

    def _note(self, optimizer: Optimizer, own: list[nn.Parameter]) -> None:
        """Count a step and its sizes; refuse one that goes uphill, or one that is not plain where it must be."""
        found_inf = getattr(optimizer, "found_inf", None)  # a fused step of AMP then changes nothing
        if found_inf is not None and bool(found_inf):
            return
        self.counts[id(optimizer)] = self.counts.get(id(optimizer), 0) + 1
        self._stepped.update(map(id, own))
        for i, group in enumerate(optimizer.param_groups):
            if group.get("maximize"):
                rule = "maximizes, and the method's terms are those of a loss that is minimised"
                refuse("optimizer", type(optimizer).__name__, rule, "Minimise the negative of your objective")
            if not self._plain:
                continue
            if not isinstance(optimizer, torch.optim.SGD) or group["momentum"]:
                rule = "takes steps that are no plain gradient steps, and the method divides by their sizes"
                refuse("optimizer", type(optimizer).__name__, rule, "Give torch.optim.SGD without momentum, or FedPD")
            if any(id(one) in self._linear for one in group["params"]):
                key = id(optimizer), i
                self._lengths[key] = self._lengths.get(key, 0.0) + float(group["lr"])

    def length(self) -> float | None:
        """Return the sum of the step sizes, if the steps are plain."""
        lengths = list(self._lengths.values())
        if lengths and max(lengths) - min(lengths) > 1e-9 * max(lengths):
            rule = "are the sums of the step sizes for different parameters, and the method divides by one number"
            refuse("lr", lengths[:4], rule, "Give all parameters the same step sizes")
        return lengths[0] if lengths else None

    def check_others(self, trained: dict[str, nn.Parameter], result: dict[str, np.ndarray]) -> None:
        """Refuse parameters that changed without a step of an optimiser, and so without the terms."""
        for name, parameter in trained.items():
            if id(parameter) not in self._stepped and not np.array_equal(result[name], self._step.start[name]):
                rule = "changed without a step of an optimizer of PyTorch"
                refuse("module", name, rule, "Train all parameters by optimizers of torch.optim, or freeze it")

    def parameters(self, optimizer: Optimizer) -> list[nn.Parameter]:
        """Return the parameters of an optimiser."""
        return [one for group in optimizer.param_groups for one in group["params"]]

    def _around(self, closure: Callable[[], Any], own: list[nn.Parameter]) -> Callable[[], Any]:
        def with_terms() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._add(own, None)
            return None if loss is None else self._step.scale * loss + self._value(own)  # a line search compares values

        return with_terms

    @torch.no_grad()
    def _add(self, own: list[nn.Parameter], scale: Tensor | None) -> None:
        """Add the terms to the gradients. A fused step unscales gradients itself, so its terms have AMP's scale."""
        factor = 1.0 if scale is None else float(scale)
        changed: Any = [parameter for parameter in own if parameter.requires_grad]
        for parameter in changed:
            if parameter.grad is None:  # the loss does not depend on it, but the method's terms do
                parameter.grad = torch.zeros_like(parameter)
            elif parameter.grad.is_sparse:
                refuse("gradient", "sparse", "cannot be that of a dense term", "Give sparse=False to the embedding")
        gradients: Any = [parameter.grad for parameter in changed]
        if self._step.scale != 1:
            torch._foreach_mul_(gradients, self._step.scale)
        if self._step.linear is not None:
            linear: Any = [self._linear[id(parameter)] for parameter in changed]
            torch._foreach_add_(gradients, linear, alpha=factor)
        if self._step.curvature:
            torch._foreach_add_(gradients, changed, alpha=factor * self._step.curvature)

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
    """Return the parameters that require a gradient, shared ones once, by their names in the module that is wrapped."""
    inner: Any = module
    while isinstance(inner, DistributedDataParallel) or hasattr(inner, "_orig_mod"):
        inner = inner.module if isinstance(inner, DistributedDataParallel) else inner._orig_mod
    found = {name: parameter for name, parameter in inner.named_parameters() if parameter.requires_grad}
    for name, parameter in found.items():
        kind = type(parameter).__name__
        if kind == "FlatParameter" or (hasattr(parameter, "full_tensor") and kind != "Parameter"):
            refuse("module", name, "is sharded over devices", "Train it without FSDP inside the block")
        if isinstance(parameter, nn.UninitializedParameter):
            refuse("module", name, "has no shape yet", "Run the module once before the block")
    return found


def _check_equal_processes(trained: dict[str, nn.Parameter], agent: Agent) -> None:
    """Refuse processes of DistributedDataParallel that begin a round from different models or states."""
    sums = [parameter.detach().double().sum() for parameter in trained.values()]
    kept = float(sum(np.sum(leaf) for leaf in jax.tree.leaves(agent.state)))
    device = next(iter(trained.values())).device
    own = torch.stack([*sums, torch.tensor(kept), torch.tensor(float(agent.rounds))]).to(device)
    everyone = [torch.zeros_like(own) for _ in range(torch.distributed.get_world_size())]
    torch.distributed.all_gather(everyone, own)
    if not all(torch.equal(one, own) for one in everyone):
        rule = "begins a round from another model or another agent's state than the other processes"
        refuse(
            "process", torch.distributed.get_rank(), rule, "Load the same model, and keep one Agent, in every process"
        )


def _array(parameter: Tensor) -> np.ndarray:
    plain = parameter.detach().cpu()
    plain = plain.float() if plain.dtype in (torch.float16, torch.bfloat16) else plain
    return plain.numpy().copy()  # the tensor changes later
