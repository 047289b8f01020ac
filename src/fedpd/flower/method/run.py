"""A run of a federation at the server: pure functions from one communication to the next.

`next_step` -> `new_communication` (send its orders, collect the replies) -> `apply_replies` -> if `is_evaluation_due`:
`evaluation_requests` (send, collect) -> `read_metrics` -> `close`; and again. Other modules send and collect. This one
also has the policy for clients that did not reply and for updates that are too large, and the checkpoint, which `close`
writes after every communication.

Its ledger is the history: a simulation's columns, and counts that only a real federation has.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import numpy as np
from flwr.app import RecordDict
from flwr.serverapp import Grid
from tree_math import Vector

from fedpd.base import checkpoint
from fedpd.base.process import versions
from fedpd.base.value import constant
from fedpd.core import Kind, Method, Tree
from fedpd.engine.average import averaged
from fedpd.engine.checks import check_agents
from fedpd.engine.measure.columns import COLUMNS, EPSILON, EPSILON_EXAMPLES, FEDERATED, SAMPLE
from fedpd.engine.measure.costs import Costs
from fedpd.engine.measure.history import History, Totals, extend, start_row
from fedpd.engine.participation import Participation, attendance_rule
from fedpd.engine.privacy import private_oracle
from fedpd.experiments.federated import BY_CLIENT, CHECKPOINTS, ELAPSED
from fedpd.flower.carry.collect import Collected
from fedpd.flower.carry.directory import (
    ClientDirectory,
    FederationError,
    owners_file,
    read_owners,
    save_owners,
    sorted_names,
    wait_for_clients,
)
from fedpd.flower.carry.protocol import HELLO, Proposal, proposal_fields
from fedpd.flower.carry.records import pack, stored
from fedpd.flower.method.evaluation import (
    ClientEvaluation,
    by_client,
    combine,
    combine_sums,
    evaluation_request,
    read_evaluation,
)
from fedpd.flower.method.identity import identity_of, new_run, spec_text
from fedpd.flower.method.privacy import check_private
from fedpd.flower.method.server import (
    Communication,
    Outcome,
    ServerSetup,
    ServerState,
    cohort_of_step,
    delivered_model,
    initial_state,
    is_superseded,
    mean_of,
    model_function,
    next_communication,
    server_model,
    server_step,
    steps_to_do,
)
from fedpd.flower.method.settings import Settings, check_clip, check_secure
from fedpd.flower.method.shapes import entries_of, shapes
from fedpd.flower.private import TaskIdentity
from fedpd.flower.warm.limits import declare_limit, largest_reply, limits_file
from fedpd.transforms._private import is_model
from fedpd.transforms._ways import message_parts

log = logging.getLogger(f"flwr.{__name__}")
COUNTS = tuple(column.name for column in FEDERATED)
WORK = ("updates", "samples", "senders", "receivers")
Counts = Mapping[str, int]


class Ledger(NamedTuple):
    """The history and the counts of a run so far.

    Attributes:
        history: One row per round that ended with a communication, and row 0 for the start; metrics are NaN in rows
            without an evaluation.
        totals: The sums that the next row continues.
        counts: The current values of `COUNTS`.
        pending: `WORK` of the K rounds that are not in the history yet: (K, N), (K, N), (K, E), (K, E).
        elapsed: The seconds of wall time at each row. They are not in the history, which is equal for equal runs.
        epsilon: The largest epsilon of a sample that a client has spent by its own account.
        by_client: By column, each client's own value at the newest evaluation, NaN where it is not known: (N,).
    """

    history: History
    totals: Totals
    counts: dict[str, int]
    pending: dict[str, np.ndarray]
    elapsed: np.ndarray
    epsilon: float = 0.0
    by_client: Mapping[str, np.ndarray] = MappingProxyType({})


def new_ledger(agents: int, exchanges: int) -> Ledger:
    """Return a ledger without a row."""
    widths = dict(zip(WORK, (agents, agents, exchanges, exchanges), strict=True))
    pending = {name: np.zeros((0, width), np.int64) for name, width in widths.items()}
    return Ledger({}, {}, dict.fromkeys(COUNTS, 0), pending, np.zeros(0))


def add_first_row(ledger: Ledger, costs: Costs, metrics: Mapping[str, float]) -> Ledger:
    """Return the ledger with row 0, the start."""
    usual = {name: metrics.get(name, np.nan) for name in ("loss", "stationarity")}
    recorded = {name: value for name, value in metrics.items() if name not in usual and name not in COLUMNS}
    recorded |= {} if costs.privacy is None else {EPSILON.name: 0.0}
    return ledger._replace(history=start_row(**usual, **recorded, **ledger.counts))


def add_counts(ledger: Ledger, **more: int) -> Ledger:
    """Return the ledger with these numbers added to its counts."""
    return ledger._replace(counts={name: number + more.get(name, 0) for name, number in ledger.counts.items()})


def add_work(
    ledger: Ledger, last: int, work: Mapping[int, tuple[list[int], list[int], list[int]]], senders: int, receivers: int
) -> Ledger:
    """Return the ledger with a communication at step `last`.

    Args:
        ledger: The ledger before.
        last: The step of the communication.
        work: By agent, its steps up to `last`, and the updates and samples of each.
        senders: The number of agents that sent a message.
        receivers: The number of agents that receive the broadcast.
    """
    exchanges = ledger.pending["senders"].shape[1]
    done = ledger.totals.get("round", 0)
    length = last // exchanges + 1 - done
    rows = {}
    for name, column in ledger.pending.items():
        rows[name] = np.zeros((length, column.shape[1]), np.int64)
        rows[name][: len(column)] = column
    for agent, (steps, updates, samples) in work.items():
        at = np.array(steps) // exchanges - done
        np.add.at(rows["updates"][:, agent], at, updates)
        np.add.at(rows["samples"][:, agent], at, samples)
    rows["senders"][-1, last % exchanges] = senders
    rows["receivers"][-1, last % exchanges] = receivers
    return ledger._replace(pending=rows)


def close_rounds(ledger: Ledger, costs: Costs, metrics: Mapping[str, float]) -> Ledger:
    """Return the ledger with its pending rounds added to the history, as one row for the last of them."""
    length = len(ledger.pending["updates"])
    numbers = {SAMPLE.name: 0, **metrics, "consensus": 0.0, **ledger.counts}
    rounds: dict[str, np.ndarray] = {"communicated": ledger.pending["receivers"][:, -1] > 0, **ledger.pending}
    rounds |= {name: np.full(length, numbers.get(name, np.nan)) for name in ledger.history if name not in rounds}
    history, totals = extend(ledger.history, ledger.totals, costs, rounds, np.arange(length) == length - 1)
    empty = {name: column[:0] for name, column in ledger.pending.items()}
    return ledger._replace(history=history, totals=totals, pending=empty)


def ledger_arrays(ledger: Ledger) -> checkpoint.Arrays:
    """Return the arrays of a ledger, for a checkpoint."""
    parts = {"history": ledger.history, "pending": ledger.pending, BY_CLIENT: ledger.by_client}
    columns = {f"{kind}.{name}": column for kind, part in parts.items() for name, column in part.items()}
    return columns | {ELAPSED: ledger.elapsed}


def restore_ledger(found: checkpoint.Arrays, totals: Totals, counts: dict[str, int], epsilon: float) -> Ledger:
    """Return the ledger of a checkpoint."""
    parts: dict[str, dict[str, np.ndarray]] = {"history": {}, "pending": {}, BY_CLIENT: {}}
    for key, column in found.items():
        kind, _, name = key.partition(".")
        if kind in parts:
            parts[kind][name] = column
    return Ledger(parts["history"], totals, counts, parts["pending"], found[ELAPSED], epsilon, parts[BY_CLIENT])


class FederatedRun(NamedTuple):
    """A run between two communications.

    Attributes:
        settings: The settings of the run.
        setup: The other constants of the run.
        directory: The node of each client.
        identity: The values that identify the run.
        state: The state of the server.
        ledger: The history and the counts so far.
        began: The time (`time.monotonic`) from which the ledger counts its seconds.
    """

    settings: Settings
    setup: ServerSetup
    directory: ClientDirectory
    identity: Mapping[str, Any]
    state: ServerState
    ledger: Ledger
    began: float


def open_run(grid: Grid, algorithm: Method, start: Tree, settings: Settings, hello: str = HELLO) -> FederatedRun:
    """Start a run when all clients are connected, or resume the run in the folder `settings.out`.

    Args:
        grid: Flower's grid.
        algorithm: The method, in its form.
        start: The model x^0.
        settings: The settings of the run.
        hello: The type of the message that asks nodes for their names.
    """
    made = shapes(algorithm, start)
    made = made._replace(costs=made.costs._replace(privacy=check_private(algorithm, start, settings)))
    if limits_file() is not None:
        declare_limit(TaskIdentity.run_id, largest_reply(entries_of((made.messages, made.model))))
    check_secure(algorithm, made, settings)
    kinds = check_clip(algorithm, made, settings)
    check_agents(algorithm, settings.agents, lambda: settings.quorum or settings.sampled or settings.agents)
    identity, folder = identity_of(algorithm, start, settings), _folder(settings)
    found = None
    if folder is not None:
        found = checkpoint.load_newest(folder, identity)
    meta = {} if found is None else found[1]
    spec = spec_text(algorithm)
    run = meta.get("run") or new_run(identity)
    directory = _find_clients(grid, settings, spec, run, meta.get("names"), hello)
    names = meta.get("names") or sorted_names(directory.nodes)
    method = _served(algorithm, start, settings), spec, settings.form, made
    replaced = is_superseded(algorithm, made)
    sizes = meta.get("sizes") or [directory.sizes[name] for name in names]
    present, model_of = _attendance(settings, names, sizes), model_function(algorithm, made.agent)
    who = names, settings.seed, run, present
    setup = ServerSetup(*method, start, *who, replaced, settings.out, sizes, model_of, kinds, settings.rounds)
    log.info("%s on %d clients (%s), run %s", algorithm.description, len(names), ", ".join(names), run)
    if found is None:
        state, ledger = initial_state(setup), new_ledger(len(names), setup.exchanges)
    else:
        state, ledger = _restore(setup, *found)
        log.info("The run resumes after %d communications.", state.number)
    before = ledger.elapsed[np.isfinite(ledger.elapsed)]
    began = time.monotonic() - (before[-1] if len(before) else 0.0)
    return FederatedRun(settings, setup, directory, identity, state, ledger, began)


def _served(algorithm: Method, start: Tree, settings: Settings) -> Method:
    """Return the method as the server runs it; the clients' part is the same."""
    return constant(averaged(algorithm, start)) if settings.average else algorithm


