"""Logistic regression on a CSV file with a column for the hospital.

    python examples/hospitals.py

Every hospital keeps its rows. Features are scaled by statistics that all hospitals share.
"""

from pathlib import Path

import fedpd
from fedpd import algorithms, data, oracles, problems, theory

patients = data.csv(Path(__file__).with_name("patients.csv"), client="hospital", label="readmitted")
scaled, _ = data.standardise(data.split(patients, 0.2))
problem = problems.softmax_regression(scaled, l2=0.01)
L = theory.smoothness(problem)
method = algorithms.fedpd(eta=2 / L, oracle=oracles.gd(step=0.5 / L, iterations=8))
run = fedpd.simulate(method, problem, rounds=500, until={"stationarity": 1e-10})
print(patients, run, sep="\n")
run.plot().savefig("hospitals.png")
