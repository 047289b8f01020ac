"""A run of a federation from the server: roll call, communications by the method's own coins, books, checkpoints."""

import hashlib
import json
import logging
import math
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from flwr.app import RecordDict
from flwr.serverapp import Grid
from tree_math import Vector

from fedpd.base import checkpoint
from fedpd.base.precision import is_double, scope
from fedpd.core import Algorithm, Tree
from fedpd.engine.history import History, write_parquet
from fedpd.flower.carry.collect import Collected, Patience, collect
from fedpd.flower.carry.directory import call_roll, in_order
from fedpd.flower.carry.protocol import EVALUATE, TRAIN
from fedpd.flower.carry.records import pack
from fedpd.flower.carry.secure import check_secure, collect_sum
from fedpd.flower.method import ledger as books
from fedpd.flower.method.evaluation import combine, question, read_evaluation
from fedpd.flower.method.identity import check_checkpoint_version, identity_of, spec_text
from fedpd.flower.method.policy import clip, counted_messages, incomplete, tell_absent
from fedpd.flower.method.saved import restore, save
from fedpd.flower.method.server import Desk, Terms, aggregate, begin, mean_of, model_of, next_meeting
from fedpd.flower.method.settings import Settings, choose_form
from fedpd.flower.method.shapes import check_algorithm, check_start, shapes

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
    report, patience = report or _log, Patience(settings.deadline, settings.resend, settings.poll)
    with scope(is_double(start)):
        run = Federation(grid, algorithm, start, settings)

        def evaluate() -> dict[str, float]:
            if not run.due():
                return {}
            return run.metrics(collect(grid, run.roll, run.questions(), EVALUATE, patience, run.read_metrics))

        if not run.ledger.history:
            run.close(evaluate())
        while (last := run.meeting()) is not None:
            desk = Desk(run.terms, run.state, last, {})
            if settings.secure_range:
                run.settle_sum(desk, *collect_sum(grid, run.roll, desk, patience, settings.secure_range))
            else:
                run.settle(desk, collect(grid, run.roll, desk.orders(), TRAIN, patience, desk.read))
            run.close(evaluate())
            report(
                run.state.step // run.terms.exchanges, settings.rounds, float(run.ledger.history["stationarity"][-1])
            )
        return run.result()


def _log(done: int, rounds: int, stationarity: float) -> None:
    log.info("Round %d of %d%s", done, rounds, "" if math.isnan(stationarity) else f": ‖∇f‖² {stationarity:.2e}")


def new_run(identity: Mapping[str, Any]) -> str:
    """The identity of a new run: by what is run, and apart from every other time that it is."""
    digest = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    return f"{digest[:16]}-{uuid.uuid4().hex}"


