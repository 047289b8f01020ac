"""A federation as a Flower Strategy, for your own ServerApp and for Flower's wrappers around strategies.

Prefer `server_app` if you need no wrapper. Flower's loop asks the strategy for messages and gives it the replies. Each
of its rounds is one communication, and rounds after the last communication do nothing. The loop does not send an order
again. A client that has lost its state cannot ask for help within a round; it joins the next one, if the policy allows.
"""

import logging
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp import strategy as flower
from tree_math import Vector

from fedpd.base.checks import FedpdError, refuse
from fedpd.base.precision import is_double, scope
from fedpd.core import Method, Tree
from fedpd.flower.carry.collect import Collected, Read
from fedpd.flower.carry.directory import FederationError
from fedpd.flower.carry.protocol import EVALUATE, HELLO, TRAIN
from fedpd.flower.carry.records import pack, serialised_bytes, unpack
from fedpd.flower.method.evaluation import ClientEvaluation
from fedpd.flower.method.federation import Federated, write_result
from fedpd.flower.method.own_apps import MODULE, REST, OwnApp, own_app
from fedpd.flower.method.run import (
    FederatedRun,
    apply_replies,
    close,
    evaluation_requests,
    is_evaluation_due,
    new_communication,
    next_step,
    open_run,
    read_client_evaluation,
    read_metrics,
)
from fedpd.flower.method.server import Communication
from fedpd.flower.method.settings import Settings, check_settings, choose_form
from fedpd.flower.method.shapes import check_algorithm, check_start
from fedpd.own_loop import is_own_loop

log = logging.getLogger(f"flwr.{__name__}")


