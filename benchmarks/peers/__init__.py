"""Compare one FedAvg round with other libraries: `python -m benchmarks.peers`, or `make bench-peers`.

All libraries get the same arrays, the same start and the same agents per round. An agent takes its samples in their
order. Nobody shuffles, so all compute the same model; the printed losses show it. The code for each library follows its
documentation and uses its own FedAvg. Each library has an environment of its own under `.venv-peers/`, except PyTorch
and Flower, which are in fedpd's development environment.
"""
