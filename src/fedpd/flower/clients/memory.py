"""A client's memory, which outlives runs and restarts: the sums that it took part in, and the privacy that it spent.

It is the file memory.json in the folder of the client's state. The client writes it before anything leaves that it has
to remember, so a crash can make it remember too much, never too little. Without it, a server could ask for the same sum
over other clients, and the difference of two sums would show the messages in which they differ; or spend the same
epsilon again in another run. So keep the file when you move a client or restore it from a backup.
"""

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from flwr.app import Context

from fedpd.base.atomic import make_folder, read_file, replace_file
from fedpd.flower.carry.masked_client import Subject
from fedpd.flower.carry.protocol import TRAIN
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.clients import store
from fedpd.flower.clients.site_policy import (
    SitePolicy,
    check_clients,
    check_spending,
    policy_file,
    read_policy,
)

if sys.platform != "win32":
    import fcntl

FILE = "memory.json"


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
        """Write down the clients in a sum before it is revealed, or refuse it; the digest is that of the order."""
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
        return store.folder(context, self.name(context)) / FILE


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
    with (path.parent / f".{FILE}.lock").open("wb") as lock:  # two runs may ask a client at the same time
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
        digest: The hash of the model to evaluate.
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
