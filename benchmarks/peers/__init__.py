"""One FedAvg round, side by side with other libraries: `python -m benchmarks.peers`, or `make bench-peers`.

Everyone is given the same arrays and the same start, and passes once over every agent's samples a round, in their
order: nobody shuffles, so that all compute the same model, and the losses printed beside the times show it. Every peer
is written as its documentation does, with its own FedAvg. Peers live in environments of their own under `.venv-peers/`,
but for PyTorch and Flower, which fedpd's development environment has.
"""
