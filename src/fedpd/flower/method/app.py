"""The server's side as a Flower ServerApp."""

import logging
from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpd.base.errors import FedpdError
from fedpd.base.progress import ProgressFunction
from fedpd.engine.measure.targets import Until
from fedpd.engine.simulate import Callback
from fedpd.flower.method.federation import Federated, federate
from fedpd.flower.method.observers import Test
from fedpd.flower.method.settings import Config, MakeAlgorithm, MakeStart, read_settings
from fedpd.loggers import Log


def server_app(
    algorithm: MakeAlgorithm,
    start: MakeStart,
    *,
    defaults: Config | None = None,
    done: Callable[[Federated], None] | None = None,
    report: ProgressFunction | None = None,
    callback: Callback | None = None,
    log: Log | None = None,
    until: Until | None = None,
    test: Test | None = None,
) -> ServerApp:
    """Return a ServerApp that runs any method on the clients of `client_app`.

    `Settings` lists the entries of the run's configuration.

    Args:
        algorithm: Run configuration -> Method, the same function as the clients'.
        start: Run configuration -> the model x^0.
        defaults: Entries that the run's configuration may leave out.
        done: Called with the result of the federation.
        report: Called after every communication, as in `federate`.
        callback: Called with (round, model, row), as in `federate`; True ends the run.
        log: A logger of `fedpd.loggers`.
        until: Ends the run when these columns have reached their values, e.g. {"loss": 0.1}.
        test: Evaluates the model on the server's own data, as in `federate`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.getLogger("flwr").addFilter(without_traceback)
        config = {**(defaults or {}), **context.run_config}
        outcome = federate(
            grid,
            algorithm(config),
            start(config),
            read_settings(config),
            report,
            callback=callback,
            log=log,
            until=until,
            test=test,
        )
        if done is not None:
            done(outcome)

    return app


def without_traceback(record: logging.LogRecord) -> bool:
    """Shorten Flower's report of fedpd's own errors to their sentence. It is a filter of Flower's logger."""
    error = record.exc_info[1] if isinstance(record.exc_info, tuple) else None
    if isinstance(error, FedpdError):
        record.msg, record.args, record.exc_info = f"error: {error}", (), None
    return True
