"""A federation on this machine (`up`, `down`), start-up kits for several machines, and new apps to run on them."""

from fedpd.flower.local.federation import LocalFederation, down, read, up

__all__ = ["LocalFederation", "down", "read", "up"]
