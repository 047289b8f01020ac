"""What fedpd relies on in Flower's private names. It fails if an installed version of Flower differs."""

import ast
import inspect
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from flwr.app import ConfigRecord, Message, RecordDict
from flwr.proto.fleet_pb2 import PushMessagesResponse
from flwr.server.superlink.linkstate.sql_linkstate import SqlLinkState
from flwr.supercore.cli import flower_superexec as _superexec  # noqa: F401 - a function; the tests want its module
from flwr.supercore.retry import http_retry
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.superlink import main as superlink_main
from flwr.superlink.routers.fleet import router as fleet_router
from flwr.supernode import fleet_http_connection, start_client_internal
from flwr.supernode.cli import flower_supernode as _supernode  # noqa: F401

from fedpd.flower import private

SOURCES = Path(private.__file__).parent
PUBLIC = {"flwr", *(f"flwr.{name}" for name in ("app", "clientapp", "serverapp", "simulation"))}
PUBLIC |= {"flwr.clientapp.mod", "flwr.clientapp.typing", "flwr.serverapp.strategy"}
# The parameters that fedpd gives, by the names with which it gives them; "*" stands for one by position.
CALLS = {
    "build_fab_from_disk": ["*"],
    "_parse_args_run_flwr_clientapp": [],
    "get_all_nested_objects": ["*"],
    "get_load_client_app_fn": ["default_app_ref", "app_path", "multi_app"],
    "inflate_object_from_contents": ["*", "*"],
    "install_from_fab": ["*", "skip_prompt"],
    "make_simple_http_retry_invoker": [],
    "make_task_heartbeat_fn_http": ["*"],
    "no_object_id_recompute": [],
    "pull_task_input": ["*"],
    "push_message": ["*", "*", "*"],
    "push_task_output": ["*", "*", "*", "*"],
    "try_obtain_flwr_app_token": ["*"],
    "validate_and_resolve_root_certificates": ["*", "*"],
    "authenticate_node": ["*"],
    "get_linkstate": ["*"],
}


def test_every_name_exists() -> None:
    for name in vars(private)["__all__"]:
        getattr(private, name)


@pytest.mark.parametrize("name", CALLS)
def test_functions_take_what_fedpd_gives(name: str) -> None:
    positional = [None for word in CALLS[name] if word == "*"]
    named = {word: None for word in CALLS[name] if word != "*"}
    inspect.signature(getattr(private, name)).bind(*positional, **named)


def test_the_proto_messages_and_the_readers_are_those_of_one_message() -> None:
    for name in ("message", "context", "run", "fab"):
        assert callable(getattr(private.serde, f"{name}_to_proto"))
        assert callable(getattr(private.serde, f"{name}_from_proto"))
    assert private.ActivateNodeRequest(public_key=b"key").public_key == b"key"
    assert {"task_id", "run_id", "node_id"} <= set(vars(type(private.TaskIdentity))) | set(vars(private.TaskIdentity))


def test_a_message_has_the_identity_that_it_is_given() -> None:
    private.TaskIdentity.run_id, private.TaskIdentity.node_id, private.TaskIdentity.task_id = 1, 1, 1
    message = Message(RecordDict({"config": ConfigRecord({})}), 1, "train")
    private.set_identity(message, "seven")
    assert message.metadata.message_id == "seven"
    assert Message(RecordDict(), reply_to=message).metadata.reply_to_message_id == "seven"


