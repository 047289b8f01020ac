"""Compilation is most of what these tests do: let XLA optimise less, here and in the processes that tests start."""

import os

os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
