"""The simulator: who takes part, the compiled rounds, what is measured and counted, and the driver of a run."""
