"""What other users of a client's machine can see and do: neither its tokens nor its work."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.supercore.auth import create_superexec_auth_metadata, derive_auth_secret
from flwr.supercore.cli import flower_superexec as _  # noqa: F401  # the module of the program below
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.protobuf.constants import PROTOBUF_MEDIA_TYPE
from flwr.supercore.superexec.executor import subprocess_executor
from flwr.supernode import main
from flwr.supernode.cli import flower_supernode as _supernode  # noqa: F401
from flwr.supernode.nodestate import NodeStateFactory

from fedpd.flower import private
from fedpd.flower.warm import shim, superexec
from fedpd.flower.warm.superexec import HiddenTokens, hide_token, new_secret, take_secret

METHOD = "/flwr.proto.Runtime/AcquireTask"


def test_a_supernode_gives_work_only_to_a_program_with_its_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    secret = b"s" * 32
    monkeypatch.setattr(main, "create_app", main.create_app)
    private.protect_runtime(secret)
    app = main.create_app(state_factory=NodeStateFactory(ObjectStoreFactory()), superexec_auth_secret=None)
    request = AcquireTaskRequest(supported_task_types=["clientapp"])
    usual = {"content-type": PROTOBUF_MEDIA_TYPE, "accept": PROTOBUF_MEDIA_TYPE}

    async def ask(**signed: str) -> int:
        body = request.SerializeToString(deterministic=True)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.post("/v1/runtime/acquire-task", content=body, headers=usual | signed)).status_code

    assert asyncio.run(ask()) == 401
    for key, status in ((b"x" * 32, 401), (secret, 200)):
        signed = create_superexec_auth_metadata(auth_secret=derive_auth_secret(key), method=METHOD, request=request)
        assert asyncio.run(ask(**signed)) == status


def test_a_token_is_in_a_file_without_a_name(tmp_path: Path) -> None:
    out, token = tmp_path / "out", "0123abcd"
    script = "import sys; open(sys.argv[3], 'w').write(open(sys.argv[2]).read() + ' '.join(sys.argv))"
    HiddenTokens.Popen([sys.executable, "-c", script, "--token", token, str(out)]).wait(30)
    assert out.read_text().startswith(token + "-c --token-file /dev/fd/")
    assert out.read_text().count(token) == 1
    words, (descriptor,) = hide_token(["a", "--token", token, "b"])
    try:
        assert shim.with_token(words) == ["a", "--token", token, "b"]
        assert not any(token in word for word in words)
        assert os.get_inheritable(descriptor)
    finally:
        os.close(descriptor)
    assert hide_token(["a"]) == (["a"], [])


def test_a_superexec_takes_the_secret_out_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(superexec.VARIABLE, "")
    secret = new_secret()
    seen: dict[str, Any] = {}
    program: Any = sys.modules["flwr.supercore.cli.flower_superexec"]
    monkeypatch.setattr(program, "run_superexec", lambda **options: seen.update(options))
    monkeypatch.setattr(subprocess_executor, "subprocess", subprocess)
    superexec.keep_secrets()
    program.run_superexec(superexec_auth_secret=None, insecure=True)
    assert seen == {"superexec_auth_secret": secret, "insecure": True}
    assert take_secret() is None
    assert isinstance(subprocess_executor.subprocess, HiddenTokens)
