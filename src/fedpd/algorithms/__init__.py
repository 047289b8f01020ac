"""Federated methods: one file each, its equations in the docstring."""

from fedpd.algorithms.a_fedpd import a_fedpd
from fedpd.algorithms.admm import admm
from fedpd.algorithms.cola import cola
from fedpd.algorithms.coop_sgd import coop_sgd
from fedpd.algorithms.f_svrg import f_svrg
from fedpd.algorithms.fedadmm import fedadmm
from fedpd.algorithms.fedavg import fedavg
from fedpd.algorithms.feddane import feddane
from fedpd.algorithms.feddr import feddr
from fedpd.algorithms.feddyn import feddyn
from fedpd.algorithms.fedlin import fedlin
from fedpd.algorithms.fedpd import fedpd
from fedpd.algorithms.fedprox import fedprox
from fedpd.algorithms.lag import lag
from fedpd.algorithms.local_gd import local_gd
from fedpd.algorithms.mpr_sgd import mpr_sgd
from fedpd.algorithms.pr_spider import pr_spider
from fedpd.algorithms.proxskip import proxskip
from fedpd.algorithms.ri_sgd import ri_sgd
from fedpd.algorithms.scaffold import scaffold
from fedpd.algorithms.stem import stem
from fedpd.algorithms.vrl_sgd import vrl_sgd

__all__ = [
    "a_fedpd",
    "admm",
    "cola",
    "coop_sgd",
    "f_svrg",
    "fedadmm",
    "fedavg",
    "feddane",
    "feddr",
    "feddyn",
    "fedlin",
    "fedpd",
    "fedprox",
    "lag",
    "local_gd",
    "mpr_sgd",
    "pr_spider",
    "proxskip",
    "ri_sgd",
    "scaffold",
    "stem",
    "vrl_sgd",
]
