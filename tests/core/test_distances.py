"""The largest pairwise distance: in blocks of columns and rows, on one device and on two, and from files."""

from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from fedpd.base.precision import scope
from fedpd.base.process import use_cores
from fedpd.core.agents import AGENTS, AXIS, SHARED, Layout, sharded
from fedpd.core.distances import BLOCK, largest_distance, largest_distance_on_host

ALONE = Layout(6, parallel=False, mesh=None)
DTYPES = (np.float32, np.float64)


def rows_of(dtype: Any, offset: float = 0.0, agents: int = 6) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"weights": (agents, 3, 7), "bias": (agents,), "nothing": (agents, 0)}
    return {name: (offset + rng.standard_normal(shape)).astype(dtype) for name, shape in shapes.items()}


def by_hand(rows: dict[str, np.ndarray]) -> float:
    flat = np.concatenate([leaf.reshape(len(leaf), -1) for leaf in rows.values()], axis=1).astype(np.float64)
    return float(np.linalg.norm(flat[:, None] - flat, axis=-1).max())


def measured(rows: Any, layout: Layout = ALONE, block: tuple[int, int] = BLOCK) -> float:
    compiled = jax.jit(sharded(partial(largest_distance, layout=layout, block=block), layout, (AGENTS,), SHARED))
    use_cores()
    with scope(True):
        return float(compiled(rows))


# All at once; 4 of 21 columns; 4 of 6 rows; blocks of both.
blocks = pytest.mark.parametrize("block", [BLOCK, (BLOCK[0], 4), (4, BLOCK[1]), (4, 4)])


@blocks
@pytest.mark.parametrize("dtype", DTYPES)
def test_it_is_the_largest_of_all_pairs(dtype: Any, block: tuple[int, int]) -> None:
    rows = rows_of(dtype)
    tolerance = 10 * float(np.finfo(dtype).eps)
    assert measured(rows, block=block) == pytest.approx(by_hand(rows), rel=tolerance)
    assert largest_distance_on_host(rows, block) == pytest.approx(by_hand(rows), rel=tolerance)


@blocks
@pytest.mark.parametrize("dtype", DTYPES)
def test_equal_rows_are_exactly_0_apart(dtype: Any, block: tuple[int, int]) -> None:
    rows = {name: np.repeat(leaf[:1], 6, axis=0) for name, leaf in rows_of(dtype, offset=1e6).items()}
    assert measured(rows, block=block) == 0
    assert largest_distance_on_host(rows, block) == 0


def test_a_common_offset_costs_no_precision() -> None:
    """1e6 is exact in float32, and so are the differences of small multiples of 2^-4 from it."""
    moves = np.random.default_rng(1).integers(-16, 16, (6, 9)) / 16
    rows = {"x": (1e6 + moves).astype(np.float32)}
    assert measured(rows) == pytest.approx(by_hand({"x": moves}), rel=1e-6)


@blocks
@pytest.mark.parametrize("dtype", DTYPES)
def test_over_two_devices(dtype: Any, block: tuple[int, int]) -> None:
    use_cores()
    if jax.device_count() < 2:
        pytest.skip("needs two devices")
    rows = rows_of(dtype, agents=12)
    two = Layout(12, parallel=False, mesh=Mesh(np.array(jax.devices()[:2]), (AXIS,)))
    assert measured(rows, two, block) == pytest.approx(by_hand(rows), rel=10 * float(np.finfo(dtype).eps))


@blocks
def test_from_files(block: tuple[int, int], tmp_path: Path) -> None:
    rows = rows_of(np.float32)
    files: dict[str, np.ndarray] = {}
    for name, leaf in rows.items():
        if leaf.size:
            files[name] = np.memmap(tmp_path / name, dtype=leaf.dtype, mode="w+", shape=leaf.shape)
            files[name][:] = leaf
    assert largest_distance_on_host(files, block) == pytest.approx(by_hand(rows), rel=1e-6)


def test_nan_is_not_hidden() -> None:
    rows = {"x": np.array([[0.0], [np.nan], [1.0]])}
    assert np.isnan(measured(rows))
    assert np.isnan(largest_distance_on_host(rows))


def test_inside_a_vmap() -> None:
    """A sweep measures many runs at once."""
    many = jnp.asarray(np.stack([rows_of(np.float32, offset)["weights"] for offset in (0.0, 1.0)]))
    found = jax.vmap(partial(largest_distance, layout=ALONE))(many)
    assert found.tolist() == pytest.approx([by_hand({"x": np.asarray(one)}) for one in many], rel=1e-5)
