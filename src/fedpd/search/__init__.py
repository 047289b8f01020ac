"""Finding good settings: sweeps over a grid, tuned methods, advice."""
