"""Which method a run is of: its exact spec, which the server sends with every order and keeps in its checkpoint."""

import json
from pathlib import Path
from typing import Any

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError
from fedpd.base.identity import UnidentifiedError, fingerprint
from fedpd.base.spec import differences, spec_of
from fedpd.core import Algorithm, Tree
from fedpd.flower.carry.records import RefusedError
from fedpd.flower.method.settings import Settings


def plain_spec(algorithm: Algorithm) -> dict[str, Any]:
    """Return the exact spec of a method in the types of JSON.

    Raises:
        FedpdError: The method was made with something that another process cannot identify.
    """
    try:
        return spec_of(algorithm).plain()
    except UnidentifiedError as error:
        raise FedpdError(
            f"{algorithm.description} cannot be deployed, because the server and its clients could not tell whether "
            f"they run the same method: {error} Name what fedpd cannot identify, the same on all sides."
        ) from None


def spec_text(algorithm: Algorithm) -> str:
    """Return the exact spec of a method as the text that an order carries."""
    return json.dumps(plain_spec(algorithm), sort_keys=True)


def check_same_method(ordered: str, own: str) -> None:
    """Refuse an order for another method than the client's own.

    Args:
        ordered: The spec that the order carries.
        own: The client's own `spec_text`.

    Raises:
        RefusedError: The specs differ; the sentence names the settings that do.
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
        raise RefusedError(f"order: its {differing}, as this client has it. Start both sides with the same method.")


def identity_of(algorithm: Algorithm, start: Tree, settings: Settings) -> dict[str, Any]:
    """Return what makes two runs the same run, so that one may resume from the other's checkpoint."""
    return {
        "algorithm": plain_spec(algorithm),
        "form": settings.form,
        "seed": settings.seed,
        "agents": settings.agents,
        "start": fingerprint(start),
    }


def check_checkpoint_version(folder: Path) -> None:
    """Refuse a server's checkpoint of before there were specs: it does not say exactly which method it is of."""
    found = checkpoint.peek(folder)
    if found is None or not isinstance(found[1].get("algorithm"), str):
        return
    version = found[1].get("versions", {}).get("fedpd")
    writer = "an older version of fedpd" if version is None else f"fedpd {version}"
    raise checkpoint.CheckpointError(
        f"{folder}: its checkpoint was written by {writer}, which did not keep the exact settings of the method. "
        "Finish the run with that version, or choose another folder."
    )
