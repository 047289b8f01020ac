"""Serve a page that shows the curves of a run while they grow: read-only, from the run's folder.

The page gets the state of the folder as server-sent events, whenever a checkpoint changes it. It sends nothing back.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedpd.base.checks import FedpdError
from fedpd.base.extras import extra
from fedpd.engine.measure.columns import FEDERATED
from fedpd.engine.views.entries import COSTS, Entry, cost_text, last_costs
from fedpd.experiments.recorded import Record, read
from fedpd.report.curves import is_drawable, page_data
from fedpd.report.pages import plotly_script

if TYPE_CHECKING:
    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; connect-src 'self'; img-src data: blob:; "
    "style-src 'self' 'unsafe-inline'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
EMPTY: dict[str, Any] = {"finished": False, "progress": [], "quantities": [], "costs": [], "entries": []}
SILENCE = 15.0  # seconds after which an empty event shows both sides that the connection lives
FindState = Callable[[], dict[str, Any]]
FILES = {"live.js": "text/javascript", "page.css": "text/css"}


def serve(folder: Path, host: str, port: int, every: float) -> None:
    """Serve the live page of a run folder until Ctrl-C.

    Args:
        folder: The folder.
        host: The address on which it listens.
        port: The port.
        every: The refresh interval in seconds.
    """
    read(folder)  # a folder that is not a run is refused before anything listens
    try:
        with suppress(KeyboardInterrupt):
            server(partial(state, folder), host, port, every).run()
    except SystemExit as error:  # e.g. the port is in use
        raise FedpdError(f"{host}:{port}: the page cannot be served there. Choose another --port or --host.") from error


def server(find: FindState, host: str, port: int, every: float) -> "uvicorn.Server":
    """Return the server of the page.

    Args:
        find: Returns what the page shows now, as `state` does.
        host: The address on which it listens.
        port: The port.
        every: The refresh interval in seconds.
    """
    with extra("web", "The live page"):
        import uvicorn
    page = application(find, host, every)
    return uvicorn.Server(
        uvicorn.Config(page, host=host, port=port, ws="none", log_level="critical", timeout_graceful_shutdown=1)
    )


def application(find: FindState, host: str, every: float) -> "Starlette":
    """Return the application that serves the page, its files and the events; see `server`."""
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import Response, StreamingResponse
    from starlette.routing import Route

    def text(body: str, kind: str) -> "Response":
        return Response(body, media_type=kind, headers=HEADERS)

    def page(_: "Request") -> "Response":
        return text(_text("live.html"), "text/html")

    def own_file(request: "Request") -> "Response":
        name = request.path_params["name"]
        return text(_text(name), FILES[name]) if name in FILES else Response(status_code=404)

    def plotly(_: "Request") -> "Response":
        return text(plotly_script(), "text/javascript")

    def now(_: "Request") -> "Response":
        return text(json.dumps(find(), allow_nan=False), "application/json")

    def events(_: "Request") -> "Response":
        return StreamingResponse(_changes(find, every), media_type="text/event-stream", headers=HEADERS)

    # Another site's page cannot read this one by giving its own name the address 127.0.0.1.
    hosts = ["127.0.0.1", "localhost", "[::1]", host] if host in ("127.0.0.1", "localhost", "::1") else ["*"]
    return Starlette(
        routes=[
            Route("/", page),
            Route("/plotly.js", plotly),
            Route("/state", now),
            Route("/events", events),
            Route("/{name}", own_file),
        ],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=hosts)],
    )


def state(folder: Path) -> dict[str, Any]:
    """Return what the page shows now, as plain numbers and texts."""
    try:
        record = read(folder)
    except FedpdError as error:  # e.g. a folder that was removed meanwhile
        return {"name": folder.name, "problem": str(error)}
    shown = [entry for entry in record.entries if is_drawable(entry)]
    curves = page_data(shown) if shown else {}
    progress = [_progress(entry) for entry in record.entries]
    found = {"name": record.name, "finished": record.finished, "progress": progress + _waiting(record)}
    return EMPTY | found | curves | ({} if record.replies is None else _clients(record, record.replies))


def _progress(entry: Entry) -> dict[str, Any]:
    """Return the numbers of a method's row."""
    costs = last_costs(entry.runs)
    seconds = float(costs["seconds"]) if np.isfinite(costs["seconds"]) else None
    left = None if seconds is None or entry.finished or not entry.done else seconds * (entry.rounds / entry.done - 1)
    return {
        "label": entry.label,
        "done": int(entry.done),
        "rounds": int(entry.rounds),
        "state": "diverged" if entry.diverged else "finished" if entry.finished else "running",
        "communications": cost_text(COSTS["communications"], costs["communications"]),
        "bytes": cost_text(COSTS["bytes"], costs["bytes"]),
        "seconds": seconds,
        "left": left,
    }


def _clients(record: Record, replies: Mapping[str, int]) -> dict[str, Any]:
    """Return the clients of a federation and what the server has counted."""
    history = record.entries[0].runs[0].history
    done = max(replies.values())  # a communication has at least one reply
    clients = [{"name": name, "reply": number, "present": number == done} for name, number in replies.items()]
    events = {column.name: int(history[column.name][-1]) for column in FEDERATED if column.kind == "event"}
    return {"clients": clients, "events": events, "communications": done}


def _waiting(record: Record) -> list[dict[str, Any]]:
    return [{"label": label, "done": 0, "rounds": 0, "state": "waiting"} for label in record.waiting]


async def _changes(find: FindState, every: float) -> AsyncIterator[str]:
    """Yield the state whenever it has changed, as server-sent events."""
    before, quiet = "", 0.0
    while True:
        found = json.dumps(await asyncio.to_thread(find), allow_nan=False)
        if found != before:
            yield f"data: {found}\n\n"
            before, quiet = found, 0.0
        elif quiet >= SILENCE:
            yield ": still here\n\n"
            quiet = 0.0
        await asyncio.sleep(every)
        quiet += every


def _text(name: str) -> str:
    return files("fedpd.report").joinpath(name).read_text(encoding="utf-8")