def _attendance(settings: Settings, names: Sequence[str], sizes: Sequence[int]) -> Participation | None:
    """Return the rule for who takes part in a round, as a simulation has it; None: all clients.

    Raises:
        FederationError: If cohorts are drawn by size, and a client did not say how many samples it has.
    """
    if settings.sampling == "size" and min(sizes) < 1:
        name = names[int(np.argmin(sizes))]
        raise FederationError(f'client {name!r} did not say how many samples it has, which sampling = "size" needs.')
    return attendance_rule(settings.cohort, settings.sampling, 1.0, np.asarray(sizes), settings.rounds)


def _find_clients(
    grid: Grid, settings: Settings, spec: str, run: str, names: Sequence[str] | None, hello: str
) -> ClientDirectory:
    """Return the node of each client, when all have checked the run; their names belong to their nodes from now on."""
    evaluates, secure = settings.evaluation_interval > 0, settings.secure_range > 0
    about = spec, settings.form, settings.agents, secure, evaluates, settings.sampling == "size"
    proposal = Proposal(*about, run, settings.rounds)
    path = owners_file()
    directory = ClientDirectory(
        grid, proposal_fields(proposal), read_owners(path), bind=settings.bind_names, kind=hello
    )
    wait_for_clients(directory, settings.agents, settings.deadline, settings.poll, names)
    save_owners(path, directory.owners)
    return directory


