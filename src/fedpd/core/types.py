"""The type names that the whole package uses."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from tree_math import Vector as Vector

Array = jax.Array
AnyArray = jax.Array | np.ndarray  # on the host a NumPy array, in a compiled program a JAX array
Key = Array
Tree = Any  # a pytree of arrays
Losses = Callable[[Tree, Tree], Array]  # (model, batch of B samples) -> (B,) losses F(x; xi)
Penalty = Callable[[Tree], Array]  # (model) -> the part of F that does not depend on a sample
RandomLosses = Callable[[Tree, Tree, Key], Array]  # the losses of a model with random layers, drawn from a key
Statistics = Callable[[Tree, Tree], Tree]  # (model, batch) -> the statistics that normalise the batch
