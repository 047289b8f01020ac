"""Any Algorithm on a real federation: a ServerApp and a ClientApp of Flower. Needs fedpd[flower]."""

try:
    import flwr as _  # noqa: F401
except ImportError as error:
    raise ImportError(f"fedpd.flower needs Flower ({error}): pip install 'fedpd[flower]'.") from None

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
