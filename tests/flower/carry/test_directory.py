"""Who is there, by name."""

import pytest

from fedpd.flower import FederationError, InProcessGrid
from fedpd.flower.carry.directory import call_roll, in_order
from tests.flower.federations import AGENTS, FEDPD, app, run


def test_names_are_in_order_with_numbers_by_value() -> None:
    assert in_order(["10", "9", "site-2", "site-10", "a"]) == ["9", "10", "a", "site-2", "site-10"]


def test_too_few_clients_are_said_and_not_waited_for_without_end() -> None:
    grid = InProcessGrid(app(FEDPD), 2, {})
    with pytest.raises(FederationError, match=r"3 clients were waited for 0\.05 s, and there are 2: 0, 1\. Start"):
        run(FEDPD, 1, grid, deadline=0.05)


def test_too_many_clients_are_said() -> None:
    with pytest.raises(FederationError, match=r"5 clients are there \(0, 1, 2, 3, 4\), and agents = 3"):
        run(FEDPD, 1, InProcessGrid(app(FEDPD), 5, {}))


def test_two_clients_of_one_name_are_not_two_clients() -> None:
    grid = InProcessGrid(app(FEDPD), AGENTS, {}, name="site")
    with pytest.raises(FederationError, match="there are 1: site"):
        call_roll(grid, AGENTS, 0.05, 0.01)


def test_clients_that_come_later_are_waited_for() -> None:
    grid = InProcessGrid(app(FEDPD), AGENTS, {})
    late = [grid.contexts.popitem()]
    calls = []

    def ids() -> list[int]:
        calls.append(1)
        if len(calls) == 3:
            grid.contexts |= dict(late)
        return list(grid.contexts)

    grid.get_node_ids = ids  # type: ignore[method-assign]
    assert sorted(call_roll(grid, AGENTS, 5.0, 0.001).nodes) == ["0", "1", "2"]
