"""Scikit-learn's handwritten digits in groups that stand for writers: real data by client that needs no download.

The 1,797 digits are of 13 people, whom the file does not name. That its order follows them is a guess. In favour:
a linear classifier (scikit-learn's RidgeClassifier) finds the group of an image among 13 contiguous ones in 26 % of the
cases in cross-validation, and in 19 % if it is trained on the first half of each group and tested on the second; among
random groups 8 %. Against: 13 groups of equal size cannot be the 13 people exactly, and the order can follow
something else, such as the day of the scan. The labels hardly differ between groups.
"""

import numpy as np

from fedpd.base.checks import below, count, positive
from fedpd.base.errors import extra
from fedpd.base.typed import explained
from fedpd.data.federated import Federated, from_arrays


@explained
def digits(groups: int = 13, *, test_share: float = 0.25, seed: int = 0) -> Federated:
    """Return scikit-learn's digits in contiguous groups, which stand for their writers.

    The file does not say who wrote which digit, so the groups are not the writers: a linear classifier finds an
    image's group more often than by chance (26 %, not 8 %). Labels hardly differ between groups.

    It needs `pip install 'fedpd[bench]'`, and no network.

    Args:
        groups: N, the number of groups. Each is an agent.
        test_share: The share of each group's digits that is set aside for tests, in (0, 1).
        seed: The seed that chooses them.

    Returns:
        Data of N agents, named "group 0" and so on. Features are (8, 8), float32 in [0, 1].

    Examples:
        >>> from fedpd import data
        >>> data.digits(groups=13).agents
        13
    """
    count("groups", groups, "Give the groups, each an agent, e.g. 13", least=1)
    below("groups", groups, 899, "Leave at least two digits for each")
    positive("test_share", test_share, "Give the part of a group's digits that is for tests, e.g. 0.25")
    below("test_share", test_share, 1, "Leave some to train on")
    count("seed", seed, "Give the seed, an integer", least=0)
    with extra("bench", "data.digits"):
        from sklearn.datasets import load_digits
    images, labels = load_digits(return_X_y=True)
    x, y = (images / 16).astype(np.float32).reshape(-1, 8, 8), labels.astype(np.int32)
    rng, train, test = np.random.default_rng(seed), {}, {}
    for number, rows in enumerate(np.array_split(np.arange(len(y)), groups)):
        held = min(max(1, round(len(rows) * test_share)), len(rows) - 1)
        mixed = rng.permutation(rows)
        test[f"group {number}"], train[f"group {number}"] = (
            {"x": x[part], "y": y[part]} for part in (mixed[:held], mixed[held:])
        )
    return from_arrays(train, test, classes=10, name="digits")
