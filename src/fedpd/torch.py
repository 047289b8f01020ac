"""The federated part of a PyTorch loop that does not change.

    with fedpd.torch.local(method, net, agent):
        my_train(net, loader)

On entry, the parameters of `net` are the model that the agent received. PyTorch calls a hook before each step of an
optimiser, and the hook adds the method's terms to the gradients, so that the loop minimises the method's local problem:
for FedPD, f_i(x) + <lambda, x - x_0> + ||x - x_0||^2 / (2 eta). On exit, the parameters are what the agent sends. A
server that averages them, such as any FedAvg server, is then the server of FedPD with p = 0, FedProx and others whose
server sends the mean; `fedpd.Server` is that of the rest. What SCAFFOLD and others send is more: `step.message`.
"""

import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from types import FrameType
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
    return _arrays(_trained(module))


def load(module: nn.Module, model: dict[str, np.ndarray]) -> None:
    """Copy arrays into the parameters that are trained."""
    _load(_trained(module), model)


def _load(trained: dict[str, nn.Parameter], model: dict[str, np.ndarray]) -> None:
    if set(model) != set(trained):
        refuse("model", sorted(model)[:3], "has other names than the module's parameters", "Give those of the module")
    with torch.no_grad():
        for name, parameter in trained.items():
            array = np.asarray(model[name])
            if array.shape != tuple(parameter.shape):
                rule = f"has the shape {array.shape}, and the module's parameter {tuple(parameter.shape)}"
                refuse("model", name, rule, "Give the arrays of the same module")
            parameter.copy_(_tensor(array))


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
    model = _arrays(trained)
    with own_local(method, model, agent, received) as step:
        if any(step.start[name] is not model[name] for name in trained):
            _load(trained, step.start)
        terms = Terms(step, plain=has_plain_steps(method))
        for name, parameter in trained.items():
            terms.include(name, parameter)
        with terms.added():
            yield step
        now = _trained(module)
        if any(now.get(name) is not parameter for name, parameter in trained.items()):
            rule = "has other parameters than when the block began"
            refuse("module", type(module).__name__, rule, "Freeze, replace or wrap them before the block")
        step.updates, step.length = terms.updates(), terms.length()
        if not step.updates:
            rule = "no optimizer of PyTorch took a step on its parameters"
            refuse("module", type(module).__name__, rule, "Train the same module inside the block")
        step.result = _arrays(trained)
        terms.check_others(trained, step.result)
    if isinstance(step.message, dict):
        _load(trained, step.message)


