"""How solvers are judged: ||grad f||^2 relative to the start's, f - f*, and communications."""

from typing import Any

import numpy as np
from benchopt import BaseObjective


class Objective(BaseObjective):
    name = "Federated smooth optimisation"
    min_benchopt_version = "1.7"
    requirements = ["pip::fedpd[bench]"]
    test_config = {"dataset": {"name": "fedpd suite", "problem": "quadratic-identity"}}

    def set_data(self, federation: Any, value: float) -> None:
        self.federation, self.value = federation, value
        _, gradient = federation.evaluate(federation.start)
        self.first = float(gradient @ gradient)

    def get_objective(self) -> dict[str, Any]:
        return {"federation": self.federation}

    def evaluate_result(self, model: np.ndarray, communications: int) -> dict[str, float]:
        value, gradient = self.federation.evaluate(model)
        return {
            "value": float(gradient @ gradient) / self.first,
            "suboptimality": value - self.value,
            "communications": communications,
        }

    def get_one_result(self) -> dict[str, Any]:
        return {"model": self.federation.start, "communications": 0}
