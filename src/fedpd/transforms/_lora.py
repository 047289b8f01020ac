"""Average the products of LoRA exactly: FedEx-LoRA (Singhal et al., 2025) and FLoRA (Wang et al., 2024).

A layer computes W + s B A, and agents train B and A. The mean of the products is not the product of the means, so the
server adds the difference to W, which the agents do not train:

    B' = mean_i B_i,   A' = mean_i A_i,   W' = W + s (mean_i(B_i A_i) - B' A')      (FedEx-LoRA)
    B' = B^0,          A' = A^0,          W' = W + s (mean_i(B_i A_i) - B^0 A^0)    (FLoRA: factors start again)

In both, W' + s B' A' = W + s mean_i(B_i A_i). Agents send their factors only. The server sees each message, and
broadcasts W' whole with the factors, so an agent that was absent needs the newest broadcast only. The authors of both
papers send the factors of the change of W instead, which is less if N r (m + n) < m n.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import Spec
from fedpd.core import Array, Exchange, Key, LocalObjective, Method, Model, Value, Work, form_with_absent, makes
from fedpd.core.message import is_none, merged, names_of, part_of
from fedpd.core.method import WithInner, message_kinds
from fedpd.core.objective import with_fixed


class Product(NamedTuple):
    """A weight to which a layer adds scale * B A.

    Attributes:
        weight: The path of the weight W in the model.
        B: The path of the left factor, (m, r).
        A: The path of the right factor, (r, n).
        scale: s.
        transposed: Whether the layer adds the transpose of the product, as for the `Conv1D` of GPT-2.
    """

    weight: str
    B: str
    A: str
    scale: float = 1.0
    transposed: bool = False

    def of(self, factors: dict[str, Array]) -> Array:
        """Return s B A, also of stacked factors."""
        found = self.scale * (factors[self.B] @ factors[self.A])
        return jnp.swapaxes(found, -1, -2) if self.transposed else found


class ExactLora(Value):
    """The exact mean of the products for `wrap(algorithm, mean=...)`."""

    products: tuple[Product, ...]
    restart: bool

    def is_weight(self, path: str) -> bool:
        return any(one.weight == path for one in self.products)


@makes(ExactLora)
def exact_lora(products: Any, restart: bool = False) -> ExactLora:
    """Return a rule by which the server averages the products of LoRA's factors exactly.

    Args:
        products: A PyTorch model of `peft`, or a list of `transforms.Product` with the paths of your own model. The
            weights must be part of the model, though no agent trains them: in PyTorch, set `requires_grad` of
            `base_layer.weight`.
        restart: Whether the factors begin every round where they began the first one, as in FLoRA; else agents
            continue with the means of the factors, as in FedEx-LoRA.

    Examples:
        >>> from fedpd import algorithms, oracles, transforms
        >>> fedavg = algorithms.fedavg(oracle=oracles.gd(step=0.1, iterations=5))
        >>> rule = transforms.exact_lora([transforms.Product("W", "B", "A", scale=2.0)])
        >>> fedex_lora = transforms.wrap(fedavg, mean=rule)
    """
    found = _of_peft(products) if hasattr(products, "named_modules") else products
    remedy = 'Give a model of peft, or e.g. [transforms.Product("W", "B", "A")]'
    if not isinstance(found, list | tuple) or not found or not all(isinstance(one, Product) for one in found):
        refuse("products", products, "must be a model with LoRA layers, or a list of products", remedy)
    paths = [path for one in found for path in one[:3]]
    if len(set(paths)) < len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        refuse("products", twice, "is there twice, and each weight and factor belongs to one product", remedy)
    return ExactLora(products=tuple(found), restart=bool(restart))


def _of_peft(module: Any) -> list[Product]:
    """Return the products of a model of peft."""
    found = []
    for name, layer in module.named_modules():
        if not hasattr(layer, "base_layer") or not hasattr(layer, "lora_A"):
            continue
        active, changed = list(layer.active_adapters), getattr(layer, "lora_variant", {}) or layer.merged
        is_matrix = getattr(layer.base_layer.weight, "ndim", 0) == 2
        if len(active) != 1 or active[0] not in layer.lora_A or changed or not is_matrix:
            rule = "is no plain LoRA layer with one adapter that is not merged: W + s B A, with matrices"
            refuse("layer", name, rule, "Leave its kind out of target_modules, and use_dora and other variants")
        B, A = (f"{name}.lora_{factor}.{active[0]}.weight" for factor in "BA")
        scale, transposed = float(layer.scaling[active[0]]), bool(getattr(layer, "fan_in_fan_out", False))
        found.append(Product(f"{name}.base_layer.weight", B, A, scale, transposed))
    return found


class Agent(NamedTuple):
    """An agent whose factors are averaged exactly."""

    inner: Any  # the method's own state, of the model without the weights
    weights: Vector  # W, which the server changes


class Server(NamedTuple):
    """The server that adds the difference to the weights."""

    inner: Any  # the method's own state
    weights: Vector  # W
    start: Vector  # the factors at x^0, if they begin again in every round


def _check_paths(products: tuple[Product, ...], x: Vector) -> None:
    """Refuse a model without the weights or the factors of a product, or with other shapes."""
    names = names_of(x.tree)
    if names == [""]:  # one array without a name: fedpd's own example of a model
        return
    shapes = dict(zip(names, map(jnp.shape, jax.tree.leaves(x.tree)), strict=True))
    for one in products:
        for path in one[:3]:
            if path not in shapes:
                shown = ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
                remedy = f"Train it (requires_grad), or correct the path. The paths are {shown}"
                refuse("products", path, "is no parameter of the model", remedy)
        try:
            own = jax.eval_shape(lambda one=one: one.of({path: jnp.zeros(shapes[path]) for path in (one.B, one.A)}))
        except TypeError:
            own = None
        if own is None or own.shape != shapes[one.weight]:
            rule = f"has the shape {shapes[one.weight]}, and its product that of {shapes[one.B]} times {shapes[one.A]}"
            refuse("products", one.weight, rule, "Give B, A and transposed as the layer has them")


class Exact(WithInner):
    """A method whose server averages products exactly."""

    rule: ExactLora

    @property
    def spec(self) -> Spec:
        return self.method.spec.plus(mean=(self.rule,))

    def init(self, f: LocalObjective, x: Vector) -> Agent:
        _check_paths(self.rule.products, x)
        rest, weights = self._parts(x)
        return Agent(self.method.init(with_fixed(f, weights), rest), weights)

    def server(self, x: Vector) -> Server:
        rest, weights = self._parts(x)
        factors = {path for one in self.rule.products for path in (one.A, one.B) if self.rule.restart}
        return Server(self.method.server(rest), weights, part_of(rest, factors.__contains__, personal=True))

    def model(self, agent: Agent) -> Vector:
        return merged(self.method.model(agent.inner), agent.weights)

    @property
    def rebuild(self) -> Any:
        return None if self.method.rebuild is None else self._rebuilt

    def _rebuilt(self, f: LocalObjective, agent: Agent) -> Agent:
        assert self.method.rebuild is not None
        return agent._replace(inner=self.method.rebuild(with_fixed(f, agent.weights), agent.inner))

    def changed(self, changes: Mapping[str, Any], within: str = "") -> Method:
        return with_exact_lora(self.method.changed(changes, within), self.rule)

    def partial(self) -> Method:
        return with_exact_lora(form_with_absent(self.method), self.rule)

    def exchanges(self) -> tuple[Exchange, ...]:
        (own,) = self.method.exchanges()

        def local(f: LocalObjective, agent: Agent, r: Array, key: Key) -> tuple[Agent, Work]:
            inner, work = own.local(with_fixed(f, agent.weights), agent.inner, r, key)
            return agent._replace(inner=inner), work

        def receive(agent: Agent, broadcast: Vector) -> Agent:
            rest, weights = self._parts(broadcast)
            return Agent(own.receive(agent.inner, rest), weights)

        return (Exchange(local, lambda agent: own.send(agent.inner), self.aggregate, receive, mean=self._mean),)

    def _mean(self, messages: Vector, sent: Array) -> Vector:
        """Return the mean of the factors with the mean of the products in place of the weights."""
        number = jnp.maximum(jnp.sum(sent), 1)

        def mean(leaf: Array) -> Array:
            return jnp.tensordot(sent.astype(leaf.dtype), leaf, 1) / number.astype(leaf.dtype)

        return merged(jax.tree.map(mean, messages), self._products(messages, mean))

    def aggregate(self, server: Server, mean: Vector, share: Any) -> tuple[Server, Vector]:
        factors, products = self._parts(mean)
        if not jax.tree.leaves(products):  # one message, which is its own mean
            products = self._products(factors)
        inner, broadcast = self.method.aggregate(server.inner, factors, share)
        broadcast = merged(server.start, broadcast)
        weights = server.weights + products - self._products(broadcast)
        return server._replace(inner=inner, weights=weights), merged(broadcast, weights)

    def _parts(self, x: Vector) -> tuple[Vector, Vector]:
        """Return the model without the weights, and the weights."""
        is_weight = self.rule.is_weight
        return part_of(x, is_weight, personal=False), part_of(x, is_weight, personal=True)

    def _products(self, factors: Vector, change: Callable[[Array], Array] = lambda product: product) -> Vector:
        """Return the products, changed, in the places of the weights, which the factors lack."""
        known = dict(zip(names_of(factors.tree), jax.tree.leaves(factors.tree), strict=True))
        products = {one.weight: one for one in self.rule.products}

        def product(path: Any, leaf: Any) -> Any:
            one = products.get(jax.tree_util.keystr(path, simple=True, separator="/"))
            return None if one is None else change(one.of(known))

        return Vector(jax.tree_util.tree_map_with_path(product, factors.tree, is_leaf=is_none))


def with_exact_lora(algorithm: Method, rule: ExactLora) -> Method:
    """Return the method with the exact mean of products; refuse one whose server does more than send the mean."""
    exchanges, remedy = algorithm.exchanges(), "Choose e.g. fedavg or fedprox"
    if message_kinds(algorithm) != [(Model,)] or type(algorithm).aggregate is not Method.aggregate:
        text = "its agents do not send models whose mean the server sends back, so products have no meaning there"
        refuse("algorithm", algorithm.description, text, remedy)
    if any(one.missed or one.speaks or one.mean for one in exchanges):
        refuse("algorithm", algorithm.description, "its messages do not always arrive as they are", remedy)
    return Exact(method=algorithm, rule=rule)
