"""Local oracles that run in PyTorch, for the clients of `fedpd.flower.torch`."""

from fedpd.flower.clients.torch_oracles import optimizer, sgd, vr

__all__ = ["optimizer", "sgd", "vr"]
