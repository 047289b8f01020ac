"""The types of a method's card: its paper, its guarantees, its default settings and its parameters in words."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol, get_args

from fedpd.core.method import Method

Family = Literal[
    "primal-dual", "averaging", "corrected gradients", "lazy communication", "steps at the server", "Newton-type"
]
FAMILIES: tuple[Family, ...] = get_args(Family)

# A parameter of this name means the same in every method, unless its card says otherwise.
COMMON_PARAMETERS = {
    "oracle": "the local solver: [`gd`, `sgd`, `vr`, `optax`, `lbfgs`](../reference/oracles.md)",
    "eta": "η: the penalty is 1/η. Start with 1/L, where L is the smoothness of the f_i",
    "step": "γ, the local step size",
    "iterations": "Q, the number of local steps per round",
    "batch": "samples per local step; `None`: all samples of the agent",
    "epochs": "passes over each agent's own samples per round, without replacement; in place of `iterations`",
    "g": "a regulariser at the server, from `fedpd.regularizers`; `None`: no regulariser",
    "rho": "ρ, the weight of the proximal term",
    "start": 'where the oracle starts: `"local"`, at x_i, or `"server"`, at the agent\'s copy of the server\'s model',
    "smoothness": "L, the smoothness of the f_i, e.g. `theory.smoothness(problem)`",
    "server_step": "γ_s, the server's step size; 1 gives the mean of the local models",
}


class Reference(NamedTuple):
    """The paper that a method comes from.

    Attributes:
        authors: All authors, separated by commas.
        title: The title as published.
        venue: Journal or conference, and the preprint.
        year: The year of publication.
    """

    authors: str
    title: str
    venue: str
    year: int


class Guarantee(NamedTuple):
    """The proved cost of a method, as O(.), until ||grad f||^2 <= e with M samples in all.

    Attributes:
        assumes: The assumptions beyond L-smooth f_i: NC non-convex, C convex, SC strongly convex, BG bounded gradients,
            and others in words.
        rounds: Rounds with a communication.
        updates: Local updates.
        samples: Sample gradients.
    """

    assumes: str
    rounds: str = "-"
    updates: str = "-"
    samples: str = "-"


class Rule(Protocol):
    """Returns the method with its default step size for the smoothness L of the f_i and N agents.

    `scale` is a factor on the step size, which `fedpd.tune` varies: it multiplies eta, the step or 1/rho. It may be a
    traced number.
    """

    def __call__(self, L: float, agents: int, scale: Any, /) -> Method: ...


class Variant(NamedTuple):
    """A method with the settings that `fedpd compare --methods all` and `fedpd tune` use.

    Attributes:
        label: The name in tables and figures.
        rule: Returns the method for a problem.
        guarantee: Its proved cost and the assumptions.
        only_models: Whether agents send only models, as in the computation-then-aggregation protocol (CTA).
        summary: How it differs from the card's first variant, in a few words.
    """

    label: str
    rule: Rule
    guarantee: Guarantee
    only_models: bool = True
    summary: str = ""


class Card(NamedTuple):
    """A method in words. Tables, default settings, documentation pages and navigation come from cards.

    Attributes:
        title: The method's name.
        summary: What the method does, in a few words.
        family: The group of similar methods that it belongs to.
        reference: Its paper.
        variants: The method with its default settings.
        parameters: A description for each parameter that `COMMON_PARAMETERS` lacks or describes differently.
        search: The arguments that `fedpd compare` searches besides the local step and the penalty: a first value, or
            all values, the usual one first.
    """

    title: str
    summary: str
    family: Family
    reference: Reference
    variants: tuple[Variant, ...]
    parameters: Mapping[str, str] = MappingProxyType({})
    search: Mapping[str, float | tuple[Any, ...]] = MappingProxyType({})

    @staticmethod
    def single(
        *,
        title: str,
        summary: str,
        family: Family,
        rule: Rule,
        guarantee: Guarantee,
        label: str = "",
        only_models: bool = True,
        authors: str = "",
        paper: str = "",
        venue: str = "",
        year: int = 0,
        **more: Any,
    ) -> "Card":
        """Return the card of a method with one variant, whose label is the title unless there is another."""
        about = {"reference": Reference(authors, paper, venue, year)} | more
        return Card(title, summary, family, variants=(Variant(label or title, rule, guarantee, only_models),), **about)
