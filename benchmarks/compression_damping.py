"""Measure whether a damped dual or a damped H_i helps compressed FedPD: `python -m benchmarks.compression_damping`.

The dual changes by `damping` times its step, and H_i follows by `alpha` times what arrived. fedpd uses 1 for both. The
table has the communications until the stationarity is 1e-10 times that at the start.
"""

import warnings
from typing import Any

import jax

from benchmarks.compression import TARGET, start_of
from fedpd import oracles, problems, simulate, transforms
from fedpd.algorithms.fedpd import FedPD
from fedpd.core import Array, Key, LocalObjective, Work
from fedpd.transforms import Transform
from fedpd.transforms._ways import Arrays

PAIRS = ((1.0, 1.0), (0.5, 1.0), (1.0, 0.7))
MOST = 500


class Damped(FedPD):
    """FedPD whose dual changes by `damping` times its step."""

    damping: float

    def local(self, f: LocalObjective, agent: Any, r: Array, key: Key) -> tuple[Any, Work]:
        new, work = super().local(f, agent, r, key)
        dual = agent.dual + self.damping * (new.dual - agent.dual)
        return new._replace(dual=dual, x0=new.x + self.eta * dual), work


class Slower(Transform):
    """A transform of which `alpha` times the vector arrives."""

    whole: Transform
    alpha: float

    @property
    def random(self) -> bool:
        return self.whole.random

    @property
    def rescale(self) -> Any:
        rescale = self.whole.rescale
        return None if rescale is None else lambda arrays, factor: rescale(arrays, self.alpha * factor)

    def pack(self, values: Array, key: Key) -> tuple[Arrays, Array | None]:
        return self.whole.pack(values, key)

    def unpack(self, arrays: Arrays, rest: Array | None, like: jax.ShapeDtypeStruct) -> Array:
        found = self.whole.unpack(arrays, rest, like)
        return found if self.rescale is not None else self.alpha * found

    def left(self, n: int) -> int:
        return self.whole.left(n)


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
                    plain = Damped(eta=eta, oracle=solve, p=0.0, start="local", damping=damping)
                    ways: Any = [Slower(whole=chain[0], alpha=alpha), *chain[1:]]
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
