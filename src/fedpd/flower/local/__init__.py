"""A federation on this machine (`up`, `down`), its certificates and processes, and new apps to run on it."""

from fedpd.flower.local.federation import LocalFederation, down, read, up

__all__ = ["LocalFederation", "down", "read", "up"]
