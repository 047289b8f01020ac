"""What knows nothing of federations: checks, specs, files, checkpoints, precision, progress, versions."""
