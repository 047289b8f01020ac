"""Local GD (Khaled, Mishchenko, Richtarik, 2019): FedAvg with full local gradients and a constant step.

    x_i = x;  Q times  x_i = x_i - step grad f_i(x_i);   x = mean_S x_i

It converges to a neighbourhood of the minimiser, whose size grows with step, Q and (1/N) sum_i ||grad f_i(x*)||^2.
Agents and server send one model each way (CTA).
"""

from fedpd.algorithms._averaging import local_averaging
from fedpd.algorithms._rules import Q
from fedpd.core import Algorithm, Subproblem, specified
from fedpd.core.card import Card, Guarantee, Reference, Variant
from fedpd.oracles import gd


@specified
def local_gd(*, step: float, iterations: int) -> Algorithm:
    """Return local gradient descent with Q = `iterations` full gradients per round."""
    return local_averaging(gd(step, iterations), lambda f, x: Subproblem(f))


CARD = Card(
    title="Local GD",
    summary="FedAvg with full gradients",
    family="averaging",
    reference=Reference(
        authors="Ahmed Khaled, Konstantin Mishchenko, Peter Richtárik",
        title="First Analysis of Local GD on Heterogeneous Data",
        venue=("NeurIPS 2019 Workshop on Federated Learning for Data Privacy and Confidentiality; arXiv:1909.04715"),
        year=2019,
        checked=(
            "An author's page (konstmish.com/publication/19_local_gd) and a public copy of the arXiv record "
            "(tomesphere.com/paper/1909.04715) confirm the authors and the title; the workshop was found only "
            "in the reference lists of later papers."
        ),
    ),
    variants=(
        Variant(
            "Local GD",
            lambda L, agents, scale: local_gd(step=scale / (4 * L * Q), iterations=Q),  # Khaled et al.
            Guarantee("C", "1/e^1.5", "1/e^2", "M/e^2"),
        ),
    ),
    parameters={},
    theory_checked=(
        "All complexities are taken from the FedPD paper's Table 1; the abstract confirms smooth convex "
        "functions with arbitrary heterogeneity."
    ),
    equations_checked="Not compared with the paper; it is Option 2 of Algorithm 1 of the FedPD paper.",
)
