"""The suite: smooth federated problems with known answers, a runner of methods on them, and performance profiles."""

from fedpd.suite.problems import PROBLEMS, Entry

__all__ = ["PROBLEMS", "Entry"]
