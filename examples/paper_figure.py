"""A figure for a paper: two methods, three seeds each, the spread as a band.

python examples/paper_figure.py
"""

import fedpd
from fedpd import algorithms, data, oracles, problems, report

problem = problems.penalized_logistic(*data.strongly_noniid(agents=20, samples=100, dimension=20))
local = oracles.sgd(step=0.02, iterations=50, batch=1)
methods = {"FedPD": algorithms.fedpd(eta=0.1, oracle=local), "FedAvg": algorithms.fedavg(oracle=local)}
runs = {label: fedpd.simulate(method, problem, rounds=200, seed=[0, 1, 2]) for label, method in methods.items()}
report.figure(runs, width=3.4).savefig("figure.pdf")
