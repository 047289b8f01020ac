"""Data files by their name alone: LEAF's json or Parquet."""

from pathlib import Path

from fedpd.base.checks import FedpdError
from fedpd.base.extras import extra
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
    """Return federated data from Parquet (a file, or a folder of such files) or from LEAF's json.

    Args:
        path: The file or folder.
        client: The column with the client's name; needed for Parquet.
        features: The columns of features, separated by commas; None: the first of the usual names that the file has.
        label: The column of labels.
        split: The column that says "train" or "test"; None: the column `split`, if there is one.
    """
    if not path.exists():
        raise FedpdError(f"{path} does not exist. Give a LEAF json file or folder, or a Parquet file.")
    parts = [path] if path.is_file() else sorted(path.glob("*.parquet"))
    if not parts or parts[0].suffix != ".parquet":
        return leaf(path)
    columns = _columns(parts[0])
    if client is None:
        raise FedpdError(f"{path}: --client is missing, the column with the client's name. It has: {columns}.")
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
    """Return the names of a Parquet file's columns."""
    with extra("parquet", "Reading Parquet"):
        import pyarrow.parquet as pq

    try:
        return pq.read_schema(path).names
    except Exception as error:
        raise FedpdError(f"{path} is not Parquet ({error}). Give a whole file.") from None
