"""Find good settings, with sweeps over a grid, tuned step sizes, and advice."""
