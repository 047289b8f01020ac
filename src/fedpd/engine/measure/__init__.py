"""What a run measures and counts: columns, metrics, costs, the history, targets and divergence."""
