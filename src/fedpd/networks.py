"""Networks for federated images and texts, as flax modules; `fedpd.problems.networks` defines them."""

from fedpd.problems.networks import GRU, MLP, Conv, Dense, LeafCNN, SmallCNN, max_pool, product

__all__ = ["GRU", "MLP", "Conv", "Dense", "LeafCNN", "SmallCNN", "max_pool", "product"]
