"""SciPy's L-BFGS at the server: an example of a solver that knows nothing of fedpd."""

from typing import Any

from benchopt import BaseSolver
from scipy.optimize import minimize


class Solver(BaseSolver):
    name = "scipy"
    requirements = ["scipy"]
    sampling_strategy = "iteration"

    def set_objective(self, federation: Any) -> None:
        self.federation = federation

    def run(self, n_iter: int) -> None:
        self.federation.asked = 0
        if n_iter == 0:
            self.model = self.federation.start
            return
        options = {"maxfun": n_iter, "maxiter": n_iter, "ftol": 0.0, "gtol": 0.0}
        self.model = minimize(
            self.federation.ask, self.federation.start, jac=True, method="L-BFGS-B", options=options
        ).x

    def get_result(self) -> dict[str, Any]:
        return {"model": self.model, "communications": self.federation.asked}
