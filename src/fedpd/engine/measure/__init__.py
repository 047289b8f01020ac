"""Measures and counts what a run does: columns, metrics, costs, the history, targets and divergence."""
