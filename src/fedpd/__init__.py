"""Federated optimisation for data that is not alike.

>>> from fedpd import algorithms, data, oracles, problems, simulate
>>> problem = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=50, dimension=5))
>>> algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.5, iterations=8))
>>> run = simulate(algorithm, problem, rounds=50)
>>> bool(run.history["stationarity"][-1] < 1e-12)
True
"""

import contextlib
import os

import jax

# The agents of a simulation are sharded over devices, and on a CPU the cores are to count as such. JAX settles their
# number when it is first used, so it is set here, unless the user has set it.
if "JAX_NUM_CPU_DEVICES" not in os.environ and "xla_force_host_platform" not in os.environ.get("XLA_FLAGS", ""):
    with contextlib.suppress(RuntimeError):  # JAX was in use before fedpd was imported: its devices stay as they are
        jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)

from fedpd import algorithms, data, loggers, oracles, problems, regularizers, schedules, theory
from fedpd.advise import Advice, advise
from fedpd.checks import FedpdError, TheoryWarning
from fedpd.core import Algorithm, Exchange, Oracle, Problem
from fedpd.simulate import Ensemble, Run, simulate
from fedpd.sweep import Sweep, sweep
from fedpd.tune import Tuned, tune

__version__ = "0.1.0"

__all__ = [
    "Advice",
    "Algorithm",
    "Ensemble",
    "Exchange",
    "FedpdError",
    "Oracle",
    "Problem",
    "Run",
    "Sweep",
    "TheoryWarning",
    "Tuned",
    "advise",
    "algorithms",
    "data",
    "loggers",
    "oracles",
    "problems",
    "regularizers",
    "schedules",
    "simulate",
    "sweep",
    "theory",
    "tune",
]
