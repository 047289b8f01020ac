"""Transform the messages of a method: compress them, make them private, or replace their mean.

>>> from fedpd import algorithms, oracles, transforms
>>> plain = algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=0.1, iterations=8))
>>> transforms.wrap(plain, up=[transforms.top_k(0.01), transforms.quantize(8)]).name
'fedpd'
"""

from fedpd.transforms._accountant import Accountant, ExampleAccountant
from fedpd.transforms._attacks import Attack, attack, false_dual, little, noise, sign_flip
from fedpd.transforms._chain import Transform
from fedpd.transforms._compress import clip, quantize, random_k, sign, top_k
from fedpd.transforms._means import MeanRule, centered_clipping, geometric_median, krum, median, trimmed_mean
from fedpd.transforms._private import Gaussian, gaussian
from fedpd.transforms._server import ServerStep, server_optimizer
from fedpd.transforms._weighted import Weights, weighted
from fedpd.transforms._wrap import wrap

# The functions that experiment files may name, in `up`, `down` and `mean`.
FACTORIES = (
    "centered_clipping",
    "clip",
    "gaussian",
    "geometric_median",
    "krum",
    "median",
    "quantize",
    "random_k",
    "sign",
    "top_k",
    "trimmed_mean",
    "weighted",
)

__all__ = [
    "Accountant",
    "Attack",
    "ExampleAccountant",
    "Gaussian",
    "MeanRule",
    "ServerStep",
    "Transform",
    "Weights",
    "attack",
    "centered_clipping",
    "clip",
    "false_dual",
    "gaussian",
    "geometric_median",
    "krum",
    "little",
    "median",
    "noise",
    "quantize",
    "random_k",
    "server_optimizer",
    "sign",
    "sign_flip",
    "top_k",
    "trimmed_mean",
    "weighted",
    "wrap",
]
