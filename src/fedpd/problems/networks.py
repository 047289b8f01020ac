"""Networks for federated data, as flax modules. Use them, or copy one and change it.

LeafCNN, SmallCNN and CifarCNN take images (B, H, W) or (B, H, W, C), MLP takes features of any shape, GRU and LSTM take
texts (B, T) of character numbers.
"""

from collections.abc import Sequence
from typing import Literal

import jax.numpy as jnp

from fedpd.base.errors import extra
from fedpd.core import Array
from fedpd.problems.layers import max_pool, product

with extra("networks", "fedpd.problems.networks"):
    import flax.linen as nn


class Dense(nn.Module):
    """A dense layer with the parameters of `nn.Dense`, computed with `product`.

    Attributes:
        features: The number of outputs.
    """

    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
        return product(x, kernel) + self.param("bias", nn.initializers.zeros, (self.features,))


class MLP(nn.Module):
    """A fully connected network: flattened features, hidden layers with ReLU, scores.

    Attributes:
        classes: K, the number of scores.
        hidden: The widths of the hidden layers.
    """

    classes: int
    hidden: Sequence[int] = (128,)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = nn.relu(Dense(width)(x))
        return Dense(self.classes)(x)


class Conv(nn.Module):
    """A convolution as one matrix product of patches, with the parameters of `nn.Conv`.

    x is (B, H, W, C), or with `first` (C, B, H, W). XLA's convolutions are slow inside loops on a CPU. Measured on one
    core, a training step of the small network on 10 images in a loop takes 2.7 ms this way, and 2.0 ms with channels
    first, where patches are copied row by row. LEAF's network on 2 images takes 16 ms in both cases.

    Attributes:
        channels: The number of output channels.
        size: The height and width of the kernel.
        first: Whether channels are the first axis.
        padding: "SAME" pads with zeros, so that the image keeps its size; "VALID" does not pad.
    """

    channels: int
    size: int = 5
    first: bool = False
    padding: Literal["SAME", "VALID"] = "SAME"

    @nn.compact
    def __call__(self, x: Array) -> Array:
        depth = x.shape[0 if self.first else -1]
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (self.size, self.size, depth, self.channels))
        bias = self.param("bias", nn.initializers.zeros, (self.channels,))
        kernel = kernel.reshape(-1, self.channels)
        zeros = self.size - 1 if self.padding == "SAME" else 0
        margins = (zeros // 2, zeros - zeros // 2)
        shifts = [(i, j) for i in range(self.size) for j in range(self.size)]
        if self.first:
            padded = jnp.pad(x, ((0, 0), (0, 0), margins, margins))
            batch, height, width = x.shape[1], *(side - self.size + 1 for side in padded.shape[2:])
            patches = jnp.stack([padded[..., i : i + height, j : j + width] for i, j in shifts])
            rows = kernel.T @ patches.reshape(-1, batch * height * width) + bias[:, None]
            return rows.reshape(self.channels, batch, height, width)
        padded = jnp.pad(x, ((0, 0), margins, margins, (0, 0)))
        batch, height, width = len(x), *(side - self.size + 1 for side in padded.shape[1:3])
        patches = jnp.concatenate([padded[:, i : i + height, j : j + width] for i, j in shifts], axis=-1)
        columns = patches.reshape(batch * height * width, -1) @ kernel + bias
        return columns.reshape(batch, height, width, self.channels)


class LeafCNN(nn.Module):
    """LEAF's FEMNIST network: two 5x5 convolutions (32, 64), each with 2x2 pooling, a dense layer (2048), scores.

    Attributes:
        classes: K, the number of scores.
        channels: The channels of the convolutions.
        width: The width of the dense layer.
    """

    classes: int = 62
    channels: Sequence[int] = (32, 64)
    width: int = 2048

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x[None] if x.ndim == 3 else jnp.moveaxis(x, -1, 0)
        for number in self.channels:
            x = nn.relu(max_pool(Conv(number, first=True)(x), first=True))  # the same as pooling relu(x), but cheaper
        x = jnp.moveaxis(x, 0, -1)
        x = nn.relu(Dense(self.width)(x.reshape(len(x), -1)))
        return Dense(self.classes)(x)


class SmallCNN(LeafCNN):
    """LEAF's network with fewer channels and a dense layer of 128: 0.1 million parameters on 28x28 images."""

    channels: Sequence[int] = (8, 16)
    width: int = 128


class GRU(nn.Module):
    """A network that predicts the next character: embedding, gated recurrent unit, scores from its last state.

    Attributes:
        classes: K, the number of characters.
        embedding: The dimension of the embedding.
        width: The width of the state.
    """

    classes: int = 80
    embedding: int = 8
    width: int = 128

    @nn.compact
    def __call__(self, x: Array) -> Array:
        embedded = nn.Embed(self.classes, self.embedding)(x.astype(jnp.int32))
        states = jnp.asarray(nn.RNN(nn.GRUCell(self.width))(embedded))  # (B, T, width)
        return nn.Dense(self.classes)(states[:, -1])


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
