"""Describes which processes of a federation on this machine run."""

from typing import NamedTuple

from fedpd.flower.local.federation import LocalFederation
from fedpd.flower.local.superexecs import find_superexecs, work_address

WITHOUT = {
    "superlink": "clients and runs wait for it",
    "superexec": "no run can start, and `flwr run` waits without a word",
    "proxy": "clients cannot reach the SuperLink",
    "dashboard": "its page cannot be seen",
}


class Status(NamedTuple):
    """The state of a federation.

    Attributes:
        lines: One line per process, and the remedies.
        good: Whether everything runs.
    """

    lines: list[str]
    good: bool


def describe(federation: LocalFederation) -> Status:
    """Return the state of a federation: its processes, and the SuperExec that some of them keep running."""
    running, superexecs = {member.name for member in federation.running}, find_superexecs()
    lines, idle = [], False
    for member in federation.members:
        harm, address = WITHOUT.get(member.name, "its client is absent"), work_address(member)
        if member.name not in running:
            lines += [f"{member.name}: does not run; {harm}", f"    Its log: {member.log}"]
        elif address is not None and address not in superexecs:
            idle = True
            lines += [f"{member.name}: its SuperExec has died and starts again; until then, {harm}"]
            lines += [f"    Its log: {member.log}"]
        else:
            lines.append(f"{member.name}: runs, process {member.pid}")
    if len(running) < len(federation.members):
        lines.append(f"Start it again: fedpd up --agents {federation.agents} --dir {federation.folder}")
    if idle:
        lines.append(f"If a SuperExec is not back after a minute: fedpd down --dir {federation.folder}, then fedpd up")
    return Status(lines, len(running) == len(federation.members) and not idle)
