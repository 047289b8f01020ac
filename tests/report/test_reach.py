"""What it cost to reach a target, and the sentence that says so."""

import numpy as np
import pytest

from fedpd.engine.views.entries import COSTS, Entry, last_value, shared_quantities
from fedpd.report.pages import page_data
from fedpd.report.reach import best_text, departures, finding, reach, starts_at_best, targets, usual_target
from tests.report.recordings import diverging, entry, sparse


def names(*entries: Entry) -> list[str]:
    return [column.name for column in shared_quantities(entries)]


FAST, SLOW = entry("Fast", 0.2, 0.25), entry("Slow", 0.1, 0.1)


def test_costs_are_those_of_the_first_row_that_is_there() -> None:
    met = reach(FAST, "stationarity", 1e-4)  # after 20 rounds with rate 0.2, 16 with 0.25
    assert met.costs is not None
    assert met.costs["communications"] == (18, 16, 20)
    assert met.costs["samples"] == (1501 * 18, 1501 * 16, 1501 * 20)
    assert met.costs["bytes"] == (48_020 * 18, 48_020 * 16, 48_020 * 20)
    assert met.costs["seconds"] == pytest.approx((0.26 * 18, 0.26 * 16, 0.26 * 20))
    assert met.seeds == 2


def test_a_method_is_there_when_all_its_seeds_are() -> None:
    met = reach(FAST, "stationarity", 1e-22)
    assert (met.seeds, met.costs) == (1, None)
    assert met.best == pytest.approx(1e-20), "of the worse seed"


def test_more_is_better_for_accuracies() -> None:
    one = entry("Net", 0.1, accuracy=True)
    met = reach(one, "test_accuracy", 0.91)
    assert met.costs is not None
    assert met.costs["communications"][0] == 10
    assert "test_accuracy" in names(one)
    assert "test_accuracy" not in names(one, FAST)
    offered = targets([one], "test_accuracy")
    assert offered == sorted(offered)
    assert offered[0] == pytest.approx(0.1)
    assert offered[-1] > 0.98, "not in decades: what is of interest lies close to 1"


def test_targets_are_round_numbers_down_to_the_best() -> None:
    offered = targets([FAST, SLOW], "stationarity")
    assert offered[:4] == [1, 0.5, 0.2, 0.1]
    assert offered[-1] == pytest.approx(1e-20)
    assert usual_target([FAST, SLOW], "stationarity", offered) == 1e-10
    assert usual_target([SLOW], "stationarity", [1, 1e-5]) == 1e-5
    assert 3e-7 in targets([FAST], "stationarity", 3e-7)


def test_targets_of_what_never_moves_or_is_negative() -> None:
    still = entry("Still", 0.0)
    assert targets([still], "stationarity") == [1]
    assert targets([still], "consensus") == [0]
    for run in still.runs:
        run.history["loss"][:] = np.linspace(-1, -3, 101)
    offered = targets([still], "loss")
    assert len(offered) > 20
    assert offered[0] == -1
    assert offered[-1] == -3


def test_the_finding_names_the_best_the_factors_and_who_did_not_get_there() -> None:
    said = finding([SLOW, FAST], "stationarity", 1e-8)
    assert (
        said
        == "Fast reached ‖∇f‖² ≤ 1e-08 with 36 communications, the fewest: Slow, the next, took 2.22 times as many."
    )
    assert finding([SLOW, FAST], "stationarity", 1e-15).endswith("; Slow did not reach it.")
    four = [FAST, *(entry(f"Slow {i}", 0.01) for i in range(4))]
    assert finding(four, "stationarity", 1e-15).endswith("; 4 of 5 methods did not reach it.")
    assert "Fast and Same reached" in finding([FAST, FAST._replace(label="Same")], "stationarity", 1e-8)
    three = [FAST, SLOW, entry("Slower", 0.09)]
    assert "and Slower, the last, 2.47 times as many." in finding(three, "stationarity", 1e-8)


def test_the_finding_is_honest_when_nobody_gets_there() -> None:
    said = finding([SLOW, FAST], "stationarity", 1e-30)
    assert said == "No method reached ‖∇f‖² ≤ 1e-30; Fast came closest, 1e-20, after 100 communications."
    assert finding([SLOW], "stationarity", 1e-30).startswith("Slow did not reach ‖∇f‖² ≤ 1e-30; it came as close as")
    broken = diverging("Broken")
    broken.runs[0].history["stationarity"][:] = np.nan
    assert finding([broken], "stationarity", 1e-3).endswith("nothing finite was measured.")


def test_a_run_that_blew_up_counts_up_to_there() -> None:
    met = reach(diverging("Explodes"), "stationarity", 1e-3)
    assert (met.costs, met.best, met.at) == (None, 1, 0)


def test_every_measured_column_is_a_quantity() -> None:
    own = entry("Own", 0.1)
    recorded = ("smoothness", "test_loss", "test_accuracy_agents", "test_accuracy_worst", "mae")
    for run in own.runs:
        run.history.update({name: np.ones(101) for name in recorded} | {"missing": np.zeros(101, int)})
    found = names(own)
    assert found[0] == "stationarity"
    assert found[-1] == "mae", "fedpd does not know it"
    assert set(found) == {"stationarity", "loss", "consensus", *recorded}, "neither costs nor events"


