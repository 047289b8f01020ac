# %% [markdown]
# # Your own network
#
# Train an ordinary PyTorch module with convolutions, batch normalisation and dropout on characters by writer. JAX
# compiles the module, and the trained parameters load back into it.
#
# Modules of flax, equinox and haiku work in the same way.

# %%
import torch
from torch import nn

import fedpd
from fedpd import algorithms, data, oracles, problems, report

torch.manual_seed(0)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.dropout, self.scores = nn.Dropout(0.2), nn.Linear(8 * 6 * 6, 6)

    def forward(self, x):  # (B, 12, 12): the data have no axis of channels
        x = torch.relu(self.norm(self.convolution(x[:, None])))
        return self.scores(self.dropout(nn.functional.max_pool2d(x, 2).flatten(1)))


module = Net()
writers = data.characters(writers=8, samples=60, classes=6, size=12)
problem = problems.network(module, writers)

# %% [markdown]
# FedPD and FedAvg take the same local steps. Use `start="server"` for networks and few stochastic steps.

# %%
oracle = oracles.sgd(step=0.1, iterations=10, batch=10)
methods = {
    "FedPD": algorithms.fedpd(eta=10.0, oracle=oracle, start="server"),
    "FedAvg": algorithms.fedavg(oracle=oracle),
}
runs = {
    name: fedpd.simulate(method, problem, rounds=12, metrics_every=2)
    for name, method in methods.items()
}
report.figure(
    runs, "test_accuracy", title="On this small task FedPD and FedAvg are equally accurate"
)

# %% [markdown]
# Batch statistics stay with the writers: the model has parameters only. The model and one writer's statistics together
# make the module for that writer.

# %%
model = runs["FedPD"].model
statistics = problems.local_statistics(problem, model)
right = []
for i, samples in enumerate(writers.test):
    own = {name: rows[i] for name, rows in statistics.items()}
    problems.load_model(module, model | own).eval()
    with torch.no_grad():
        right.append(
            (module(torch.from_numpy(samples["x"])).argmax(1).numpy() == samples["y"]).mean()
        )
mean, worst = sum(right) / len(right), min(right)
print(f"test accuracy of the writers in PyTorch: mean {mean:.3f}, worst {worst:.3f}")
print(f"in the history: {runs['FedPD'].history['test_accuracy_agents'][-1]:.3f}")

# %% [markdown]
# Next: [which models you can bring](../networks/modules.md), [batch normalisation](../networks/batch_norm.md), and
# [deploying the same module](../deploy.md).
