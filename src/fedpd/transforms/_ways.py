"""The ways between the agents and the server: what is packed, what both sides keep, and what is made of it.

Up. What travels is q = C(difference), where C is the chain of transforms that packs a vector, and the difference
depends on what a message m_i is (`fedpd.core.message`):

    Change             m_i + e_i, and e_i becomes what was not sent. The server uses mean q.
    Model              m_i - y + e_i, where y is the last broadcast. The server uses y + mean q.
    Iterate, Gradient  m_i - H_i, and H_i becomes H_i + q. The server keeps H, the mean of all H_i, and uses H.
    Difference         m_i, and the method itself takes q for its message. The server uses mean q.
    Unbiased           The same. All transforms must be unbiased; everywhere else, none may be.

The first two are error feedback: every entry that was not sent is sent later, so sums at the server are right up to
e_i. The third has q = 0 only where H_i = m_i, so it adds no error to a fixed point of the method. The server adds the
changes of the agents that sent to H, so H holds the last known messages of all agents, also of absent ones.

If all agents hear all broadcasts, an Iterate is also predicted: both sides know the last move d of the broadcast. The
agent sends the number t_i = <m_i - H_i, d>/<d, d> as a float32, packs m_i - H_i - t_i d, and H_i becomes H_i + t_i d +
q. The server adds (mean t) d + mean q to H. A projection is never longer than the vector, so this only helps.

An agent that has lost its state does not know its H_i, which is still in H. If all agents hear all broadcasts, a byte
of its next message says so. The server then drops the changes of this communication and sets H to the last broadcast
(to 0 for a Gradient), and a byte of its broadcast makes all agents do the same with their H_i. So the sum fits again.

Down. The server sends C(broadcast - y), and everyone adds it to y. The method's agents receive y. At a fixed point y is
the broadcast, so a compressed way down adds no error to it. An agent that misses a change has an old y, so the method
needs all agents in every communication.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fedpd.base.checks import refuse
from fedpd.base.value import attribute
from fedpd.core import Array, Exchange, Key, LocalObjective, Method, Mixing, Tree, Value, Vector
from fedpd.core.message import Difference, Gradient, Iterate, Kind, Model, Packed, Unbiased, Update, opened, vectors_of

Arrays = dict[str, Array]


class Transform(Value):
    """A transform of a vector on its way, for `wrap(algorithm, up=..., down=...)`; a simple one has pack and unpack.

    Attributes:
        random: Whether `pack` uses its key.
        rescale: (arrays, factor) -> the arrays of the packed values times a number; None: packing is a projection, or
            must not be rescaled. The sender chooses the factor that brings the packed values closest to the values.
        feedback: Whether the sender keeps what was not sent and sends it later.
        predicts: Whether the sender may send one number more, the share of the message that both sides can predict.
        unbiased: Whether the expectation of what arrives is the vector itself, at the price of a larger error.
    """

    random = attribute(False)
    rescale = attribute(None)
    feedback = attribute(True)
    predicts = attribute(True)
    unbiased = attribute(False)

    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array | None]:
        """Return the arrays that travel, by name, and the values that the next transform packs (None: none)."""
        self.needs("pack(self, values, key)")

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        """Return the values from the arrays that travelled and the values of the next transform.

        `like` has the shape (n,) and the type of the result.
        """
        self.needs("unpack(self, arrays, rest, like)")

    def left(self, n: int) -> int:
        """Return how many of n values are left to the next transform; 0: none, so this transform is the last."""
        return n


@dataclass(frozen=True)
class VectorDecoder:
    """Returns a vector from the arrays that travelled."""

    structure: Any  # the structure of the vector's tree
    shapes: tuple[tuple[int, ...], ...]  # the shapes of its leaves
    dtype: Any  # their type
    transforms: tuple[Transform, ...]  # the transforms

    def __call__(self, arrays: Arrays, /) -> Vector:
        size = sum(math.prod(shape) for shape in self.shapes)
        return self.vector(unpack_values(self.transforms, arrays, jax.ShapeDtypeStruct((size,), self.dtype)))

    def vector(self, values: Array) -> Vector:
        """Return values (d,) as a vector."""
        leaves, first = [], 0
        for shape in self.shapes:
            leaves.append(values[first : first + math.prod(shape)].reshape(shape))
            first += math.prod(shape)
        return Vector(jax.tree.unflatten(self.structure, leaves))


def pack_vector(transforms: tuple[Transform, ...], vector: Vector, key: Key) -> Packed:
    """Return a vector packed by a chain of transforms."""
    leaves, structure = jax.tree.flatten(vector.tree)
    shapes = tuple(leaf.shape for leaf in leaves)
    values = jnp.concatenate([leaf.reshape(-1) for leaf in leaves])
    decoder = VectorDecoder(structure, shapes, values.dtype, transforms)
    return Packed(pack_values(transforms, values, key), decoder)


def pack_values(transforms: tuple[Transform, ...], values: Array, key: Key) -> Arrays:
    """Return the arrays that travel for values (d,)."""
    arrays: Arrays = {}
    rest: Array | None = values
    for i, (name, transform) in enumerate(_named(transforms)):
        assert rest is not None  # `check_chain`
        own, left = transform.pack(rest, jax.random.fold_in(key, i) if transform.random else key)
        if transform.rescale is not None:
            found = transform.unpack(own, left, jax.ShapeDtypeStruct(rest.shape, rest.dtype))
            square = jnp.vdot(found, found)
            factor = jnp.where(square > 0, jnp.vdot(rest, found) / jnp.where(square > 0, square, 1), 0)
            own = transform.rescale(own, factor)
        arrays |= {f"{name}.{array}": value for array, value in own.items()}
        rest = left
    return arrays if rest is None else arrays | {"values": rest}


def unpack_values(transforms: tuple[Transform, ...], arrays: Arrays, like: jax.ShapeDtypeStruct) -> Array:
    """Return the values (d,) from the arrays that travelled."""
    likes = [like]
    for transform in transforms:
        likes.append(jax.ShapeDtypeStruct((transform.left(likes[-1].shape[0]),), like.dtype))
    rest = arrays.get("values")
    for (name, transform), like in reversed(list(zip(_named(transforms), likes[:-1], strict=True))):
        prefix = f"{name}."
        own = {key.removeprefix(prefix): array for key, array in arrays.items() if key.startswith(prefix)}
        rest = transform.unpack(own, rest, like)
    assert rest is not None  # each `unpack` returns values
    return rest


def check_chain(name: str, transforms: Any) -> tuple[Transform, ...]:
    """Return one transform or a list of them as a tuple; refuse anything else, and a chain that cannot be."""
    if isinstance(transforms, Transform):
        return (transforms,)
    if not isinstance(transforms, list | tuple) or not all(isinstance(one, Transform) for one in transforms):
        refuse(name, transforms, "must be transforms", f"Give e.g. {name}=[transforms.top_k(0.1)]")
    for one in transforms[:-1]:
        if one.left(2) == 0:
            rule = f"{one.description} leaves no values to the transform after it"
            refuse(name, [each.description for each in transforms], rule, "Put it last")
    return tuple(transforms)


def _named(transforms: tuple[Transform, ...]) -> list[tuple[str, Transform]]:
    """Return each transform with its name; two of the same kind are numbered."""
    names = [transform.name for transform in transforms]
    return [
        (name if names.count(name) == 1 else f"{name}-{i}", t)
        for i, (name, t) in enumerate(zip(names, transforms, strict=True))
    ]


OWN_POINT = (Iterate, Gradient)
OWN_ACCOUNT = (Difference, Unbiased)
Vectors = tuple[Vector | None, ...]  # one per part of a message; None for a part that travels as it is


class Reference(NamedTuple):
    """The broadcasts that both sides know.

    Attributes:
        last: The last broadcast; None if it is not used.
        move: Its change from the broadcast before it; None if nothing is predicted.
    """

    last: Vector | None
    move: Vector | None

    def after(self, broadcast: Tree) -> "Reference":
        """Return what both sides know after a broadcast."""
        if self.last is None:
            return self
        new = model_in(broadcast)
        return Reference(new, None if self.move is None else new - self.last)


class Marked(NamedTuple):
    """A message of an agent whose H_i the server counts on."""

    parts: Tree  # the packed parts
    factors: Any  # t_i of each part that is partly predicted, packed, or an array once opened; None: none is
    fresh: Any  # 1 if the agent has lost its state, packed, or a number once opened


class Told(NamedTuple):
    """A broadcast, and whether all agents reset their H_i (0 or 1)."""

    broadcast: Tree
    reset: Array


@dataclass(frozen=True)
class AsType:
    """Returns numbers that travelled in few bytes in the type of the model, in which the server adds them up."""

    dtype: Any

    def __call__(self, arrays: dict[str, Array], /) -> Array:
        (numbers,) = arrays.values()
        return numbers.astype(self.dtype)


class Sender(NamedTuple):
    """The state of an agent for the messages of an exchange."""

    kept: Vectors  # H_i or e_i of each part of the message
    reference: Reference  # what it knows of the broadcasts
    message: Tree  # the packed message of this round
    fresh: Array  # 1 if the agent has lost its state since its last message, else 0


class Receiver(NamedTuple):
    """The state of the server for the messages of an exchange: H of each part, and what it knows of the broadcasts."""

    kept: Vectors
    reference: Reference


class Uplink(NamedTuple):
    """The functions of the way up of one exchange."""

    exchange: Exchange  # the exchange of the method itself
    transforms: tuple[Transform, ...]  # the chain
    kinds: tuple[Kind | None, ...]  # the kind of each part of a message
    predicts: bool  # whether iterates are predicted
    resets: bool  # whether all H_i can be reset

    def sender(self, inner: Any, x: Vector) -> Sender:
        """Return what an agent keeps at the start, where its own state is `inner`."""
        feedback = all(transform.feedback for transform in self.transforms)

        def start(kind: Kind | None) -> Vector | None:
            if kind in OWN_POINT:
                return start_of(kind, x)
            return 0 * x if feedback and kind is not None and kind not in OWN_ACCOUNT else None

        empty = Sender(tuple(start(kind) for kind in self.kinds), self._reference(x), None, jnp.uint8(0))
        shapes = jax.eval_shape(lambda: self.packed(inner, empty, jax.random.key(0, impl="threefry2x32")))
        return empty._replace(message=jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))

    def receiver(self, x: Vector) -> Receiver:
        """Return what the server keeps at the start."""
        kept = tuple(start_of(kind, x) if kind in OWN_POINT else None for kind in self.kinds)
        return Receiver(kept, self._reference(x))

    def _reference(self, x: Vector) -> Reference:
        used = (self.resets and Iterate in self.kinds) or Model in self.kinds
        return Reference(x if used else None, 0 * x if self.predicts else None)

    def packed(self, inner: Any, sender: Sender, key: Key) -> Tree:
        """Return the packed message of an agent after its local computation."""
        parts, structure = message_parts(vectors_of(self.exchange.send(inner)))
        _check(self.kinds, parts)
        differences = self._differences(parts, sender)
        move, factors, packed = sender.reference.move, [], []
        for i, (kind, difference, part) in enumerate(zip(self.kinds, differences, parts, strict=True)):
            if difference is not None and kind is Iterate and move is not None:
                factors.append(_along(difference, move))
                difference = difference - _times(factors[-1], move)
            own = jax.random.fold_in(key, i)
            packed.append(part if difference is None else pack_vector(self.transforms, difference, own))
        message = jax.tree.unflatten(structure, packed)
        if not self.resets:
            return message
        as_type = AsType(
            next(jax.tree.leaves(difference)[0].dtype for difference in differences if difference is not None)
        )
        along = Packed({"along": jnp.stack(factors)}, as_type) if self.predicts else None
        return Marked(message, along, Packed({"fresh": sender.fresh}, as_type))

    @property
    def tells_method(self) -> bool:
        """Whether the method keeps account of what arrived."""
        return any(kind in OWN_ACCOUNT for kind in self.kinds)

    def sent(self, inner: Any, sender: Sender) -> Sender:
        """Return what an agent keeps after the server has used its message."""
        parts, _ = message_parts(vectors_of(self.exchange.send(inner)))
        changes, _ = message_parts(self._changes(opened(sender.message), sender.reference))
        kept: list[Vector | None] = []
        everything = zip(self.kinds, self._differences(parts, sender), changes, sender.kept, strict=True)
        for kind, difference, change, old in everything:
            if difference is None or old is None:
                kept.append(old)
            else:
                kept.append(old + change if kind in OWN_POINT else difference - change)
        return sender._replace(kept=tuple(kept))

    def _changes(self, message: Tree, reference: Reference) -> Tree:
        """Return the parts of an opened message, or of a mean of them, with the predictions added."""
        if not self.predicts:
            return message.parts if self.resets else message
        parts, structure = message_parts(message.parts)
        added, number = [], 0
        for kind, part in zip(self.kinds, parts, strict=True):
            if kind is Iterate:
                part, number = part + _times(message.factors[number], reference.move), number + 1
            added.append(part)
        return jax.tree.unflatten(structure, added)

    def _differences(self, parts: list[Any], sender: Sender) -> list[Vector | None]:
        """Return the vector to send for each part; None for a part that travels as it is."""
        found: list[Vector | None] = []
        for kind, part, kept in zip(self.kinds, parts, sender.kept, strict=True):
            if kind is None:
                found.append(None)
            elif kind in OWN_POINT:
                found.append(part - kept)
            else:
                change = part - sender.reference.last if kind is Model else part
                found.append(change if kept is None else change + kept)
        return found

    def received(self, receiver: Receiver, mean: Tree, share: Any) -> tuple[Receiver, Tree, Array]:
        """Return what the server keeps, the mean of the messages for the method's own aggregate, and `Told.reset`."""
        parts, structure = message_parts(self._changes(mean, receiver.reference))
        added = [None if old is None else old + share * part for old, part in zip(receiver.kept, parts, strict=True)]
        reset = (mean.fresh > 0).astype(jnp.uint8) if self.resets else jnp.uint8(0)
        kept = tuple(added)
        if self.resets:
            kept = _after_reset(self.kinds, kept, receiver.reference, reset)
        means: list[Any] = []
        for kind, new, part in zip(self.kinds, kept, parts, strict=True):
            means.append(receiver.reference.last + part if kind is Model else part if new is None else new)
        return receiver._replace(kept=kept), jax.tree.unflatten(structure, means), reset

    def told(self, sender: Sender, reset: Array) -> Sender:
        """Return what an agent keeps after it heard whether all H_i are reset."""
        return sender._replace(kept=_after_reset(self.kinds, sender.kept, sender.reference, reset), fresh=jnp.uint8(0))


