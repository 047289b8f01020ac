"""Networks for federated images and texts, as flax modules; modules of `fedpd.problems` define them."""

from fedpd.problems.benchmark_networks import LSTM, CifarCNN
from fedpd.problems.networks import GRU, MLP, Conv, Dense, LeafCNN, SmallCNN, max_pool, product

__all__ = ["GRU", "LSTM", "MLP", "CifarCNN", "Conv", "Dense", "LeafCNN", "SmallCNN", "max_pool", "product"]
