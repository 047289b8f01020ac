"""Problems: N local objectives, their data, and where it is known their answer."""

from fedpd.problems.build import from_losses
from fedpd.problems.classification import classification, network
from fedpd.problems.hard_instance import hard_instance
from fedpd.problems.logistic import penalized_logistic
from fedpd.problems.quadratic import opposing_quadratics, quadratic, random_quadratic

__all__ = [
    "classification",
    "from_losses",
    "hard_instance",
    "network",
    "opposing_quadratics",
    "penalized_logistic",
    "quadratic",
    "random_quadratic",
    "share_blocks",
]
from fedpd.problems.redundancy import share_blocks
