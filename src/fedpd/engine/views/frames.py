"""Histories as pandas DataFrames. fedpd itself does not need pandas."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from fedpd.base.extras import extra
from fedpd.engine.views.entries import Measured

Frame = Any  # a pandas.DataFrame


def history_frame(runs: Iterable[tuple[Mapping[str, Any], Measured]]) -> Frame:
    """Return a DataFrame with one row per measured round: the key of the run, its history, and the seconds.

    Args:
        runs: Pairs of a key, such as {"seed": 0}, and the run.
    """
    pandas = _pandas()
    parts = [pandas.DataFrame({**run.history, "seconds": run.elapsed}).assign(**about) for about, run in runs]
    names = list(dict.fromkeys(name for about, _ in runs for name in about))
    whole = pandas.concat(parts, ignore_index=True)
    return whole[names + [name for name in whole.columns if name not in names]]


def table_frame(rows: Sequence[Mapping[str, Any]]) -> Frame:
    """Return a DataFrame with these rows."""
    return _pandas().DataFrame(list(rows))


def _pandas() -> Any:
    with extra("frames", "A frame"):
        import pandas

    return pandas
