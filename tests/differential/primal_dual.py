"""Primal-dual methods in plain NumPy; `methods` says how they are written and has their common parts."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from .methods import Given, Oracle, Phi, Round, Work, lagrangian, near, soft


def fedpd(given: Given, *, eta: float, oracle: Oracle, x0_rule: str = "paper", start: str = "local") -> Iterator[Round]:
    """Algorithm 2, with everyone present."""
    x, x0, dual = given.copies(), given.copies(), given.copies(0)
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            begin = x[i] if start == "local" else x0[i]
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0[i], dual[i], eta), begin, memory[i])
            work.add(i, *cost)
            old = dual[i].copy()
            dual[i] = old + (x[i] - x0[i]) / eta
            x0[i] = x[i] + eta * (dual[i] if x0_rule == "paper" else old)
        if communicates:
            x0[:] = x0.mean(axis=0)
            work.send(here)
        yield work.done(x0, x=x, dual=dual)


def fedpd_some_present(
    given: Given, *, eta: float, oracle: Oracle, skips: bool, start: str = "local"
) -> Iterator[Round]:
    """FedPD whose server keeps the mean of all duals. Agents send x_i, and with skips the change of their dual."""
    x, x0, dual, sent, mean_dual = given.copies(), given.copies(), given.copies(0), given.copies(0), 0 * given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            begin = x[i] if start == "local" else x0[i]
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0[i], dual[i], eta), begin, memory[i])
            work.add(i, *cost)
            dual[i] = dual[i] + (x[i] - x0[i]) / eta
            x0[i] = x[i] + eta * dual[i]
        if communicates:
            mean_dual = mean_dual + len(here) / given.number * np.mean([dual[i] - sent[i] for i in here], axis=0)
            x0[:] = np.mean([x[i] for i in here], axis=0) + eta * mean_dual
            sent[here] = dual[here]
            work.send(here, up=2 if skips else 1)
        yield work.done(x0)


def fedpd_corrected(given: Given, *, eta: float, oracle: Oracle) -> Iterator[Round]:
    """drift="corrected": x_{0,i} = x_i + eta (lambda_i - lambda_i^c + m), with m estimated from the server's models."""
    x, x0, dual, known = given.copies(), given.copies(), given.copies(0), given.copies(0)
    m, server, k = 0 * given.start, given.start, 0
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, k = Work(given), k + 1
        for i in here:
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0[i], dual[i], eta), x[i], memory[i])
            work.add(i, *cost)
            dual[i] = dual[i] + (x[i] - x0[i]) / eta
            x0[i] = x[i] + eta * (dual[i] - known[i] + m)
        if communicates:
            new = (x + eta * dual).mean(axis=0)
            m = m + 2 * ((new - server) / eta - k * m) / (k + 3)
            x0[:], known[:], server, k = new, dual, new, 0
            work.send(here)
        yield work.done(x0)


def fedpd_corrected_exact(given: Given, *, eta: float, oracle: Oracle) -> Iterator[Round]:
    """drift="corrected-exact": m is the mean of all agents' duals as far as they have been sent."""
    x, x0, dual, known, m = given.copies(), given.copies(), given.copies(0), given.copies(0), 0 * given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0[i], dual[i], eta), x[i], memory[i])
            work.add(i, *cost)
            dual[i] = dual[i] + (x[i] - x0[i]) / eta
            x0[i] = x[i] + eta * (dual[i] - known[i] + m)
        if communicates:
            m = m + len(here) / given.number * np.mean([dual[i] - known[i] for i in here], axis=0)
            x0[:] = np.mean([x[i] for i in here], axis=0) + eta * m
            known[here] = dual[here]
            work.send(here, up=2, down=2)
        yield work.done(x0)


def a_fedpd(given: Given, *, eta: float, oracle: Oracle) -> Iterator[Round]:
    """A-FedPD: the duals of absent agents take the mean update of the others."""
    dual, x0 = given.copies(0), given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, new = Work(given), {}
        for i in here:
            new[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0, dual[i], eta), x0, memory[i])
            work.add(i, *cost)
        if communicates:
            mean = np.mean(list(new.values()), axis=0)
            for i in range(given.number):
                dual[i] = dual[i] + (new.get(i, mean) - x0) / eta
            x0 = mean + eta * dual.mean(axis=0)
            work.send(here, down=2)
        yield work.done(np.stack([x0] * given.number))


