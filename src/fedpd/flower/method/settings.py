"""The entries of a run's configuration that fedpd reads. The user may add others, for `algorithm` and `start`."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fedpd.base.checks import at_least, check_seeds, count, positive, refuse, shown
from fedpd.base.errors import warn
from fedpd.base.typed import check_arguments
from fedpd.base.value import constant
from fedpd.core import Kind, Method, Tree, form_with_absent, has_packed, message_kinds
from fedpd.engine.participation import Sampling, check_cohort
from fedpd.flower.carry.protocol import Form
from fedpd.flower.method.shapes import Shapes
from fedpd.flower.tables import read_table

Config = Mapping[str, Any]  # a run's configuration, the same on all sides
MakeAlgorithm = Callable[[Config], Method]
MakeStart = Callable[[Config], Tree]
OnTimeout = Literal["fail", "stale", "partial"]


class Settings(NamedTuple):
    """The entries of a run's configuration, under the same names with "-" in place of "_".

    Attributes:
        agents: N, the number of clients of the federation. It is part of the problem, because f = (1/N) sum_i f_i.
        rounds: T, the number of rounds.
        seed: The seed of all random numbers, as in a simulation.
        deadline: Seconds that a communication may take, from the order to the last reply.
        on_timeout: What the server does at the deadline if clients did not reply or their replies were refused. "fail"
            ends the run (it can be resumed), "stale" uses their last message again, "partial" continues without them.
        evaluate_every: Communications between two evaluations by all clients; 0: never. None: 1, or N/K rounded up with
            a cohort of K, so that evaluations ask about as many clients as the communications between them.
        clip: The largest norm of a client's update; larger updates are clipped. It bounds the distance of a model to
            the server's newest model, and the norm of a change or a gradient: of each vector of a message. 0: none.
        secure_range: The largest entry of a client's change, x_{0,i}^+ - x_0, under secure aggregation (SecAgg+). The
            server then learns the sum of the messages and no single message. 0: no secure aggregation. It needs
            `client_app(secure=True)`. With on_timeout = "partial", clients may drop out.
        resend: Seconds after which the server sends an unanswered order again; the pause then doubles every time.
        poll: Seconds between two checks for replies.
        out: A folder of the server for checkpoints, history.parquet and model.safetensors. Without it the server saves
            nothing, and the run cannot be resumed.
        label: The run's name in the history.
        cohort: K, the number of clients that the server asks in each round: those that `fedpd.simulate` draws from the
            same seed. None: all clients in every round.
        sampling: How the cohort is drawn: "uniform", or "size", one client after another with probabilities
            proportional to their numbers of samples, which clients then tell the server before the first round.
        bind_names: Whether a client's name belongs to the first node that claims it, and other nodes that claim it are
            refused. False: the newest node has the name, which clients without a registered key need after a restart.
        min_clients: The quorum of "stale" and "partial": a communication needs this many replies. Once it has them, the
            server does not wait for clients whose nodes Flower reports as gone.
        best: The model to keep beside the last one, as "min" or "max" and a column of the history, e.g. "min loss" or
            "max test_accuracy". "": none.
        metrics_port: The port on 127.0.0.1 at which Prometheus can read the newest row; 0: none.
        average: Whether the server delivers the running mean of its models, as `simulate(..., average=True)` does. The
            evaluated and the saved models, the history and the result are that mean. Clients compute as without it.
    """

    agents: int
    rounds: int
    seed: int = 0
    deadline: float = 600.0
    on_timeout: OnTimeout = "fail"
    evaluate_every: int | None = None
    clip: float = 0.0
    secure_range: float = 0.0
    resend: float = 60.0
    poll: float = 0.5
    out: Path | None = None
    label: str = ""
    cohort: int | None = None
    sampling: Sampling = "uniform"
    bind_names: bool = True
    min_clients: int = 1
    best: str = "min loss"
    metrics_port: int = 0
    average: bool = False

    @property
    def quorum(self) -> int | None:
        """The replies that a communication needs; None: those of all clients."""
        return None if self.on_timeout == "fail" else self.min_clients

    @property
    def sampled(self) -> int | None:
        """K, if the server asks only some of the clients in each round; None: it asks all."""
        return None if self.cohort == self.agents else self.cohort

    @property
    def form(self) -> Form:
        """The form of the method: for full participation, or for partial participation."""
        return "partial" if self.on_timeout == "partial" or self.sampled is not None else "whole"

    @property
    def evaluation_interval(self) -> int:
        """The communications between two evaluations; 0: there are none."""
        if self.evaluate_every is not None:
            return self.evaluate_every
        return 1 if self.sampled is None else -(-self.agents // self.sampled)


KEYS = [name.replace("_", "-") for name in Settings._fields]


def read_settings(config: Config) -> Settings:
    """Return the settings of a run's configuration, and warn of an entry that is probably misspelt.

    Raises:
        FedpdError: If an entry is missing or breaks a rule.
    """
    for name, meaning in (("agents", "the number of clients"), ("rounds", "T, the number of rounds")):
        if name not in config:
            refuse(name, None, "is not in the run's configuration", f"Set {meaning}, e.g. {name} = 4")
    _warn_of_misspelt(config)
    own = {**config, "out": str(config.get("out") or ""), "label": str(config.get("label", ""))}
    settings = read_table(Settings, {key: own[key] for key in KEYS if key in own})
    return check_settings(settings)


class WatchedConfig(dict[str, Any]):
    """A run's configuration that knows which entries the user's functions read: all of them, if they ask for a list.

    It is a dict, because users may pass it on to functions that need one.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.read: set[str] = set()

    def __getitem__(self, key: str) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self.read.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:  # because of it, dict(config) and {**config} call keys
        return iter(self.keys())

    def keys(self) -> Any:
        self.read.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self.read.update(super().keys())
        return super().items()

    def copy(self) -> dict[str, Any]:
        return dict(self)


