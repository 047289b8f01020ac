"""A method on Flower: one agent, one server, the run that joins them, and their settings, history and checkpoints."""
