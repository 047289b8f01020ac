"""A client's own rules, from a TOML file on its disk. No order and no run configuration can change them.

    secure = true                    # send messages only under masks (secure aggregation)
    methods = ["fedpd", "fedavg"]    # take part only in runs with these methods
    min-clients = 3                  # only in sums over at least this many clients; sums differ by at least as many
    participants = ["a", "b", "c"]   # only in sums over exactly these clients
    same-clients = true              # only in sums over the same clients as the earlier ones of the run
    evaluations = false              # answer no evaluations
    max-evaluations = 100            # answer at most this many evaluations in all runs together
    privacy = "examples"             # only in runs with differential privacy of "examples", "clients" or "any" of both
    epsilon = 8.0                    # spend at most this epsilon in all runs together
    delta = 1e-4                     # spend at most this delta in all runs together
    error-texts = true               # tell the server the texts of errors of the app, which may hold data
    apps = ["9f86d081884c7d65..."]   # run only apps with these SHA-256 hashes; `fedpd app-hash APP` prints them

    [config]                         # only runs whose configuration has these entries, in these ranges
    batch = { min = 32 }
    optimizer = { one-of = ["sgd", "adam"] }

A rule that the file leaves out does not apply. fedpd checks `apps` before any code of an app runs, in the SuperNode
that `fedpd client` starts. It checks the other rules in the app's process, so they hold only for an app that uses
fedpd's ClientApp as it is: list only apps that you have read.
"""

import json
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

from fedpd.base.checks import count, positive, refuse, shown
from fedpd.flower.carry.protocol import Proposal
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.tables import read_table, read_toml

KEY, VARIABLE = "fedpd-policy", "FEDPD_POLICY"  # in the node's configuration, in the environment
HASH = re.compile(r"[0-9a-f]{64}")


Privacy = Literal["examples", "clients", "any"]


class Range(NamedTuple):
    """The values that an entry of a run's configuration may have. None: there is no bound."""

    min: float | None = None
    max: float | None = None
    one_of: tuple[Any, ...] | None = None


class SitePolicy(NamedTuple):
    """A client's own rules. None: the rule does not apply.

    Attributes:
        path: The file with the rules; None: there are no rules.
        secure: Whether the client sends only masked messages.
        methods: The names of the methods that it takes part in.
        min_clients: The smallest number of clients in a sum, and by which two sums differ. Only masks can keep it.
        participants: The names of the clients in every sum. Only masks can keep it.
        same_clients: Whether all sums of messages in a run must be over the same clients. Only masks can keep it.
        evaluations: Whether it answers evaluations.
        max_evaluations: The largest number of evaluations, over all runs.
        privacy: Whose data must be protected by differential privacy.
        epsilon: The largest sum of the epsilons of all runs.
        delta: The largest sum of the deltas of all runs.
        config: The range of entries of the run's configuration.
        error_texts: Whether the server is told the texts of errors in the app.
        apps: The SHA-256 hashes of the apps that it runs.
    """

    path: Path | None = None
    secure: bool = False
    methods: tuple[str, ...] | None = None
    min_clients: int = 1
    participants: tuple[str, ...] | None = None
    same_clients: bool = False
    evaluations: bool = True
    max_evaluations: int | None = None
    privacy: Privacy | None = None
    epsilon: float | None = None
    delta: float | None = None
    config: dict[str, Any] = {}  # noqa: RUF012
    error_texts: bool = False
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
    if policy.max_evaluations is not None:
        count(f"{path}: max-evaluations", policy.max_evaluations, "Give a number of evaluations", least=0)
    for name in ("epsilon", "delta"):
        if getattr(policy, name) is not None:
            positive(f"{path}: {name}", getattr(policy, name), "Give what all runs together may spend")
    for key, one in policy.config.items():
        read_table(Range, one, f"{path}: config: {key}", what="bound")
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


def check_clients(policy: SitePolicy, number: int, *, masked: bool) -> None:
    """Refuse a run with too few clients, or one in which nothing but the server's word says how many there are."""
    rules = {
        "min-clients": policy.min_clients > 1,
        "participants": policy.participants is not None,
        "same-clients": policy.same_clients,
    }
    rule = next((name for name, holds in rules.items() if holds), None)
    if rule is not None and not masked:
        reason = "without masks the server sees each message, so the number of clients protects nobody"
        policy.refuse(rule, f"{reason}. Build the app with client_app(secure=True) and set secure-range.")
    if number < policy.min_clients:
        policy.refuse("min-clients", f"the run has {number} clients, but must have at least {policy.min_clients}.")


def check_evaluations(policy: SitePolicy) -> None:
    """Refuse evaluations if the client answers none."""
    if not policy.evaluations:
        policy.refuse("evaluations", "this client answers no evaluations. Set evaluate-every = 0.")


def check_config(policy: SitePolicy, config: Mapping[str, Any]) -> None:
    """Refuse a run whose configuration lacks an entry with a range, or has a value beyond it."""
    for key, bounds in policy.config.items():
        allowed = read_table(Range, bounds, f"{policy.path}: config: {key}")
        value: Any = config.get(key)
        low, high = allowed.min, allowed.max
        number = isinstance(value, int | float) and not isinstance(value, bool)
        reasons = {
            "is not in the run's configuration": value is None,
            f"must be one of {', '.join(map(repr, allowed.one_of or ()))}": allowed.one_of is not None
            and value not in allowed.one_of,
            f"must be at least {allowed.min}": low is not None and not (number and value >= low),
            f"must be at most {allowed.max}": high is not None and not (number and value <= high),
        }
        for reason, broken in reasons.items():
            if broken:
                policy.refuse("config", f"{key} = {shown(value)} {reason}.")


def check_privacy(policy: SitePolicy, kinds: Collection[str]) -> None:
    """Refuse a method without the differential privacy that the client asks for.

    Args:
        policy: The client's rules.
        kinds: Whose data the method protects: "examples", "clients".
    """
    wanted = policy.privacy or ("any" if policy.epsilon is not None or policy.delta is not None else None)
    if wanted is None or wanted in kinds or (wanted == "any" and kinds):
        return
    whose = "" if wanted == "any" else f" of {wanted}"
    remedies = {"examples": "oracle = oracles.dp_sgd(...)", "clients": "transforms.gaussian(...)"}
    remedy = remedies.get(wanted, "oracles.dp_sgd(...) or transforms.gaussian(...)")
    rule = "privacy" if policy.privacy is not None else "epsilon"
    policy.refuse(rule, f"the method has no differential privacy{whose}. Use {remedy}.")


def check_spending(policy: SitePolicy, epsilon: float, delta: float) -> None:
    """Refuse to spend more than the budget; the numbers are those of all runs together."""
    for rule, spent in (("epsilon", epsilon), ("delta", delta)):
        most = getattr(policy, rule)
        if most is not None and spent > most * (1 + 1e-9):
            policy.refuse(rule, f"all runs together would spend {spent:.6g}, but may spend {most:g}.")


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
    check_clients(policy, proposal.agents, masked=masked and proposal.secure)
    if proposal.evaluates:
        check_evaluations(policy)
