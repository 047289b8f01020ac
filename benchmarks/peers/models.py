"""The cross-device tasks' models for fedpd, as flax modules."""

import flax.linen as nn
import jax.numpy as jnp
from jax import Array

from fedpd import networks


class Softmax(nn.Module):
    """FLUTE's logistic regression: one dense layer on flat features."""

    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return networks.Dense(self.classes)(x)


class Cifar(nn.Module):
    """pfl-research's network for CIFAR-10 without its dropout: two 3x3 convolutions, pooling, and two dense layers."""

    classes: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = jnp.moveaxis(x, -1, 0)
        x = nn.relu(networks.Conv(32, 3, first=True, padding="VALID")(x))
        x = networks.Conv(64, 3, first=True, padding="VALID")(x)
        x = jnp.moveaxis(nn.relu(networks.max_pool(x, first=True)), 0, -1)  # the same as pooling relu(x), but cheaper
        x = nn.relu(networks.Dense(128)(x.reshape(len(x), -1)))
        return networks.Dense(self.classes)(x)


class Tags(nn.Module):
    """The tag of a post from the mean of its words' embeddings."""

    classes: int
    words: int
    width: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        return networks.Dense(self.classes)(nn.Embed(self.words, self.width)(x).mean(axis=-2))
