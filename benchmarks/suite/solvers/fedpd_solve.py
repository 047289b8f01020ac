"""fedpd.solve: FedPD-M, with nothing to choose."""

from typing import Any

from benchopt import BaseSolver

import fedpd
from fedpd.search.solve import chosen_method
from fedpd.suite.runner import flat


class Solver(BaseSolver):
    name = "fedpd solve"
    requirements = ["pip::fedpd[bench]"]
    sampling_strategy = "iteration"

    def set_objective(self, federation: Any) -> None:
        self.federation, self.algorithm = federation, chosen_method(federation.problem)

    def run(self, n_iter: int) -> None:
        self.model, self.communications = self.federation.start, 0
        if n_iter:
            found = fedpd.simulate(self.algorithm, self.federation.problem, rounds=n_iter, progress=False)
            self.model, self.communications = flat(found.model), int(found.history["communications"][-1])

    def get_result(self) -> dict[str, Any]:
        return {"model": self.model, "communications": self.communications}
