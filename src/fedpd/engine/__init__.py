"""The simulator: participation, compiled rounds, the measured and counted columns, and the driver of a run."""
