"""The folder of the real data, if it exists."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "data"


def real(path: str) -> Path:
    if not FOLDER.is_dir():
        pytest.skip("the real data (shared/data beside the repository) is not here")
    return FOLDER / path
