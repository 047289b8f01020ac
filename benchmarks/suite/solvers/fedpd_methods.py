"""fedpd's own methods, with steps by each method's own rule."""

from typing import Any

from benchopt import BaseSolver

import fedpd
from fedpd.algorithms import variants
from fedpd.suite.runner import default_methods, flat, rule_smoothness


class Solver(BaseSolver):
    name = "fedpd"
    requirements = ["pip::fedpd[bench]"]
    sampling_strategy = "iteration"
    parameters = {"method": default_methods()}
    test_config = {"method": "Gradient descent"}

    def set_objective(self, federation: Any) -> None:
        self.federation, problem = federation, federation.problem
        self.algorithm = variants()[self.method].rule(rule_smoothness(problem), problem.agents, 1.0)

    def run(self, n_iter: int) -> None:
        self.model, self.communications = self.federation.start, 0
        if n_iter:
            found = fedpd.simulate(self.algorithm, self.federation.problem, rounds=n_iter, progress=False)
            self.model, self.communications = flat(found.model), int(found.history["communications"][-1])

    def get_result(self) -> dict[str, Any]:
        return {"model": self.model, "communications": self.communications}
