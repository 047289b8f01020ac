"""Keep a client's data on its disk: the state of its runs, and a memory that outlives them.

The state is a file with the agent and its last order, written atomically and with a checksum.

Flower saves `context.state` only after the client has sent its reply, and removes it with a SuperNode or a run. A
client could then lose its state after its reply. Here the file is on disk before the client replies:
FOLDER/NAME/RUN.safetensors, where RUN is the identity of the run (the same after a resume). The reply follows from the
state, so the client can compute it again.

The disk space is bounded: a client keeps the files of its newest runs, and of others only while they are in use. Arrays
that an order has not changed are in the file once.

The memory is the file memory.json: the sums that the client took part in, and the privacy that it spent. The client
writes it before anything leaves that it has to remember, so a crash can make it remember too much, never too little.
Without it, a server could ask for the same sum over other clients, and the difference of two sums would show the
messages in which they differ; or spend the same epsilon again in another run. So keep the file when you move a client
or restore it from a backup.
"""

import json
import logging
import math
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import jax
import numpy as np
from flwr.app import Context

from fedpd.base import checkpoint
from fedpd.base.atomic import make_folder, read_file, replace_file
from fedpd.flower.carry.masked_client import Subject
from fedpd.flower.carry.protocol import TRAIN, Order
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.clients.site_policy import (
    SitePolicy,
    check_clients,
    check_spending,
    policy_file,
    read_policy,
)
from fedpd.flower.method.agent import SavedAgent
from fedpd.flower.method.shapes import Shapes

log = logging.getLogger(f"flwr.{__name__}")  # a child of Flower's logger, so that the lines go to the same place

NEWEST, MOST = 2, 8  # a client keeps the state of its newest runs, and of at most this many
IN_USE_SECONDS = 24 * 3600.0  # other runs are in use if they had an order within this time
BEFORE, AFTER = "state[0]", "state[1]"  # the names of arrays before and after the local steps
WORK = ("updates", "samples")
FOLDER = "fedpd-state"  # the key of a SuperNode's configuration with the folder for states
if sys.platform != "win32":
    import fcntl

MEMORY = "memory.json"
BLOCK = 2**20  # bytes that are compared at a time


def folder(context: Context, name: str) -> Path:
    """Return the folder of a client's state: from its node's configuration, the environment, or in the home folder."""
    place = context.node_config.get(FOLDER) or os.environ.get("FEDPD_STATE") or Path.home() / ".fedpd" / "clients"
    return Path(str(place)) / quote(name, safe=" ").replace(".", "%2E")


def file(folder: Path, run: str) -> Path:
    """Return the file of a run; refuse a name that is not the identity of a run."""
    if not re.fullmatch(r"[0-9a-f-]{1,80}", run):  # it comes from the server and becomes a file name
        raise RefusedError(f"order: run = {run!r} is not the identity of a run.")
    return folder / f"{run}.safetensors"


def check_disk(folder: Path, shapes: Shapes) -> None:
    """Refuse to start if the disk has no room for the client's state: two states, and two more while they are replaced.

    Raises:
        RefusedError: If there is too little room, or the folder cannot be written.
    """
    state = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes.agent))
    needed = 4 * state + 2**20
    try:
        free = free_bytes(folder)
    except OSError as error:
        raise RefusedError(f"{folder}: the client cannot write its state there ({error.strerror}).") from None
    if free < needed:
        raise RefusedError(
            f"{folder}: has {free / 1e6:.0f} MB left, but the client's state needs {needed / 1e6:.0f} MB."
        )


