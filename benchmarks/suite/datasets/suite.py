"""The problems of fedpd's suite."""

from typing import Any

from benchopt import BaseDataset

from fedpd.suite import PROBLEMS
from fedpd.suite.problems import known_answers, make
from fedpd.suite.runner import Federation


class Dataset(BaseDataset):
    name = "fedpd suite"
    requirements = ["pip::fedpd[bench]"]
    parameters = {"problem": list(PROBLEMS)}
    test_parameters = {"problem": ["quadratic-identity"]}

    def get_data(self) -> dict[str, Any]:
        return {"federation": Federation(make(self.problem)), "value": known_answers()[self.problem].value}
