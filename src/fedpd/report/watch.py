"""Show a run while it runs, from its folder: curves and the latest numbers in the terminal, or a page that grows.

The page is read-only. It gets the state of the folder as server-sent events, whenever a checkpoint changes it, and
sends nothing back.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from fedpd.base.checks import FedpdError
from fedpd.base.errors import extra
from fedpd.base.interrupts import in_order
from fedpd.engine.measure.columns import FEDERATED, column_of
from fedpd.engine.views.entries import (
    COSTS,
    MAIN,
    SECONDS,
    Entry,
    Measured,
    cost_text,
    last_costs,
    last_text,
    measured_rows,
    shared_quantities,
    value_text,
)
from fedpd.engine.views.style import Style, styles
from fedpd.experiments.recorded import Record, read
from fedpd.report.pages import experiment_targets, is_drawable, package_text, page_data, plotly_script, thinned

DOTS = np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]])  # of Unicode's braille patterns

PATTERNS = {
    "solid": "1",
    "dash": "11100",
    "dashdot": "11110010",
    "dot": "100",
    "longdashdot": "1111110010010",
    "longdash": "111111100",
}

Curve = tuple[np.ndarray, np.ndarray]  # x and y, finite


def plot(
    curves: Sequence[Curve], styles: Sequence[Style], width: int, height: int
) -> tuple[list[Text], tuple[float, float, float, float]]:
    """Return the lines of a plot, and the ends of its axes (left, right, bottom, top)."""
    points = [(x, y) for x, y in curves if len(x)]
    left, right = _ends([x for x, _ in points])
    bottom, top = _ends([y for _, y in points])
    cells = np.zeros((height, width), int)
    owner = np.full((height, width), -1)
    for number, ((x, y), style) in enumerate(zip(curves, styles, strict=True)):
        columns = (np.asarray(x, float) - left) / (right - left) * (2 * width - 1)
        rows = (top - np.asarray(y, float)) / (top - bottom) * (4 * height - 1)
        for column, row in _dots(columns, rows, style.dash):
            cells[row // 4, column // 2] |= DOTS[row % 4, column % 2]
            owner[row // 4, column // 2] = number
    lines = []
    for marks, owners in zip(cells, owner, strict=True):
        line = Text()
        for mark, who in zip(marks, owners, strict=True):
            line.append(chr(0x2800 + mark) if mark else " ", styles[who].colours.terminal if mark else "")
        lines.append(line)
    return lines, (left, right, bottom, top)


def _ends(columns: Sequence[np.ndarray]) -> tuple[float, float]:
    if not columns:
        return 0.0, 1.0
    low, high = float(min(c.min() for c in columns)), float(max(c.max() for c in columns))
    return (low, high) if high > low else (low - 0.5, high + 0.5)


def sample(style: Style) -> Text:
    """Return a short piece of a curve in its colour and dash, for the row of a table."""
    lines, _ = plot([(np.arange(9.0), np.zeros(9))], [style], 3, 1)
    return lines[0]


def _dots(columns: np.ndarray, rows: np.ndarray, dash: str) -> list[tuple[int, int]]:
    """Return the dots on the straight lines between the points, without those in the gaps of the dash."""
    dots = {(round(column), round(row)): None for column, row in zip(columns, rows, strict=True)}
    path: dict[tuple[int, int], None] = {} if len(columns) > 1 else dots
    for i in range(len(columns) - 1):
        steps = int(max(abs(columns[i + 1] - columns[i]), abs(rows[i + 1] - rows[i]))) + 2
        between = (np.linspace(ends[i], ends[i + 1], steps) for ends in (columns, rows))
        path |= {(round(column), round(row)): None for column, row in zip(*between, strict=True)}
    pattern = PATTERNS[dash]
    return [dot for place, dot in enumerate(path) if pattern[place % len(pattern)] == "1"]


HEIGHT = 14  # lines of the plot
POINTS = 400  # of a curve


def watch(folder: Path, console: Console, *, once: bool = False, every: float = 1.0) -> None:
    """Show a run folder until the run is finished or Ctrl-C is pressed."""
    record = read(folder)
    if once or record.finished:
        console.print(view(record, console.width))
        return
    live = Live(view(record, console.width), console=console, auto_refresh=False)
    with live, suppress(KeyboardInterrupt), in_order():  # Ctrl-C ends only the view, not the run
        while not record.finished:
            time.sleep(every)
            record = read(folder)
            live.update(view(record, console.width), refresh=True)


def view(record: Record, width: int) -> Group:
    """Return the view of a run: its title, its curves and a table."""
    state = "finished" if record.finished else "as of the last checkpoints; Ctrl-C ends this view, not the run"
    curves = [_curve(entry) for entry in record.entries]
    title = Text(f"{record.name}: {state}", "bold")
    drawn = styles([entry.label for entry in record.entries])
    return Group(title, *_figure(curves, drawn, max(20, min(width, 110) - 11)), _table(record, drawn))


def _curve(entry: Entry) -> Curve:
    """Return log10 of the stationarity against communications."""
    run = _longest(entry)
    measured = measured_rows(run, MAIN)
    kept = measured[thinned(len(measured), POINTS)]
    x, y = run.history["communications"][kept], run.history[MAIN][kept]
    shown = np.isfinite(y) & (y > 0)
    return x[shown], np.log10(y[shown])


def _figure(curves: list[Curve], drawn: list[Style], width: int) -> list[Text]:
    if curves and not any(len(x) for x, _ in curves):
        return [Text("No stationarity above zero was measured yet, so there is no curve.", "yellow")]
    if not curves:
        return [Text("There are no rows yet. The first checkpoint will add them.", "yellow")]
    lines, (left, right, bottom, top) = plot(curves, drawn, width, HEIGHT)
    ticks = {0: f"{10**top:.1e}", HEIGHT - 1: f"{10**bottom:.1e}"}
    rows = [Text.assemble(f"{ticks.get(i, ''):>9} ", ("│", "dim"), line) for i, line in enumerate(lines)]
    first, last = f"{left:,.0f}", f"{right:,.0f}"
    across = f"{first}{'communications':^{width - len(first) - len(last)}}{last}"
    return [Text("stationarity ‖∇f‖²", "dim"), *rows, Text(f"{'':10}└{'─' * width}", "dim"), Text(f"{'':10} {across}")]


def _table(record: Record, drawn: list[Style]) -> Table:
    """Return a table with one row per method, for the seed that the plot shows."""
    table = Table(box=None, pad_edge=False)
    with_accuracy = bool(record.entries) and "test_accuracy" in [one.name for one in shared_quantities(record.entries)]
    table.add_column("method", overflow="fold")
    table.add_column("rounds", min_width=8)
    for name in ("stationarity", "loss", *(("accuracy",) if with_accuracy else ()), "comm.", "bytes", "time"):
        table.add_column(name, justify="right", no_wrap=True)
    for entry, style in zip(record.entries, drawn, strict=True):
        table.add_row(*_row(entry, with_accuracy, style))
    for label in record.waiting:
        table.add_row(Text(label, "dim"), Text("waiting", "dim"))
    return table


def _row(entry: Entry, with_accuracy: bool, style: Style) -> list[Text | ProgressBar | str]:
    run = _longest(entry)
    progress: Text | ProgressBar = ProgressBar(entry.rounds, entry.done, width=8)
    if entry.finished:
        progress = Text(entry.divergence, "red") if entry.diverged else Text(f"{entry.done:,}", "green")
        if entry.divergence and not entry.diverged:
            progress = Text(f"{entry.done:,}, {entry.divergence}", "yellow")
    measured = (MAIN, "loss", *(("test_accuracy",) if with_accuracy else ()))
    values = [last_text(run, name) for name in measured]
    costs = last_costs([run])
    spent = [cost_text(COSTS[name], costs[name]) for name in ("communications", "bytes")]
    seconds = cost_text(SECONDS, costs["seconds"]) if np.isfinite(costs["seconds"]) else ""
    name = Text.assemble(sample(style), " ", (entry.label, style.colours.terminal))
    return [name, progress, *values, *spent, seconds]


def _longest(entry: Entry) -> Measured:
    """Return the first of the seeds that have the most rows, of those that did not diverge."""
    return max(entry.usable, key=lambda run: len(run.history["round"]))


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
    """Serve the live page of a run folder until Ctrl-C."""
    check_served(folder)
    try:
        with suppress(KeyboardInterrupt):
            server(partial(state, folder), host, port, every).run()
    except SystemExit as error:  # e.g. the port is in use
        raise FedpdError(f"{host}:{port}: the page cannot be served there. Choose another --port or --host.") from error


def check_served(folder: Path) -> None:
    """Refuse a folder that is not a run, and name the extra if it is not installed, before anything listens."""
    read(folder)
    with extra("web", "The live page"):
        import uvicorn
    assert uvicorn


def server(find: FindState, host: str, port: int, every: float) -> "uvicorn.Server":
    """Return the server of the page; `find` returns what it shows now, as `state` does."""
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
        return text(package_text("live.html"), "text/html")

    def own_file(request: "Request") -> "Response":
        name = request.path_params["name"]
        return text(package_text(name), FILES[name]) if name in FILES else Response(status_code=404)

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
    curves = page_data(shown, experiment_targets([record])) if shown else {}
    progress = [_progress(entry) for entry in record.entries]
    progress += [{"label": label, "done": 0, "rounds": 0, "state": "waiting"} for label in record.waiting]
    found = {"name": record.name, "finished": record.finished, "progress": progress}
    return EMPTY | found | curves | ({} if record.replies is None else _clients(record, record.replies))


def _progress(entry: Entry) -> dict[str, Any]:
    """Return the numbers of a method's row."""
    costs = last_costs(entry.usable)
    seconds = float(costs["seconds"]) if np.isfinite(costs["seconds"]) else None
    left = None if seconds is None or entry.finished or not entry.done else seconds * (entry.rounds / entry.done - 1)
    return {
        "label": entry.label,
        "done": int(entry.done),
        "rounds": int(entry.rounds),
        "state": "diverged" if entry.diverged else "finished" if entry.finished else "running",
        "divergence": entry.divergence,
        "communications": cost_text(COSTS["communications"], costs["communications"]),
        "bytes": cost_text(COSTS["bytes"], costs["bytes"]),
        "seconds": seconds,
        "left": left,
    }


def _clients(record: Record, replies: Mapping[str, int]) -> dict[str, Any]:
    """Return the clients of a federation and what the server has counted."""
    history = record.entries[0].runs[0].history
    done = max(replies.values())  # a communication has at least one reply
    clients = []
    for name, number in replies.items():
        own = record.by_client.get(name, {})  # what it measured on its own data at the newest evaluation
        measured = ", ".join(f"{column_of(key).words} {value_text(column_of(key), one)}" for key, one in own.items())
        clients.append({"name": name, "reply": number, "present": number == done, "measured": measured})
    events = {column.name: int(history[column.name][-1]) for column in FEDERATED if column.kind == "event"}
    return {"clients": clients, "events": events, "communications": done}


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
