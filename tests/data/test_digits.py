"""Scikit-learn's digits in groups that stand for writers."""

import numpy as np
import pytest

from fedpd import FedpdError, data

load_digits = pytest.importorskip("sklearn.datasets").load_digits


def sorted_rows(pixels: np.ndarray, labels: np.ndarray) -> list[list[float]]:
    return sorted(np.c_[pixels, labels].tolist())


def test_every_digit_is_in_one_group_and_groups_are_contiguous() -> None:
    found = data.digits(groups=13, seed=3)
    images, labels = load_digits(return_X_y=True)
    assert (found.agents, found.samples, found.shape) == (13, len(labels), (8, 8))
    start = 0
    for train, test in zip(found.train, found.test, strict=True):
        x = np.concatenate([train["x"], test["x"]]).reshape(-1, 64)
        y = np.concatenate([train["y"], test["y"]])
        rows = slice(start, start + len(y))
        assert sorted_rows(x, y) == sorted_rows((images[rows] / 16).astype(np.float32), labels[rows])
        assert len(test["y"]) == round(0.25 * len(y))
        start += len(y)


def test_wrong_numbers_are_refused() -> None:
    with pytest.raises(FedpdError, match="groups = 899"):
        data.digits(groups=899)
    with pytest.raises(FedpdError, match="test_share"):
        data.digits(test_share=1.0)
