"""A run of a federation from the server: roll call, communications by the method's own coins, books, checkpoints."""

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from flwr.serverapp import Grid
from tree_math import Vector

from fedpd import checkpoint
from fedpd.core import Algorithm, Tree
from fedpd.flower import ledger as books
from fedpd.flower.collect import Collected, Patience, collect
from fedpd.flower.evaluation import combine, question, read_evaluation
from fedpd.flower.policy import clip, counted_messages
from fedpd.flower.protocol import EVALUATE, TRAIN
from fedpd.flower.records import pack
from fedpd.flower.roll import call_roll, in_order
from fedpd.flower.saved import restore, save
from fedpd.flower.server import Desk, Terms, aggregate, begin, model_of, next_meeting
from fedpd.flower.settings import Settings, choose_form
from fedpd.flower.shapes import check_algorithm, check_start, shapes
from fedpd.history import History, write_parquet
from fedpd.precision import is_double, scope

log = logging.getLogger(f"flwr.{__name__}")

Report = Callable[[int, int, float], None]  # (rounds done, rounds in all, stationarity or NaN)


class Federated(NamedTuple):
    """What a federation came to."""

    algorithm: str
    seed: int
    model: Tree  # x_0 after the last communication, the user's own pytree, NumPy leaves
    history: History  # one row a communication; `wire_bytes_up` and the like beside a simulation's columns
    names: list[str]  # of agent 0, 1, ...
    run: str  # the identity under which clients keep their state


def federate(
    grid: Grid, algorithm: Algorithm, start: Tree, settings: Settings, report: Report | None = None
) -> Federated:
    """Run a method on the clients of a Flower grid, or go on with the run that the folder `settings.out` holds.

    Rounds after the last communication are not done: nobody would hear of them.
    """
    start = check_start(start)
    algorithm = choose_form(check_algorithm(algorithm), settings)
    with scope(is_double(start)):
        federation = _Federation(grid, algorithm, start, settings)
        federation.run(report or _log)
        terms, history = federation.terms, federation.ledger.history
        model = model_of(terms, federation.state)
    if settings.out is not None:
        meta = {"algorithm": algorithm.description, "seed": settings.seed, "rounds": settings.rounds, "run": terms.run}
        checkpoint.write(settings.out / "model.safetensors", checkpoint.flatten("model", model), meta)
        label = settings.label or algorithm.description
        write_parquet(settings.out / "history.parquet", {(label, settings.seed): history})
    return Federated(algorithm.description, settings.seed, model, history, terms.names, terms.run)


def _log(done: int, rounds: int, stationarity: float) -> None:
    log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


def identity_of(algorithm: Algorithm, start: Tree, settings: Settings) -> dict[str, Any]:
    """What makes two runs the same run, so that one may go on from the other's checkpoint."""
    return {
        "algorithm": algorithm.description,
        "form": settings.form,
        "seed": settings.seed,
        "agents": settings.agents,
        "start": checkpoint.fingerprint(start),
    }


