"""One local step of an app at a client, with the client's own data, before any run: nothing is sent or saved."""

import importlib
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedpd.base.checks import FedpdError, refuse
from fedpd.flower.carry.protocol import DRY_STEP, PREFIX
from fedpd.flower.local.site import node_config
from fedpd.flower.local.sites import Site


def try_one_step(site: Site, app: Path) -> str:
    """Read the client's data with an app and do one local step; return what was found.

    Raises:
        FedpdError: If the app cannot be loaded, or the data or the step have a problem.
    """
    client, config = _load(app)
    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
    context = Context(1, 1, node_config(site), RecordDict(), config)
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, DRY_STEP)
    message.metadata.__dict__["_message_id"] = "dry-step"
    began = time.monotonic()
    reply: Any = client(message, context).content.config_records["config"]
    if problem := reply[PREFIX + "problem"]:
        raise FedpdError(str(problem))
    return f"{reply[PREFIX + 'samples']} samples; the first local step took {time.monotonic() - began:.1f} s"


def _load(app: Path) -> tuple[ClientApp, dict[str, str | int | float | bool]]:
    """Return the ClientApp of an app's folder, and the configuration of its runs."""
    try:
        settings = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["flwr"]["app"]
        module, _, name = settings["components"]["clientapp"].partition(":")
    except (OSError, ValueError, KeyError, TypeError) as error:
        refuse("--app", str(app), f"is not a Flower app ({error})", "Give the folder with its pyproject.toml")
    sys.path.insert(0, str(app.absolute()))
    try:
        loaded = getattr(importlib.import_module(module), name)
    except Exception as error:  # the app's own code
        raise FedpdError(
            f"the app cannot be imported ({type(error).__name__}: {error}). Install what it needs."
        ) from None
    finally:
        sys.path.remove(str(app.absolute()))
    return loaded, settings.get("config", {})
