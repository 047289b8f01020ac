"""The warm process of a SuperNode: it answers messages of one run, one after another, as `flwr-clientapp` does.

Flower's own program answers one message and ends. This one keeps the modules, the client's samples and the compiled
programs in memory, and nothing else: a client's state is in its own file, and Flower passes the context with every
message. It differs from a new process only within a run:

- A message of another run replaces the program in this process (`exec`), so runs share no modules and no samples.
- It ends after MESSAGES messages, after an error, when its memory exceeds the bound, when it is idle, and when its
  SuperNode ends.
- If it dies, the shim starts another one with the next message. It ends itself if the arrays of a message do not
  come and the next message waits.
"""

import fcntl
import os
import select
import signal
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from logging import ERROR, INFO
from pathlib import Path
from typing import IO, Any, NamedTuple

import psutil
from flwr.app import Context, Error, Message

from fedpd.flower.private import (
    ErrorCode,
    Fab,
    HeartbeatSender,
    LoadClientAppError,
    Run,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    SubStatus,
    TaskIdentity,
    _parse_args_run_flwr_clientapp,
    fab_pb2,
    get_load_client_app_fn,
    install_from_fab,
    log,
    make_simple_http_retry_invoker,
    make_task_heartbeat_fn_http,
    message_pb2,
    pull_task_input,
    push_message,
    push_task_output,
    run_pb2,
    serde,
    try_obtain_flwr_app_token,
    validate_and_resolve_root_certificates,
)
from fedpd.flower.warm import shim
from fedpd.flower.warm.superexec import hide_token

LOOK_SECONDS = 0.5  # the interval of the checks whether the next message waits, and whether the SuperNode lives
GRACE_SECONDS = 1.0  # for the arrays of a message when the next one waits; less than the shim's READY_SECONDS
END_SECONDS = 5.0  # for this process to end by itself after its SuperNode has ended
MESSAGES = 500  # after this many messages a new process takes over
MEMORY = 2**30  # bytes that a process may grow beyond twice its size after its first message
IDLE_SECONDS = 900.0  # a process without messages ends after this time
HANDED_OVER = "FEDPD_WARM_TASK"  # the descriptors of a message that the program before this one has taken


@contextmanager
def leaving_if_superseded(
    server: socket.socket | None,
    leave: Callable[[int], object] = os._exit,
    look: float = LOOK_SECONDS,
    grace: float = GRACE_SECONDS,
) -> Iterator[None]:
    """End this process if the next message waits at `server` and this block does not end soon.

    A SuperNode has the arrays of one message before it takes the next, unless the run of the first has ended. So a
    process that still waits for arrays when the next message comes would wait in vain, for up to two hours.

    Args:
        server: The socket for further messages; None: there will be none.
        leave: Ends this process.
        look: The seconds after which it checks, again and again, whether the next message waits.
        grace: The seconds that this block then has.
    """
    pulled = threading.Event()

    def watch(server: socket.socket) -> None:
        while not pulled.wait(look):
            if select.select([server], [], [], 0)[0] and not pulled.wait(grace):
                leave(1)
                return

    if server is not None:
        threading.Thread(target=watch, args=(server,), daemon=True).start()
    try:
        yield
    finally:
        pulled.set()


