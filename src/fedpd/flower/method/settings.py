"""What a run's configuration says to fedpd; the other entries are the user's own, for `algorithm` and `start`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedpd.base.checks import at_least, check_seeds, choice, count, positive, refuse
from fedpd.core import Algorithm, Tree

Config = Mapping[str, Any]  # a run's configuration, the same on all sides
MakeAlgorithm = Callable[[Config], Algorithm]
MakeStart = Callable[[Config], Tree]
POLICIES = ("fail", "stale", "partial")


class Settings(NamedTuple):
    """Entries of a run's configuration, by the same names with "-" for "_".

    agents:         N, how many clients the federation has: f = (1/N) sum_i f_i, so it is part of the problem.
    rounds:         T.
    seed:           of all randomness, as in a simulation.
    deadline:       seconds that a communication may take, from the order to the last reply.
    on_timeout:     what then, of clients that did not answer or whose answer was refused: "fail" ends the run (it can
                    be resumed); "stale" counts their last message once more; "partial" goes on without them.
    evaluate_every: communications between two evaluations by all clients; 0: never.
    clip:           the largest norm of what a client may move the mean by (times N); 0: any.
    secure_range:   the largest entry of a client's change, x_{0,i}^+ - x_0, under secure aggregation (SecAgg+), where
                    the server learns the sum of all messages and no client's own; 0: without. Needs
                    `client_app(secure=True)`.
    resend:         seconds after which an unanswered order is sent again, then twice as many, and so on.
    poll:           seconds between two looks for replies.
    out:            a folder of the server: checkpoints, history.parquet, model.safetensors. Without it, nothing is
                    kept and nothing can be resumed.
    label:          the run's name in the history.
    """

    agents: int
    rounds: int
    seed: int = 0
    deadline: float = 600.0
    on_timeout: str = "fail"
    evaluate_every: int = 1
    clip: float = 0.0
    secure_range: float = 0.0
    resend: float = 60.0
    poll: float = 0.5
    out: Path | None = None
    label: str = ""

    @property
    def form(self) -> str:
        return "partial" if self.on_timeout == "partial" else "whole"


def read_settings(config: Mapping[str, Any]) -> Settings:
    """The settings of a run's configuration, checked."""
    for name, meaning in (("agents", "how many clients there are"), ("rounds", "T, how many rounds to run")):
        if name not in config:
            refuse(name, None, "is not in the run's configuration", f"Say there {meaning}, e.g. {name} = 4")
    given = {name: config[key] for name in Settings._fields if (key := name.replace("_", "-")) in config}
    settings = Settings(**given)
    count("agents", settings.agents, "Give N, how many clients there are")
    count("rounds", settings.rounds, "Give T, the number of rounds")
    count("evaluate-every", settings.evaluate_every, "Give communications, or 0 for never", least=0)
    check_seeds("seed", [settings.seed])
    for name in ("deadline", "resend", "poll"):
        positive(name, getattr(settings, name), "Give seconds")
    at_least("clip", settings.clip, 0, "Give the largest norm of an update, or 0 for any")
    at_least("secure-range", settings.secure_range, 0, "Give the largest entry of a change, or 0 for no masks")
    choice("on-timeout", settings.on_timeout, POLICIES)
    return settings._replace(out=Path(str(settings.out)) if settings.out else None, label=str(settings.label))


def choose_form(algorithm: Algorithm, settings: Settings) -> Algorithm:
    """The form of the method that the policy needs; refused where there is none."""
    name = algorithm.description
    if settings.on_timeout == "stale" and not algorithm.away.repeats:
        rule = f"would count a message twice, and those of {name} are changes, or summed up by the server"
        refuse("on-timeout", "stale", rule, 'Use "partial" or "fail"')
    if settings.on_timeout != "partial":
        return algorithm
    if algorithm.away.everyone:
        refuse("on-timeout", "partial", f"{name} needs all agents in every communication", 'Use "fail"')
    return algorithm.away.partial or algorithm
