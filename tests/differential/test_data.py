"""Statistics, splits and groups of federated data against NumPy."""

from typing import Any

import numpy as np

from fedpd import data

from .seeds import same, seeds


def drawn_data(rng: np.random.Generator) -> tuple[list[np.ndarray], list[np.ndarray], data.Federated]:
    """Return features and labels of each agent, and the same as federated data with some test samples."""
    sizes = rng.integers(1, 12, rng.integers(1, 7))
    x = [rng.normal(size=(n, 3)) * [1, 1e-4, 1e5] + [0, 1e3, -1e6] for n in sizes]
    y = [rng.integers(0, 4, n) for n in sizes]
    agents = {f"agent {i}": {"x": a, "y": b} for i, (a, b) in enumerate(zip(x, y, strict=True))}
    return x, y, data.from_arrays(agents, {"agent 0": {"x": x[0][:1] + 1, "y": y[0][:1]}}, classes=4)


def test_standardise_gives_the_mean_and_the_deviation_of_all_training_samples() -> None:
    for seed in seeds(30):
        x, _, federated = drawn_data(np.random.default_rng(seed))
        rows = np.concatenate(x)
        mean, deviation = rows.mean(axis=0), rows.std(axis=0)
        deviation = np.where(deviation > 0, deviation, 1)
        rounding = 8 * np.finfo(float).eps * float(np.max(np.abs(rows) / deviation))  # of x - mean
        given: Any
        for given in (x, federated):
            scaled, scaling = data.standardise(given)
            same(seed, "the mean", scaling.mean, mean)
            same(seed, "the deviation", scaling.scale, deviation, rtol=1e-9)
            first = scaled[0] if isinstance(scaled, list) else scaled.train[0]["x"]
            same(seed, "the scaled features", first, (x[0] - mean) / deviation, rtol=1e-9, atol=rounding)
        same(seed, "the scaled tests", scaled.test[0]["x"], (x[0][:1] + 1 - mean) / deviation, rtol=1e-9, atol=rounding)


def test_moments_add_up_to_the_statistics() -> None:
    for seed in seeds(30):
        x, _, _ = drawn_data(np.random.default_rng(seed))
        shift = x[0][0]
        first, *others = [data.moments(a, shift) for a in x]
        for more in others:
            first = first.plus(more)
        rows = np.concatenate(x)
        found = data.scaling_from(first, shift)
        same(seed, "the mean", found.mean, rows.mean(axis=0))
        deviation = rows.std(axis=0)
        same(seed, "the deviation", found.scale, np.where(deviation > 0, deviation, 1), rtol=1e-8)


def test_histograms_and_the_summary_count_the_labels() -> None:
    for seed in seeds(30):
        _, y, federated = drawn_data(np.random.default_rng(seed))
        counts = np.array([np.bincount(b, minlength=4) for b in y])
        same(seed, "the histogram", data.label_histogram(federated), counts)
        found = data.describe(federated)
        shares, whole = counts / counts.sum(axis=1, keepdims=True), counts.sum(axis=0) / counts.sum()
        sizes, labels = counts.sum(axis=1), (counts > 0).sum(axis=1)
        same(seed, "skew", found.skew, np.mean(np.abs(shares - whole).sum(axis=1) / 2))
        same(seed, "samples", [found.train, found.test, found.samples], [sizes.sum(), 1, sizes.sum() + 1])
        same(seed, "sizes", found.sizes, [sizes.min(), np.median(sizes), sizes.max()])
        same(seed, "labels", found.labels, [labels.min(), np.median(labels), labels.max()])
        same(seed, "missing", found.missing, (counts.sum(axis=0) == 0).sum())


def rows_of(part: Any) -> list[tuple[float, ...]]:
    """Return the samples of a part as sorted rows (features, label)."""
    return sorted((*map(float, a), float(b)) for one in part for a, b in zip(one["x"], one["y"], strict=True))


def test_split_take_and_merge_lose_no_sample_and_invent_none() -> None:
    for seed in seeds(30):
        rng = np.random.default_rng(seed)
        x, y, federated = drawn_data(rng)
        everything = sorted((*map(float, a), float(b)) for i in range(len(x)) for a, b in zip(x[i], y[i], strict=True))
        bare = data.from_arrays({name: dict(one) for name, one in named(federated)}, classes=4)
        divided = data.split(bare, float(rng.uniform(0.05, 0.9)), seed=seed)
        assert rows_of([*divided.train, *divided.test]) == everything, f"seed {seed}: split"
        order = rng.permutation(len(x))
        assert [one["x"].tolist() for one in data.take(bare, order).train] == [x[i].tolist() for i in order], (
            f"seed {seed}"
        )
        groups = [group.tolist() for group in np.array_split(order, rng.integers(1, len(x) + 1))]
        merged = data.merge(bare, groups)
        assert rows_of(merged.train) == everything, f"seed {seed}: merge"
        same(seed, "sizes of the groups", merged.sizes, [sum(len(x[i]) for i in group) for group in groups])


def named(federated: data.Federated) -> list[tuple[str, Any]]:
    return list(zip(federated.names, federated.train, strict=True))