def test_a_target_that_holds_at_the_start_is_no_finding() -> None:
    still = entry("Still", 0.0)
    assert finding([still], "stationarity", 1.0) == "Still did not improve on the start, where ‖∇f‖² ≤ 1 holds already."
    assert finding([still, diverging("Wild")], "stationarity", 2.0).startswith("No method improved on the start, where")
    both = finding([still, SLOW], "stationarity", 1.0)
    assert both.startswith("Every method starts at ‖∇f‖² ≤ 1, so this target compares nothing. Slow came furthest:")
    assert "0 communications" not in finding([still, diverging("Wild")], "stationarity", 1.0)


def test_a_method_that_only_touches_the_target_has_not_reached_it() -> None:
    noisy = entry("Noisy", 0.1)
    noisy.runs[0].history["stationarity"][60] = 1.0
    met = reach(noisy, "stationarity", 1e-5)
    assert met.costs is not None
    assert met.costs["communications"][0] == 61, "not 50: it left the target once more"
    noisy.runs[0].history["stationarity"][-1] = 1.0
    missed = reach(noisy, "stationarity", 1e-5)
    assert missed.costs is None
    assert best_text(missed, "stationarity", 1e-5).endswith(", not kept")
    assert "kept" not in best_text(missed, "stationarity", 1e-99)


def test_the_target_is_one_that_several_methods_reached() -> None:
    two = [entry("Best", 0.09), entry("Next", 0.052), entry("Floor", 0.01)]
    offered = targets(two, "stationarity")
    assert usual_target(two, "stationarity", offered) == 1e-5, "a power of ten that two of three reached, not 1e-9"
    lonely = [entry("Best", 0.09), entry("Still", 0.0)]
    assert usual_target(lonely, "stationarity", targets(lonely, "stationarity")) == pytest.approx(1e-9)


def test_the_finding_is_about_the_cost_that_is_asked_for() -> None:
    rare = entry("Rare", 0.1, every=4)
    both = [FAST, rare]
    unequal = "Unequal local work, from 1.5 k (Fast) to 6 k (Rare) sample gradients per communication: "
    assert finding(both, "stationarity", 1e-8).startswith(
        f"{unequal}Rare reached ‖∇f‖² ≤ 1e-08 with 20 communications, the fewest"
    )
    assert finding(both, "stationarity", 1e-30).startswith(f"{unequal}No method reached")
    by = {name: finding(both, "stationarity", 1e-8, COSTS[name]) for name in COSTS}
    assert by["samples"].startswith("Fast reached ‖∇f‖² ≤ 1e-08 with 54 k sample gradients, the fewest")
    assert by["bytes"].startswith(f"{unequal}Rare reached ‖∇f‖² ≤ 1e-08 with 960 kB of messages")
    assert by["seconds"].startswith("Fast reached ‖∇f‖² ≤ 1e-08 in 9.4 s, the least time: Rare, the next, took 2.22")


def test_a_quantity_that_starts_at_its_best_has_no_target() -> None:
    apart = entry("Apart", 0.1)
    apart.runs[0].history["consensus"][5] = 0.25
    assert starts_at_best([apart, SLOW], "consensus")
    assert not starts_at_best([apart, SLOW], "stationarity")
    said = departures([apart, SLOW], "consensus")
    assert (
        said == "consensus gap: 1 of 2 methods keep the value of the start; Apart moves away from it the most, by 0.25."
    )
    assert departures([SLOW], "consensus") == "consensus gap: no method moves away from the value at the start."
    (consensus,) = (one for one in page_data([apart])["quantities"] if one["name"] == "consensus")
    assert consensus["targets"] == []


def test_rows_that_were_not_measured_are_no_rows() -> None:
    one = sparse("Flower", rate=1.0, every=5)  # 1e-10 from row 10 on, where it was measured
    met = reach(one, "stationarity", 1e-10)
    assert met.costs is not None
    assert met.costs["communications"] == (10, 10, 10)
    assert met.costs["bytes"] == (480_200, 480_200, 480_200)
    more = reach(one, "test_accuracy", 0.99)  # 1 - 0.9e-5 at row 5
    assert more.costs is not None
    assert more.costs["communications"][0] == 5
    assert finding([one], "stationarity", 1e-10) == "Flower reached ‖∇f‖² ≤ 1e-10 with 10 communications."


def test_a_target_that_holds_in_every_measured_row_holds_from_the_first_of_them() -> None:
    one = sparse("Flower")
    one.runs[0].history["stationarity"][0] = np.nan  # the start was not evaluated
    met = reach(one, "stationarity", 1e-4)
    assert met.costs is not None
    assert met.costs["communications"][0] == 5
    offered = targets([one], "stationarity")
    assert (offered[0], offered[-1]) == (5e-6, 1e-20), "from the first measured value on"


def test_a_column_that_was_never_measured_is_no_quantity() -> None:
    one = sparse("Flower")
    for name in ("loss", "stationarity"):
        one.runs[0].history[name][:] = np.nan
    assert names(one) == ["test_accuracy", "consensus"]
    assert reach(one, "stationarity", 1e-4).costs is None
    data = page_data([one])
    assert data["quantities"][0]["name"] == "test_accuracy"


def test_the_last_row_of_a_run_that_diverged_was_measured() -> None:
    broken = diverging("Broken")  # its last stationarity is NaN
    assert np.isnan(last_value(broken.runs[0], "stationarity"))
    assert reach(broken, "stationarity", 1.0).costs is None
