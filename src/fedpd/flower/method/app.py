"""The server's side as a Flower ServerApp."""

from collections.abc import Callable

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedpd.flower.method.federation import Federated, Report, federate
from fedpd.flower.method.settings import Config, MakeAlgorithm, MakeStart, read_settings


def server_app(
    algorithm: MakeAlgorithm,
    start: MakeStart,
    *,
    defaults: Config | None = None,
    done: Callable[[Federated], None] | None = None,
    report: Report | None = None,
) -> ServerApp:
    """A ServerApp that runs any method on the clients of `client_app`; see `Settings` for the run's configuration.

    algorithm: run configuration -> Algorithm, the same function as the clients'.
    start:     run configuration -> the model x^0.
    defaults:  what the run's configuration says where it is silent.
    done:      is given what the federation came to.
    report:    is told how far it is; the log, unless given.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        config = {**(defaults or {}), **context.run_config}
        outcome = federate(grid, algorithm(config), start(config), read_settings(config), report)
        if done is not None:
            done(outcome)

    return app
