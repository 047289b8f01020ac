"""A client's own rules, from a TOML file on its disk. No order and no run configuration can change them.

    secure = true                    # send messages only under masks (secure aggregation)
    methods = ["fedpd", "fedavg"]    # take part only in runs with these methods
    min-clients = 3                  # take part only in runs with at least this many clients
    evaluations = false              # answer no evaluations
    apps = ["9f86d081884c7d65..."]   # run only apps with these SHA-256 hashes; `fedpd app-hash APP` prints them

A rule that the file leaves out does not apply. fedpd checks `apps` before any code of an app runs, in the SuperNode
that `fedpd client` starts. It checks the other rules in the app's process, so they hold only for an app that uses
fedpd's ClientApp as it is: list only apps that you have read.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.base.checks import count, refuse
from fedpd.flower.carry.protocol import Proposal
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.tables import read_table, read_toml

KEY, VARIABLE = "fedpd-policy", "FEDPD_POLICY"  # in the node's configuration, in the environment
HASH = re.compile(r"[0-9a-f]{64}")


class SitePolicy(NamedTuple):
    """A client's own rules. None: the rule does not apply.

    Attributes:
        path: The file with the rules; None: there are no rules.
        secure: Whether the client sends only masked messages.
        methods: The names of the methods that it takes part in.
        min_clients: The smallest number of clients of a run.
        evaluations: Whether it answers evaluations.
        apps: The SHA-256 hashes of the apps that it runs.
    """

    path: Path | None = None
    secure: bool = False
    methods: tuple[str, ...] | None = None
    min_clients: int = 1
    evaluations: bool = True
    apps: tuple[str, ...] | None = None

    def refuse(self, rule: str, reason: str) -> None:
        """Raise the refusal of this client, which the server reports.

        Raises:
            RefusedError: Always. The text names the rule, its file and the reason.
        """
        raise RefusedError(f"the rule {rule!r} of this client's policy ({self.path}) refuses it: {reason}")


def policy_file(node_config: Mapping[str, Any]) -> Path | None:
    """Return the path of a client's policy, from its node's configuration or its environment; None: it has none."""
    path = node_config.get(KEY) or os.environ.get(VARIABLE)
    return Path(str(path)) if path else None


def read_policy(path: Path | None) -> SitePolicy:
    """Return the rules of a file.

    Raises:
        FedpdError: If there is no such file or it breaks a rule. A client with such a file takes part in nothing.
    """
    if path is None:
        return SitePolicy()
    found = read_toml(path, "Repair it", ": this client's policy")
    policy = read_table(SitePolicy, found, str(path), what="rule", path=path)
    for one in policy.apps or ():
        if not HASH.fullmatch(one):
            refuse(f"{path}: apps", one, "must be 64 hexadecimal digits", "Print the hash with fedpd app-hash APP")
    count(f"{path}: min-clients", policy.min_clients, "Give a number of clients")
    return policy


def check_method(policy: SitePolicy, spec: str) -> None:
    """Refuse a method that is not on the client's list; `spec` is the exact spec in an order, as JSON."""
    if policy.methods is None:
        return
    try:
        name = json.loads(spec)["name"]
    except (ValueError, TypeError, KeyError):
        name = None
    if name not in policy.methods:
        policy.refuse("methods", f"the method is {name!r}, but must be one of {', '.join(policy.methods)}.")


def check_masks(policy: SitePolicy, masked: bool) -> None:
    """Refuse an order without masks if the client sends only masked messages."""
    if policy.secure and not masked:
        note = "the messages are not masked. Build the app with client_app(secure=True) and set secure-range."
        policy.refuse("secure", note)


def check_clients(policy: SitePolicy, number: int) -> None:
    """Refuse a run with too few clients."""
    if number < policy.min_clients:
        policy.refuse("min-clients", f"the run has {number} clients, but must have at least {policy.min_clients}.")


def check_evaluations(policy: SitePolicy) -> None:
    """Refuse evaluations if the client answers none."""
    if not policy.evaluations:
        policy.refuse("evaluations", "this client answers no evaluations. Set evaluate-every = 0.")


def check_proposal(policy: SitePolicy, proposal: Proposal, *, masked: bool) -> None:
    """Check a run before it starts.

    Args:
        policy: The client's rules.
        proposal: The server's description of the run.
        masked: Whether the app masks this client's messages.

    Raises:
        RefusedError: If the run breaks a rule.
    """
    check_method(policy, proposal.algorithm)
    check_masks(policy, masked and proposal.secure)
    check_clients(policy, proposal.agents)
    if proposal.evaluates:
        check_evaluations(policy)
