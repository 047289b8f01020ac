"""Measure whether a damped dual or a damped H_i helps compressed FedPD: `python -m benchmarks.compression_damping`.

The dual changes by `damping` times its step, and H_i follows by `alpha` times what arrived. fedpd uses 1 for both. The
table has the communications until the stationarity is 1e-10 times that at the start.
"""

import warnings
from typing import Any

from benchmarks.compression import TARGET, start_of
from fedpd import Algorithm, algorithms, oracles, problems, simulate, transforms
from fedpd.base.spec import Spec
from fedpd.core import Array, Key, LocalObjective, Work

PAIRS = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.7))
MOST = 500


def damped(plain: Algorithm, eta: float, damping: float) -> Algorithm:
    """Return FedPD whose dual changes by `damping` times its step."""
    exchange = plain.exchanges[0]

    def local(f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        new, work = exchange.local(f, agent, r, key)
        dual = agent.dual + damping * (new.dual - agent.dual)
        return new._replace(dual=dual, x0=new.x + eta * dual), work

    return plain._replace(exchanges=(exchange._replace(local=local),))


def slower(one: transforms.Transform, alpha: float) -> transforms.Transform:
    """Return a transform of which `alpha` times the vector arrives."""
    rescale, named = one.rescale, one._replace(spec=Spec(f"slower_{alpha:g}"))  # programs are shared by specs
    if rescale is not None:
        return named._replace(rescale=lambda arrays, factor: rescale(arrays, alpha * factor))
    return named._replace(unpack=lambda arrays, rest, like: alpha * one.unpack(arrays, rest, like))


def main() -> None:
    """Print the table."""
    warnings.simplefilter("ignore")  # step sizes beyond the theorems
    top, bits = transforms.top_k, transforms.quantize
    chains = {
        "top 20 %, signs": ([top(0.2), transforms.sign()], False),
        "top 10 %, 4 bits": ([top(0.1), bits(4)], False),
        "2 bits": ([bits(2)], False),
        "top 20 %, 4 bits both ways": ([top(0.2), bits(4)], True),
    }
    print("| problem, transforms | " + " | ".join(f"damping {d:g}, alpha {a:g}" for d, a in PAIRS) + " |", flush=True)
    print("|---|" + "---|" * len(PAIRS), flush=True)
    for condition in (100, 4):
        problem = problems.random_quadratic(8, 100, convexity=1 / condition)
        target, solve = TARGET * start_of(problem), oracles.lbfgs(tolerance=1e-2, iterations=40)
        for label, (chain, both) in chains.items():
            cells = []
            for damping, alpha in PAIRS:
                found = []
                for eta in (3.0, 10.0):
                    plain = damped(algorithms.fedpd(eta=eta, oracle=solve), eta, damping)
                    ways: Any = [slower(chain[0], alpha), *chain[1:]]
                    wrapped = transforms.wrap(plain, up=ways, down=ways if both else ())
                    history = simulate(
                        wrapped, problem, rounds=MOST, until={"stationarity": target}, progress=False
                    ).history
                    if history["stationarity"][-1] <= target:
                        found.append(int(history["communications"][-1]))
                cells.append(str(min(found)) if found else f"not in {MOST}")
            print(f"| condition {condition}, {label} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
