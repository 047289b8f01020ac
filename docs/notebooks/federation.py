# %% [markdown]
# # A federation
#
# Run a method on a real federation: a server and two clients in processes of their own, which exchange models over TLS
# and keep their data. It takes the steps of the simulation.
#
# Here all processes run on this machine. The end of the page leads to several machines.

# %%
import inspect
import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np

import fedpd
from fedpd import algorithms, oracles, problems
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate
from fedpd.flower.local import down, up
from fedpd.flower.local.new_app import new_app

logging.getLogger("flwr").setLevel(logging.ERROR)
folder = tempfile.TemporaryDirectory()  # for all files of this notebook
os.environ["FEDPD_STATE"] = f"{folder.name}/clients"  # where clients keep their state


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


# %% [markdown]
# First the simulation, with all data in one place. Then the app with all clients in this process and messages
# serialised as on a network, which finds mistakes in seconds:

# %%
problem = problems.from_losses(losses, [patients(i) for i in range(2)], start({}))
simulated = fedpd.simulate(algorithm({}), problem, rounds=8)
grid = InProcessGrid(client_app(algorithm, start, local), agents=2, config={})
tried = federate(grid, algorithm({}), start({}), Settings(agents=2, rounds=8, poll=0.01))
difference = np.abs(tried.model["w"] - simulated.model["w"]).max()
print(f"largest difference of the models: {difference:.0e}")

# %% [markdown]
# Now the real federation. `new_app` writes an app, and its `task.py` gets the functions above. `up` starts a SuperLink
# and two SuperNodes with certificates and keys of their own, `flwr run` runs the app on them, and `down` ends all of
# these processes.

# %%
app, place = Path(folder.name, "hospitals"), Path(folder.name, "federation")
new_app(app, "jax")
imports = """import jax.numpy as jnp
import numpy as np
from fedpd import algorithms, oracles
from fedpd.flower import Local"""
functions = map(inspect.getsource, (patients, losses, algorithm, start, local))
(app / "hospitals" / "task.py").write_text("\n\n\n".join([imports, *functions]))

flwr = Path(sys.executable).parent / "flwr"  # it is installed beside this Python
settings = 'agents=2 rounds=8 evaluate-every=1 out="results"'
try:
    federation = up(place, agents=2)
    names = [member.name for member in federation.running]
    command = [flwr, "run", app, "fedpd", "--stream", "--run-config", settings]
    own = os.environ | {"FLWR_HOME": str(federation.home)}
    subprocess.run(command, env=own, stdout=subprocess.DEVNULL, timeout=400, check=True)
    (real,) = fedpd.load(place / "results").values()
finally:
    if place.exists():
        down(place)
    folder.cleanup()
print("These processes ran:", ", ".join(names))

# %% [markdown]
# The server has the model and the history, as after a simulation:

# %%
print("model:", real.model["w"].round(4), real.model["b"].round(4))
difference = np.abs(real.model["w"] - simulated.model["w"]).max()
print(f"largest difference from the simulation: {difference:.0e}")
for number in (0, 2, 4, 8):
    sent, error = real.history["bytes_up"][number], real.history["stationarity"][number]
    print(f"{number} communications: clients sent {sent} bytes, stationarity {error:.1e}")

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.6))
lines = {
    "simulation": (simulated, {"linewidth": 4, "alpha": 0.4}),
    "real federation": (real, {"linestyle": "--"}),
}
for label, (run, line) in lines.items():
    axes.semilogy(
        run.history["communications"], run.history["stationarity"], label=label, **line
    )
axes.set(
    xlabel="communications",
    ylabel="stationarity",
    title="The real federation takes the steps of the simulation",
)
axes.legend()
plt.show()

# %% [markdown]
# On a terminal, the same takes five commands:
#
#     fedpd new-app hospitals --framework jax
#     cd hospitals && pip install --editable .
#     fedpd up --agents 2
#     FLWR_HOME=runs/federation/flwr flwr run . fedpd --stream --run-config "agents=2"
#     fedpd down
#
# Next: [deployment](../deploy.md), [several machines](../deploy/machines.md), and
# [what the server can see](../deploy/privacy.md).
