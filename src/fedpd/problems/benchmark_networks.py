"""The networks of common benchmarks, as flax modules: a convolutional network for CIFAR, an LSTM for Shakespeare."""

from collections.abc import Sequence

import jax.numpy as jnp

from fedpd.base.extras import extra
from fedpd.core import Array
from fedpd.problems.networks import Conv, Dense, max_pool

with extra("networks", "fedpd.problems.benchmark_networks"):
    import flax.linen as nn


class CifarCNN(nn.Module):
    """The network of many papers on CIFAR: two 5x5 convolutions without padding, pooling, two dense layers, scores.

    With the defaults it has 0.80 million parameters for 10 classes. Acar et al. (2021) use it, after McMahan et al.
    (2017).

    Attributes:
        classes: K, the number of scores.
        channels: The channels of the convolutions.
        widths: The widths of the dense layers.
    """

    classes: int = 10
    channels: Sequence[int] = (64, 64)
    widths: Sequence[int] = (384, 192)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.moveaxis(x, -1, 0)
        for number in self.channels:
            x = nn.relu(max_pool(Conv(number, first=True, padding="VALID")(x), first=True))
        x = jnp.moveaxis(x, 0, -1).reshape(x.shape[1], -1)
        for width in self.widths:
            x = nn.relu(Dense(width)(x))
        return Dense(self.classes)(x)


class LSTM(nn.Module):
    """The network of McMahan et al. (2017) and of LEAF for Shakespeare: embedding, stacked LSTM layers, scores.

    Attributes:
        classes: K, the number of characters.
        embedding: The dimension of the embedding.
        widths: The widths of the LSTM layers.
    """

    classes: int = 80
    embedding: int = 8
    widths: Sequence[int] = (256, 256)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        states = nn.Embed(self.classes, self.embedding)(x.astype(jnp.int32))
        for width in self.widths:
            states = jnp.asarray(nn.RNN(nn.OptimizedLSTMCell(width))(states))  # (B, T, width)
        return nn.Dense(self.classes)(states[:, -1])
