"""All that fedpd uses of Flower beyond its public interface: the private names, and the changes to its programs.

Flower's public rooms are `flwr.app`, `flwr.clientapp`, `flwr.serverapp` and `flwr.simulation`. Every other name may
move with a new version of Flower, so no other file of fedpd imports one. `tests/flower/test_private.py` states what
fedpd relies on, for every name and every change, and fails if an installed Flower differs. To support a new version of
Flower, run that test first and edit only this file.

The names below are imported when they are first used, because together they take a second of every new process. The
functions change Flower in this process: a module of fedpd decides what changes and why, and calls one of them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import httpx

from fedpd.base.lazy import lazy_names

if TYPE_CHECKING:
    from flwr.cli.build import build_fab_from_disk as build_fab_from_disk
    from flwr.cli.install import install_from_fab as install_from_fab
    from flwr.clientapp.client_app import LoadClientAppError as LoadClientAppError
    from flwr.clientapp.utils import get_load_client_app_fn as get_load_client_app_fn
    from flwr.common import serde as serde
    from flwr.common.args import try_obtain_flwr_app_token as try_obtain_flwr_app_token
    from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE as FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
    from flwr.common.constant import ErrorCode as ErrorCode
    from flwr.common.constant import SubStatus as SubStatus
    from flwr.proto import fab_pb2 as fab_pb2
    from flwr.proto import message_pb2 as message_pb2
    from flwr.proto import run_pb2 as run_pb2
    from flwr.proto.fleet_pb2 import ActivateNodeRequest as ActivateNodeRequest
    from flwr.proto.runtime_pb2 import AcquireTaskRequest as AcquireTaskRequest
    from flwr.supercore import log as log
    from flwr.supercore.cli import flower_superexec as flower_superexec
    from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER as FLEET_HTTP_PUBLIC_KEY_HEADER
    from flwr.supercore.fab import Fab as Fab
    from flwr.supercore.heartbeat import HeartbeatFailure as HeartbeatFailure
    from flwr.supercore.heartbeat import HeartbeatSender as HeartbeatSender
    from flwr.supercore.heartbeat import make_task_heartbeat_fn_http as make_task_heartbeat_fn_http
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects as get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute as no_object_id_recompute
    from flwr.supercore.inflatable.inflatable_utils import ObjectPushError as ObjectPushError
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor as RuntimeTokenHttpInterceptor
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor as RuntimeVersionHttpInterceptor
    from flwr.supercore.logger import update_console_handler as update_console_handler
    from flwr.supercore.primitives.asymmetric import public_key_to_bytes as public_key_to_bytes
    from flwr.supercore.protobuf.client import ProtobufRequestContext as ProtobufRequestContext
    from flwr.supercore.retry import make_simple_http_retry_invoker as make_simple_http_retry_invoker
    from flwr.supercore.run import Run as Run
    from flwr.supercore.runtime import RuntimeHttpClient as RuntimeHttpClient
    from flwr.supercore.task_identity import TaskIdentity as TaskIdentity
    from flwr.supercore.tls import validate_and_resolve_root_certificates as validate_and_resolve_root_certificates
    from flwr.superlink.cli import flower_superlink as flower_superlink
    from flwr.superlink.dependencies.linkstate import get_linkstate as get_linkstate
    from flwr.superlink.routers.fleet.node_auth import authenticate_node as authenticate_node
    from flwr.supernode.cli.flower_supernode import flower_supernode as flower_supernode
    from flwr.supernode.cli.flwr_clientapp import _parse_args_run_flwr_clientapp as _parse_args_run_flwr_clientapp
    from flwr.supernode.fleet_http_client import FleetHttpClient as FleetHttpClient
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor as NodeAuthHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import pull_task_input as pull_task_input
    from flwr.supernode.runtime.run_clientapp import push_message as push_message
    from flwr.supernode.runtime.run_clientapp import push_task_output as push_task_output
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)

VERSIONS = ("1.41.", "1.42.")  # of Flower, on which the tests ran
Pull = Callable[..., int | None]  # Flower's function that receives a message and its app


def set_identity(message: Any, identity: str) -> None:
    """Give a message the identity that a SuperLink gives it."""
    message.metadata.__dict__["_message_id"] = identity


def retry_statuses(*codes: int) -> None:
    """Make Flower's clients in this process ask again after answers with these codes, with pauses that grow."""
    from flwr.supercore.retry import http_retry

    http_retry._RETRYABLE_STATUS_CODES = http_retry._RETRYABLE_STATUS_CODES | {httpx.codes(code) for code in codes}


