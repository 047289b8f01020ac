"""Networks for federated images and texts, as flax modules: see `fedpd.problems.networks`."""

from fedpd.problems.networks import GRU, MLP, Conv, Dense, LeafCNN, SmallCNN, max_pool, product

__all__ = ["GRU", "MLP", "Conv", "Dense", "LeafCNN", "SmallCNN", "max_pool", "product"]
