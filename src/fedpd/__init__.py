"""Federated optimisation for clients whose data differ.

>>> from fedpd import algorithms, data, oracles, problems, simulate
>>> problem = problems.penalized_logistic(
...     *data.strongly_noniid(agents=4, samples=50, dimension=5)
... )
>>> algorithm = algorithms.fedpd(eta=1.0, oracle=oracles.gd(step=0.5, iterations=8))
>>> run = simulate(algorithm, problem, rounds=50)
>>> bool(run.history["stationarity"][-1] < 1e-12)
True
"""

from typing import TYPE_CHECKING

from fedpd.base.lazy import lazy_names as _lazy_names

__version__ = "0.2.0"

if TYPE_CHECKING:  # a name is imported when it is first used, so that `import fedpd` costs nothing
    from fedpd import algorithms as algorithms
    from fedpd import clock as clock
    from fedpd import data as data
    from fedpd import loggers as loggers
    from fedpd import oracles as oracles
    from fedpd import problems as problems
    from fedpd import regularizers as regularizers
    from fedpd import schedules as schedules
    from fedpd import theory as theory
    from fedpd import transforms as transforms
    from fedpd.base.errors import FedpdError as FedpdError
    from fedpd.base.errors import TheoryWarning as TheoryWarning
    from fedpd.base.spec import named as named
    from fedpd.core import Algorithm as Algorithm
    from fedpd.core import Exchange as Exchange
    from fedpd.core import Method as Method
    from fedpd.core import Oracle as Oracle
    from fedpd.core import Problem as Problem
    from fedpd.engine.measure.columns import Column as Column
    from fedpd.engine.measure.columns import Measure as Measure
    from fedpd.engine.run import Ensemble as Ensemble
    from fedpd.engine.run import Run as Run
    from fedpd.engine.run import Runs as Runs
    from fedpd.engine.simulate import simulate as simulate
    from fedpd.experiments.recorded import load as load
    from fedpd.experiments.recorded import load_model as load_model
    from fedpd.own_loop import Agent as Agent
    from fedpd.own_loop import Server as Server
    from fedpd.own_loop import local as local
    from fedpd.search.advise import Advice as Advice
    from fedpd.search.advise import advise as advise
    from fedpd.search.compare import Comparison as Comparison
    from fedpd.search.compare import compare as compare
    from fedpd.search.solve import solve as solve
    from fedpd.search.sweep import Sweep as Sweep
    from fedpd.search.sweep import sweep as sweep
    from fedpd.search.train import train as train
    from fedpd.search.tune import tune as tune
    from fedpd.search.tuned import Tuned as Tuned

__getattr__, __dir__, __all__ = _lazy_names(
    __name__, submodules=("base", "checks", "core", "engine", "networks", "report", "search", "torch")
)