class Terms:
    """Adds linear + curvature x to the gradients of a module's parameters before each step of an optimiser.

    Args:
        step: The local problem.
        plain: Whether the method divides by the steps, which must then be plain gradient steps.
    """

    def __init__(self, step: Step, *, plain: bool = False) -> None:
        self._step, self._plain, self._linear = step, plain, dict[int, Tensor | None]()
        self._current = dict[int, Held]()  # by optimiser
        self._held: list[Held] = []
        self._names, self._versions = dict[int, str](), dict[int, int]()  # PyTorch counts the changes of a tensor

    def include(self, name: str, parameter: Tensor) -> None:
        """Add the terms of a parameter from now on."""
        if any(id(parameter) in other._linear for other in _active if other is not self):
            rule = "is in another block already, and both would add their terms"
            refuse("parameter", name, rule, "End that block first; an app with fedpd.flower.mod needs none of its own")
        linear = self._step.linear
        part = None if linear is None else _tensor(linear[name])
        self._linear[id(parameter)] = None if part is None else part.to(parameter.device, parameter.dtype)
        self._names[id(parameter)], self._versions[id(parameter)] = name, parameter._version

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
            if threading.get_ident() == thread:
                self._versions |= {id(one): one._version for one in self._of(optimizer).own}

        handles = [register_optimizer_step_pre_hook(before)]
        if self._plain:
            handles.append(register_optimizer_step_post_hook(after))
        _active.append(self)
        try:
            yield
            if self._plain:
                self._check_unchanged(one for held in self._held for one in held.own)
        finally:
            _active.remove(self)
            for handle in handles:
                handle.remove()

    def before_step(self, optimizer: Optimizer, args: Any, kwargs: Any) -> tuple[Any, Any] | None:
        """Add the terms; with a closure, which computes new gradients, after each of its calls."""
        held = self._of(optimizer)
        if not held.own:
            return None
        if any(self._of(outer).own for outer in _under_way()[1:]):
            return None  # the step that called this one has the terms in its gradients
        if self._plain:
            self._check_unchanged(held.own)
        self._note(optimizer, held)
        optimizer_args = args[1:] if args and args[0] is optimizer else args
        closure = kwargs.get("closure", optimizer_args[0] if optimizer_args else None)
        if closure is None:
            self._add(held, getattr(optimizer, "grad_scale", None))
            return None
        wrapped = self._around(closure, held)
        if "closure" in kwargs:
            return args, {**kwargs, "closure": wrapped}
        return (*args[: len(args) - len(optimizer_args)], wrapped, *optimizer_args[1:]), kwargs

    def _of(self, optimizer: Optimizer) -> "Held":
        """Return what an optimiser has of the module. It is found again only when its parameters changed."""
        held = self._current.get(id(optimizer))
        if held is None or not held.is_current(optimizer):
            self.find(optimizer)
            held = self._current[id(optimizer)] = Held(optimizer, self._linear)
            self._held.append(held)
        return held

    def _note(self, optimizer: Optimizer, held: "Held") -> None:
        """Count a step and its sizes; refuse one that goes uphill, or one that is not plain where it must be."""
        found_inf = getattr(optimizer, "found_inf", None)  # a fused step of AMP then changes nothing
        if found_inf is not None and bool(found_inf):
            return
        held.steps += 1
        for i, group in enumerate(optimizer.param_groups):
            if group.get("maximize"):
                rule = "maximizes, and the method's terms are those of a loss that is minimised"
                refuse("optimizer", type(optimizer).__name__, rule, "Minimise the negative of your objective")
            if not self._plain:
                continue
            if not isinstance(optimizer, torch.optim.SGD) or group["momentum"]:
                rule = "takes steps that are no plain gradient steps, and the method divides by their sizes"
                refuse("optimizer", type(optimizer).__name__, rule, "Give torch.optim.SGD without momentum, or FedPD")
            held.lengths[i] += float(group["lr"])

    def _sums(self) -> dict[int, tuple[int, float]]:
        """Return the steps of each parameter, of all of its optimisers, and the sum of their sizes."""
        sums = dict[int, tuple[int, float]]()
        for held in self._held:
            for parameter, i in zip(held.own, held.group_of, strict=True):
                steps, length = sums.get(id(parameter), (0, 0.0))
                sums[id(parameter)] = steps + held.steps, length + held.lengths[i]
        return {key: one for key, one in sums.items() if one[0]}

    def updates(self) -> int:
        """Return the steps of the parameter with the most steps."""
        return max((steps for steps, _ in self._sums().values()), default=0)

    def length(self) -> float | None:
        """Return the sum of the step sizes, if the steps are plain."""
        if not self._plain:
            return None
        lengths = sorted({length for _, length in self._sums().values()})
        if lengths and lengths[-1] - lengths[0] > 1e-9 * lengths[-1]:
            rule = "are the sums of the step sizes for different parameters, and the method divides by one number"
            refuse("lr", lengths[:4], rule, "Give all parameters the same step sizes")
        return lengths[0] if lengths else None

    def _check_unchanged(self, parameters: Iterable[Tensor]) -> None:
        """Refuse parameters that changed since the last step, if the method takes what they moved for gradients."""
        stepped = self._sums()
        for one in parameters:
            name = self._names[id(one)]
            changed = one._version != self._versions[id(one)]
            if changed and (id(one) in stepped or not np.array_equal(_array(one), self._step.start[name])):
                rule = "changed between or after the steps of its optimizer, and the method divides by the steps"
                refuse("parameter", name, rule, "Do not clamp, restore or average it inside the block, or give FedPD")

    def check_others(self, trained: dict[str, nn.Parameter], result: dict[str, np.ndarray]) -> None:
        """Refuse parameters that changed without a step of an optimiser, and so without the terms."""
        stepped = self._sums()
        for name, parameter in trained.items():
            if id(parameter) not in stepped and not np.array_equal(result[name], self._step.start[name]):
                rule = "changed without a step of an optimizer of PyTorch"
                refuse("module", name, rule, "Train all parameters by optimizers of torch.optim, or freeze it")

    def find(self, optimizer: Optimizer) -> None:
        """Include parameters that are not known before an optimiser has them: of a module, none."""

    def _around(self, closure: Callable[[], Any], held: "Held") -> Callable[[], Any]:
        def with_terms() -> Any:
            with torch.enable_grad():
                loss = closure()
            self._add(held, None)
            return (
                None if loss is None else self._step.scale * loss + self._value(held)
            )  # a line search compares values

        return with_terms

    def _add(self, held: "Held", scale: Tensor | None) -> None:
        """Add the terms to the gradients. A fused step unscales gradients itself, so its terms have AMP's scale."""
        factor = 1.0 if scale is None else float(scale)
        gradients: list[Any] = []
        for parameter in held.changed:
            gradient = parameter.grad
            if gradient is None:  # the loss does not depend on it, but the method's terms do
                gradient = parameter.grad = torch.zeros_like(parameter)
            elif gradient.is_sparse:
                refuse("gradient", "sparse", "cannot be that of a dense term", "Give sparse=False to the embedding")
            gradients.append(gradient)
        with torch.no_grad():
            if self._step.scale != 1:
                torch._foreach_mul_(gradients, self._step.scale)
            if held.linear:
                torch._foreach_add_(gradients, held.linear, alpha=factor)
            if self._step.curvature:
                torch._foreach_add_(gradients, held.changed, alpha=factor * self._step.curvature)

    @torch.no_grad()
    def _value(self, held: "Held") -> float:
        """Return <linear, x> + (curvature/2) ||x||^2."""
        total = 0.0
        for parameter in held.own:
            linear = self._linear[id(parameter)]
            total += 0.0 if linear is None else float((linear * parameter).sum())
            total += self._step.curvature / 2 * float((parameter * parameter).sum())
        return total


