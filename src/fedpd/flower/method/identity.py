"""The identity of a run, and of its method: the exact spec, which the server sends with every order and saves."""

import hashlib
import json
import uuid
from collections.abc import Mapping
from typing import Any

from fedpd.base.checks import FedpdError
from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.spec import differences
from fedpd.core import Method, Tree
from fedpd.engine.privacy import private_oracle
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.method.settings import Settings


def plain_spec(algorithm: Method) -> dict[str, Any]:
    """Return the exact spec of a method in the types of JSON.

    Raises:
        FedpdError: If the method has a setting that another process cannot identify.
    """
    try:
        return algorithm.spec.plain()
    except UnidentifiedError as error:
        raise FedpdError(
            f"{algorithm.description} cannot be deployed, because the server and its clients could not check that they "
            f"run the same method: {error} Use the same name at the server and all clients."
        ) from None


def spec_text(algorithm: Method) -> str:
    """Return the exact spec of a method as the text in an order."""
    return json.dumps(plain_spec(algorithm), sort_keys=True)


def check_same_method(ordered: str, own: str) -> None:
    """Check that an order is for the client's own method.

    Args:
        ordered: The spec in the order.
        own: The client's own `spec_text`.

    Raises:
        RefusedError: If the specs differ; the message names the settings that differ.
    """
    if ordered == own:
        return
    try:
        found = json.loads(ordered)
    except ValueError:
        raise RefusedError(
            f"order: algorithm = {ordered!r} is not a spec: the server runs another version of fedpd."
        ) from None
    differing = "; its ".join(differences(found, json.loads(own)))
    if differing:
        raise RefusedError(f"order: its {differing}, as at this client. Start both sides with the same method.")


def identity_of(algorithm: Method, start: Tree, settings: Settings) -> dict[str, Any]:
    """Return the values that identify a run. A run may resume from a checkpoint with the same values."""
    return {
        "algorithm": plain_spec(algorithm),
        "form": settings.form,
        "seed": settings.seed,
        "agents": settings.agents,
        "cohort": settings.sampled,
        "sampling": None if settings.sampling == "uniform" else settings.sampling,
        "average": settings.average or None,
        "start": fingerprint(start),
        "noise_rounds": _rounds(algorithm, settings),
    }


def _rounds(algorithm: Method, settings: Settings) -> int | None:
    """Return T if the noise of the run is chosen for it, so that a resumed run cannot have more rounds; else None."""
    oracle = private_oracle(algorithm)
    return None if oracle is None or oracle.epsilon is None else settings.rounds


def new_run(identity: Mapping[str, Any]) -> str:
    """Return the name of a new run: a hash of its identity, and a random part."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{digest[:16]}-{uuid.uuid4().hex}"
