"""The list of connected clients, by name."""

from pathlib import Path

import pytest
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode

from fedpd import FedpdError
from fedpd.flower import FederationError, InProcessGrid
from fedpd.flower.carry.directory import ClientDirectory, read_owners, sorted_names, wait_for_clients
from tests.flower.federations import AGENTS, FEDPD, Deliver, Fallible, app, assert_same, order_of, run


def test_names_are_sorted_names_with_numbers_by_value() -> None:
    assert sorted_names(["10", "9", "site-2", "site-10", "a"]) == ["9", "10", "a", "site-2", "site-10"]


def test_too_few_clients_are_said_and_not_waited_for_without_end() -> None:
    grid = InProcessGrid(app(FEDPD), 2, {})
    with pytest.raises(FederationError, match=r"waited 0\.05 s for 3 clients; 2 are connected: 0, 1\. Start"):
        run(FEDPD, 1, grid, deadline=0.05)


def test_too_many_clients_are_said() -> None:
    with pytest.raises(FederationError, match=r"agents = 3: 5 clients are connected, 0, 1, 2, 3, 4\."):
        run(FEDPD, 1, InProcessGrid(app(FEDPD), 5, {}))


def test_two_clients_of_one_name_are_reported_at_once() -> None:
    grid = InProcessGrid(app(FEDPD), AGENTS, {}, name="site")
    with pytest.raises(FederationError, match=r"client 'site': nodes 1 and 3 both claim this name\. Give"):
        run(FEDPD, 1, grid, deadline=600.0)
    with pytest.raises(FederationError, match="1 are connected: site"):
        run(FEDPD, 1, grid, deadline=0.05, bind_names=False)


class Thief(Fallible):
    """A fourth node that claims the name of client 1 while order 1 is under way, when client 1 may be online or not."""

    def __init__(self, online: bool) -> None:
        super().__init__(FEDPD, self.steal)
        self.online, self.reached = online, 0

    def steal(self, message: Message, deliver: Deliver) -> Message | None:
        node = message.metadata.dst_node_id
        if order_of(message) == (1, 1) and 77 not in self.contexts:
            self.contexts[77] = self.contexts[2]
            return None  # the order is sent again, after the list of nodes was read again
        self.reached += node == 77 and message.metadata.message_type == "train"
        return deliver(message)

    def get_node_ids(self) -> list[int]:
        return [node for node in self.contexts if self.online or node != 2 or 77 not in self.contexts]


