"""Federated methods: one file each, its equations in the docstring."""

from fedpd.algorithms.fedavg import fedavg
from fedpd.algorithms.fedpd import fedpd
from fedpd.algorithms.fedprox import fedprox

__all__ = ["fedavg", "fedpd", "fedprox"]
