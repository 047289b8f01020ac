"""Networks for federated data, in flax: use them, or copy one and change it.

LeafCNN and SmallCNN see images (B, H, W) or (B, H, W, C), MLP anything, GRU texts (B, T) of character numbers.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax.numpy as jnp

from fedpd.core import Array


class MLP(nn.Module):
    """Fully connected: the features flattened, hidden layers, scores."""

    classes: int
    hidden: Sequence[int] = (128,)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = nn.relu(nn.Dense(width)(x))
        return nn.Dense(self.classes)(x)


class LeafCNN(nn.Module):
    """LEAF's FEMNIST network: two 5x5 convolutions (32, 64), each with 2x2 pooling, a dense layer (2048), scores."""

    classes: int = 62
    channels: Sequence[int] = (32, 64)
    width: int = 2048

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        for number in self.channels:
            x = nn.relu(nn.Conv(number, (5, 5))(x))
            x = nn.max_pool(x, (2, 2), strides=(2, 2))
        x = nn.relu(nn.Dense(self.width)(x.reshape(len(x), -1)))
        return nn.Dense(self.classes)(x)


class SmallCNN(LeafCNN):
    """The same with fewer channels and a dense layer of 128: 0.1 million parameters on 28x28 images."""

    channels: Sequence[int] = (8, 16)
    width: int = 128


class GRU(nn.Module):
    """The next character: embedded characters, a gated recurrent unit, scores from its last state."""

    classes: int = 80
    embedding: int = 8
    width: int = 128

    @nn.compact
    def __call__(self, x: Array) -> Array:
        embedded = nn.Embed(self.classes, self.embedding)(x.astype(jnp.int32))
        states = jnp.asarray(nn.RNN(nn.GRUCell(self.width))(embedded))  # (B, T, width)
        return nn.Dense(self.classes)(states[:, -1])
