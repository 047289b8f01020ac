"""Runs any Algorithm on a real federation, as a ServerApp and a ClientApp of Flower. It needs fedpd[flower].

Each folder imports only from the folders before it in this list:

    carry/    messages: their form, which client is on which node, sending and collecting, masks
    method/   one agent, one server and the run that joins them; settings, identity, history, checkpoints
    clients/  the ClientApp, a client's own policy and the file with its state
    warm/     one warm process per SuperNode, which Flower's programs hand messages to; imports none of the others
    local/    a federation on this machine, start-up kits for several machines, checks of a client, and new apps

`private` has all that fedpd uses of Flower beyond its public interface; every folder may import it. `tables` reads
settings and TOML files into typed classes. `torch`, `torch_oracles` and `external` are public modules: losses in
PyTorch and NumPy. Importing `fedpd.flower` imports neither PyTorch nor JAX.
"""

from typing import TYPE_CHECKING

from fedpd.base.errors import extra
from fedpd.base.lazy import lazy_names as _lazy_names

with extra("flower", "fedpd.flower"):
    import flwr as _  # noqa: F401

if TYPE_CHECKING:  # a name is imported when it is first used, so that `fedpd.flower` costs little
    from fedpd.flower.carry.directory import FederationError as FederationError
    from fedpd.flower.carry.inprocess import InProcessGrid as InProcessGrid
    from fedpd.flower.clients.client import client_app as client_app
    from fedpd.flower.clients.client import client_name as client_name
    from fedpd.flower.clients.own_app import mod as mod
    from fedpd.flower.method.agent import Local as Local
    from fedpd.flower.method.federation import Federated as Federated
    from fedpd.flower.method.federation import federate as federate
    from fedpd.flower.method.federation import server_app as server_app
    from fedpd.flower.method.settings import Settings as Settings
    from fedpd.flower.method.settings import read_settings as read_settings
    from fedpd.flower.method.strategy import Strategy as Strategy

__getattr__, __dir__, __all__ = _lazy_names(__name__)