def _after_reset(kinds: tuple[Kind | None, ...], kept: Vectors, reference: Reference, reset: Array) -> Vectors:
    """Return the H or H_i of all parts, reset if `reset` is 1. Both sides know the last broadcast."""
    new: list[Vector | None] = []
    for kind, old in zip(kinds, kept, strict=True):
        if kind not in OWN_POINT or old is None:
            new.append(old)
        else:
            first = start_of(kind, old if reference.last is None else reference.last)
            new.append(jax.tree.map(lambda a, b: jnp.where(reset > 0, a, b), first, old))
    return tuple(new)


def _check(kinds: tuple[Kind | None, ...], parts: list[Any]) -> None:
    assert len(parts) == len(kinds), "a message has the same parts in every round"
    assert all(isinstance(part, Vector) or kind is None for kind, part in zip(kinds, parts, strict=True))


def _along(difference: Vector, move: Vector) -> Array:
    """Return the factor t that brings t `move` closest to the difference, as a float32."""
    square = move @ move
    return jnp.where(square > 0, difference @ move / jnp.where(square > 0, square, 1), 0).astype(jnp.float32)


def _times(factor: Array, move: Vector | None) -> Vector:
    """Return factor times move, in the type of the move."""
    assert move is not None  # it is predicted
    return jax.tree.map(lambda leaf: factor.astype(leaf.dtype) * leaf, move)