def free_bytes(folder: Path) -> int:
    """Return the room on the disk of a folder, which is created; raise OSError if it cannot be written."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        return shutil.disk_usage(folder).free


def load(path: Path, shapes: Shapes, order: Order | None = None) -> SavedAgent | None:
    """Return the client's saved state of a run; None if there is none, or if the file is damaged (which is logged).

    Args:
        path: The file.
        shapes: The shapes of the state.
        order: The order that continues from the state. If it does not continue from the state before the last local
            steps, that state is neither read nor checked, and `before` is None.
    """
    if not path.exists():
        return None
    try:
        arrays, meta = checkpoint.read(path, AFTER, *WORK)
        after, before = checkpoint.unflatten(AFTER, shapes.agent, arrays), None
        if order is None or meta["number"] not in (order.number, order.used):
            same = {name: arrays[AFTER + name.removeprefix(BEFORE)] for name in meta.get("unchanged", ())}
            before = checkpoint.unflatten(BEFORE, shapes.agent, checkpoint.read(path, BEFORE)[0] | same)
    except checkpoint.CheckpointError as error:
        log.warning("The client's state is lost: %s", error)
        return None
    updates, samples = (arrays[name] for name in WORK)
    return SavedAgent(
        meta["number"], before, after, meta["rebuilt"], updates, samples, meta.get("sent", True), meta.get("arrays", "")
    )


def save(path: Path, saved: SavedAgent) -> None:
    """Write a client's state in a run, and remove the files of runs that are no longer in use."""
    arrays = checkpoint.flatten("state", (saved.before, saved.after))
    unchanged = [
        name
        for name, array in arrays.items()
        if name.startswith(BEFORE) and _same_bits(array, arrays[AFTER + name.removeprefix(BEFORE)])
    ]
    arrays = {name: array for name, array in arrays.items() if name not in set(unchanged)}
    arrays |= {"updates": saved.updates, "samples": saved.samples}
    meta = {"number": saved.number, "rebuilt": saved.rebuilt, "sent": saved.sent, "unchanged": unchanged}
    meta |= {"arrays": saved.arrays} if saved.arrays else {}
    checkpoint.write(path, arrays, meta)
    _remove_old_runs(path.parent)


