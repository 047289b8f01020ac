"""The largest distance between any two rows, computed block by block to save memory.

The rows are compared by their differences c_i to the first row, so that equal rows give exactly 0:

    ||c_i - c_j||^2 = ||c_i||^2 + ||c_j||^2 - 2 <c_i, c_j>

||c_i|| is at most the largest distance, so the error by cancellation is at most a rounding error of that distance.
"""

import operator
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fedpd.core.agents import AXIS, Layout
from fedpd.core.vectors import AnyArray, Array, Tree

BLOCK = (2**12, 2**16)  # rows to compare with all rows at a time, and columns to read of every row at a time


class Products(NamedTuple):
    """The inner products of differences to the first row, summed over the columns so far."""

    inner: AnyArray  # (n, N) inner products of n rows with all N rows
    own: AnyArray  # (n,) squared norms of the n rows
    everyone: AnyArray  # (N,) squared norms of all rows


def products(own: AnyArray, everyone: AnyArray) -> Products:
    """Return the inner products over one block of columns, for JAX or NumPy arrays.

    Args:
        own: (n, w), the block's columns of n of the rows.
        everyone: (N, w), the same columns of all rows. The first row is subtracted from all.
    """
    first = everyone[:1]
    own, everyone = own - first, everyone - first
    return Products(own @ everyone.T, (own * own).sum(axis=1), (everyone * everyone).sum(axis=1))


def largest_square(sums: Products) -> AnyArray:
    """Return max_ij ||c_i - c_j||^2 from the sums over all columns; rounding can make it slightly negative."""
    return (sums.own[:, None] + sums.everyone - 2 * sums.inner).max()


def largest_distance(rows: Tree, layout: Layout, block: tuple[int, int] = BLOCK) -> Array:
    """Return max_ij ||c_i - c_j|| over the rows of a pytree of JAX arrays.

    It needs memory for a block of columns of all rows, and for the inner products of a block of rows with all rows.

    Args:
        rows: Leaves (n, ...); row i of all leaves together is c_i. Under a mesh, the n rows of this device.
        layout: Its mesh gives the devices over which the rows are sharded. With a mesh, call this inside `sharded`.
        block: The most rows, and the most columns, at a time.
    """
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(rows) if leaf.size]
    number = len(leaves[0])
    some = min(number, block[0])

    def square(start: Array | int) -> AnyArray:
        parts = [_leaf_products(leaf, start, some, block[1], layout) for leaf in leaves]
        return largest_square(jax.tree.map(lambda *leaf: sum(leaf), *parts))

    if some == number:
        largest = square(0)
    else:  # the last block of rows starts earlier; comparing some rows twice does not change the maximum
        starts = jnp.minimum(some * jnp.arange(-(-number // some)), number - some)
        largest = jnp.max(lax.map(square, starts))
    return jnp.sqrt(jnp.maximum(largest if layout.mesh is None else lax.pmax(largest, AXIS), 0))


def _leaf_products(rows: Array, start: Array | int, some: int, columns: int, layout: Layout) -> Products:
    """Return the products of `some` of this device's rows, from `start` on, with the rows of all devices."""
    number, width = rows.shape
    block = min(width, columns)

    def add(q: Array | int, sums: Products) -> Products:
        first = jnp.minimum(q * block, width - block)  # the last block starts earlier, without summed columns
        own = jnp.where(first + jnp.arange(block) >= q * block, lax.dynamic_slice_in_dim(rows, first, block, 1), 0)
        everyone = own if layout.mesh is None else lax.all_gather(own, AXIS, tiled=True)
        own = own if some == number else lax.dynamic_slice_in_dim(own, start, some, 0)
        return jax.tree.map(jnp.add, sums, products(own, everyone))

    total = number if layout.mesh is None else number * layout.mesh.size
    zero = Products(*(jnp.zeros(shape, rows.dtype) for shape in ((some, total), (some,), (total,))))
    return lax.fori_loop(0, -(-width // block), add, zero)


def largest_distance_on_host(rows: Tree, block: tuple[int, int] = BLOCK) -> float:
    """Return max_ij ||c_i - c_j|| over the rows of NumPy arrays or memory maps, read block by block.

    It computes the products of a block in the precision of the rows, and sums them in float64.
    """
    leaves = [leaf.reshape(len(leaf), -1) for leaf in jax.tree.leaves(rows) if leaf.size]
    number = len(leaves[0])
    squares = []
    for start in range(0, number, block[0]):
        some = min(number - start, block[0])
        sums = Products(*(np.zeros(shape) for shape in ((some, number), (some,), (number,))))
        for leaf in leaves:
            for first in range(0, leaf.shape[1], block[1]):
                everyone = np.asarray(leaf[:, first : first + block[1]])
                sums = jax.tree.map(operator.add, sums, products(everyone[start : start + some], everyone))
        squares.append(largest_square(sums))
    return float(np.sqrt(np.maximum(np.max(squares), 0)))