def uplink(
    method: str, exchange: Exchange, kinds: tuple[Kind | None, ...], transforms: tuple[Transform, ...], everyone: bool
) -> Uplink:
    """Return the way up of an exchange; refuse one whose messages must arrive as they were sent."""
    if not kinds:
        labels = [transform.description for transform in transforms]
        rule = f"{method} needs messages that arrive as they were sent, because its sums or estimates build on them"
        refuse("up", labels, rule, "Leave up out, or choose another method, e.g. fedpd(eta=0.1, ...) without memory")
    check_bias("up", method, transforms, kinds)
    predicts = everyone and Iterate in kinds and all(transform.predicts for transform in transforms)
    return Uplink(exchange, transforms, kinds, predicts, everyone and any(kind in OWN_POINT for kind in kinds))


def check_bias(name: str, method: str, transforms: tuple[Transform, ...], kinds: tuple[Kind | None, ...] = ()) -> None:
    """Refuse biased transforms for a method that needs unbiased ones, and unbiased transforms for all others."""
    labels = [transform.description for transform in transforms]
    if Unbiased in kinds and not all(transform.unbiased for transform in transforms):
        rule = f"{method} needs transforms that are unbiased"
        refuse(name, labels, rule, "Give e.g. transforms.random_k(0.1, unbiased=True)")
    if Unbiased not in kinds and any(transform.unbiased for transform in transforms):
        rule = f"{method} with {name} sends later what was not sent, which diverges if transforms are unbiased"
        refuse(name, labels, rule, "Leave unbiased out")


