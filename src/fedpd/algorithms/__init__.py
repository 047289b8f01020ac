"""The federated methods. Each method has one file with its equations, its factory function and its card.

Every module of this package is a method, unless its name begins with an underscore. It defines a function with the
module's name, and `CARD`. What follows is found at run time; the imports are for type checkers and editors.
"""

from collections.abc import Callable
from importlib import import_module
from inspect import signature
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from fedpd.core.card import COMMON_PARAMETERS, FAMILIES, Card, Variant

if TYPE_CHECKING:
    from fedpd.algorithms.a_fedpd import a_fedpd as a_fedpd
    from fedpd.algorithms.acc_s_dane import acc_s_dane as acc_s_dane
    from fedpd.algorithms.admm import admm as admm
    from fedpd.algorithms.barzilai_borwein import barzilai_borwein as barzilai_borwein
    from fedpd.algorithms.cola import cola as cola
    from fedpd.algorithms.coop_sgd import coop_sgd as coop_sgd
    from fedpd.algorithms.dane import dane as dane
    from fedpd.algorithms.ditto import ditto as ditto
    from fedpd.algorithms.f_svrg import f_svrg as f_svrg
    from fedpd.algorithms.fedacg import fedacg as fedacg
    from fedpd.algorithms.fedadagrad import fedadagrad as fedadagrad
    from fedpd.algorithms.fedadam import fedadam as fedadam
    from fedpd.algorithms.fedadmm import fedadmm as fedadmm
    from fedpd.algorithms.fedadmm_insa import fedadmm_insa as fedadmm_insa
    from fedpd.algorithms.fedavg import fedavg as fedavg
    from fedpd.algorithms.fedavgm import fedavgm as fedavgm
    from fedpd.algorithms.fedbuff import fedbuff as fedbuff
    from fedpd.algorithms.fedcm import fedcm as fedcm
    from fedpd.algorithms.feddane import feddane as feddane
    from fedpd.algorithms.feddc import feddc as feddc
    from fedpd.algorithms.feddr import feddr as feddr
    from fedpd.algorithms.feddyn import feddyn as feddyn
    from fedpd.algorithms.fedexp import fedexp as fedexp
    from fedpd.algorithms.fedlin import fedlin as fedlin
    from fedpd.algorithms.fednova import fednova as fednova
    from fedpd.algorithms.fedosaa import fedosaa as fedosaa
    from fedpd.algorithms.fedpd import fedpd as fedpd
    from fedpd.algorithms.fedpd_n import fedpd_n as fedpd_n
    from fedpd.algorithms.fedprox import fedprox as fedprox
    from fedpd.algorithms.fedsam import fedsam as fedsam
    from fedpd.algorithms.fedspeed import fedspeed as fedspeed
    from fedpd.algorithms.fedyogi import fedyogi as fedyogi
    from fedpd.algorithms.five_gcs import five_gcs as five_gcs
    from fedpd.algorithms.giant import giant as giant
    from fedpd.algorithms.gradient_descent import gradient_descent as gradient_descent
    from fedpd.algorithms.lag import lag as lag
    from fedpd.algorithms.lbfgs import lbfgs as lbfgs
    from fedpd.algorithms.local_gd import local_gd as local_gd
    from fedpd.algorithms.locodl import locodl as locodl
    from fedpd.algorithms.moon import moon as moon
    from fedpd.algorithms.mpr_sgd import mpr_sgd as mpr_sgd
    from fedpd.algorithms.nesterov import nesterov as nesterov
    from fedpd.algorithms.newton_cg import newton_cg as newton_cg
    from fedpd.algorithms.pfedme import pfedme as pfedme
    from fedpd.algorithms.pr_spider import pr_spider as pr_spider
    from fedpd.algorithms.proxskip import proxskip as proxskip
    from fedpd.algorithms.ri_sgd import ri_sgd as ri_sgd
    from fedpd.algorithms.s_dane import s_dane as s_dane
    from fedpd.algorithms.scafcom import scafcom as scafcom
    from fedpd.algorithms.scaffold import scaffold as scaffold
    from fedpd.algorithms.scallion import scallion as scallion
    from fedpd.algorithms.stem import stem as stem
    from fedpd.algorithms.tamuna import tamuna as tamuna
    from fedpd.algorithms.vrl_sgd import vrl_sgd as vrl_sgd

__all__ = sorted(module.name for module in iter_modules(__path__) if not module.name.startswith("_"))


def _describe_arguments(factory: Callable[..., Any], card: Card) -> None:
    """Add the words of the card to the docstring of a factory that does not describe its arguments, for `help`."""
    words, text = {**COMMON_PARAMETERS, **card.parameters}, factory.__doc__ or ""
    if "Args:" not in text:
        lines = [f"        {name}: {words.get(name, '')}" for name in signature(factory).parameters]
        factory.__doc__ = "\n".join([text.rstrip(), "", "    Args:", *lines])


_CARDS: dict[str, Card] = {}
for _name in __all__:
    _module = import_module(f"{__name__}.{_name}")
    _CARDS[_name] = _module.CARD
    _describe_arguments(getattr(_module, _name), _module.CARD)
    globals()[_name] = getattr(_module, _name)  # algorithms.fedpd is the function, not the module


def cards() -> dict[str, Card]:
    """Return the card of every method by its name, sorted by family; FedPD is the first of its family."""
    order = sorted(_CARDS, key=lambda name: (FAMILIES.index(_CARDS[name].family), name != "fedpd", name))
    return {name: _CARDS[name] for name in order}


def variants() -> dict[str, Variant]:
    """Return, by label, every variant that `fedpd compare --methods all` runs."""
    return {variant.label: variant for card in cards().values() for variant in card.variants}
