"""What the paper proves, as functions."""

from fedpd.theory.constants import heterogeneity, smoothness
from fedpd.theory.rates import communication_factor, max_eta, skip_probability

__all__ = ["communication_factor", "heterogeneity", "max_eta", "skip_probability", "smoothness"]