_active: list[Terms] = []  # those whose block has not ended, in all threads
_STEP = Optimizer.profile_hook_step(lambda _: None).__code__  # PyTorch's function around every step, with its hooks


def _under_way() -> list[Optimizer]:
    """Return the optimisers whose steps have begun, the last one first: a step may call another, or that of its class.

    They are read off the stack, because a step that raises runs no hook at its end.
    """
    found: list[Optimizer] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _STEP:
            found.append(frame.f_locals["self"])
        frame = frame.f_back
    return found


class Held:
    """Keeps what an optimiser has of a module, until its parameters change.

    Args:
        optimizer: The optimiser.
        linear: The linear term of each parameter of the module, by its id.

    Attributes:
        own: The parameters of the module.
        group_of: The group of each.
        changed: Those that require a gradient.
        linear: Their linear terms; empty: there are none.
        steps: The steps that the optimiser took.
        lengths: The sum of their sizes, by group.
    """

    def __init__(self, optimizer: Optimizer, linear: dict[int, Tensor | None]) -> None:
        groups = [group["params"] for group in optimizer.param_groups]
        own = [(one, i) for i, group in enumerate(groups) for one in group if id(one) in linear]
        self.own: list[Any] = [one for one, _ in own]
        self.group_of = [i for _, i in own]
        self.changed: list[Any] = [one for one in self.own if one.requires_grad]
        self.linear: list[Any] = [part for one in self.changed if (part := linear[id(one)]) is not None]
        self.steps, self.lengths = 0, [0.0] * len(groups)
        self._optimizer = weakref.ref(optimizer)
        self._seen = _members(optimizer)

    def is_current(self, optimizer: Optimizer) -> bool:
        """Return whether this is still what the optimiser has."""
        return self._optimizer() is optimizer and self._seen == _members(optimizer)


def _members(optimizer: Optimizer) -> list[list[tuple[int, bool]]]:
    """Return which parameters an optimiser has, and which require a gradient, by group."""
    return [[(id(one), one.requires_grad) for one in group["params"]] for group in optimizer.param_groups]


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


def _arrays(trained: dict[str, nn.Parameter]) -> dict[str, np.ndarray]:
    return {name: _array(parameter) for name, parameter in trained.items()}


def _tensor(array: np.ndarray) -> Tensor:
    """Return an array as a tensor that only reads it."""
    return torch.as_tensor(array if array.flags.writeable else array.copy())  # PyTorch warns of others


def _array(parameter: Tensor) -> np.ndarray:
    plain = parameter.detach().cpu()
    plain = plain.float() if plain.dtype in (torch.float16, torch.bfloat16) else plain
    return plain.numpy().copy()  # the tensor changes later
