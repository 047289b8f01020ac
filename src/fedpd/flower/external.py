"""Losses that JAX cannot trace: NumPy code, or another framework."""

from fedpd.flower.clients.external import external, from_gradient

__all__ = ["external", "from_gradient"]
