"""Finds the SuperExecs on this machine, which start the apps of a SuperLink or of a SuperNode."""

from contextlib import suppress

import psutil

from fedpd.flower.local.processes import Member
from fedpd.flower.local.programs import HOST
from fedpd.flower.warm.supervisor import SUPEREXEC

ADDRESS = "--runtime-api-address"


def find_superexecs() -> dict[str, int]:
    """Return the pid of each SuperExec that runs, by the address from which it gets its work."""
    found = {}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            words = process.cmdline()
            if SUPEREXEC in words and ADDRESS in words[:-1]:
                found[words[words.index(ADDRESS) + 1]] = process.pid
    return found


def work_address(member: Member) -> str | None:
    """Return the address from which the SuperExec of a process gets its work; None: the process has no SuperExec."""
    option = {"superexec": ADDRESS, "supernode": "--port"}.get(member.name.partition("-")[0])
    if option is None or option not in member.command:
        return None
    value = member.command[member.command.index(option) + 1]
    return f"{HOST}:{value}" if option == "--port" else value
