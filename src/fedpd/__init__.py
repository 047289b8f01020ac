"""Federated optimisation for clients whose data differ.

>>> from fedpd import algorithms, data, oracles, problems, simulate
>>> problem = problems.penalized_logistic(*data.strongly_noniid(agents=4, samples=50, dimension=5))
>>> algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.5, iterations=8))
>>> run = simulate(algorithm, problem, rounds=50)
>>> bool(run.history["stationarity"][-1] < 1e-12)
True
"""

from fedpd import algorithms, data, loggers, oracles, problems, regularizers, schedules, theory
from fedpd._moved import install as _install_moved_paths
from fedpd.base.checks import FedpdError, TheoryWarning
from fedpd.base.spec import named
from fedpd.core import Algorithm, Exchange, Oracle, Problem
from fedpd.engine.columns import Column, Measure
from fedpd.engine.run import Ensemble, Run
from fedpd.engine.simulate import simulate
from fedpd.search.advise import Advice, advise
from fedpd.search.solve import solve
from fedpd.search.sweep import Sweep, sweep
from fedpd.search.tune import Tuned, tune

__version__ = "0.2.0.dev0"
_install_moved_paths()

__all__ = [
    "Advice",
    "Algorithm",
    "Column",
    "Ensemble",
    "Exchange",
    "FedpdError",
    "Measure",
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
    "named",
    "oracles",
    "problems",
    "regularizers",
    "schedules",
    "simulate",
    "solve",
    "sweep",
    "theory",
    "tune",
]
