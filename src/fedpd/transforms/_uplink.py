r"""The way from the agents to the server: what an agent packs, what both sides keep, and what the server makes of it.

What travels is q = C(difference), where C is the chain of transforms and the difference depends on what a message m_i
is (`Exchange.sends`):

    "change"               m_i + e_i, and e_i becomes what was not sent. The server uses mean q.
    "model"                m_i - y + e_i, where y is the last broadcast. The server uses y + mean q.
    "iterate", "gradient"  m_i - H_i, and H_i becomes H_i + q. The server keeps H, the mean of all H_i, and uses H.

The first two are error feedback: every entry that was not sent is sent later, so sums at the server are right up to
e_i. The third has q = 0 only where H_i = m_i, so it adds no error to a fixed point of the method. The server adds the
changes of the agents that sent to H, so H holds the last known messages of all agents, also of absent ones.
"""

from typing import Any, NamedTuple

import jax
from tree_math import Vector

from fedpd.base.checks import refuse
from fedpd.base.spec import spec_of
from fedpd.core import Exchange, Key, Kind, Packed, Tree, opened
from fedpd.transforms._chain import Transform, pack_vector

OWN_POINT = ("iterate", "gradient")
Vectors = tuple[Vector | None, ...]  # one per part of a message; None for a part that travels as it is


class Sender(NamedTuple):
    """What an agent keeps for the messages of an exchange.

    Attributes:
        kept: H_i or e_i of each part of the message.
        reference: The last broadcast, if a part of the message is a model; else None.
        message: The packed message of this round.
    """

    kept: Vectors
    reference: Vector | None
    message: Tree


class Uplink(NamedTuple):
    """The functions of the way up of one exchange.

    Attributes:
        exchange: The exchange of the method itself.
        transforms: The chain.
        kinds: The kind of each part of a message.
    """

    exchange: Exchange
    transforms: tuple[Transform, ...]
    kinds: tuple[Kind | None, ...]

    def sender(self, inner: Any, x: Vector) -> Sender:
        """Return what an agent keeps at the start, where its own state is `inner`."""
        feedback = all(transform.feedback for transform in self.transforms)

        def start(kind: Kind | None) -> Vector | None:
            if kind in OWN_POINT:
                return start_of(kind, x)
            return 0 * x if feedback and kind is not None else None

        kept = tuple(start(kind) for kind in self.kinds)
        empty = Sender(kept, x if "model" in self.kinds else None, None)
        shapes = jax.eval_shape(lambda: self.packed(inner, empty, jax.random.key(0, impl="threefry2x32")))
        return empty._replace(message=jax.tree.map(lambda leaf: jax.numpy.zeros(leaf.shape, leaf.dtype), shapes))

    def packed(self, inner: Any, sender: Sender, key: Key) -> Tree:
        """Return the packed message of an agent after its local computation."""
        parts, structure = parts_of(self.exchange.send(inner))
        self._check(parts)
        packed = []
        for i, (difference, part) in enumerate(zip(self._differences(parts, sender), parts, strict=True)):
            own = jax.random.fold_in(key, i)
            packed.append(part if difference is None else pack_vector(self.transforms, difference, own))
        return jax.tree.unflatten(structure, packed)

    def sent(self, inner: Any, sender: Sender) -> Sender:
        """Return what an agent keeps after the server has used its message."""
        parts, _ = parts_of(self.exchange.send(inner))
        packed, _ = parts_of(sender.message)
        kept: list[Vector | None] = []
        everything = zip(self.kinds, self._differences(parts, sender), packed, sender.kept, strict=True)
        for kind, difference, q, old in everything:
            if difference is None or old is None:
                kept.append(old)
            else:
                kept.append(old + opened(q) if kind in OWN_POINT else difference - opened(q))
        return sender._replace(kept=tuple(kept))

    def _differences(self, parts: list[Any], sender: Sender) -> list[Vector | None]:
        """Return the vector to pack for each part; None for a part that travels as it is."""
        found: list[Vector | None] = []
        for kind, part, kept in zip(self.kinds, parts, sender.kept, strict=True):
            if kind is None:
                found.append(None)
            elif kind in OWN_POINT:
                found.append(part - kept)
            else:
                change = part - sender.reference if kind == "model" else part
                found.append(change if kept is None else change + kept)
        return found

    def references(self, x: Vector) -> Vectors:
        """Return what the server keeps at the start: H or the last broadcast, for each part of a message."""
        return tuple(None if kind in ("change", None) else start_of(kind, x) for kind in self.kinds)

    def received(self, references: Vectors, mean: Tree, share: Any) -> tuple[Vectors, Tree]:
        """Return what the server keeps, and the mean of the messages for the method's own aggregate."""
        parts, structure = parts_of(mean)
        kept: list[Vector | None] = []
        means: list[Any] = []
        for kind, reference, part in zip(self.kinds, references, parts, strict=True):
            if reference is None:
                kept.append(None)
                means.append(part)
            else:
                new = reference + (share * part if kind in OWN_POINT else part)
                kept.append(new if kind in OWN_POINT else reference)
                means.append(new)
        return tuple(kept), jax.tree.unflatten(structure, means)

    def after_broadcast(self, references: Vectors, broadcast: Tree) -> Vectors:
        """Return what the server keeps after a broadcast."""
        pairs = zip(self.kinds, references, strict=True)
        return tuple(model_in(broadcast) if kind == "model" else kept for kind, kept in pairs)

    def _check(self, parts: list[Any]) -> None:
        assert len(parts) == len(self.kinds), "Exchange.sends has one entry per part of a message"
        assert all(isinstance(part, Vector) or kind is None for kind, part in zip(self.kinds, parts, strict=True))


def uplink(method: str, exchange: Exchange, transforms: tuple[Transform, ...]) -> Uplink:
    """Return the way up of an exchange; refuse one whose messages must arrive as they were sent."""
    sends = exchange.sends
    if sends is None:
        labels = [spec_of(transform).label() for transform in transforms]
        rule = f"{method} needs messages that arrive as they were sent, because its sums or estimates build on them"
        refuse("up", labels, rule, "Leave up out, or choose another method, e.g. fedpd(eta=0.1, ...) without memory")
    return Uplink(exchange, transforms, sends if isinstance(sends, tuple) else (sends,))


def start_of(kind: Kind | None, x: Vector) -> Vector:
    """Return where H_i, or a reference, starts."""
    return 0 * x if kind == "gradient" else x


def parts_of(tree: Tree) -> tuple[list[Any], Any]:
    """Return the vectors, packed vectors and numbers of a message, and its structure."""
    return jax.tree.flatten(tree, is_leaf=lambda part: isinstance(part, Vector | Packed))


def model_in(broadcast: Tree) -> Vector:
    """Return the first vector of a broadcast. Both sides use it as a reference, so any choice is right."""
    return next(part for part in parts_of(broadcast)[0] if isinstance(part, Vector))