class Federation:
    """The state and the books of a run; what to do is decided in `server` and `policy`, and who carries messages apart.

    meeting -> desk (its orders out, answers in) -> settle -> (questions out, answers in) -> close; and again.
    """

    def __init__(self, grid: Grid, algorithm: Algorithm, start: Tree, settings: Settings) -> None:
        self.settings, forms = settings, shapes(algorithm, start)
        check_secure(algorithm, forms, settings)
        identity = identity_of(algorithm, start, settings)
        folder = None if settings.out is None else settings.out / "checkpoints"
        found = None
        if folder is not None:
            check_checkpoint_version(folder)
            found = checkpoint.load_newest(folder, identity)
        meta = {} if found is None else found[1]
        self.roll = call_roll(grid, settings.agents, settings.deadline, settings.poll, meta.get("names"))
        names, run = meta.get("names") or in_order(self.roll.nodes), meta.get("run") or new_run(identity)
        self.terms = Terms(algorithm, spec_text(algorithm), settings.form, forms, start, names, settings.seed, run)
        self.save = None if folder is None else partial(save, folder, self.terms, identity)
        if found is None:
            self.state, self.ledger = begin(self.terms), books.begin(len(names), self.terms.exchanges)
        else:
            self.state, self.ledger = restore(self.terms, *found)
        log.info("%s on %d clients (%s), run %s", algorithm.description, len(names), ", ".join(names), run)
        if found is not None:
            log.info("It goes on after %d communications.", self.state.number)

    def meeting(self) -> int | None:
        """The step of the next communication; None: the run is at its end."""
        return next_meeting(self.terms, self.state, self.settings.rounds)

    def count(self, found: Collected) -> None:
        wire = {"wire_bytes_up": found.bytes_up, "wire_bytes_down": found.bytes_down}
        self.ledger = books.count(self.ledger, **wire, missing=len(found.missing), refused=len(found.refused))

    def settle(self, desk: Desk, found: Collected) -> None:
        """The answers to the orders of a communication: their mean, by the policy, and the method's own server step."""
        self.count(found)
        terms, state, policy = self.terms, self.state, self.settings.on_timeout
        messages = self._clip(counted_messages(terms, state, desk.expected(), found, policy))
        if policy == "stale":
            self.state = state._replace(last=state.last | messages)
        senders = sum(answer.message is not None for answer in found.answers.values())
        self._advance(desk, found, mean_of(messages, desk.message_shapes()), len(messages), senders)

    def settle_sum(self, desk: Desk, found: Collected, mean: Tree | None) -> None:
        """As `settle`, where only the mean of the messages is known."""
        self.count(found)
        if mean is None:
            raise incomplete(self.terms, self.state, tell_absent(self.state, found))
        self._advance(desk, found, mean, len(found.answers), len(found.answers))

    def _advance(self, desk: Desk, found: Collected, mean: Tree, number: int, senders: int) -> None:
        """The method's own server step on the mean of `number` messages; the work of all that answered."""
        terms = self.terms
        replies = {terms.names.index(name): answer.reply for name, answer in found.answers.items()}
        self.state = aggregate(terms, self.state, desk.last, mean, number / len(terms.names), list(replies))
        for agent, reply in replies.items():
            if reply.rebuilt:
                log.warning("Client %r had lost its state, and has made it anew.", terms.names[agent])
        self.ledger = books.count(self.ledger, rebuilt=sum(reply.rebuilt for reply in replies.values()))
        work = {agent: (reply.updates, reply.samples) for agent, reply in replies.items()}
        self.ledger = books.add_work(self.ledger, desk.last, work, senders, len(replies))

    def _clip(self, messages: dict[int, Tree]) -> dict[int, Tree]:
        """The messages, none further from the newest broadcast than the settings allow."""
        bound = self.settings.clip
        if not bound:
            return messages
        outcome = self.state.outcomes.get(self.state.number - 1)
        reference = Vector(self.terms.start) if outcome is None else outcome.broadcast
        clipped = {agent: clip(message, reference, bound) for agent, message in messages.items()}
        for agent, (_, cut) in clipped.items():
            if cut:
                log.warning("The update of client %r was clipped to norm %g.", self.terms.names[agent], bound)
        self.ledger = books.count(self.ledger, clipped=sum(cut for _, cut in clipped.values()))
        return {agent: message for agent, (message, _) in clipped.items()}

    def due(self) -> bool:
        """Whether to evaluate the model as it is now: at the start, every so many communications, and at the end."""
        every = self.settings.evaluate_every
        if not every or not self.ends_round() or (self.state.number % every and self.meeting() is not None):
            return False
        away = [i for i, counted in enumerate(self.state.counted) if counted != self.state.number - 1]
        for agent in away:  # waiting for it again would not bring it back
            log.warning("The model is not evaluated this time, for want of client %r.", self.terms.names[agent])
        return not away

    def questions(self) -> dict[str, RecordDict]:
        """What to ask all clients to evaluate the model as it is now."""
        model = pack(model_of(self.terms, self.state))
        return {name: question(model, self.terms.form) for name in self.terms.names}

    def metrics(self, found: Collected) -> dict[str, float]:
        """f and the like, from the clients' answers to `questions`; nothing where not all of them answered."""
        self.count(found)
        for name, why in (found.missing | found.refused).items():
            log.warning("The model is not evaluated this time, for want of client %r: %s", name, why)
        whole = len(found.answers) == len(self.terms.names)
        return combine([found.answers[name] for name in self.terms.names]) if whole else {}

    def read_metrics(self, name: str, content: RecordDict) -> Any:
        return read_evaluation(content, None if self.settings.secure_range else self.terms.start)

    def ends_round(self) -> bool:
        """Whether the last communication ended a round, and so may have changed the model."""
        return self.state.step % self.terms.exchanges == 0

    def close(self, metrics: dict[str, float]) -> None:
        """A row of the history, and a checkpoint."""
        if not self.ledger.history:
            self.ledger = books.first_row(self.ledger, metrics)
        elif self.ends_round():
            self.ledger = books.close_rounds(self.ledger, self.terms.shapes.costs, metrics)
        if self.save is not None and self.state.number:
            self.save(self.state, self.ledger)

    def result(self) -> Federated:
        """What it came to, also as files of the folder."""
        terms, settings, history = self.terms, self.settings, self.ledger.history
        model, name = model_of(terms, self.state), terms.algorithm.description
        if settings.out is not None:
            meta = {"algorithm": name, "seed": settings.seed, "rounds": settings.rounds, "run": terms.run}
            checkpoint.write(settings.out / "model.safetensors", checkpoint.flatten("model", model), meta)
            write_parquet(settings.out / "history.parquet", {(settings.label or name, settings.seed): history})
        return Federated(name, settings.seed, model, history, terms.names, terms.run)
