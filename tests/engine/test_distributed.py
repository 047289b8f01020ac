"""Agents sharded over processes by jax.distributed: the numbers of one process, to rounding."""

import json
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedpd import algorithms, data, oracles, problems, simulate
from fedpd.core import Algorithm, Problem

ROUNDS, PROCESSES, SECONDS = 6, 2, 240


def problem() -> Problem:
    """Five agents, so that two processes need a padding agent."""
    return problems.penalized_logistic(*data.strongly_noniid(agents=5, samples=12, dimension=4))


def method() -> Algorithm:
    return algorithms.fedpd(eta=0.5, oracle=oracles.sgd(step=0.1, iterations=3, batch=2), p=0.5)


def take_part(address: str, process: str, folder: str) -> None:
    """What each process runs: as on several machines, the same program everywhere."""
    import jax

    jax.distributed.initialize(address, num_processes=PROCESSES, process_id=int(process))
    first = simulate(method(), problem(), rounds=ROUNDS // 2, seed=3, devices=jax.device_count(), checkpoints=folder)
    run = simulate(method(), problem(), rounds=ROUNDS, seed=3, devices=jax.device_count(), checkpoints=folder)
    history = {name: column.tolist() for name, column in run.history.items()}
    cohort = simulate(method(), problem(), rounds=ROUNDS, seed=3, devices=jax.device_count(), cohort=3)
    history |= {f"cohort {name}": column.tolist() for name, column in cohort.history.items()}
    print(json.dumps({"model": run.model.tolist(), "history": history, "begun": len(first.history["round"])}))


@pytest.mark.slow
def test_two_processes_give_the_numbers_of_one(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = "import sys; from tests.engine.test_distributed import take_part as t; t(*sys.argv[1:])"
    command = [sys.executable, "-c", program, address]
    started = [
        subprocess.Popen(
            [*command, str(process), str(tmp_path)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        for process in range(PROCESSES)
    ]
    try:
        outputs = [process.communicate(timeout=SECONDS) for process in started]
    finally:
        for process in started:
            process.kill()
    assert [process.returncode for process in started] == [0] * PROCESSES, outputs[0][1][-3000:]
    alone = simulate(method(), problem(), rounds=ROUNDS, seed=3)
    cohort = simulate(method(), problem(), rounds=ROUNDS, seed=3, cohort=3, devices=1)
    for out, _ in outputs:
        found = json.loads(out.splitlines()[-1])
        assert found["begun"] == ROUNDS // 2 + 1
        np.testing.assert_allclose(found["model"], alone.model, rtol=1e-12)
        wanted = alone.history | {f"cohort {name}": column for name, column in cohort.history.items()}
        for name, column in wanted.items():
            np.testing.assert_allclose(found["history"][name], column, rtol=1e-9, atol=1e-12)