def replace_pauses(clock: Any) -> None:
    """Give the loop of a SuperNode an object in place of the module `time`, of which it uses `sleep` only."""
    from flwr.supernode import start_client_internal

    setattr(start_client_internal, "time", clock)  # noqa: B010 - mypy: a module has no such type


def replace_pull(changed: Callable[[Pull], Pull]) -> None:
    """Change the function with which a SuperNode receives a message and its app.

    Its keyword arguments have `receive`, which returns the message first or nothing; `get_fab`, (hash, run) -> the app;
    `state` and `object_store`.
    """
    from flwr.supernode import start_client_internal

    start_client_internal._pull_and_store_message = changed(start_client_internal._pull_and_store_message)


def send_reply(reply: Any, arguments: dict[str, Any]) -> None:
    """Let a SuperNode send a reply, from the arguments of the function of `replace_pull`."""
    from flwr.supernode import start_client_internal

    start_client_internal._insert_message(reply, arguments["state"], arguments["object_store"])


def watch_answers(look: Callable[[httpx.Response], None]) -> None:
    """Show every answer of the server to a SuperNode, with its status and headers, before Flower acts on it."""
    from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

    intercept: Callable[..., httpx.Response] = NodeAuthHttpInterceptor.intercept

    def watched(self: Any, context: Any, call_next: Any) -> httpx.Response:
        answer = intercept(self, context, call_next)
        look(answer)
        return answer

    setattr(NodeAuthHttpInterceptor, "intercept", watched)  # noqa: B010 - mypy: a method is not assigned


def replace_in_connection(**names: Any) -> None:
    """Replace names in the module with which a SuperNode connects to its server.

    It makes its client by `FleetHttpClient.from_server_address`, its retries by `make_simple_http_retry_invoker`, its
    heartbeats by `HeartbeatSender`, and calls `flwr_exit` if the server does not admit it.
    """
    from flwr.supernode import fleet_http_connection

    for name, replacement in names.items():
        setattr(fleet_http_connection, name, replacement)


def protect_runtime(secret: bytes) -> None:
    """Make a SuperNode give work only to a SuperExec that signs with this secret."""
    from flwr.supernode import main

    create_app: Callable[..., Any] = main.create_app

    def protected(state_factory: Any = None, superexec_auth_secret: bytes | None = None) -> Any:
        return create_app(state_factory, superexec_auth_secret or secret)

    setattr(main, "create_app", protected)  # noqa: B010 - mypy: a function of another type


def set_superexec(secret: bytes | None, launcher: Any) -> None:
    """Make a SuperExec sign with a secret, and start programs by an object in place of the module `subprocess`."""
    import sys

    from flwr.supercore.cli import flower_superexec as _  # noqa: F401 - the package has a function of this name
    from flwr.supercore.superexec.executor import subprocess_executor

    program: Any = sys.modules["flwr.supercore.cli.flower_superexec"]
    run: Callable[..., None] = program.run_superexec

    def run_with_secret(**options: Any) -> None:
        run(**(options | {"superexec_auth_secret": options["superexec_auth_secret"] or secret}))

    program.run_superexec = run_with_secret
    setattr(subprocess_executor, "subprocess", launcher)  # noqa: B010 - mypy: a module has no such type


Handler = Callable[..., Any]


def change_superlink(
    messages: Callable[[Handler], Handler], objects: Callable[[Handler], Handler], routes: dict[str, Handler]
) -> None:
    """Change how a SuperLink takes replies and their objects, and let it answer GET at further paths.

    Both handlers have the keyword arguments `request` and `state`. The answer to a reply has the objects that Flower
    waits for (`objects_to_push`; none if it did not accept the reply) and their `session_id`.
    """
    from flwr.superlink import extensions
    from flwr.superlink.servicer.fleet import fleet_handlers

    handlers: Any = fleet_handlers
    handlers.push_messages, handlers.push_object = messages(handlers.push_messages), objects(handlers.push_object)
    configure = extensions.configure_app

    def with_routes(app: Any) -> None:
        configure(app)
        for path, handler in routes.items():
            app.get(path)(handler)

    extensions.configure_app = with_routes


def delete_reply(state: Any, session: str) -> None:
    """Delete a reply whose objects have not all come, so that nobody waits for the rest."""
    state._cleanup_push_session(session, cleanup_messages=True)