def _same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return whether two arrays of the same shape have the same bits; most that differ do so in the first block."""
    first, second = (array.reshape(-1).view(np.uint8) for array in (one, other))
    return all(np.array_equal(first[at : at + BLOCK], second[at : at + BLOCK]) for at in range(0, first.size, BLOCK))


def _remove_old_runs(folder: Path) -> None:
    """Remove the states of runs that are neither among the newest nor in use."""
    times = {path: path.stat().st_mtime for path in folder.glob("*.safetensors")}
    runs = sorted(times, key=lambda path: times[path], reverse=True)
    for place, old in enumerate(runs):
        if place >= NEWEST and (place >= MOST or times[old] < time.time() - IN_USE_SECONDS):
            log.info("The client removes its state of an old run, %s.", old.stem)
            old.unlink(missing_ok=True)


class Spent(NamedTuple):
    """The privacy of a client that a run has spent: its releases (local steps or messages), epsilon and delta."""

    releases: int = 0
    epsilon: float = 0.0
    delta: float = 0.0


class ClientMemory:
    """The memory of the client of a context, as `masking_mod` needs it.

    Args:
        name: Returns the name of a client.
    """

    def __init__(self, name: Callable[[Context], str]) -> None:
        self.name = name

    def settled(self, context: Context, subject: Subject) -> Sequence[str]:
        """Return the clients in the sum that this client has revealed for this order; none if it has not."""
        if subject.kind != TRAIN:
            return []
        return _settled(read_memory(self._path(context)), subject) or []

    def check(self, context: Context, subject: Subject, clients: Sequence[str]) -> None:
        """Refuse to take part in an attempt with these clients."""
        policy = read_policy(policy_file(context.node_config))
        found = read_memory(self._path(context))
        check_clients(policy, subject.least, masked=True)
        check_set(policy, found, subject, clients)
        if subject.kind != TRAIN:
            check_evaluations_left(policy, found)

    def remember(self, context: Context, subject: Subject, clients: Sequence[str], digest: str) -> None:
        """Write down the clients in a sum before it is revealed, or refuse it (see `masked_client.Memory`)."""
        policy = read_policy(policy_file(context.node_config))
        with changing(self._path(context)) as found:
            check_set(policy, found, subject, clients, digest)
            index = _index(found["sets"], sorted(clients))
            if subject.kind != TRAIN:
                check_evaluations_left(policy, found)
                found["evaluations"] += 1
                found["models"][digest] = index
                return
            run = found["runs"].setdefault(subject.run, _new_run())
            if not run["orders"] or run["orders"][-1][1] != index:
                run["orders"].append([subject.number, index])
            run["last"] = max(run["last"], subject.number)

    def count_evaluation(self, context: Context) -> None:
        """Count an evaluation without masks before it is sent, or refuse it."""
        policy = read_policy(policy_file(context.node_config))
        with changing(self._path(context)) as found:
            check_evaluations_left(policy, found)
            found["evaluations"] += 1

    def charge(
        self,
        context: Context,
        run: str,
        releases: int,
        delta: float,
        epsilon_of: Callable[[int], float],
        limit: float | None = None,
    ) -> Spent:
        """Write down what a run spends before the local steps begin, or refuse them.

        Args:
            context: The client's context.
            run: The identity of the run.
            releases: How many releases are added.
            delta: The delta of the run.
            epsilon_of: Returns the epsilon of this many releases.
            limit: The largest epsilon of the run by the method itself; None: it has none.
        """
        policy = read_policy(policy_file(context.node_config))
        with changing(self._path(context)) as found:
            spent = spending(found, run, releases, delta, epsilon_of)
            check_total(policy, found, run, spent)
            if limit is not None and spent.epsilon > limit * (1 + 1e-9):
                rule = f"spends epsilon = {spent.epsilon:.6g} of a sample, but its method may spend {limit:g}"
                raise RefusedError(f"order: the run {rule}. Its rounds are done; start a new run.")
            found["runs"].setdefault(run, _new_run())["spent"] = list(spent)
            return spent

    def check_plan(
        self, context: Context, run: str, releases: int, delta: float, epsilon_of: Callable[[int], float]
    ) -> None:
        """Refuse a run whose planned releases, all together, would exceed the budget."""
        found, policy = read_memory(self._path(context)), read_policy(policy_file(context.node_config))
        done = spending(found, run, 0, delta, epsilon_of).releases
        check_total(policy, found, run, spending(found, run, max(releases - done, 0), delta, epsilon_of))

    def spent(self, context: Context, run: str) -> Spent:
        """Return what a run has spent so far."""
        return _spent(read_memory(self._path(context)), run)

    def _path(self, context: Context) -> Path:
        return folder(context, self.name(context)) / MEMORY


def _new_run() -> dict[str, Any]:
    return {"last": -1, "orders": [], "spent": [0, 0.0, 0.0]}


def read_memory(path: Path) -> dict[str, Any]:
    """Return the content of the file; an empty memory if there is none.

    Raises:
        RefusedError: If the file is damaged. The client then takes part in nothing.
    """
    if not path.exists():
        return {"sets": [], "runs": {}, "evaluations": 0, "models": {}}
    try:
        found = json.loads(read_file(path))
        found["sets"], found["runs"], found["evaluations"], found["models"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        rule = "it has the sums and the privacy of earlier runs"
        remedy = "Restore it from a backup; if you remove it, these count as nothing"
        raise RefusedError(f"{path.name}: this client's memory cannot be read, and {rule}. {remedy}.") from error
    return dict(found)


@contextmanager
def changing(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the content of the file, and write it on disk if the block ends without an error."""
    make_folder(path.parent)
    with (path.parent / f".{MEMORY}.lock").open("wb") as lock:  # two runs may ask a client at the same time
        if sys.platform != "win32":
            fcntl.flock(lock, fcntl.LOCK_EX)
        found = read_memory(path)
        yield found
        with replace_file(path) as file:
            file.write(json.dumps(found).encode())


def _index(sets: list[Any], names: list[str]) -> int:
    if names not in sets:
        sets.append(names)
    return sets.index(names)


