"""Modules of PyTorch, flax, equinox and haiku as functions of their parameters."""