def _folder(settings: Settings) -> Path | None:
    return None if settings.out is None else settings.out / CHECKPOINTS


def next_step(run: FederatedRun) -> int | None:
    """Return the step of the next communication; None at the end of the run."""
    return next_communication(run.setup, run.state, run.settings.rounds)


def new_communication(run: FederatedRun, last: int) -> Communication:
    """Return the communication at step `last`."""
    return Communication(run.setup, run.state, last, steps_to_do(run.setup, run.state, last), {}, {})


def apply_replies(run: FederatedRun, communication: Communication, found: Collected) -> FederatedRun:
    """Return the run after a communication: it averages the messages by the policy and does the server step."""
    run = _count_messages(run, found)
    run, messages = _clip(run, communication, _choose_messages(run, communication, found))
    if run.settings.on_timeout == "stale":
        run = run._replace(state=run.state._replace(last=run.state.last | messages))
    senders = sum(answer.message is not None for answer in found.answers.values())
    exchange = run.setup.algorithm.exchanges()[communication.last % run.setup.exchanges]
    mean = mean_of(exchange, messages, communication.message_shapes())
    return _server_step(run, communication, found, mean, len(messages), senders)


def apply_sum(run: FederatedRun, communication: Communication, found: Collected, mean: Tree | None) -> FederatedRun:
    """Return the run as `apply_replies` does, if only the mean of the messages is known; None: clients are missing."""
    run, absent = _count_messages(run, found), _log_absent(run, found)
    if mean is None:
        raise _incomplete_error(communication, absent)
    number = sum(name in found.answers for name in communication.senders_by_name())
    return _server_step(run, communication, found, mean, number, number)