def start_of(kind: Kind | None, x: Vector) -> Vector:
    """Return where H_i, or a reference, starts."""
    return 0 * x if kind is Gradient else x


def message_parts(tree: Tree) -> tuple[list[Any], Any]:
    """Return the vectors, packed vectors and numbers of a message, and its structure."""
    return jax.tree.flatten(tree, is_leaf=lambda part: isinstance(part, Vector | Packed))


def model_in(broadcast: Tree) -> Vector:
    """Return the first vector of a broadcast. Both sides use it as a reference, so any choice is right."""
    return next(part for part in message_parts(broadcast)[0] if isinstance(part, Vector))


class Held(NamedTuple):
    """The state of the server for the broadcasts of an exchange."""

    whole: Tree  # y in the structure of the broadcast; a part that is not a vector travels as it is
    number: Array  # the number of broadcasts so far, from which the random numbers of the transforms come


def start_held(shapes: Tree, x: Vector) -> Tree:
    """Return y at the start: x^0 for the first vector of a broadcast, 0 for all others."""
    parts, structure = message_parts(jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes))
    first = next((i for i, part in enumerate(parts) if isinstance(part, Vector)), -1)
    return jax.tree.unflatten(structure, [x if i == first else part for i, part in enumerate(parts)])


def pack_broadcast(transforms: tuple[Transform, ...], held: Held, broadcast: Tree) -> tuple[Held, Update]:
    """Return what the server keeps, and the change that it sends."""
    parts, structure = message_parts(broadcast)
    old, _ = message_parts(held.whole)
    key = jax.random.fold_in(jax.random.key(0, impl="threefry2x32"), held.number)
    changes = []
    for i, (part, y) in enumerate(zip(parts, old, strict=True)):
        packable = isinstance(part, Vector)
        changes.append(pack_vector(transforms, part - y, jax.random.fold_in(key, i)) if packable else part)
    update = restored(held.whole, jax.tree.unflatten(structure, changes))
    return Held(update.whole, held.number + 1), update


def restored(whole: Tree, change: Tree) -> Update:
    """Return the broadcast from y and the change that travelled."""
    parts, structure = message_parts(change)
    old, _ = message_parts(whole)
    added = [y + opened(part) if isinstance(y, Vector) else part for part, y in zip(parts, old, strict=True)]
    return Update(change, jax.tree.unflatten(structure, added))


def broadcast_shapes(algorithm: Method, x: Vector) -> tuple[Tree, ...]:
    """Return the shapes of the broadcast of each exchange. They do not depend on the samples, so there are none."""

    def round_of(x: Vector) -> tuple[Tree, ...]:
        f = LocalObjective.without_samples(x)
        agent, server, found = algorithm.init(f, x), algorithm.server(x), []
        for exchange in algorithm.exchanges():
            assert not isinstance(exchange.aggregate, Mixing)  # `wrap` refuses it
            agent, _ = exchange.local(f, agent, jnp.int32(0), jax.random.key(0, impl="threefry2x32"))
            server, broadcast = exchange.aggregate(server, opened(exchange.send(agent)), 1.0)
            agent = exchange.receive(agent, broadcast)
            found.append(broadcast)
        return tuple(found)

    return jax.eval_shape(round_of, x)
