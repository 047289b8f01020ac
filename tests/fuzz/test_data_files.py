"""Damaged LEAF, CSV and Parquet files: each is loaded or refused with a sentence."""

from typing import Any

import pytest
from hypothesis import given

from fedpd import data
from fedpd.report.data import load

from .data_files import FILES, OPTIONS, write
from .endings import cases, ends_well


@cases(60)
@given(file=FILES, options=OPTIONS)
def test_a_file_is_loaded_or_refused(
    file: tuple[str, bytes], options: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = write(tmp_path_factory.mktemp("data"), file)
    found = ends_well(load, path, **options)
    if found is not None:
        assert repr(found)
        assert data.describe(found).samples == found.samples
