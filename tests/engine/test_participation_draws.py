"""The draw of a round's agents."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpd.base.checks import FedpdError
from fedpd.engine.participation import draw


@given(seed=st.integers(0, 2**63 - 1), agents=st.integers(1, 500), data=st.data())
def test_agents_of_a_round_are_different_and_in_order(seed: int, agents: int, data: st.DataObject) -> None:
    cohort = data.draw(st.integers(1, agents))
    drawn = draw(seed, [0, 7, 10**9], agents, cohort)
    assert drawn.shape == (3, cohort)
    assert (np.diff(drawn, axis=1) > 0).all()
    assert drawn.min() >= 0
    assert drawn.max() < agents


def test_a_round_is_drawn_the_same_alone_and_among_others() -> None:
    together = draw(3, range(20), 1000, 7)
    for r in (0, 5, 19):
        np.testing.assert_array_equal(draw(3, [r], 1000, 7)[0], together[r])


@pytest.mark.parametrize(("agents", "cohort"), [(10, 3), (64, 1), (100, 50)])
def test_every_agent_is_as_likely_as_another(agents: int, cohort: int) -> None:
    rounds = 20_000
    counts = np.bincount(draw(0, range(rounds), agents, cohort).ravel(), minlength=agents)
    expected, share = rounds * cohort / agents, cohort / agents
    chi_squared = ((counts - expected) ** 2).sum() / (expected * (1 - share))
    freedom = agents - 1
    assert abs(chi_squared - freedom) < 5 * np.sqrt(2 * freedom)


def test_every_pair_is_as_likely_as_another() -> None:
    drawn = draw(1, range(30_000), 6, 2)
    pairs = np.bincount(drawn[:, 0] * 6 + drawn[:, 1], minlength=36).reshape(6, 6)[np.triu_indices(6, 1)]
    expected = 30_000 / 15
    assert ((pairs - expected) ** 2).sum() / expected < 14 + 5 * np.sqrt(28)


def test_seeds_and_rounds_draw_different_agents() -> None:
    first, second = draw(0, range(50), 10**6, 20), draw(1, range(50), 10**6, 20)
    assert len(np.unique(np.concatenate([first.ravel(), second.ravel()]))) > 1950


@pytest.mark.parametrize("cohort", [0, -1, 11, 2.5, True])
def test_a_cohort_that_is_not_from_1_to_n_is_refused(cohort: int) -> None:
    rule = "at most 10, the number of agents" if cohort == 11 else "an integer of at least 1"
    with pytest.raises(FedpdError, match=rf"cohort = {cohort}: must be {rule}\. Give .* from 1 to 10"):
        draw(0, [0], 10, cohort)
