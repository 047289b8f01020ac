"""The client's side: the ClientApp, the file with a client's state, and losses in PyTorch or NumPy."""
