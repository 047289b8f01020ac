"""The types that methods, oracles and problems are built from, and the functions that work on them."""

from fedpd.base.spec import Spec
from fedpd.base.value import Value, makes
from fedpd.core.message import (
    Change,
    Difference,
    Gradient,
    Iterate,
    Kind,
    Message,
    Model,
    Packed,
    Unbiased,
    Update,
    as_sent,
    has_packed,
    opened,
    vectors_of,
)
from fedpd.core.method import Around, Exchange, Method, Mixing, State, form_with_absent, message_kinds
from fedpd.core.objective import LocalObjective, Noise, Subproblem, augmented_lagrangian, in_blocks, proximal
from fedpd.core.oracle import Oracle, Work, check_oracle, count_samples
from fedpd.core.problem import UNKNOWN, Answer, Evaluation, Metric, Problem
from fedpd.core.types import Array, Key, Losses, Penalty, RandomLosses, Statistics, Tree, Vector

Algorithm = Method  # what a method is called in the arguments and the titles of the public functions

__all__ = [
    "UNKNOWN",
    "Algorithm",
    "Answer",
    "Around",
    "Array",
    "Change",
    "Difference",
    "Evaluation",
    "Exchange",
    "Gradient",
    "Iterate",
    "Key",
    "Kind",
    "LocalObjective",
    "Losses",
    "Message",
    "Method",
    "Metric",
    "Mixing",
    "Model",
    "Noise",
    "Oracle",
    "Packed",
    "Penalty",
    "Problem",
    "RandomLosses",
    "Spec",
    "State",
    "Statistics",
    "Subproblem",
    "Tree",
    "Unbiased",
    "Update",
    "Value",
    "Vector",
    "Work",
    "as_sent",
    "augmented_lagrangian",
    "check_oracle",
    "count_samples",
    "form_with_absent",
    "has_packed",
    "in_blocks",
    "makes",
    "message_kinds",
    "opened",
    "proximal",
    "vectors_of",
]
