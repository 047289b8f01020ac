"""Runs any Algorithm on a real federation, as a ServerApp and a ClientApp of Flower. It needs fedpd[flower].

Each folder imports only from the folders before it in this list:

    carry/    messages: their form, which client is on which node, sending and collecting, masks
    method/   one agent, one server and the run that joins them; settings, identity, history, checkpoints
    clients/  the ClientApp, a client's own policy and the file with its state, losses in PyTorch and NumPy
    local/    a federation on this machine, start-up kits for several machines, checks of a client, and new apps

`fedpd.flower.torch`, `fedpd.flower.torch_oracles` and `fedpd.flower.external` are the public names in `clients`;
importing `fedpd.flower` does not import PyTorch.
"""

from fedpd.base.extras import extra

with extra("flower", "fedpd.flower"):
    import flwr as _  # noqa: F401

from fedpd.flower.carry.directory import FederationError
from fedpd.flower.carry.inprocess import InProcessGrid
from fedpd.flower.clients.client import client_app, client_name
from fedpd.flower.method.agent import Local
from fedpd.flower.method.app import server_app
from fedpd.flower.method.federation import Federated, federate
from fedpd.flower.method.settings import Settings, read_settings
from fedpd.flower.method.strategy import Strategy

__all__ = [
    "Federated",
    "FederationError",
    "InProcessGrid",
    "Local",
    "Settings",
    "Strategy",
    "client_app",
    "client_name",
    "federate",
    "read_settings",
    "server_app",
]
