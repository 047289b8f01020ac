"""Tools that do not depend on federated learning: checks, specs, files, checkpoints, precision, progress, versions."""
