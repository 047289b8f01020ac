"""The suite: smooth federated problems with known answers, a runner of methods on them, and performance profiles."""

from fedpd.suite.problems import PROBLEMS, SuiteProblem

__all__ = ["PROBLEMS", "SuiteProblem"]
