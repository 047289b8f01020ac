"""Problems with N local objectives, their data, and the solution if it is known."""

from fedpd.core import Metric
from fedpd.core.statistics import local_statistics
from fedpd.problems.build import from_agent_loss, from_losses, share_blocks
from fedpd.problems.classification import Normalisation, classification
from fedpd.problems.hard_instance import hard_instance
from fedpd.problems.logistic import penalized_logistic
from fedpd.problems.many_labels import multilabel, next_token
from fedpd.problems.network import load_model, network
from fedpd.problems.quadratic import opposing_quadratics, quadratic, random_quadratic
from fedpd.problems.regression import regression
from fedpd.problems.scores import auc, balanced_accuracy, c_index, f1
from fedpd.problems.softmax import softmax_regression
from fedpd.problems.supervised import supervised

__all__ = [
    "Metric",
    "Normalisation",
    "auc",
    "balanced_accuracy",
    "c_index",
    "classification",
    "f1",
    "from_agent_loss",
    "from_losses",
    "hard_instance",
    "load_model",
    "local_statistics",
    "multilabel",
    "network",
    "next_token",
    "opposing_quadratics",
    "penalized_logistic",
    "quadratic",
    "random_quadratic",
    "regression",
    "share_blocks",
    "softmax_regression",
    "supervised",
]
