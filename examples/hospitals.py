"""Logistic regression on a CSV file with a column for the hospital.

    python examples/hospitals.py

Every hospital keeps its rows. Features are scaled by statistics that all hospitals share.
"""

from pathlib import Path

import fedpd
from fedpd import data, problems

patients = data.csv(Path(__file__).with_name("patients.csv"), client="hospital", label="readmitted")
scaled, _ = data.standardise(data.split(patients, 0.2))
run = fedpd.solve(problems.softmax_regression(scaled, l2=0.01))
print(patients, run, sep="\n")
run.plot().savefig("hospitals.png")