def _warn_of_misspelt(config: Config) -> None:
    """Warn of entries that look like those of fedpd but are not, and that the user's functions do not read either."""
    used, rule = set(), "fedpd reads no such entry of a run's configuration"
    if isinstance(config, WatchedConfig):
        used, rule = set(config.read), f"{rule}, and neither algorithm nor start does"
    for key, value in config.items():
        near = get_close_matches(key.lower().replace("_", "-"), KEYS, n=1, cutoff=0.8)
        if near and key not in KEYS and key not in used:
            warn(f"{key} = {shown(value)}: {rule}. Did you mean {near[0]!r}? If it is your own, give it another name.")


def check_settings(settings: Settings) -> Settings:
    """Return settings with plain numbers in place of NumPy's, which messages cannot hold; refuse wrong ones.

    Raises:
        FedpdError: The message has the entry, its value, the rule and the remedy.
    """
    check_arguments(Settings, settings._asdict())
    count("agents", settings.agents, "Give N, the number of clients")
    count("rounds", settings.rounds, "Give T, the number of rounds")
    if settings.evaluate_every is not None:
        count("evaluate-every", settings.evaluate_every, "Give communications, or 0 for never", least=0)
    check_sampling(settings)
    check_seeds("seed", [settings.seed])
    check_quorum(settings)
    check_best(settings.best)
    count("metrics-port", settings.metrics_port, "Give a port, e.g. 9464, or 0 for none", least=0, bits=16)
    for name in ("deadline", "resend", "poll"):
        positive(name, getattr(settings, name), "Give seconds")
    at_least("clip", settings.clip, 0, "Give the largest norm of an update, or 0 for no clipping")
    at_least("secure-range", settings.secure_range, 0, "Give the largest entry of a change, or 0 for no masking")
    plain = {name: one.item() for name, one in settings._asdict().items() if isinstance(one, np.generic)}
    return settings._replace(**plain)


def check_sampling(settings: Settings) -> None:
    """Check `cohort` and `sampling`."""
    if settings.cohort is not None:
        check_cohort(settings.cohort, settings.agents)
    elif settings.sampling != "uniform":
        refuse("sampling", settings.sampling, "needs a cohort", "Set cohort, the number of clients per round, e.g. 10")


def check_quorum(settings: Settings) -> None:
    """Check that `min_clients` is possible with the other settings."""
    count("min-clients", settings.min_clients, "Give the number of replies that a communication needs")
    asked = settings.sampled or settings.agents
    if settings.min_clients > asked:
        rule = f"the server asks {asked} clients in each communication"
        refuse("min-clients", settings.min_clients, rule, f"Give at most {asked}")
    if settings.min_clients > 1 and settings.on_timeout == "fail":
        rule = 'on-timeout = "fail" needs the replies of all clients'
        refuse("min-clients", settings.min_clients, rule, 'Use on-timeout = "partial" or "stale", or leave it out')


