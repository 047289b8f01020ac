"""Federated data: generated, from files, from the Hugging Face Hub, or from arrays."""

from fedpd.data.bundled import characters, digits, program_strongly_noniid, strongly_noniid, weakly_noniid
from fedpd.data.federated import Federated, Samples, from_arrays, from_datasets
from fedpd.data.hub import dirichlet, hub
from fedpd.data.labels import DIGITS_AND_LETTERS
from fedpd.data.lazy import Lazy, lazy
from fedpd.data.leaf import SHAKESPEARE, leaf
from fedpd.data.many import from_rows
from fedpd.data.parquet import parquet
from fedpd.data.partition import (
    by_classes,
    by_dirichlet,
    by_noise,
    by_quantity,
    by_rotation,
    by_shards,
    iid,
    npz,
    partition,
)
from fedpd.data.ragged import Ragged, ragged
from fedpd.data.regroup import merge, paper_groups, pool, split, take
from fedpd.data.standardise import Moments, Scaling, moments, scaling_from, standardise
from fedpd.data.summary import Spread, Summary, describe, label_histogram
from fedpd.data.tables import csv

# The functions that an experiment file may call for its data.
LOADERS = ("characters", "csv", "digits", "dirichlet", "hub", "leaf", "npz", "parquet")
# The rules by which `partition` and `npz` divide samples among agents.
RULES = ("iid", "by_dirichlet", "by_classes", "by_shards", "by_quantity", "by_noise", "by_rotation")

__all__ = [
    "DIGITS_AND_LETTERS",
    "LOADERS",
    "RULES",
    "SHAKESPEARE",
    "Federated",
    "Lazy",
    "Moments",
    "Ragged",
    "Samples",
    "Scaling",
    "Spread",
    "Summary",
    "by_classes",
    "by_dirichlet",
    "by_noise",
    "by_quantity",
    "by_rotation",
    "by_shards",
    "characters",
    "csv",
    "describe",
    "digits",
    "dirichlet",
    "from_arrays",
    "from_datasets",
    "from_rows",
    "hub",
    "iid",
    "label_histogram",
    "lazy",
    "leaf",
    "merge",
    "moments",
    "npz",
    "paper_groups",
    "parquet",
    "partition",
    "pool",
    "program_strongly_noniid",
    "ragged",
    "scaling_from",
    "split",
    "standardise",
    "strongly_noniid",
    "take",
    "weakly_noniid",
]
