"""PyTorch clients: `torch_local` returns a client's part of the problem from an nn.Module, a loss and a DataLoader."""

from fedpd.flower.clients.torch import load_model, model_of, torch_local

__all__ = ["load_model", "model_of", "torch_local"]
