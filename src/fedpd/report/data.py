"""Describe federated data in numbers: how many samples each agent has, and with which labels."""

from typing import Any

import numpy as np
from rich.table import Table

from fedpd.data.federated import Federated
from fedpd.data.regroup import take
from fedpd.data.summary import Spread, describe
from fedpd.problems.classification import classification
from fedpd.theory import heterogeneity


def summary_table(data: Federated) -> Table:
    """Return a table that describes the data in numbers."""
    facts = describe(data)
    table = Table(title=data.name, title_justify="left", show_header=False)
    table.add_column()
    table.add_column(overflow="fold")
    rows = {
        "agents": f"{facts.agents}: {facts.trained} with training samples, {facts.tested} with test samples",
        "samples": f"{facts.samples:,}: {facts.train:,} train, {facts.test:,} test",
        "training samples per agent": _spread(facts.sizes),
        "a sample": f"{facts.dtype} {facts.shape}",
        "classes": f"{facts.classes}" + (f", {facts.missing} without a training sample" if facts.missing else ""),
        "labels per agent": _spread(facts.labels),
        "label skew": f"{facts.skew:.2f} (0: all agents have the same labels, 1: no label in common)",
        "delta at x^0 = 0": f"{_delta(data):.3g}, max ||grad f_i - grad f|| of multinomial logistic regression",
    }
    for name, text in rows.items():
        table.add_row(name, text)
    return table


def _spread(spread: Spread) -> str:
    return f"{spread.least} to {spread.most}, median {spread.median:g}"


def _delta(data: Federated) -> float:
    """Return delta of a linear classifier at zero, so that it does not depend on the start of a network."""
    trained = take(data, np.flatnonzero(data.sizes))
    size, classes = int(np.prod(data.shape)), len(data.classes)

    def scores(model: Any, x: Any) -> Any:
        return x.reshape(len(x), -1).astype(model.dtype) @ model

    start = np.zeros((size, classes), np.float64 if data.train[0]["x"].dtype == np.float64 else np.float32)
    return heterogeneity(classification(scores, trained, start))
