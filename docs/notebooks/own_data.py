# %% [markdown]
# # Your own data
#
# Load a table with one row per sample and a column with the client's name, look at how much the clients differ, and
# train one model for all of them.
#
# The table here has made-up patients of four hospitals. `data.parquet`, `data.leaf` and `data.from_arrays` return the
# same kind of object from other sources.

# %%
import tempfile
from pathlib import Path

import numpy as np

import fedpd
from fedpd import algorithms, data, oracles, problems, report

rng = np.random.default_rng(0)
lines = ["hospital,age,pressure,dose,healed"]
made_up = {"harbour": (60, 35), "north": (150, 50), "south": (90, 65), "west": (40, 75)}
for hospital, (patients, mean_age) in made_up.items():
    for age in rng.normal(mean_age, 8, patients):
        pressure, dose = rng.normal(90 + age / 2, 10), rng.integers(0, 4)
        healed = 0.08 * (55 - age) + 0.9 * dose - 1 > rng.logistic()
        lines.append(f"{hospital},{age:.0f},{pressure:.0f},{dose},{'yes' if healed else 'no'}")
table = Path(tempfile.mkdtemp(), "patients.csv")
table.write_text("\n".join(lines))
print("\n".join(lines[:4]))

# %% [markdown]
# `client` names the column with the client, `label` the column to predict. A quarter of each hospital's patients is
# kept for testing. Ages and pressures have different scales, so the columns are standardised with statistics over all
# clients.

# %%
hospitals = data.csv(table, client="hospital", label="healed")
hospitals, scaling = data.standardise(data.split(hospitals, 0.25))
summary = data.describe(hospitals)
print(
    f"{summary.agents} hospitals, {summary.train} patients to train on, {summary.test} to test"
)
print(f"a hospital trains on {summary.sizes.least} to {summary.sizes.most} patients")
print(f"skew of the labels: {summary.skew:.2f} (0: all hospitals heal the same share)")

# %% [markdown]
# The problem is a logistic regression; `weights="samples"` counts each patient equally, and not each hospital.
# `fedpd.solve` needs no settings.

# %%
problem = problems.softmax_regression(hospitals, l2=1e-2, weights="samples")
solved = fedpd.solve(problem, target=1e-10)
averaged = fedpd.simulate(
    algorithms.fedavg(oracle=oracles.gd(step=0.5, iterations=10)), problem, rounds=60
)
report.figure(
    {"fedpd.solve": solved, "FedAvg": averaged},
    title="FedAvg stops at an error floor, fedpd.solve does not",
)

# %% [markdown]
# `run.history` has one value per measured round.

# %%
print(f"{solved.history['communications'][-1]} communications")
print(f"accuracy on the patients kept for testing: {solved.history['test_accuracy'][-1]:.2f}")

# %% [markdown]
# Next: [sources of data](../data/sources.md), [scaling](../data/scaling.md), and
# [what is accepted](../data/sources.md#rules).