def _choose_messages(run: FederatedRun, communication: Communication, found: Collected) -> dict[int, Tree]:
    """Return the messages to average, by agent: the new ones, and the old ones that the policy uses for other agents.

    Raises:
        FederationError: If the policy does not let the run continue.
    """
    setup, state, cohort = run.setup, run.state, set(communication.cohort())
    on_timeout, quorum = run.settings.on_timeout, run.settings.min_clients
    absent = _log_absent(run, found)
    answered = {setup.names.index(name): answer.message for name, answer in found.answers.items()}
    messages = {agent: message for agent, message in answered.items() if message is not None}
    if not absent and len(communication.senders()) == len(cohort):
        return messages
    if on_timeout == "fail":
        raise _incomplete_error(communication, absent, '; or choose on-timeout = "stale" or "partial"')
    reasons, replied = _reasons(absent), len(cohort.intersection(answered))
    if not replied:
        raise FederationError(f"communication {state.number}: no client replied ({reasons}). Repair them, start again.")
    if replied < quorum:
        raise FederationError(
            f"communication {state.number}: {replied} clients replied, but min-clients is {quorum} "
            f"({reasons}). Repair them and start the run again to resume it."
        )
    if on_timeout == "stale":
        for agent in sorted(cohort):
            if agent not in answered and agent not in state.last:
                name = setup.names[agent]
                raise FederationError(f"client {name!r} has sent no message yet that could be used again ({reasons}).")
            if agent not in answered:
                messages[agent] = state.last[agent]
    return messages


def _log_absent(run: FederatedRun, found: Collected) -> dict[str, str]:
    """Return the clients without a usable reply, and the reasons; write them to the log."""
    absent = found.missing | found.refused
    for name, why in absent.items():
        log.warning("Communication %d does not use client %r: %s", run.state.number, name, why)
    return absent


def _incomplete_error(communication: Communication, absent: Mapping[str, str], otherwise: str = "") -> FederationError:
    """Return the error for a communication that needs all clients that it asks and lacks some."""
    return FederationError(
        f"communication {communication.state.number} lacks {len(absent)} of {len(communication.steps)} clients "
        f"({_reasons(absent)}). Repair them and start the run again to resume it{otherwise}."
    )


def _reasons(absent: Mapping[str, str]) -> str:
    return "; ".join(f"{name!r}: {why}" for name, why in absent.items())


def _count_messages(run: FederatedRun, found: Collected) -> FederatedRun:
    wire = {"wire_bytes_up": found.bytes_up, "wire_bytes_down": found.bytes_down}
    return run._replace(ledger=add_counts(run.ledger, **wire, missing=len(found.missing), refused=len(found.refused)))


def _server_step(
    run: FederatedRun, communication: Communication, found: Collected, mean: Tree, number: int, senders: int
) -> FederatedRun:
    """Return the run after the server step on the mean of `number` messages, with the clients' work counted."""
    setup, last = run.setup, communication.last
    replies = {setup.names.index(name): answer.reply for name, answer in found.answers.items()}
    state = server_step(setup, run.state, last, mean, number / len(setup.names), replies)
    for agent, reply in replies.items():
        if reply.rebuilt:
            log.warning("Client %r had lost its state and rebuilt it.", setup.names[agent])
    ledger = add_counts(run.ledger, rebuilt=sum(reply.rebuilt for reply in replies.values()))
    ledger = ledger._replace(epsilon=max(ledger.epsilon, *(reply.epsilon for reply in replies.values()), 0.0))
    work = {agent: (communication.steps[agent], reply.updates, reply.samples) for agent, reply in replies.items()}
    receivers = len(replies.keys() & communication.senders())
    return run._replace(state=state, ledger=add_work(ledger, last, work, senders, receivers))


