"""A client's own rules: what they refuse, and that neither an order nor the app can override them."""

from pathlib import Path
from typing import Any

import pytest

from fedpd import FedpdError, algorithms
from fedpd.flower import FederationError, InProcessGrid, Settings, federate
from fedpd.flower.clients.site_policy import SitePolicy, read_policy
from tests.flower.federations import AGENTS, FEDPD, GD, app, assert_same, run, start


def strict(tmp_path: Path, rules: str, **options: Any) -> InProcessGrid:
    """A federation in which client 1 has these rules."""
    (tmp_path / "policy.toml").write_text(rules)
    grid = InProcessGrid(app(FEDPD, **options), AGENTS, {})
    grid.contexts[2].node_config["fedpd-policy"] = str(tmp_path / "policy.toml")
    return grid


@pytest.mark.parametrize(
    ("rules", "settings", "reason"),
    [
        ("secure = true", {}, "the messages are not masked"),
        ('methods = ["fedavg", "scaffold"]', {}, "the method is 'fedpd', but must be one of fedavg, scaffold"),
        ("min-clients = 4", {}, "without masks the server sees each message, so the number of clients protects nobody"),
        ("evaluations = false", {"evaluate_every": 1}, "this client answers no evaluations. Set evaluate-every = 0"),
    ],
)
def test_a_run_that_breaks_a_rule_does_not_start(
    rules: str, settings: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    with pytest.raises(FederationError) as caught:
        run(FEDPD, 1, strict(tmp_path, rules), **settings)
    said = str(caught.value)
    rule = rules.partition(" ")[0]
    assert (
        f"client '1': the rule '{rule}' of this client's policy ({tmp_path}/policy.toml) refuses it: {reason}" in said
    )
    assert "client '0'" not in said


@pytest.mark.parametrize(
    ("rules", "settings", "options"),
    [
        ("secure = true\nmin-clients = 3", {"secure_range": 16.0}, {"secure": True}),
        ('methods = ["fedpd"]\nevaluations = false', {}, {}),
    ],
)
def test_a_run_that_keeps_the_rules_runs(
    rules: str, settings: dict[str, Any], options: dict[str, Any], tmp_path: Path
) -> None:
    there = run(FEDPD, 2, strict(tmp_path, rules, **options), **settings)
    assert_same(there.model, run(FEDPD, 2).model, rtol=1e-6)


@pytest.mark.parametrize("rules", ["secure = true", 'methods = ["fedavg"]', "min-clients = 4"])
def test_every_order_is_checked_not_only_the_first_message(rules: str, tmp_path: Path) -> None:
    """A server that does not describe the run truthfully learns nothing."""
    grid = strict(tmp_path, "")
    policy = tmp_path / "policy.toml"

    def tighten(done: int, rounds: int, stationarity: float) -> None:
        policy.write_text(rules)

    settings = Settings(AGENTS, 2, poll=0.001, evaluate_every=0)
    with pytest.raises(FederationError, match=r"communication 1 lacks 1 of 3 clients \('1': the client refuses: the r"):
        federate(grid, FEDPD, start(), settings, tighten)


def test_evaluations_are_refused_in_the_middle_of_a_run(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    grid = strict(tmp_path, "")
    policy = tmp_path / "policy.toml"
    settings = Settings(AGENTS, 2, poll=0.001, evaluate_every=1)

    def tighten(done: int, rounds: int, stationarity: float) -> None:
        policy.write_text("evaluations = false")

    federate(grid, FEDPD, start(), settings, tighten)
    assert "The evaluation lacks client '1' (the client refuses: the rule 'evaluations'" in caplog.text


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("secured = true", "secured = True: there is no such rule.*secure"),
        ("secure = 1", "secure = 1: must be true or false"),
        ('methods = "fedpd"', "methods = 'fedpd': must be a list of texts"),
        ("min-clients = 0", "min-clients = 0: must be an integer of at least 1"),
        ('apps = ["abc"]', "apps = 'abc': must be 64 hexadecimal digits"),
        ("secure", "cannot be read"),
    ],
)
def test_a_file_with_a_mistake_refuses_everything(rules: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(rules)
    with pytest.raises(FedpdError, match=message):
        read_policy(path)
    with pytest.raises(FederationError, match=f"client '1': .*{message}"):
        run(FEDPD, 1, strict(tmp_path, rules))


def test_no_file_is_no_rule_and_a_missing_file_is_a_mistake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert read_policy(None) == SitePolicy()
    monkeypatch.setenv("FEDPD_POLICY", str(tmp_path / "none.toml"))
    with pytest.raises(FederationError, match=r"client '0': .*none\.toml: this client's policy cannot be read"):
        run(algorithms.fedavg(oracle=GD), 1)
