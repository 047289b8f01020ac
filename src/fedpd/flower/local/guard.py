"""A SuperNode that runs only the apps on its client's list, by their SHA-256 hashes.

Flower's own `--trusted-entities` admits only apps that were published and signed on Flower Hub. Here the client lists
the hashes itself (`apps` in its policy). The SuperNode computes the hash of the app that it has received, before it
unpacks or runs anything of it. For another app it replies with an error that names the client, the hash and the rule.
"""

import hashlib
import ssl
import sys
from pathlib import Path
from typing import Any

from flwr.app import Error, Message

from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.clients.site_policy import SitePolicy, read_policy
from fedpd.flower.private import ErrorCode, Pull, build_fab_from_disk, replace_pull, send_reply
from fedpd.flower.warm import supernode
from fedpd.flower.warm.fleet import connect_with


class UnlistedAppError(FedpdError):
    """The app of a run is not on the client's list; the text is the reply to the server."""


def app_hash(app: Path) -> str:
    """Return the SHA-256 hash of an app as `flwr run` sends it."""
    if not (app / "pyproject.toml").is_file():
        refuse("APP", str(app), "has no pyproject.toml", "Give the folder of a Flower app")
    return hashlib.sha256(build_fab_from_disk(app)).hexdigest()


def check_app(policy: SitePolicy, content: bytes, client: str) -> None:
    """Refuse an app whose hash is not on the list.

    Args:
        policy: The client's rules.
        content: The app as the server sent it.
        client: The client's name, for the reply.

    Raises:
        UnlistedAppError: If there is a list and it lacks the app.
    """
    check_hash(policy, hashlib.sha256(content).hexdigest(), client)


def check_hash(policy: SitePolicy, found: str, client: str) -> None:
    """Refuse an app with this hash if it is not on the list, as `check_app` does."""
    if policy.apps is not None and found not in policy.apps:
        raise UnlistedAppError(
            f"client {client!r} does not run this app: its hash {found} is not in `apps` of the client's policy "
            f"({policy.path}). The client's operator can read the app and add the hash."
        )


def guarded(pull: Pull, policy_path: Path | None, client: str) -> Pull:
    """Return Flower's function that receives a message and its app, with a check of the app.

    Args:
        pull: Flower's function, as `replace_pull` gives it.
        policy_path: The file with the client's rules, which is read for every new app; None: there are no rules.
        client: The client's name.
    """

    def checked(**arguments: Any) -> int | None:
        received: list[Message] = []
        receive, get_fab = arguments["receive"], arguments["get_fab"]

        def remember() -> Any:
            found = receive()
            received.extend([found[0]] if found else [])
            return found

        def get_listed(fab_hash: str, run_id: int) -> Any:
            fab = get_fab(fab_hash, run_id)
            check_app(read_policy(policy_path), fab.content, client)
            return fab

        try:
            return pull(**(arguments | {"receive": remember, "get_fab": get_listed}))
        except FedpdError as reason:  # the app is not listed, or the policy cannot be read
            reply = Message(Error(ErrorCode.INVALID_FAB, str(reason)), reply_to=received[0])
            send_reply(reply, arguments)
            return received[0].metadata.run_id

    return checked


def run_supernode(arguments: list[str], policy_path: Path | None, client: str, context: ssl.SSLContext) -> None:
    """Run Flower's SuperNode in this process until it is ended, with the check of apps and all that `warm` changes.

    Args:
        arguments: The arguments of `flower-supernode`.
        policy_path: The file with the client's rules; None: there are none.
        client: The client's name.
        context: The context of its connections to the server.
    """
    read_policy(policy_path)  # a mistake shows at once
    supernode.prepare()
    connect_with(context)
    replace_pull(lambda pull: guarded(pull, policy_path, client))
    sys.argv = ["flower-supernode", *arguments]
    supernode.run()
