# %% [markdown]
# # Choose and tune
#
# Measure how much the clients differ, ask for advice, and give several methods the same number of tries before you
# compare them.
#
# The problem is the paper's logistic regression with heterogeneous data, in a small size.

# %%
import fedpd
from fedpd import data, problems, report

problem = problems.penalized_logistic(*data.strongly_noniid(agents=10, samples=60, dimension=10))
advice = fedpd.advise(problem, epsilon=1e-8)
print(advice)

# %% [markdown]
# `fedpd.tune` tries factors on the step size of each method's own rule, and keeps the factor that reaches the target
# with the fewest communications.

# %%
scales = [0.25, 0.5, 1, 2, 4, 8, 16, 32]
tuned = fedpd.tune(problem, methods=["FedPD-GD", "SCAFFOLD", "Local GD"], target=1e-8, rounds=100, scales=scales)
for one in tuned:
    print(one)

# %%
report.figure(tuned, title="The tuned methods: a method without a correction does not reach the target")

# %% [markdown]
# If all agents take part in every round with full gradients, nothing needs tuning:

# %%
solved = fedpd.solve(problem, target=1e-8)
print(f"fedpd.solve: {solved.history['communications'][-1]} communications, nothing tuned")

# %% [markdown]
# Next: [which method](../choose.md), [search for settings](../search.md), and
# [38 problems on which methods were compared](../suite.md).