class Strategy(flower.Strategy):
    """Runs a method in Flower's own loop.

    Args:
        algorithm: The method, the same as the clients'. With `oracles.own_loop()` the clients are apps with
            `fedpd.flower.mod`, which answer no evaluations: Flower's `evaluate_fn` measures at the server.
        start: The model x^0, any pytree. For apps with the mod a PyTorch module, or arrays by the names of the app's
            own arrays. Of a module, the parameters that require a gradient are the model; the other arrays, such as
            buffers, reach the clients as they are, and each client keeps those that its training changes.
        settings: The settings of the run; `secure_range` must be 0.

    Examples:
        strategy.start(grid, strategy.arrays, num_rounds=settings.rounds), then strategy.result().
    """

    def __init__(self, algorithm: Method, start: Tree, settings: Settings) -> None:
        settings = check_settings(settings)
        if settings.secure_range:
            rule = "needs four messages per communication, but Flower's loop sends one"
            refuse("secure-range", settings.secure_range, rule, "Use server_app")
        self.algorithm = choose_form(check_algorithm(algorithm, own_loops=True), settings)
        self._app: OwnApp | None = None
        if is_own_loop(self.algorithm):
            self._app, settings = own_app(start), _without_evaluations(settings)
            start = self._app.model
        self.model, self.settings = check_start(start), settings
        self._run: FederatedRun | None = None
        self._communication: Communication | None = None
        self._asked: dict[str, RecordDict] = {}
        self._lost: set[str] = set()  # clients that have lost their state

    @property
    def arrays(self) -> ArrayRecord:
        """The start, in the form that Flower's loop needs."""
        return pack(Vector(self.model))

    def result(self) -> Federated:
        """Return the result after the last communication so far."""
        with self._scope():
            return write_result(self._started())

    def _scope(self) -> AbstractContextManager[Any]:
        return scope(is_double(self.model))

    def _started(self) -> FederatedRun:
        if self._run is None:
            raise FederationError("the strategy has no result yet, because it has not started. Call start first.")
        return self._run

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the orders of the next communication, with the entries that wrappers have added to `config`."""
        with self._scope():
            if self._run is None:
                hello = HELLO if self._app is None else TRAIN
                opened = open_run(grid, self.algorithm, self.model, self.settings, hello)
                self._run = opened if opened.ledger.history else close(opened, {})
            last = next_step(self._run)
            if last is None:
                return []
            self._run = replace_broadcast(self._run, arrays)
            self._communication = new_communication(self._run, last)
            more = {} if self._app is None else {MODULE: self._app.description}
            self._asked = self._communication.orders({**config, **more}, self._lost)
            if self._app is not None:
                for content in self._asked.values():
                    content[REST] = self._app.rest
            return _messages(self._run, self._asked, TRAIN)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Apply the replies to the run, and return the broadcast and the counts so far."""
        run, communication = self._started(), self._communication
        if communication is None:
            return None, None
        with self._scope():
            found, lost = read_replies(run, self._asked, replies, communication.read)
            self._lost = (self._lost - set(found.answers)) | lost
            run = apply_replies(run, communication, found)
            self._run, self._communication = run if is_evaluation_due(run) else close(run, {}), None
            outcome = run.state.outcomes[run.state.number - 1]
            counts = {name: float(number) for name, number in run.ledger.counts.items()}
            return pack(outcome.broadcast), MetricRecord({"round": run.state.step // run.setup.exchanges, **counts})

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return the evaluation requests, if an evaluation is due."""
        run, self._asked = self._started(), {}
        if not run.ledger.pending["updates"].size or not is_evaluation_due(run):
            return []
        with self._scope():
            self._asked = evaluation_requests(run)
            return _messages(run, self._asked, EVALUATE)

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Return the metrics from the clients' evaluations, and add a row to the history."""
        if not self._asked:
            return None
        run = self._started()
        with self._scope():
            found, _ = read_replies(run, self._asked, replies, self._read_evaluation)
            run, metrics = read_metrics(run, found)
            self._run = close(run, metrics)
            return MetricRecord({name: float(value) for name, value in metrics.items()})

    def _read_evaluation(self, name: str, content: RecordDict) -> ClientEvaluation:
        return read_client_evaluation(self._started(), self._asked[name], content)

    def summary(self) -> None:
        """Write the method and the settings to Flower's log."""
        log.info("%s, %s", self.algorithm.description, self.settings)


def _without_evaluations(settings: Settings) -> Settings:
    """Return settings for apps of the user's own, which do not know fedpd's evaluations."""
    if settings.evaluate_every:
        rule = "asks the clients for evaluations, which an app with fedpd.flower.mod does not know"
        refuse("evaluate-every", settings.evaluate_every, rule, "Leave it out, and give evaluate_fn to start")
    return settings._replace(evaluate_every=0)


def _messages(run: FederatedRun, contents: Mapping[str, RecordDict], kind: str) -> list[Message]:
    return [Message(content, run.directory.nodes[name], kind) for name, content in contents.items()]


def replace_broadcast(run: FederatedRun, arrays: ArrayRecord) -> FederatedRun:
    """Return the run with the broadcast that Flower returns, which a wrapper may have changed (noise)."""
    state = run.state
    outcome = state.outcomes.get(state.number - 1)
    if outcome is None:
        return run
    given = unpack(arrays, outcome.broadcast, "arrays")
    if all(map(np.array_equal, jax.tree.leaves(given), jax.tree.leaves(outcome.broadcast))):
        return run
    kinds: list[Any] = [jax.tree.structure(tree) for tree in (state.server, given)]
    if kinds[0] != kinds[1]:
        raise FederationError(
            f"{run.setup.algorithm.description}: a wrapper changes the model, but this method's server keeps more than "
            "the model. Use a method whose server keeps only the model (fedpd, fedavg, fedprox), without average."
        )
    outcomes = state.outcomes | {state.number - 1: outcome._replace(broadcast=given)}
    return run._replace(state=state._replace(server=given, outcomes=outcomes))


def read_replies(
    run: FederatedRun, asked: Mapping[str, RecordDict], replies: Iterable[Message], read: Read
) -> tuple[Collected, set[str]]:
    """Return the replies from Flower's loop, by name, and the clients that have lost their state."""
    names = {run.directory.nodes[name]: name for name in asked}
    answers, refused, lost, bytes_up = {}, {}, set(), 0
    for reply in replies:
        name = names.get(reply.metadata.src_node_id)
        if name is None or reply.has_error():
            log.warning("Client %r: %s", name, reply.error if reply.has_error() else "did not belong to the run")
            continue
        bytes_up += serialised_bytes(reply.content)
        try:
            answer = read(name, reply.content)
        except FedpdError as error:
            refused[name] = str(error)
            continue
        if isinstance(answer, RecordDict):
            lost.add(name)
            refused[name] = "has lost its state"
        else:
            answers[name] = answer
    missing = {name: "no reply" for name in asked if name not in {**answers, **refused}}
    bytes_down = sum(serialised_bytes(content) for content in asked.values())
    return Collected(answers, refused, missing, bytes_up, bytes_down), lost
