"""Describes which processes of a federation on this machine run."""

from fedpd.flower.local.federation import LocalFederation

WITHOUT = {
    "superlink": "clients and runs wait for it",
    "superexec": "no run can start, and `flwr run` waits without a word",
    "proxy": "clients cannot reach the SuperLink",
    "dashboard": "its page cannot be seen",
}


def describe(federation: LocalFederation) -> list[str]:
    """Return one line per process, and the remedy if one does not run."""
    running = {member.name for member in federation.running}
    lines = []
    for member in federation.members:
        if member.name in running:
            lines.append(f"{member.name}: runs, process {member.pid}")
        else:
            lines.append(f"{member.name}: does not run; {WITHOUT.get(member.name, 'its client is absent')}")
            lines.append(f"    Its log: {member.log}")
    if len(running) < len(federation.members):
        lines.append(f"Start it again: fedpd up --agents {federation.agents} --dir {federation.folder}")
    return lines
