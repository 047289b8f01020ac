"""The list of connected clients, by name."""

import pytest

from fedpd.flower import FederationError, InProcessGrid
from fedpd.flower.carry.directory import sorted_names, wait_for_clients
from tests.flower.federations import AGENTS, FEDPD, app, run


def test_names_are_sorted_names_with_numbers_by_value() -> None:
    assert sorted_names(["10", "9", "site-2", "site-10", "a"]) == ["9", "10", "a", "site-2", "site-10"]


def test_too_few_clients_are_said_and_not_waited_for_without_end() -> None:
    grid = InProcessGrid(app(FEDPD), 2, {})
    with pytest.raises(FederationError, match=r"waited 0\.05 s for 3 clients; 2 are connected: 0, 1\. Start"):
        run(FEDPD, 1, grid, deadline=0.05)


def test_too_many_clients_are_said() -> None:
    with pytest.raises(FederationError, match=r"agents = 3: 5 clients are connected, 0, 1, 2, 3, 4\."):
        run(FEDPD, 1, InProcessGrid(app(FEDPD), 5, {}))


def test_two_clients_of_one_name_are_not_two_clients() -> None:
    grid = InProcessGrid(app(FEDPD), AGENTS, {}, name="site")
    with pytest.raises(FederationError, match="1 are connected: site"):
        wait_for_clients(grid, AGENTS, 0.05, 0.01)


def test_clients_that_come_later_are_waited_for() -> None:
    class Late(InProcessGrid):
        """The last node appears at the third look."""

        looks = 0

        def get_node_ids(self) -> list[int]:
            self.looks += 1
            return list(self.contexts)[: AGENTS - (self.looks < 3)]

    grid = Late(app(FEDPD), AGENTS, {})
    assert sorted(wait_for_clients(grid, AGENTS, 5.0, 0.001).nodes) == ["0", "1", "2"]