def end_with(parent: int) -> None:
    """End this process when another one ends, whatever it waits for."""

    def watch() -> None:
        while psutil.pid_exists(parent):
            time.sleep(LOOK_SECONDS)
        os.kill(os.getpid(), signal.SIGTERM)  # a signal that this thread raised would not interrupt the first one
        time.sleep(END_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


WRITERS: Any = (serde.message_to_proto, serde.context_to_proto, serde.run_to_proto, serde.fab_to_proto)
READERS: Any = (
    (serde.message_from_proto, message_pb2.Message),
    (serde.context_from_proto, message_pb2.Context),
    (serde.run_from_proto, run_pb2.Run),
    (serde.fab_from_proto, fab_pb2.Fab),
)


class Task(NamedTuple):
    """A message and what Flower passes with it."""

    message: Message
    context: Context
    run: Run
    fab: Fab

    @property
    def origin(self) -> tuple[int, str]:
        """The run and the app that a warm process belongs to."""
        return self.run.run_id, self.fab.hash_str


class Connection:
    """The connection to the shim that waits for a message; None: this process was started for the message itself."""

    def __init__(self, to_shim: socket.socket | None) -> None:
        self.to_shim = to_shim

    def send(self, sign: bytes) -> None:
        """Tell the shim; it does not matter if it has ended."""
        if self.to_shim is not None:
            with suppress(OSError):
                self.to_shim.sendall(sign)


class WarmProcess:
    """Answers the messages of one run.

    Args:
        program: Flower's own program, part of the command line.
        server: The socket for further messages; None: there will be none.
    """

    def __init__(self, program: str, server: socket.socket | None = None) -> None:
        self.program, self.server = program, server
        self.origin: tuple[int, str] | None = None
        self.app: Any = None
        self.answered = 0
        self.failed = False
        self.first_size = 0

    def answer(self, arguments: Sequence[str], connection: Connection, task: Task | None = None) -> None:
        """Answer one message as `flwr-clientapp` does.

        Args:
            arguments: The arguments of `flwr-clientapp`.
            connection: The connection to the shim.
            task: The message, if the program before this one has taken it already.
        """
        given = _parse_args_run_flwr_clientapp().parse_args(list(arguments))
        retry = make_simple_http_retry_invoker()
        client = RuntimeHttpClient.from_server_address(
            server_address=given.runtime_api_address,
            insecure=given.insecure,
            root_certificates=validate_and_resolve_root_certificates(given.root_certificates, given.insecure),
            interceptors=[
                RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
                RuntimeTokenHttpInterceptor(try_obtain_flwr_app_token(given)),
            ],
            retry_invoker=retry,
        )
        heartbeat = HeartbeatSender(make_task_heartbeat_fn_http(client))
        heartbeat.start()
        status, details = SubStatus.FAILED, "the ClientApp ended"
        try:
            if task is None:
                connection.send(shim.TAKEN)
                with leaving_if_superseded(self.server):
                    task = Task(*pull_task_input(client))
            if self.origin not in (None, task.origin):
                self._replace(arguments, connection, task)
            reply, status, details = self._reply(task)
            push_message(client, reply, task.context)
        finally:
            retry.max_tries = 1  # the message is answered, so waiting for a SuperNode that has ended would not help
            push_task_output(client, None if task is None else task.context, status, details)
            heartbeat.stop()
            client.close()
        self.answered += 1
        self.failed = status != SubStatus.COMPLETED
        connection.send(shim.FAILED if self.failed else shim.DONE)

    def _reply(self, task: Task) -> tuple[Message, str, str]:
        """Return the ClientApp's reply, Flower's status and its details; an exception becomes an error reply."""
        try:
            if self.app is None:
                install_from_fab(task.fab.content, skip_prompt=True)
                load = get_load_client_app_fn(default_app_ref="", app_path=None, multi_app=True)
                self.app = load(task.run.fab_id, task.run.fab_version, task.fab.hash_str)
                self.origin = task.origin
            return self.app(message=task.message, context=task.context), SubStatus.COMPLETED, ""
        except Exception as error:
            log(ERROR, "ClientApp raised an exception", exc_info=error)
            code, reason = ErrorCode.CLIENT_APP_RAISED_EXCEPTION, f"{type(error)}:<'{error}'>"
            if isinstance(error, LoadClientAppError):
                code = ErrorCode.LOAD_CLIENT_APP_EXCEPTION
                reason = "An exception was raised when attempting to load `ClientApp`"
            return Message(Error(code=code, reason=reason), reply_to=task.message), SubStatus.FAILED, reason

    def _replace(self, arguments: Sequence[str], connection: Connection, task: Task) -> None:
        """Start the program again in this process, with a message that belongs to another run."""
        with tempfile.TemporaryFile() as file:
            write_task(file, task)
            file.flush()
            handed = [file.fileno()] + ([] if connection.to_shim is None else [connection.to_shim.fileno()])
            for descriptor in handed:
                os.set_inheritable(descriptor, True)
            os.environ[HANDED_OVER] = ",".join(map(str, handed))
            hidden, _ = hide_token(arguments)
            shim.run(sys.executable, ["-m", "fedpd.flower.warm.process", self.program, *hidden])

    def is_worn(self, messages: int = MESSAGES, growth: int = MEMORY) -> bool:
        """Return whether a new process should answer the next message, after so many messages or so much growth."""
        size = psutil.Process().memory_info().rss
        self.first_size = self.first_size or size
        return self.failed or self.answered >= messages or size > 2 * self.first_size + growth


def write_task(file: IO[bytes], task: Task) -> None:
    """Write a message and its number to a file, in Flower's own format."""
    protos = (write(part) for write, part in zip(WRITERS, task, strict=True))
    for content in (str(TaskIdentity.task_id).encode(), *(proto.SerializeToString() for proto in protos)):
        file.write(len(content).to_bytes(8, "big") + content)


def read_task(file: IO[bytes]) -> Task:
    """Return the message that `write_task` wrote, and make it the one that this process answers."""
    contents = [file.read(int.from_bytes(file.read(8), "big")) for _ in range(1 + len(READERS))]
    task = Task(*(read(kind.FromString(content)) for (read, kind), content in zip(READERS, contents[1:], strict=True)))
    TaskIdentity.task_id, TaskIdentity.run_id = int(contents[0]), task.run.run_id
    TaskIdentity.node_id = task.context.node_id
    return task


def take_handed_over() -> tuple[Task | None, Connection]:
    """Return the message that the program before this one has taken, and the connection to its shim."""
    handed = [int(word) for word in os.environ.pop(HANDED_OVER, "").split(",") if word]
    if not handed:
        return None, Connection(None)
    with os.fdopen(handed[0], "rb") as file:
        file.seek(0)
        task = read_task(file)
    return task, Connection(socket.socket(fileno=handed[1]) if len(handed) > 1 else None)


def listen(place: Path) -> socket.socket | None:
    """Return the socket for this SuperNode's messages; None if another process has it."""
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = os.open(place.with_suffix(".lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # until this process ends
    except OSError:
        os.close(lock)
        return None
    place.unlink(missing_ok=True)
    server, before = socket.socket(socket.AF_UNIX), os.open(".", os.O_RDONLY)
    os.chdir(place.parent)  # see shim.connect
    try:
        server.bind(place.name)
    finally:
        os.fchdir(before)
        os.close(before)
    server.listen(8)
    server.settimeout(IDLE_SECONDS)
    return server


def serve(program: str, arguments: Sequence[str]) -> None:
    """Answer the message of the command line, and then those of other shims, until this process is worn or idle."""
    server, (task, connection) = listen(shim.socket_path(arguments)), take_handed_over()
    if server is None and task is None:
        shim.run_cold(program, arguments)
    end_with(int(arguments[list(arguments).index("--parent-pid") + 1]))
    warm = WarmProcess(program, server)
    warm.answer(arguments, connection, task)
    if server is None:
        return
    with server:
        while not warm.is_worn():
            try:
                to_shim, _ = server.accept()
            except TimeoutError:
                return
            with to_shim:
                to_shim.settimeout(None)
                Connection(to_shim).send(shim.READY)
                if words := _read(to_shim):
                    warm.answer(words.split("\0"), Connection(to_shim))


def _read(connection: socket.socket) -> str:
    """Return what the shim sends; nothing if it did not wait."""
    parts = []
    with suppress(OSError):
        while part := connection.recv(65536):
            parts.append(part)
    return b"".join(parts).decode()


def main() -> None:
    """Run the warm process; a signal ends it after it has told the SuperNode."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(0)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT):
        signal.signal(number, end)
    log(INFO, "Start a warm `flwr-clientapp` process")
    serve(sys.argv[1], sys.argv[2:])


if __name__ == "__main__":
    main()
