"""The same federation as a Flower Strategy, for a ServerApp of one's own and for Flower's wrappers around strategies.

Flower's loop asks for messages and hands in replies; each of its rounds is one communication, and rounds beyond the
last one do nothing. It neither sends again nor lets a client that has lost its state ask back within a round (the
client joins at the next one, by the policy), so prefer `server_app` where no wrapper is needed.
"""

import logging
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import is_double, scope
from fedpd.core import Algorithm, Tree
from fedpd.flower.carry.collect import Collected, Read
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.carry.protocol import EVALUATE, TRAIN
from fedpd.flower.carry.records import pack, serialised_bytes, unpack
from fedpd.flower.method.federation import Federated, Federation
from fedpd.flower.method.server import Desk
from fedpd.flower.method.settings import Settings, choose_form
from fedpd.flower.method.shapes import check_algorithm, check_start

log = logging.getLogger(f"flwr.{__name__}")


class Strategy(flower.Strategy):
    """strategy.start(grid, strategy.arrays, num_rounds=settings.rounds), then `strategy.result()`."""

    def __init__(self, algorithm: Algorithm, start: Tree, settings: Settings) -> None:
        if settings.secure_range:
            rule = "needs four messages a communication, and Flower's loop carries one"
            refuse("secure-range", settings.secure_range, rule, "Use server_app")
        self.algorithm = choose_form(check_algorithm(algorithm), settings)
        self.model, self.settings = check_start(start), settings
        self.federation: Federation | None = None
        self._desk: Desk | None = None
        self._asked: dict[str, RecordDict] = {}
        self._lost: set[str] = set()  # who asked for what it needs to go on

    @property
    def arrays(self) -> ArrayRecord:
        """The start, as Flower's loop wants it."""
        return pack(Vector(self.model))

    def result(self) -> Federated:
        with self._scope():
            return self._run().result()

    def _scope(self) -> Any:
        return scope(is_double(self.model))

    def _run(self) -> Federation:
        if self.federation is None:
            raise FederationError("the strategy has not been started: it has nothing to say yet. Call start first.")
        return self.federation

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The orders of the next communication, beside what wrappers have put into `config`."""
        with self._scope():
            if self.federation is None:
                self.federation = Federation(grid, self.algorithm, self.model, self.settings)
                if not self.federation.ledger.history:
                    self.federation.close({})
            run = self.federation
            last = run.meeting()
            if last is None:
                return []
            self._take_over(run, arrays)
            self._desk = Desk(run.terms, run.state, last, {})
            self._asked = self._desk.orders(config, self._lost)
            return [Message(content, run.roll.nodes[name], TRAIN) for name, content in self._asked.items()]

    def _take_over(self, run: Federation, arrays: ArrayRecord) -> None:
        """The model that Flower hands back is the broadcast, unless a wrapper has changed it (noise): then that is."""
        outcome = run.state.outcomes.get(run.state.number - 1)
        if outcome is None:
            return
        given = unpack(arrays, outcome.broadcast, "arrays")
        if all(map(np.array_equal, jax.tree.leaves(given), jax.tree.leaves(outcome.broadcast))):
            return
        kinds: list[Any] = [jax.tree.structure(tree) for tree in (run.state.server, given)]
        if kinds[0] != kinds[1]:
            raise FederationError(
                f"{run.terms.algorithm.description}: its server keeps more than the model, which a change from outside "
                "does not reach. Use a method whose server is its model (fedpd, fedavg, fedprox)."
            )
        outcomes = run.state.outcomes | {run.state.number - 1: outcome._replace(broadcast=given)}
        run.state = run.state._replace(server=given, outcomes=outcomes)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        run, desk = self._run(), self._desk
        if desk is None:
            return None, None
        with self._scope():
            run.settle(desk, self._collected(replies, desk.read))
            self._desk = None
            if not run.due():
                run.close({})
            outcome = run.state.outcomes[run.state.number - 1]
            counts = {name: float(number) for name, number in run.ledger.counts.items()}
            return pack(outcome.broadcast), MetricRecord({"round": run.state.step // run.terms.exchanges, **counts})

    def _collected(self, replies: Iterable[Message], read: Read) -> Collected:
        """What Flower's loop brought, by name."""
        run = self._run()
        names = {run.roll.nodes[name]: name for name in self._asked}
        answers, refused, up = {}, {}, 0
        for reply in replies:
            name = names.get(reply.metadata.src_node_id)
            if name is None or reply.has_error():
                log.warning("Client %r: %s", name, reply.error if reply.has_error() else "did not belong to the run")
                continue
            up += serialised_bytes(reply.content)
            try:
                answer = read(name, reply.content)
            except FedpdError as error:
                refused[name] = str(error)
                continue
            if isinstance(answer, RecordDict):
                self._lost.add(name)
                refused[name] = "has lost its state"
            else:
                self._lost.discard(name)
                answers[name] = answer
        missing = {name: "no answer" for name in self._asked if name not in {**answers, **refused}}
        down = sum(serialised_bytes(content) for content in self._asked.values())
        return Collected(answers, refused, missing, up, down)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        run, self._asked = self._run(), {}
        if not run.ledger.open["updates"].size or not run.due():
            return []
        with self._scope():
            self._asked = run.questions()
            return [Message(content, run.roll.nodes[name], EVALUATE) for name, content in self._asked.items()]

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        if not self._asked:
            return None
        run = self._run()
        with self._scope():
            metrics = run.metrics(self._collected(replies, run.read_metrics))
            run.close(metrics)
            return MetricRecord({name: float(value) for name, value in metrics.items()})

    def summary(self) -> None:
        log.info("%s, %s", self.algorithm.description, self.settings)