def _clip(
    run: FederatedRun, communication: Communication, messages: dict[int, Tree]
) -> tuple[FederatedRun, dict[int, Tree]]:
    """Return the messages, clipped to the norm that the settings allow, and count the clipped ones."""
    bound, setup = run.settings.clip, run.setup
    if not bound:
        return run, messages
    kinds, model = setup.kinds[communication.last % setup.exchanges], Vector(server_model(setup, run.state))
    clipped = {agent: _clipped(message, kinds, model, bound) for agent, message in messages.items()}
    for agent, (_, was_clipped) in clipped.items():
        if was_clipped:
            log.warning("The update of client %r was clipped to norm %g.", setup.names[agent], bound)
    ledger = add_counts(run.ledger, clipped=sum(was_clipped for _, was_clipped in clipped.values()))
    return run._replace(ledger=ledger), {agent: message for agent, (message, _) in clipped.items()}


def _clipped(message: Tree, kinds: Sequence[Kind | None], model: Vector, bound: float) -> tuple[Tree, bool]:
    """Return the message with each of its vectors clipped, and whether that changed it.

    The type of a vector says what is bounded: of a model or an iterate the distance to the server's model, of a change
    or a gradient its norm. A part without a type stays as it is, as with `transforms.clip`.
    """
    parts, structure = message_parts(message)
    clipped = []
    for part, kind in zip(parts, kinds, strict=True):
        clipped.append(part if kind is None else _clip_vector(part, model if is_model(kind) else None, bound))
    changed = any(new is not old for new, old in zip(clipped, parts, strict=True))
    return jax.tree.unflatten(structure, clipped), changed


def _clip_vector(vector: Vector, centre: Vector | None, bound: float) -> Vector:
    """Return a vector itself, or its nearest point in the ball of radius `bound` around the centre; None: around 0."""
    change = vector if centre is None else jax.tree.map(np.subtract, vector, centre)
    norm = np.sqrt(sum(float(np.sum(np.square(leaf, dtype=np.float64))) for leaf in jax.tree.leaves(change)))
    if norm <= bound:
        return vector
    change = jax.tree.map(lambda leaf: (leaf * (bound / norm)).astype(leaf.dtype), change)
    return change if centre is None else jax.tree.map(np.add, centre, change)


def is_evaluation_due(run: FederatedRun) -> bool:
    """Return whether to evaluate the model now: at the start, every `evaluate_every` communications, and at the end."""
    every, state = run.settings.evaluation_interval, run.state
    return bool(every) and ends_round(run) and (not state.number % every or next_step(run) is None)


def evaluation_requests(run: FederatedRun) -> dict[str, RecordDict]:
    """Return the messages, by name, that ask clients to evaluate the current model.

    They go to all clients but those that did not reply in the last communication: waiting again would not bring them
    back.
    """
    state, model = run.state, pack(delivered_model(run.setup, run.state))
    asked = cohort_of_step(run.setup, state.step - 1) if state.number else []
    away = {agent for agent in asked if state.counted[agent] != state.number - 1}
    setup = run.setup
    present = [(agent, name) for agent, name in enumerate(setup.names) if agent not in away]
    return {name: evaluation_request(model, setup.form, setup.run, state.counted[agent]) for agent, name in present}


def evaluation_subject(run: FederatedRun) -> tuple[str, int]:
    """Return the identity of the run and the number of communications before an evaluation."""
    return run.setup.run, run.state.number


def read_client_evaluation(run: FederatedRun, request: RecordDict, content: RecordDict) -> ClientEvaluation:
    """Return a client's reply to an evaluation request, after checks."""
    found = read_evaluation(request, content, run.setup.start)
    return found._replace(gradient=stored(found.gradient, run.setup.store))


