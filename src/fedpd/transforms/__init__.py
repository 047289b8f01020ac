"""Transform the messages of a method: compress them, make them private, or replace their mean.

>>> from fedpd import algorithms, oracles, transforms
>>> plain = algorithms.fedpd(eta=0.1, oracle=oracles.gd(step=0.1, iterations=8))
>>> transforms.wrap(plain, up=[transforms.top_k(0.01), transforms.quantize(8)]).name
'fedpd'
"""

from fedpd.transforms._attacks import Attack as Attack
from fedpd.transforms._attacks import attack as attack
from fedpd.transforms._attacks import false_dual as false_dual
from fedpd.transforms._attacks import little as little
from fedpd.transforms._attacks import noise as noise
from fedpd.transforms._attacks import sign_flip as sign_flip
from fedpd.transforms._compress import clip as clip
from fedpd.transforms._compress import quantize as quantize
from fedpd.transforms._compress import random_k as random_k
from fedpd.transforms._compress import sign as sign
from fedpd.transforms._compress import top_k as top_k
from fedpd.transforms._lora import ExactLora as ExactLora
from fedpd.transforms._lora import Product as Product
from fedpd.transforms._lora import exact_lora as exact_lora
from fedpd.transforms._means import MeanRule as MeanRule
from fedpd.transforms._means import Weights as Weights
from fedpd.transforms._means import centered_clipping as centered_clipping
from fedpd.transforms._means import geometric_median as geometric_median
from fedpd.transforms._means import krum as krum
from fedpd.transforms._means import median as median
from fedpd.transforms._means import trimmed_mean as trimmed_mean
from fedpd.transforms._means import weighted as weighted
from fedpd.transforms._private import Accountant as Accountant
from fedpd.transforms._private import ExampleAccountant as ExampleAccountant
from fedpd.transforms._private import Gaussian as Gaussian
from fedpd.transforms._private import gaussian as gaussian
from fedpd.transforms._server import ServerStep as ServerStep
from fedpd.transforms._server import server_optimizer as server_optimizer
from fedpd.transforms._ways import Transform as Transform
from fedpd.transforms._wrap import wrap as wrap

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
