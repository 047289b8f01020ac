"""A data file by its name alone: LEAF's json or Parquet."""

from pathlib import Path

import pyarrow.parquet as pq

from fedpd.base.checks import FedpdError
from fedpd.data.federated import Federated
from fedpd.data.leaf import leaf
from fedpd.data.parquet import parquet

USUAL = ("image", "x", "features", "pixels", "text")  # what a column of features is usually called


def load(
    path: Path,
    *,
    client: str | None = None,
    features: str | None = None,
    label: str = "label",
    split: str | None = None,
) -> Federated:
    """Parquet (a file, or a folder of such files) with these columns, or LEAF's json.

    features: the columns, separated by commas; None: one of the usual names.
    split:    None: the column `split`, if there is one.
    """
    if not path.exists():
        raise FedpdError(f"{path} does not exist. Give a LEAF json file or folder, or a Parquet file.")
    parts = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not parts or parts[0].suffix != ".parquet":
        return leaf(path)
    columns = _columns(parts[0])
    if client is None:
        raise FedpdError(f"{path}: --client is missing, the column that says whose a sample is. It has: {columns}.")
    if features is None:
        usual = [name for name in USUAL if name in columns]
        if not usual:
            raise FedpdError(f"{path}: --features is missing, the column(s) of features. It has: {columns}.")
        features = usual[0]
    chosen = [name.strip() for name in features.split(",")]
    if split is None and "split" in columns:
        split = "split"
    return parquet(path, client=client, features=chosen if len(chosen) > 1 else chosen[0], label=label, split=split)


def _columns(path: Path) -> list[str]:
    try:
        return pq.read_schema(path).names
    except Exception as error:
        raise FedpdError(f"{path} is not Parquet ({error}). Give a whole file.") from None