def test_a_supernode_sleeps_by_its_module_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`replace_pauses` stands for the whole module, so the loop may use nothing else of it."""
    monkeypatch.setattr(start_client_internal, "time", start_client_internal.time)
    private.replace_pauses(clock := object())
    assert start_client_internal.time is clock
    tree = ast.parse(inspect.getsource(start_client_internal))
    names = [n.value for n in ast.walk(tree) if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name)]
    assert any(name.id == "time" for name in names)
    used = {n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "time"}
    assert used == {"sleep"}


def test_a_supernode_receives_messages_by_the_function_that_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    original = start_client_internal._pull_and_store_message
    wanted = {"state", "object_store", "receive", "get_fab"}
    assert wanted <= set(inspect.signature(original).parameters)
    calls = [
        node
        for node in ast.walk(ast.parse(inspect.getsource(start_client_internal.start_client_internal)))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == original.__name__
    ]
    assert calls
    assert all(not call.args and wanted <= {word.arg for word in call.keywords} for call in calls)
    monkeypatch.setattr(start_client_internal, original.__name__, original)
    private.replace_pull(lambda pull: lambda **_: 7 if pull is original else None)
    replaced: Any = start_client_internal._pull_and_store_message
    assert replaced() == 7
    inspect.signature(start_client_internal._insert_message).bind(None, None, None)


def test_answers_are_shown_before_flower_acts_on_them(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = private.NodeAuthHttpInterceptor
    monkeypatch.setattr(kind, "intercept", kind.intercept)
    seen: list[httpx.Response] = []
    private.watch_answers(seen.append)
    key = ec.generate_private_key(ec.SECP384R1())
    request = httpx.Request("POST", "https://127.0.0.1")
    answer = httpx.Response(401, request=request)
    context: Any = SimpleNamespace(request=request)
    assert kind(key, key.public_key()).intercept(context, lambda _: answer) is answer
    assert seen == [answer]


def test_statuses_are_retried_beside_those_of_flower(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_retry, "_RETRYABLE_STATUS_CODES", http_retry._RETRYABLE_STATUS_CODES)
    private.retry_statuses(httpx.codes.INTERNAL_SERVER_ERROR)
    give_up = http_retry.make_simple_http_retry_invoker().should_giveup
    assert give_up is not None
    request = httpx.Request("POST", "http://127.0.0.1")
    answers = [httpx.HTTPStatusError("", request=request, response=httpx.Response(code)) for code in (500, 503, 404)]
    assert [give_up(error) for error in answers] == [False, False, True]


def test_no_other_file_imports_a_private_name() -> None:
    found = []
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [node.module] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            found += [(path.name, name) for name in names if str(name).startswith("flwr") and name not in PUBLIC]
    assert {name for name, _ in found} == {"private.py"}, found


def test_a_supernode_connects_by_the_names_that_are_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    source = inspect.getsource(fleet_http_connection.http_request_response)
    for name, call in (
        ("FleetHttpClient", "FleetHttpClient.from_server_address("),
        ("make_simple_http_retry_invoker", "make_simple_http_retry_invoker()"),
        ("HeartbeatSender", "HeartbeatSender(send_node_heartbeat)"),
        ("flwr_exit", "flwr_exit("),
    ):
        assert call in source
        monkeypatch.setattr(fleet_http_connection, name, None)
    private.replace_in_connection(flwr_exit=7, HeartbeatSender=8)
    assert (fleet_http_connection.flwr_exit, fleet_http_connection.HeartbeatSender) == (7, 8)


def test_a_supernode_makes_its_server_by_the_function_that_is_replaced() -> None:
    made = inspect.getsource(sys.modules["flwr.supernode.cli.flower_supernode"]._start_supernode_http_api)
    assert "from flwr.supernode.main import (" in made
    assert "superexec_auth_secret=config.superexec_auth_secret" in made
    started = inspect.getsource(sys.modules["flwr.supercore.cli.flower_superexec"].flower_superexec)
    assert "superexec_auth_secret=superexec_auth_secret" in started


def test_a_superexec_starts_programs_by_its_module_subprocess() -> None:
    tree = ast.parse(inspect.getsource(subprocess_executor))
    used = {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and getattr(n.value, "id", "") == "subprocess"
    }
    assert used == {"Popen", "DEVNULL"}
    assert '"--token",' in inspect.getsource(subprocess_executor)


def test_a_superlink_takes_replies_by_the_functions_that_are_replaced() -> None:
    source = inspect.getsource(fleet_router)
    for name in ("push_messages", "push_object"):
        assert f"fleet_handlers.{name}(request=request, state=state)" in source
    assert "extensions.configure_app(fastapi_app)" in inspect.getsource(superlink_main)
    inspect.signature(SqlLinkState._cleanup_push_session).bind(None, "session", cleanup_messages=True)
    assert {"session_id", "objects_to_push"} <= set(PushMessagesResponse.DESCRIPTOR.fields_by_name)
    assert "return False, []" in inspect.getsource(SqlLinkState.store_message_and_object_tree)