def read_metrics(
    run: FederatedRun, found: Collected, sums: Mapping[str, float] | None = None
) -> tuple[FederatedRun, dict[str, float]]:
    """Return the metrics from the clients' evaluations, or from the sums of their masked numbers, and count messages.

    With a quorum, they are over the clients that replied, whose number is `metrics_agents`. Without one, there are no
    metrics if a reply is missing.
    """
    names, quorum = run.setup.names, run.settings.quorum
    present = [name for name in names if name in found.answers]
    usable = len(present) >= (len(names) if quorum is None else quorum)
    then = f"evaluated over {len(present)} clients" if usable else "not evaluated"
    absent = dict.fromkeys(set(names) - set(present), "it did not reply to the last order")
    for name, why in (absent | found.missing | found.refused).items():
        log.warning("The evaluation lacks client %r (%s); the model is %s this time.", name, why, then)
    metrics: dict[str, float] = {}
    if usable and sums is not None:
        metrics = combine_sums(sums, len(present))
    elif usable:
        metrics = combine([found.answers[name] for name in present])
    if quorum is not None:
        metrics["metrics_agents"] = len(present) if usable else 0
    if usable and sums is None:
        run = run._replace(ledger=run.ledger._replace(by_client=by_client([found.answers.get(name) for name in names])))
    return _count_messages(run, found), metrics


def label_of(run: FederatedRun) -> str:
    """Return the run's name in tables and figures."""
    return run.settings.label or run.setup.algorithm.description


def ends_round(run: FederatedRun) -> bool:
    """Return whether the last communication ended a round, and so may have changed the model."""
    return run.state.step % run.setup.exchanges == 0


def _example_column(run: FederatedRun) -> dict[str, float]:
    """Return the largest epsilon of a sample that a client says to have spent, if the oracle is private."""
    return {} if private_oracle(run.setup.algorithm) is None else {EPSILON_EXAMPLES.name: run.ledger.epsilon}


def close(run: FederatedRun, metrics: Mapping[str, float]) -> FederatedRun:
    """Return the run with a new row of the history, and write its checkpoint."""
    ledger = run.ledger
    if not ledger.history:
        ledger = add_first_row(ledger, run.setup.shapes.costs, {**metrics, **_example_column(run)})
    elif ends_round(run):
        ledger = close_rounds(ledger, run.setup.shapes.costs, {**metrics, **_example_column(run)})
    if len(ledger.elapsed) < len(ledger.history["round"]):
        ledger = ledger._replace(elapsed=np.append(ledger.elapsed, time.monotonic() - run.began))
    run, folder = run._replace(ledger=ledger), _folder(run.settings)
    if folder is not None and run.state.number:
        _save(run, folder)
    return run


def _save(run: FederatedRun, folder: Path) -> None:
    """Write the checkpoint of a communication: the server's state, the ledger and the clients' names."""
    setup, state, ledger = run.setup, run.state, run.ledger
    arrays = checkpoint.flatten("server", state.server) | ledger_arrays(ledger)
    for number, outcome in state.outcomes.items():
        arrays |= checkpoint.flatten(f"outcome-{number}", outcome.broadcast)
    for agent, message in state.last.items():
        arrays |= checkpoint.flatten(f"last-{agent}", message)
    meta = {
        "run": setup.run,
        "names": setup.names,
        "sizes": list(setup.sizes),
        "number": state.number,
        "step": state.step,
        "counted": state.counted,
        "outcomes": {number: outcome.exchange for number, outcome in state.outcomes.items()},
        "last": sorted(state.last),
        "totals": ledger.totals,
        "counts": ledger.counts,
        "epsilon": ledger.epsilon,
        "versions": versions(),
    }
    shown = {"label": label_of(run), "rounds": run.settings.rounds}  # for `fedpd watch` and `fedpd report` only
    checkpoint.save_round(folder, state.number, arrays, {**shown, **run.identity, **meta})


def _restore(setup: ServerSetup, arrays: checkpoint.Arrays, meta: Mapping[str, Any]) -> tuple[ServerState, Ledger]:
    """Return the state and the ledger of a checkpoint."""
    server = jax.eval_shape(setup.algorithm.server, Vector(setup.start))
    broadcasts = {int(number): exchange for number, exchange in meta["outcomes"].items()}
    outcomes = {
        n: Outcome(e, checkpoint.unflatten(f"outcome-{n}", setup.shapes.broadcasts[e], arrays))
        for n, e in broadcasts.items()
    }
    message = setup.shapes.messages[0]  # only methods with one exchange can use messages again
    last = {agent: checkpoint.unflatten(f"last-{agent}", message, arrays) for agent in meta["last"]}
    state = ServerState(
        checkpoint.unflatten("server", server, arrays), meta["number"], meta["step"], meta["counted"], outcomes, last
    )
    return state, restore_ledger(arrays, meta["totals"], meta["counts"], meta.get("epsilon", 0.0))