@pytest.mark.parametrize("online", [True, False])
def test_a_node_that_claims_the_name_of_another_is_refused_and_reported(
    online: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("fedpd.flower.carry.collect.REFRESH_SECONDS", 0.0)
    grid = Thief(online)
    assert_same(run(FEDPD, 3, grid, resend=0.01).model, run(FEDPD, 3).model, rtol=0)
    assert "Node 77 claims the name '1', which belongs to node 2. The server refuses node 77." in caplog.text
    assert grid.reached == 0


def test_a_name_belongs_to_its_node_in_later_runs_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDPD_CLIENTS", str(tmp_path / "clients.json"))
    grid = InProcessGrid(app(FEDPD), AGENTS, {})
    run(FEDPD, 1, grid)
    assert read_owners(tmp_path / "clients.json") == {"0": 1, "1": 2, "2": 3}
    grid.contexts[77] = grid.contexts.pop(2)
    with pytest.raises(FederationError, match="2 are connected: 0, 2"):
        run(FEDPD, 1, grid, deadline=0.05, bind_names=False)
    assert "Node 77 claims the name '1', which belongs to node 2." in caplog.text
    (tmp_path / "clients.json").write_text("[]")
    with pytest.raises(FedpdError, match=r"clients.json cannot be read \(it must map names to node ids\)"):
        run(FEDPD, 1, grid)


def test_a_node_that_refuses_the_app_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the SuperNode of `fedpd client` does for an app that its policy does not list."""
    (tmp_path / "clients.json").write_text('{"hospital-2": 2}')
    monkeypatch.setenv("FEDPD_CLIENTS", str(tmp_path / "clients.json"))

    def refuse(message: Message, deliver: Deliver) -> Message | None:
        error = Error(ErrorCode.INVALID_FAB, "client 'hospital-2' does not run this app: its hash is not listed.")
        return Message(error, reply_to=message) if message.metadata.dst_node_id == 2 else deliver(message)

    with pytest.raises(FederationError, match="client 'hospital-2': does not run this app: its hash is not listed"):
        run(FEDPD, 1, Fallible(FEDPD, refuse), deadline=600.0)


def test_an_app_that_cannot_be_loaded_is_reported_after_three_attempts() -> None:
    def fail(message: Message, deliver: Deliver) -> Message | None:
        error = Error(ErrorCode.LOAD_CLIENT_APP_EXCEPTION, "ModuleNotFoundError: No module named 'timm'")
        return Message(error, reply_to=message) if message.metadata.dst_node_id == 2 else deliver(message)

    with pytest.raises(
        FederationError, match="node 2: failed at attempt 3: ModuleNotFoundError: No module named 'timm'"
    ):
        run(FEDPD, 1, Fallible(FEDPD, fail), deadline=600.0)


def test_clients_that_come_later_are_waited_for() -> None:
    class Late(InProcessGrid):
        """The last node appears at the third look."""

        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return list(self.contexts)[: AGENTS - (self.looks < 3)]

    grid = Late(app(FEDPD), AGENTS, {})
    assert sorted(wait_for_clients(ClientDirectory(grid), AGENTS, 5.0, 0.001).nodes) == ["0", "1", "2"]


def test_a_server_that_waits_says_for_whom(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flwr")
    grid = InProcessGrid(app(FEDPD), AGENTS - 1, {})
    with pytest.raises(FederationError, match=r"the server waited 0\.1 s for 3 clients; 2 are connected: 0, 1\."):
        wait_for_clients(ClientDirectory(grid), AGENTS, 0.1, 0.001, silence=0.0)
    said = [record.getMessage() for record in caplog.records if "Waiting" in record.getMessage()]
    assert said == ["Waiting for 3 clients; 2 are connected: 0, 1. The run ends in 0 s without them."]


def test_a_silent_node_is_asked_again() -> None:
    """Its answer may wait at a SuperNode, which sends one answer per message that it gets."""
    asked: list[int] = []

    def lose_first(message: Message, deliver: Deliver) -> Message | None:
        asked.append(message.metadata.dst_node_id)
        return None if asked == [1] else deliver(message)

    clients = ClientDirectory(Fallible(FEDPD, lose_first), ask_again=0.01)
    found = wait_for_clients(clients, AGENTS, 30.0, 0.001)
    assert sorted(found.nodes) == ["0", "1", "2"]
    assert sorted(asked) == [1, 1, 2, 3]


class Renaming(InProcessGrid):
    """Node 1 answers its second question with another name, which is free."""

    def __init__(self, names: dict[int, list[str]], agents: int) -> None:
        super().__init__(app(FEDPD), agents, {})
        self.names = names

    def deliver(self, message: Message) -> Message | None:
        reply = super().deliver(message)
        node = message.metadata.dst_node_id
        if reply is not None and message.metadata.message_type == "query.hello" and self.names.get(node):
            reply.content.config_records["config"]["fedpd-name"] = self.names[node].pop(0)
        return reply


def test_a_node_keeps_one_name(caplog: pytest.LogCaptureFixture) -> None:
    grid = Renaming({1: ["a", "b"]}, 1)
    directory = ClientDirectory(grid, ask_again=0.0)
    directory.refresh()
    directory._known.clear()  # as after an error of the SuperLink, when all nodes are asked again
    directory.refresh()
    assert directory.nodes == {"a": 1}
    assert "Node 1 claims the name 'b', but is client 'a'. It keeps one name." in caplog.text


def test_only_listed_names_take_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("FEDPD_CLIENTS", str(tmp_path / "clients.json"))
    (tmp_path / "clients.json").write_text('{"0": 1, "1": 2, "2": 3}')
    grid = Renaming({4: ["stranger"]}, 4)
    assert_same(run(FEDPD, 2, grid).model, run(FEDPD, 2).model, rtol=0)
    assert "Node 4 claims the name 'stranger', which is not in the file FEDPD_CLIENTS" in caplog.text


@pytest.mark.parametrize("name", ["a\nFinished: 9 rounds", "\x1b[2J", "a" * 101])
def test_a_name_is_short_and_printable(name: str, caplog: pytest.LogCaptureFixture) -> None:
    directory = ClientDirectory(Renaming({1: [name]}, 1))
    directory.refresh()
    assert directory.nodes == {}
    assert "A name has up to 100 printable characters" in caplog.text


def test_an_answer_to_another_question_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    class Replaying(Renaming):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            assert reply is not None
            reply.content.config_records["config"]["fedpd-nonce"] = "0" * 32
            return reply

    directory = ClientDirectory(Replaying({}, 1))
    directory.refresh()
    assert directory.nodes == {}
    assert "in an answer to another question" in caplog.text
