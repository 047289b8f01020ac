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

problem = problems.penalized_logistic(
    *data.strongly_noniid(agents=10, samples=60, dimension=10)
)
advice = fedpd.advise(problem, epsilon=1e-8)
print(advice)

# %% [markdown]
# `fedpd.tune` tries factors on the step size of each method's own rule, and keeps the factor that reaches the target
# with the fewest communications. If the best factor is the first or the last of the list, make the list longer: with
# factors up to 8 only, SCAFFOLD seems to need more communications than FedPD-GD here.

# %%
methods = ["FedPD-GD", "SCAFFOLD", "Local GD"]
scales = [2.0**k for k in range(-2, 9)]  # 1/4 to 256
tuned = fedpd.tune(problem, methods=methods, target=1e-8, rounds=100, scales=scales)
for one in tuned:
    print(one)

# %%
report.figure(tuned, title="Local GD, which has no correction, does not reach 1e-8")

# %% [markdown]
# If all agents take part in every round with full gradients, nothing needs tuning:

# %%
solved = fedpd.solve(problem, target=1e-8)
print(f"fedpd.solve: {solved.history['communications'][-1]} communications, nothing tuned")

# %% [markdown]
# Next: [which method](../choose.md), [search for settings](../search.md), and
# [38 problems on which methods were compared](../suite.md).