def feddyn(given: Given, *, alpha: float, oracle: Oracle, start: str) -> Iterator[Round]:
    x, g, x0, h = given.copies(), given.copies(0), given.start, 0 * given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            phi = Phi(given, r, i, -g[i] - alpha * x0, alpha)
            x[i], memory[i], *cost = oracle(phi, x[i] if start == "local" else x0, memory[i])
            work.add(i, *cost)
            g[i] = g[i] - alpha * (x[i] - x0)
        if communicates:
            mean = x[here].mean(axis=0)
            h = h - alpha * len(here) / given.number * (mean - x0)
            x0 = mean - h / alpha
            work.send(here)
        yield work.done(np.stack([x0] * given.number))


def admm(given: Given, *, eta: float, oracle: Oracle, start: str, l1: float = 0.0) -> Iterator[Round]:
    """Consensus ADMM for f + l1 ||x||_1, whose server keeps the mean of the last x_i + eta lambda_i of all agents."""
    x, dual, told, x0 = given.copies(), given.copies(0), given.copies(), soft(given.start, eta * l1)
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            begin = x[i] if start == "local" else x0
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0, dual[i], eta), begin, memory[i])
            work.add(i, *cost)
            dual[i] = dual[i] + (x[i] - x0) / eta
            told[i] = x[i] + eta * dual[i]
        if communicates:
            x0 = soft(told.mean(axis=0), eta * l1)
            work.send(here)
        yield work.done(np.stack([x0] * given.number))


def fedadmm(
    given: Given, *, rho: float, oracle: Oracle, start: str, server_step: float | None = None
) -> Iterator[Round]:
    x, dual, told, x0 = given.copies(), given.copies(0), given.copies(), given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, deltas = Work(given), []
        for i in here:
            begin = x[i] if start == "local" else x0
            x[i], memory[i], *cost = oracle(lagrangian(given, r, i, x0, dual[i], 1 / rho), begin, memory[i])
            work.add(i, *cost)
            dual[i] = dual[i] + rho * (x[i] - x0)
            deltas.append(x[i] + dual[i] / rho - told[i])
            told[i] = x[i] + dual[i] / rho
        if communicates:
            x0 = x0 + (len(here) / given.number if server_step is None else server_step) * np.mean(deltas, axis=0)
            work.send(here)
        yield work.done(np.stack([x0] * given.number))


def feddr(
    given: Given, *, eta: float, oracle: Oracle, start: str, alpha: float = 1.0, l1: float = 0.0
) -> Iterator[Round]:
    x, y, told, x0 = given.copies(), given.copies(), given.copies(), soft(given.start, eta * l1)
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work = Work(given)
        for i in here:
            y[i] = y[i] + alpha * (x0 - x[i])
            begin = x[i] if start == "local" else x0
            x[i], memory[i], *cost = oracle(near(given, r, i, y[i], 1 / eta), begin, memory[i])
            work.add(i, *cost)
            told[i] = 2 * x[i] - y[i]
        if communicates:
            x0 = soft(told.mean(axis=0), eta * l1)
            work.send(here)
        yield work.done(np.stack([x0] * given.number))


def five_gcs(given: Given, *, step: float, tau: float, oracle: Oracle, mu: float = 0.0) -> Iterator[Round]:
    u, v, mean_u = given.copies(0), given.start, 0 * given.start
    memory: list[Any] = [None] * given.number
    for r, here, communicates in given.rounds():
        work, changes = Work(given), []
        for i in here:
            y, memory[i], updates, samples = oracle(Phi(given, r, i, -u[i] - tau * v, tau - mu), v, memory[i])
            work.add(i, updates, samples + given.agents[i].size)
            new = given.agents[i].gradient(y) - mu * y
            changes.append(new - u[i])
            u[i] = new
        if communicates:
            mean_u = mean_u + len(here) / given.number * np.mean(changes, axis=0)
            x = v - step * np.mean(changes, axis=0)
            v = (x - step * mean_u) / (1 + step * mu)
            work.send(here)
        yield work.done(np.stack([v] * given.number))
