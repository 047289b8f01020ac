"""Networks for federated images and texts, as flax modules; modules of `fedpd.problems` define them."""

from fedpd.problems.networks import GRU, LSTM, MLP, CifarCNN, Conv, Dense, LeafCNN, SmallCNN, max_pool, product

__all__ = ["GRU", "LSTM", "MLP", "CifarCNN", "Conv", "Dense", "LeafCNN", "SmallCNN", "max_pool", "product"]
