"""FedPD around a fit of your own: each client minimises its logistic regression by SciPy, from the last fit on.

python fit_hospitals.py
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import fedpd
from fedpd import algorithms, oracles
from fedpd.own_loop import Step

CLIENTS, ROUNDS, RIDGE = 4, 15, 0.1


def samples_of_clients() -> list[tuple[np.ndarray, np.ndarray]]:
    """Return the samples of four hospitals, the first of which has the smallest tumours."""
    features, labels = load_breast_cancer(return_X_y=True)
    features = (features - features.mean(0)) / features.std(0)
    order = np.argsort(features[:, 0] + np.random.default_rng(0).normal(size=len(labels)))
    return [(features[rows], labels[rows]) for rows in np.array_split(order[:568], CLIENTS)]


def value_and_gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """Return the mean logistic loss with a ridge penalty, and its gradient; the last weight is the intercept."""
    margins = (2 * y - 1) * (x @ w[:-1] + w[-1])
    slopes = -(2 * y - 1) / (1 + np.exp(margins)) / len(y)
    penalty = RIDGE * np.append(w[:-1], 0.0)
    return np.logaddexp(0, -margins).mean() + penalty @ w / 2, np.append(x.T @ slopes, slopes.sum()) + penalty


def fit(step: Step, x: np.ndarray, y: np.ndarray) -> None:
    """Minimise the loss plus the method's two terms, starting where the method says."""

    def local_problem(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, gradient = value_and_gradient(w, x, y)
        return value + step.value(w), gradient + step.extra(w)

    found: Any = minimize(local_problem, step.start, jac=True, method="L-BFGS-B", options={"maxiter": 20})
    step.result, step.updates = found.x, int(found.nit)


def main() -> None:
    clients = samples_of_clients()
    method = algorithms.fedpd(eta=10.0, oracle=oracles.own_loop())
    server = fedpd.Server(method, np.zeros(31))
    agents = [fedpd.Agent() for _ in clients]  # what each client keeps: its dual
    pooled = LogisticRegression(C=1 / (RIDGE * 568), tol=1e-10, max_iter=5000)
    pooled.fit(np.concatenate([x for x, _ in clients]), np.concatenate([y for _, y in clients]))
    best = np.append(pooled.coef_[0], pooled.intercept_)
    for r in range(ROUNDS):
        messages = []
        for agent, (x, y) in zip(agents, clients, strict=True):
            with fedpd.local(method, server.model, agent) as step:
                fit(step, x, y)
            messages.append(step.message)
        server.update(messages)
        distance = np.linalg.norm(server.model - best) / np.linalg.norm(best)
        print(f"round {r + 1:2}  relative distance to scikit-learn's fit of all data {distance:.1e}")


if __name__ == "__main__":
    main()
