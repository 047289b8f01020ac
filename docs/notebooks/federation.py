# %% [markdown]
# # A federation
#
# Run a method as a Flower app, whose clients keep their data, and check that it does what the simulation does.
#
# Here all clients run in this process, with messages serialised as on a network. The end of the page has the commands
# for processes and machines of their own.

# %%
import logging
import os
import tempfile

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedpd
from fedpd import algorithms, oracles, problems
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate

logging.getLogger("flwr").setLevel(logging.ERROR)
os.environ["FEDPD_STATE"] = tempfile.mkdtemp()  # the folder in which clients keep their state


def patients(hospital):
    rng = np.random.default_rng(hospital)
    measured = rng.normal(hospital / 2 - 0.75, 1, (40 + 30 * hospital, 3))
    ill = measured @ [1.5, -1.0, 0.5] + 0.3 * hospital > rng.logistic(size=len(measured))
    return {"measured": measured, "ill": np.where(ill, 1.0, -1.0)}


def losses(model, batch):  # one loss per sample
    return jnp.logaddexp(0, -batch["ill"] * (batch["measured"] @ model["w"] + model["b"]))


# %% [markdown]
# An app needs three functions: the method, the starting model, and a client's own part of the problem.


# %%
def algorithm(config):
    return algorithms.fedpd(eta=2.0, oracle=oracles.gd(step=0.5, iterations=10))


def start(config):
    return {"w": np.zeros(3), "b": np.zeros(())}


def local(context):
    return Local(losses, patients(int(context.node_config["partition-id"])))


grid = InProcessGrid(client_app(algorithm, start, local), agents=4, config={})
there = federate(grid, algorithm({}), start({}), Settings(agents=4, rounds=25, poll=0.01))
print(f"{there.history['communications'][-1]} communications")

# %% [markdown]
# The same problem, simulated with all data in one place:

# %%
problem = problems.from_losses(losses, [patients(i) for i in range(4)], start({}))
here = fedpd.simulate(algorithm({}), problem, rounds=25)
print(f"largest difference of the models: {np.abs(there.model['w'] - here.model['w']).max():.0e}")

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.6))
axes.semilogy(here.history["communications"], here.history["stationarity"], label="simulation", linewidth=4, alpha=0.4)
axes.semilogy(there.history["communications"], there.history["stationarity"], label="Flower", linestyle="--")
axes.set(xlabel="communications", ylabel="stationarity", title="The federation takes the steps of the simulation")
axes.legend()
plt.show()

# %% [markdown]
# For clients that are processes with TLS and keys of their own, `fedpd new-app` writes an app with these functions, and
# `fedpd up` starts a federation on this machine:
#
#     fedpd new-app hospitals --framework jax
#     cd hospitals && pip install --editable .
#     fedpd up --agents 4
#
# Next: [deployment](../deploy.md), [several machines](../deploy/machines.md), and
# [what the server can see](../deploy/privacy.md).
