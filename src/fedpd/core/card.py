"""Cards: what a method says of itself beside its equations, at the end of its own file."""

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple, Protocol, get_args

from fedpd.base.spec import Spec
from fedpd.core.algorithm import Algorithm

Family = Literal["primal-dual", "averaging", "corrected gradients", "lazy communication"]
FAMILIES: tuple[Family, ...] = get_args(Family)

# A parameter of this name means the same in every method, unless its card says otherwise.
COMMON_PARAMETERS = {
    "oracle": "the local solver: [`gd`, `sgd`, `vr`, `optax`, `lbfgs`](../reference/oracles.md)",
    "eta": "η: the penalty is 1/η. 1/L is a good start, L the smoothness of the f_i",
    "step": "γ, the local step size",
    "iterations": "Q, the local steps of a round",
    "batch": "samples per local step; `None`: all of the agent's",
    "g": "a regulariser at the server, from `fedpd.regularizers`; `None`: none",
    "rho": "ρ, the weight of the proximal term",
    "smoothness": "L of the f_i, e.g. `theory.smoothness(problem)`",
    "server_step": "γ_s, the server's step; 1 is the mean of the local models",
}


class Reference(NamedTuple):
    """The paper that a method is from.

    Attributes:
        authors: All authors, separated by commas.
        title: The title as published.
        venue: Journal or conference, and the preprint.
        year: The year of publication.
        checked: What was confirmed of authors, title, venue and year, and where.
    """

    authors: str
    title: str
    venue: str
    year: int
    checked: str


class Guarantee(NamedTuple):
    """What is proved of a method, O(.) until ||grad f||^2 <= e with M samples in all, beyond L-smooth f_i.

    Attributes:
        assumes: NC non-convex, C convex, SC strongly convex, BG bounded gradients, and whatever else.
        rounds: Communicated rounds.
        updates: Local updates.
        samples: Sample gradients.
    """

    assumes: str
    rounds: str = "-"
    updates: str = "-"
    samples: str = "-"


class Rule(Protocol):
    """Returns the method with steps by its own rule, given L of the f_i, N, and a factor on its step size.

    The factor is what `fedpd.tune` varies: it multiplies eta, the step or 1/rho, and may be traced.
    """

    def __call__(self, L: float, agents: int, scale: Any, /) -> Algorithm: ...


class Variant(NamedTuple):
    """A method as `fedpd compare --methods all` and `fedpd tune` run it.

    Attributes:
        label: Its name in tables and figures.
        rule: Makes it for a problem.
        guarantee: What is proved of it.
        only_models: Whether agents send nothing but models, as in the computation-then-aggregation protocol (CTA).
    """

    label: str
    rule: Rule
    guarantee: Guarantee
    only_models: bool = True


class Card(NamedTuple):
    """A method in words. Tables, defaults, documentation and navigation are made from cards.

    Attributes:
        title: The method's name.
        family: Where it stands among the others.
        reference: Its paper.
        variants: How it is run by default.
        parameters: A word per parameter, where `COMMON_PARAMETERS` has none or another.
        theory_checked: Which of the claimed guarantees were confirmed, and where.
        equations_checked: Whether the equations were compared with a public source.
        caution: Returns a sentence if no theorem covers a run with this spec on a problem of smoothness L.
    """

    title: str
    family: Family
    reference: Reference
    variants: tuple[Variant, ...]
    parameters: Mapping[str, str]
    theory_checked: str
    equations_checked: str
    caution: Callable[[Spec, float], str | None] | None = None
