"""A script that may be interrupted: run it again, and it continues from its last checkpoint.

    python examples/long_run.py

The result is the same, bit for bit, as without the interruption.
"""

import fedpd
from fedpd import algorithms, data, oracles, problems

problem = problems.penalized_logistic(*data.strongly_noniid(agents=20, samples=100, dimension=20))
method = algorithms.fedpd(eta=0.1, oracle=oracles.sgd(step=0.01, iterations=300, batch=1))
run = fedpd.simulate(method, problem, rounds=2000, checkpoints="runs/long", progress=True)
print(run)