def _settled(found: Mapping[str, Any], subject: Subject) -> list[str] | None:
    """Return the clients in the sum that this client has revealed for an order; None if it has not."""
    run = found["runs"].get(subject.run)
    if run is None or subject.number > run["last"]:
        return None
    before = [index for number, index in run["orders"] if number <= subject.number]
    return list(found["sets"][before[-1]]) if before else None


def check_set(
    policy: SitePolicy, found: Mapping[str, Any], subject: Subject, clients: Sequence[str], digest: str = ""
) -> None:
    """Refuse a sum whose difference to an earlier one shows the messages of too few clients.

    Args:
        policy: The client's rules.
        found: The client's memory.
        subject: What is added up.
        clients: The clients in the sum.
        digest: The hash of the model to evaluate; "": the sum is not of an evaluation, which may be over other clients.
    """
    now = set(clients)
    if policy.participants is not None and now != set(policy.participants):
        policy.refuse("participants", f"the sum is over {_listed(now)}, but must be over exactly the clients listed.")
    same = _settled(found, subject) if subject.kind == TRAIN else None
    if digest in found["models"]:
        same = found["sets"][found["models"][digest]]
    if same is not None and set(same) != now:
        what = f"communication {subject.number}" if subject.kind == TRAIN else "the evaluation of this model"
        raise RefusedError(
            f"the sum of {what} was over {_listed(same)}, and is now over {_listed(now)}: the difference of both would "
            "show single messages. Ask the same clients again."
        )
    own = found["runs"].get(subject.run, _new_run())["orders"] if policy.same_clients and subject.kind == TRAIN else []
    for _, index in own:
        if set(found["sets"][index]) != now:
            before = _listed(found["sets"][index])
            rule = f"an earlier sum of this run was over {before}, and this one is over {_listed(now)}"
            policy.refuse("same-clients", f"{rule}: near the solution, the difference of both shows single messages.")
    others = [run["orders"] for name, run in found["runs"].items() if name != subject.run]
    earlier = {index for orders in others for _, index in orders}
    if subject.kind != TRAIN:
        earlier = set(found["models"].values())
    for index in sorted(earlier):
        differ = now ^ set(found["sets"][index])
        if 0 < len(differ) < policy.min_clients:
            before, least = _listed(found["sets"][index]), policy.min_clients
            rule = f"an earlier sum was over {before}, and this one differs by {_listed(differ)}"
            policy.refuse("min-clients", f"{rule}. It must be the same, or differ by {least} or more clients.")


def _listed(names: Any) -> str:
    return ", ".join(sorted(names))


def check_evaluations_left(policy: SitePolicy, found: Mapping[str, Any]) -> None:
    """Refuse one more evaluation than the client's policy allows."""
    if policy.max_evaluations is not None and found["evaluations"] >= policy.max_evaluations:
        reason = f"this client has answered {found['evaluations']} evaluations in all its runs"
        policy.refuse("max-evaluations", f"{reason} and answers no more. Set evaluate-every = 0.")


def _spent(found: Mapping[str, Any], run: str) -> Spent:
    return Spent(*found["runs"].get(run, _new_run())["spent"])


def spending(
    found: Mapping[str, Any], run: str, releases: int, delta: float, epsilon_of: Callable[[int], float]
) -> Spent:
    """Return what a run has spent after some more releases."""
    done = _spent(found, run).releases + releases
    return Spent(done, epsilon_of(done), delta if done else 0.0)


def check_total(policy: SitePolicy, found: Mapping[str, Any], run: str, spent: Spent) -> None:
    """Refuse what exceeds the budget of all runs; epsilon and delta of runs add up (basic composition)."""
    others = [_spent(found, name) for name in found["runs"] if name != run]
    epsilon = sum(one.epsilon for one in others) + spent.epsilon
    check_spending(policy, epsilon, sum(one.delta for one in others) + spent.delta)