def check_best(best: str) -> None:
    """Check the form of the setting `best`."""
    words = best.split()
    if words and (len(words) != 2 or words[0] not in ("min", "max")):
        refuse("best", best, 'must be "min" or "max" and the name of a column', 'Give e.g. "min loss", or ""')


def choose_form(algorithm: Method, settings: Settings) -> Method:
    """Return the form of the method that `cohort` and `on_timeout` need; refuse the setting if there is none."""
    if settings.sampled is not None:
        algorithm = _check_asked(algorithm)
    name = algorithm.description
    if settings.on_timeout == "stale" and not algorithm.repeats:
        rule = f"would use a message twice, but messages of {name} are changes, or its server adds them up"
        refuse("on-timeout", "stale", rule, 'Use "partial" or "fail"')
    if settings.on_timeout != "partial":
        return algorithm
    if algorithm.needs_everyone:
        refuse("on-timeout", "partial", f"{name} needs all agents in every communication", 'Use "fail"')
    return constant(form_with_absent(algorithm))


def _check_asked(algorithm: Method) -> Method:
    """Return the form of the method for cohorts; refuse a method that cannot run with them."""
    name = algorithm.description
    if algorithm.needs_everyone:
        refuse("algorithm", name, "needs all agents in every communication", "Leave cohort out")
    if any(exchange.when is not None for exchange in algorithm.exchanges()[1:]):
        rule = "its later exchanges do not take place in every round, so an absent client misses them in any order"
        refuse("algorithm", name, rule, "Leave cohort out")
    return constant(form_with_absent(algorithm))


def check_clip(algorithm: Method, shapes: Shapes, settings: Settings) -> Sequence[tuple[Kind | None, ...]]:
    """Return the type of each part of the messages of each exchange, if the server clips them; else ().

    Refuse to clip packed messages, because what the client keeps would no longer fit what the server has, and messages
    without types: a model is clipped around the server's model, a change around 0.
    """
    if not settings.clip:
        return ()
    name = algorithm.description
    if any(has_packed(message) for message in shapes.messages):
        rule = f"packed messages of {name} must not be changed at the server"
        refuse("clip", settings.clip, rule, "Leave clip out, or give wrap(..., up=[transforms.clip(norm), ...])")
    kinds = message_kinds(algorithm)
    if not all(kinds):
        rule = f"messages of {name} have no types, so they must arrive as they were sent"
        remedy = "Leave clip out, or choose another method, e.g. fedavg(...); in your own, send e.g. Model(x)"
        refuse("clip", settings.clip, rule, remedy)
    return kinds


def check_secure(algorithm: Method, shapes: Shapes, settings: Settings) -> None:
    """Check that secure aggregation, if it is on, is possible with this method and these settings."""
    if not settings.secure_range:
        return
    what, name = "secure-range", algorithm.description
    number = settings.sampled or settings.agents
    if number < 3:
        rule = f"a sum over {number} clients does not hide a client's message"
        refuse(what, settings.secure_range, rule, "Use at least 3 clients, and a cohort of at least 3")
    if settings.on_timeout == "stale":
        rule = "the server sees no client's own message, so it cannot use one again"
        refuse("on-timeout", settings.on_timeout, rule, 'Use "fail" or "partial" with secure-range')
    if settings.on_timeout == "partial" and settings.sampled is not None:
        rule = "with secure-range all clients of a cohort must reply"
        refuse("on-timeout", settings.on_timeout, rule, 'Use "fail", or leave cohort out')
    if settings.clip:
        refuse("clip", settings.clip, "the server sees no client's own message", "Use a clipping mod at the clients")
    if any(exchange.speaks is not None for exchange in algorithm.exchanges()):
        refuse(what, settings.secure_range, f"agents of {name} do not always send", "Use another method")
    if any(has_packed(message) for message in shapes.messages):
        rule = f"packed messages of {name} cannot be added while they are masked"
        refuse(what, settings.secure_range, rule, "Leave up out, or use no secure-range")
    if any(exchange.mean is not None for exchange in algorithm.exchanges()):
        rule = "the server sees only the sum of the messages, so it can form no other mean"
        refuse(what, settings.secure_range, rule, "Leave mean out, or use no secure-range")
    if not all(jnp.issubdtype(leaf.dtype, np.floating) for leaf in jax.tree.leaves(shapes.messages)):
        refuse(what, settings.secure_range, f"messages of {name} are not all real numbers", "Use another method")
