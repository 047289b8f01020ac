"""Data without users, divided by flwr-datasets' partitioners."""

from typing import Any

import numpy as np
import pytest

from fedpd import FedpdError
from fedpd.data import label_histogram, partition, split

REASON = "fedpd[data] is not installed: no partitioners of flwr-datasets"
datasets: Any = pytest.importorskip("datasets", reason=REASON)
partitioners: Any = pytest.importorskip("flwr_datasets.partitioner", reason=REASON)

Y = np.arange(120) % 4
X = np.arange(120, dtype=np.float32)[:, None]


@pytest.mark.filterwarnings("ignore:Specifying null_placement:FutureWarning")  # datasets 4 with pyarrow 25 and newer
@pytest.mark.parametrize(
    ("partitioner", "agents"),
    [
        (partitioners.IidPartitioner(6), 6),
        (partitioners.DirichletPartitioner(5, "label", 0.5, min_partition_size=2, seed=1), 5),
        (partitioners.ShardPartitioner(6, "label", num_shards_per_partition=2, seed=1), 6),
        (partitioners.PathologicalPartitioner(4, "label", 2, seed=1), 4),
        (partitioners.SizePartitioner([1, 60, 59]), 3),
        (partitioners.LinearPartitioner(5), 5),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_sample_goes_to_one_agent(partitioner: Any, agents: int) -> None:
    data = partition(X, Y, partitioner)
    assert data.names == tuple(map(str, range(agents)))
    assert sorted(float(x) for samples in data.train for x in samples["x"][:, 0]) == X[:, 0].tolist()
    for samples in data.train:
        np.testing.assert_array_equal(samples["y"], samples["x"][:, 0] % 4)
    assert not partitioner.is_dataset_assigned()


def test_it_is_the_partitioner_s_own_division() -> None:
    data = partition(X, Y, partitioners.SizePartitioner([1, 60, 59]))
    assert data.sizes.tolist() == [1, 60, 59]
    assert split(data, 0.1).test_sizes.tolist() == [0, 6, 6]
    two = partition(X, Y, partitioners.PathologicalPartitioner(4, "label", 2, seed=1))
    assert ((label_histogram(two) > 0).sum(axis=1) == 2).all()


def test_natural_ids_name_the_agents() -> None:
    ids = np.array(["left", "right", "middle"])[np.arange(120) % 3]
    data = partition(X, Y, partitioners.NaturalIdPartitioner("side"), columns={"side": ids})
    assert sorted(data.names) == ["left", "middle", "right"]
    assert (data.train[list(data.names).index("right")]["x"][:, 0] % 3 == 1).all()


def test_what_is_refused() -> None:
    iid = partitioners.IidPartitioner
    with pytest.raises(
        FedpdError, match=r"partitioner = 'int': must be a rule of fedpd.data, or one of flwr_datasets.partitioner"
    ):
        partition(X, Y, 10)
    with pytest.raises(FedpdError, match=r"shapes of x and y = \(\(120, 1\), \(3,\)\): must be"):
        partition(X, Y[:3], iid(2))
    with pytest.raises(FedpdError, match=r"columns = \['label'\]: are names of columns that exist"):
        partition(X, Y, iid(2), columns={"label": Y})
    with pytest.raises(FedpdError, match="column 'side' = 3: must have 120 entries"):
        partition(X, Y, iid(2), columns={"side": [1, 2, 3]})
    with pytest.raises(FedpdError, match=r"NaturalIdPartitioner cannot divide columns \['row', 'label'\]: "):
        partition(X, Y, partitioners.NaturalIdPartitioner("side"))
    with pytest.raises(FedpdError, match="divides columns, not samples"):
        partition(X, Y, partitioners.VerticalEvenPartitioner(2))
    with pytest.raises(FedpdError, match=r"IidPartitioner cannot divide .*Ask for fewer agents"):
        partition(X[:2], Y[:2], iid(3))
    with pytest.raises(FedpdError, match=r"DirichletPartitioner: agent '\d+': there are no training or test samples"):
        partition(X, Y, partitioners.DirichletPartitioner(40, "label", 0.01, min_partition_size=0, seed=1))
    used = iid(2)
    used.dataset = datasets.Dataset.from_dict({"label": [1]})
    with pytest.raises(FedpdError, match=r"has a data set already. Make a new one"):
        partition(X, Y, used)


def test_test_samples_follow_the_classes_of_any_partitioner() -> None:
    data = partition(X, Y, partitioners.PathologicalPartitioner(4, "label", 2, seed=1), test=(X[:40], Y[:40]))
    assert data.test_sizes.sum() == 40
    assert not (label_histogram(data, "test") > 0)[label_histogram(data) == 0].any()
    with pytest.raises(FedpdError, match=r"agents = 4: is for the rules of fedpd"):
        partition(X, Y, partitioners.IidPartitioner(4), agents=4)