def new_run(identity: Mapping[str, Any]) -> str:
    """The identity of a new run: by what is run, and apart from every other time that it is."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{digest[:16]}-{uuid.uuid4().hex}"


class _Federation:
    """The imperative shell: holds the grid, the state and the books; what to do is decided in `server` and `policy`."""

    def __init__(self, grid: Grid, algorithm: Algorithm, start: Tree, settings: Settings) -> None:
        self.grid, self.settings = grid, settings
        self.patience = Patience(settings.deadline, settings.resend, settings.poll)
        identity = identity_of(algorithm, start, settings)
        folder = None if settings.out is None else settings.out / "checkpoints"
        found = None if folder is None else checkpoint.load_newest(folder, identity)
        meta = {} if found is None else found[1]
        self.roll = call_roll(grid, settings.agents, settings.deadline, settings.poll, meta.get("names"))
        names, run = meta.get("names") or in_order(self.roll.nodes), meta.get("run") or new_run(identity)
        self.terms = Terms(algorithm, settings.form, shapes(algorithm, start), start, names, settings.seed, run)
        self.save = None if folder is None else partial(save, folder, self.terms, identity)
        if found is None:
            self.state, self.ledger = begin(self.terms), books.begin(len(names), self.terms.exchanges)
        else:
            self.state, self.ledger = restore(self.terms, *found)
        log.info("%s on %d clients (%s), run %s", algorithm.description, len(names), ", ".join(names), run)
        if found is not None:
            log.info("It goes on after %d communications.", self.state.number)

    def run(self, report: Report) -> None:
        terms, rounds = self.terms, self.settings.rounds
        if not self.ledger.history:
            metrics = self._evaluate()
            self.ledger = books.first_row(self.ledger, metrics)
        meeting = next_meeting(terms, self.state, rounds)
        while meeting is not None:
            done = meeting
            self._communicate(done)
            meeting = next_meeting(terms, self.state, rounds)
            if done % terms.exchanges == terms.exchanges - 1:
                every = self.settings.evaluate_every
                due = every and (self.state.number % every == 0 or meeting is None)
                self.ledger = books.close_rounds(self.ledger, terms.shapes.costs, self._evaluate() if due else {})
                report(done // terms.exchanges + 1, rounds, float(self.ledger.history["stationarity"][-1]))
            if self.save is not None:
                self.save(self.state, self.ledger)

    def _communicate(self, last: int) -> None:
        """One exchange with all clients: orders, answers, the mean."""
        terms, state, policy = self.terms, self.state, self.settings.on_timeout
        desk = Desk(terms, state, last, {})
        expected = desk.expected()
        found = self._collect({terms.names[i]: desk.order(i) for i in expected}, TRAIN, desk.read)
        messages = counted_messages(terms, state, expected, found, policy)
        messages = self._clip(messages, last)
        replies = {terms.names.index(name): answer.reply for name, answer in found.answers.items()}
        self.state = aggregate(terms, state, last, messages, list(replies))
        if policy != "stale":
            self.state = self.state._replace(last={})
        for agent, reply in replies.items():
            if reply.rebuilt:
                log.warning("Client %r had lost its state, and has made it anew.", terms.names[agent])
        self.ledger = books.count(self.ledger, rebuilt=sum(reply.rebuilt for reply in replies.values()))
        work = {agent: (reply.updates, reply.samples) for agent, reply in replies.items()}
        senders = sum(answer.message is not None for answer in found.answers.values())
        self.ledger = books.add_work(self.ledger, last, work, senders, len(replies))

    def _clip(self, messages: dict[int, Tree], last: int) -> dict[int, Tree]:
        """The messages, none further from the newest broadcast than the settings allow."""
        if not self.settings.clip:
            return messages
        outcome = self.state.outcomes.get(self.state.number - 1)
        reference = Vector(self.terms.start) if outcome is None else outcome.broadcast
        clipped = {agent: clip(message, reference, self.settings.clip) for agent, message in messages.items()}
        for agent, (_, cut) in clipped.items():
            if cut:
                log.warning(
                    "The update of client %r was clipped to norm %g.", self.terms.names[agent], self.settings.clip
                )
        self.ledger = books.count(self.ledger, clipped=sum(cut for _, cut in clipped.values()))
        return {agent: message for agent, (message, _) in clipped.items()}

    def _evaluate(self) -> dict[str, float]:
        """f and the like at the server's model, by all clients; nothing where not all of them answer."""
        if not self.settings.evaluate_every:
            return {}
        model = pack(model_of(self.terms, self.state))
        contents = {name: question(model, self.terms.form) for name in self.terms.names}
        found = self._collect(contents, EVALUATE, lambda _, content: read_evaluation(content, self.terms.start))
        for name, why in (found.missing | found.refused).items():
            log.warning("The model is not evaluated this time, for want of client %r: %s", name, why)
        whole = len(found.answers) == len(self.terms.names)
        return combine([found.answers[name] for name in self.terms.names]) if whole else {}

    def _collect(self, contents: Any, kind: str, read: Any) -> Collected:
        found = collect(self.grid, self.roll, contents, kind, self.patience, read)
        wire = {"wire_bytes_up": found.bytes_up, "wire_bytes_down": found.bytes_down}
        self.ledger = books.count(self.ledger, **wire, missing=len(found.missing), refused=len(found.refused))
        return found
