"""Losses that JAX cannot trace: NumPy code, or another framework."""

from fedpd.problems.external import external, from_gradient

__all__ = ["external", "from_gradient"]
