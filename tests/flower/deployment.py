"""A real federation for tests: an app written by `new_app`, run on `local.up`, and what a simulation makes of it."""

import importlib
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import fedpd
from fedpd import problems
from fedpd.flower import local
from fedpd.flower.local import LocalFederation, programs
from fedpd.flower.local.federation import Page
from fedpd.flower.local.new_app import new_app
from fedpd.flower.local.programs import Member, tail

AGENTS = 2
FAST = {"agents": AGENTS, "evaluate-every": 0, "deadline": 300.0, "resend": 20.0, "iterations": 3}


class Deployment:
    """A federation and an app."""

    def __init__(self, folder: Path, framework: str = "jax", page: Page | None = None) -> None:
        self.app, self.framework = folder / "toy-deployed", framework
        new_app(self.app, framework)
        self.federation: LocalFederation = local.up(folder / "federation", AGENTS, page)

    def repair(self) -> None:
        """Start the killed processes again."""
        self.federation = local.up(self.federation.folder, AGENTS)

    def start(self, **config: Any) -> None:
        words = " ".join(f"{key}={value!r}".replace("'", '"') for key, value in (FAST | config).items())
        programs.flwr(self.federation.home, "run", str(self.app), programs.CONNECTION, "--run-config", words)

    def member(self, name: str) -> Member:
        return next(member for member in self.federation.members if member.name == name)

    def wait(self, what: Callable[[], Any], seconds: float) -> Any:
        """Return the result of `what` when it is true; fail with the logs if it stays false."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                logs = "\n".join(f"{member.name}:\n{tail(member)}" for member in self.federation.members)
                raise AssertionError(f"not within {seconds} s\n{logs}")
            time.sleep(0.2)
        return found

    def communications(self, out: str) -> int:
        """Return the number of communications that the server has done, from its checkpoints."""
        names = [path.stem for path in (self.federation.folder / out / "checkpoints").glob("round-*.safetensors")]
        return max((int(name.removeprefix("round-")) for name in names), default=0)

    def child(self, of: str, program: str) -> psutil.Process | None:
        """A process of this program that a member has started."""
        try:
            children = psutil.Process(self.member(of).pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return None
        return next((one for one in children if any(program in word for word in words_of(one))), None)

    def model(self, out: str, seconds: float) -> dict[str, np.ndarray]:
        path = self.federation.folder / out / "model.safetensors"
        self.wait(path.exists, seconds)
        return fedpd.load_model(path)

    def simulated(self, **config: Any) -> dict[str, np.ndarray]:
        """Return the result of `simulate` for the app."""
        return simulated(self.app, FAST | config)


def words_of(process: psutil.Process) -> list[str]:
    """Return the command of a process; nothing if it has ended, even if its parent has not noticed."""
    try:
        return process.cmdline()
    except psutil.NoSuchProcess:
        return []


def simulated(app: Path, config: dict[str, Any]) -> dict[str, np.ndarray]:
    """Return the result of `simulate` for an app, whose folder is named toy-deployed."""
    settings = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"] | config
    sys.path.insert(0, str(app))
    try:
        task = importlib.import_module("toy_deployed.task")
    finally:
        sys.path.remove(str(app))
        for name in [name for name in sys.modules if name.partition(".")[0] == "toy_deployed"]:
            del sys.modules[name]  # `new_app` refuses the name of a package that exists, and the next app has it too
    data = [dict(zip(("features", "class"), task.samples(i, task.TRAIN), strict=True)) for i in range(AGENTS)]
    problem = problems.from_losses(task.losses, data, task.start(settings))
    return fedpd.simulate(task.algorithm(settings), problem, rounds=settings["rounds"], seed=settings["seed"]).model


def equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    assert found.keys() == expected.keys()
    for name, leaf in expected.items():
        assert leaf.dtype == np.float64
        np.testing.assert_allclose(found[name], leaf, rtol=1e-12, atol=1e-14)
