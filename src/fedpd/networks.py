"""Networks for federated data, in flax: use them, or copy one and change it.

LeafCNN and SmallCNN see images (B, H, W) or (B, H, W, C), MLP anything, GRU texts (B, T) of character numbers.
"""

from collections.abc import Sequence

import flax.linen as nn
import jax
import jax.numpy as jnp

from fedpd.core import Array

FEW = 4  # rows of a batch up to which the gradient of a dense layer is written as a sum of outer products


@jax.custom_vjp
def product(x: Array, kernel: Array) -> Array:
    """x @ kernel, (B, m) by (m, n). For a few rows, the kernel's gradient is the sum of B outer products.

    As sums they are merged with the step that uses them, and the gradient is never written to memory. Measured on one
    core, a step of LEAF's network (6.4 million parameters in this layer) on 2 images: 17.6 ms so, 21.4 ms otherwise;
    with FedPD's terms 20.7 ms and 25.2 ms.
    """
    return x @ kernel


def _forward(x: Array, kernel: Array) -> tuple[Array, tuple[Array, Array]]:
    return x @ kernel, (x, kernel)


def _backward(known: tuple[Array, Array], slope: Array) -> tuple[Array, Array]:
    x, kernel = known
    if len(x) > FEW:
        return slope @ kernel.T, x.T @ slope
    outer = [row[:, None] * pull for row, pull in zip(x, slope, strict=True)]
    return slope @ kernel.T, sum(outer[1:], outer[0])


product.defvjp(_forward, _backward)


class Dense(nn.Module):
    """`nn.Dense`, parameter for parameter, by `product`."""

    features: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        kernel = self.param("kernel", nn.initializers.lecun_normal(), (x.shape[-1], self.features))
        return product(x, kernel) + self.param("bias", nn.initializers.zeros, (self.features,))


class MLP(nn.Module):
    """Fully connected: the features flattened, hidden layers, scores."""

    classes: int
    hidden: Sequence[int] = (128,)

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x.reshape(len(x), -1)
        for width in self.hidden:
            x = nn.relu(Dense(width)(x))
        return Dense(self.classes)(x)


class Conv(nn.Module):
    """A convolution with zero padding as one matrix product of patches: `nn.Conv`, parameter for parameter.

    XLA's convolutions are slow inside loops on a CPU. Measured on two cores, a training step of 10 images of the small
    network in a scan: 2.7 ms so, 9.6 ms with `nn.Conv`.
    """

    channels: int
    size: int = 5

    @nn.compact
    def __call__(self, x: Array) -> Array:
        batch, height, width, depth = x.shape
        shape = (self.size, self.size, depth, self.channels)
        kernel = self.param("kernel", nn.initializers.lecun_normal(), shape)
        bias = self.param("bias", nn.initializers.zeros, (self.channels,))
        before = (self.size - 1) // 2
        after = self.size - 1 - before
        padded = jnp.pad(x, ((0, 0), (before, after), (before, after), (0, 0)))
        shifts = [(i, j) for i in range(self.size) for j in range(self.size)]
        patches = jnp.concatenate([padded[:, i : i + height, j : j + width] for i, j in shifts], axis=-1)
        columns = patches.reshape(batch * height * width, -1)
        return (columns @ kernel.reshape(-1, self.channels) + bias).reshape(batch, height, width, self.channels)


def max_pool(x: Array) -> Array:
    """2x2, of even heights and widths; an odd last row or column is left out, as by `nn.max_pool`.

    Pair by pair: the gradient of `x.max(...)` divides by how many entries equal the maximum. Behind batch
    normalisation, compiled with few optimisations as in the tests, it was seen to be NaN, presumably since XLA
    computed x anew with another rounding and none was equal. Pairs are compared among themselves: no division.
    """
    batch, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2].reshape(batch, height // 2, 2, width // 2, 2, channels)
    rows = jnp.maximum(x[:, :, 0], x[:, :, 1])
    return jnp.maximum(rows[..., 0, :], rows[..., 1, :])


class LeafCNN(nn.Module):
    """LEAF's FEMNIST network: two 5x5 convolutions (32, 64), each with 2x2 pooling, a dense layer (2048), scores."""

    classes: int = 62
    channels: Sequence[int] = (32, 64)
    width: int = 2048

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = x[..., None] if x.ndim == 3 else x
        for number in self.channels:
            x = max_pool(nn.relu(Conv(number)(x)))
        x = nn.relu(Dense(self.width)(x.reshape(len(x), -1)))
        return Dense(self.classes)(x)


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
