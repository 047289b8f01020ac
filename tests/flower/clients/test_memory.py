"""What a client remembers and refuses: other sets for one sum, sums that differ by one client, spent budgets, texts."""

import json
import sys
from pathlib import Path
from typing import Any

import dp_accounting
import jax
import numpy as np
import pytest
from dp_accounting.rdp import RdpAccountant
from flwr.app import Context, Message, RecordDict

from fedpd import FedpdError, algorithms, oracles, simulate
from fedpd.core import dp_sgd
from fedpd.flower import FederationError, InProcessGrid, Local, Settings, client_app, federate
from fedpd.flower.carry.masks import Ring
from fedpd.flower.carry.protocol import TRAIN
from fedpd.flower.clients.client import LOCAL
from tests.flower.carry.test_secure import CONFIGS, Listening, stage_of
from tests.flower.federations import (
    AGENTS,
    FEDPD,
    Deliver,
    Fallible,
    app,
    assert_same,
    losses,
    order_of,
    run,
    samples,
    start,
    whole,
)

BOUND = 16.0
SIZES = (6,) * 4


def ruled(tmp_path: Path, rules: str, agents: int = AGENTS, algorithm: Any = FEDPD, **options: Any) -> InProcessGrid:
    """A federation in which all clients have these rules."""
    (tmp_path / "policy.toml").write_text(rules)
    kind: type[InProcessGrid] = options.pop("kind", InProcessGrid)
    grid = kind(app(algorithm, (6,) * agents, **options), agents, options.pop("config", {}))
    for context in grid.contexts.values():
        context.node_config["fedpd-policy"] = str(tmp_path / "policy.toml")
    return grid


def memory(name: str, tmp_path: Path) -> Any:
    return json.loads((tmp_path / "clients" / name / "memory.json").read_text())


def test_two_runs_that_differ_in_one_client_are_refused(tmp_path: Path) -> None:
    """N = 4, then N = 3: the difference of the first sums is the message of the client that is missing."""
    secure: dict[str, Any] = {"secure": True}
    run(FEDPD, 1, ruled(tmp_path, "min-clients = 3", 4, **secure), secure_range=BOUND, agents=4)
    with pytest.raises(FederationError, match=r"an earlier sum was over 0, 1, 2, 3, and this one differs by 3"):
        run(FEDPD, 1, ruled(tmp_path, "min-clients = 3", 3, **secure), secure_range=BOUND)
    run(FEDPD, 1, ruled(tmp_path, "min-clients = 3", 4, **secure), secure_range=BOUND, agents=4)


def test_the_same_communication_is_not_summed_over_other_clients(tmp_path: Path) -> None:
    """The server unmasks a sum over three of four, forgets it, and asks all four for the same communication."""

    class Forgetting(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            if stage_of(message) == "vectors" and message.metadata.dst_node_id == absent:
                return None
            reply = super().deliver(message)
            lost = stage_of(message) == "unmask" and absent
            if reply is not None and stage_of(message) == "keys" and lies:
                reply.content.config_records[CONFIGS]["settled"] = []
            return None if lost else reply

    grid = Forgetting(app(FEDPD, SIZES, secure=True), 4, {})
    partial: dict[str, Any] = {"agents": 4, "on_timeout": "partial", "min_clients": 3, "secure_range": BOUND}
    folder: dict[str, Any] = {"out": tmp_path / "run", "deadline": 4.0}
    lies, absent = False, 0
    run(FEDPD, 1, grid, **partial, **folder)
    absent = 4
    with pytest.raises(FederationError, match="0 clients sent their shares"):
        run(FEDPD, 2, grid, **partial, **folder)
    assert [memory(str(i), tmp_path)["sets"][-1] for i in range(3)] == [["0", "1", "2"]] * 3
    absent, lies = 0, True
    with pytest.raises(FederationError, match="was over 0, 1, 2, and is now over 0, 1, 2, 3: the difference"):
        run(FEDPD, 2, grid, **partial, **folder)
    lies = False
    found = run(FEDPD, 2, grid, **partial, **folder)  # an honest server asks the same three again
    assert found.history["round"][-1] == 2


@pytest.mark.parametrize("change", [{"number": 1}, {"run": "another"}, {"kind": "evaluate"}])
def test_the_order_is_the_one_that_the_clients_remember(change: dict[str, Any]) -> None:
    """A server that names another order at first could have the same message in sums over other clients."""

    def lie(message: Message) -> None:
        if stage_of(message) == "keys":
            record: Any = message.content.config_records[CONFIGS]
            record["about"] = json.dumps(json.loads(record["about"]) | change)

    grid = Listening(FEDPD)
    grid.meddle = lie
    with pytest.raises(FederationError, match=r"the (order|message) is .* in the first stage"):
        run(FEDPD, 1, grid, secure_range=BOUND)
    assert not any("vector" in content.config_records.get(CONFIGS, {}) for content in grid.told)


def test_no_sum_is_of_fewer_than_three_clients_whatever_the_server_says() -> None:
    def lie(message: Message) -> None:
        if stage_of(message) == "keys":
            record: Any = message.content.config_records[CONFIGS]
            record["about"] = json.dumps(json.loads(record["about"]) | {"least": 1})

    grid = Listening(FEDPD)
    grid.meddle = lie
    with pytest.raises(FederationError, match="the sum may have 1 clients; 3 or more must be in it"):
        run(FEDPD, 1, grid, secure_range=BOUND)


def test_exact_participants_are_those_of_the_policy(tmp_path: Path) -> None:
    rules = 'participants = ["0", "1", "2"]'
    run(FEDPD, 1, ruled(tmp_path, rules, secure=True), secure_range=BOUND)
    with pytest.raises(FederationError, match="the sum is over 0, 1, 2, 3, but must be over exactly"):
        run(FEDPD, 1, ruled(tmp_path, rules, 4, secure=True), secure_range=BOUND, agents=4)
    with pytest.raises(FederationError, match=r"'participants' of this .* without masks the server sees each message"):
        run(FEDPD, 1, ruled(tmp_path, rules))


def test_sums_of_one_run_over_different_clients_show_a_message_near_the_solution() -> None:
    """A client that drops out late shows, by the difference of two sums, its own message up to the others' changes."""

    class Open(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if reply is not None and (found := order_of(message))[0] >= 0:
                sent, got = (one.content.array_records["arrays"]["w"].numpy() for one in (reply, message))
                messages[found] = sent - got
            return reply

    messages: dict[tuple[int, int], np.ndarray] = {}
    run(FEDPD, 60, Open(app(FEDPD), AGENTS, {}))
    errors = []
    for number in (0, 58):
        first = sum(messages[agent, number] for agent in range(AGENTS))
        then = sum(messages[agent, number + 1] for agent in range(AGENTS - 1))
        own = messages[AGENTS - 1, number]
        errors.append(np.linalg.norm(first - then - own) / np.linalg.norm(own))
    assert errors[0] > 0.1
    assert errors[1] < 1e-4


def test_a_client_may_ask_that_all_sums_of_a_run_are_over_the_same_clients(tmp_path: Path) -> None:
    """One of four drops out in the second communication; the other three then reveal nothing."""

    class Late(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            late = stage_of(message) == "vectors" and order_of(message) == (3, 1)
            return None if late else super().deliver(message)

    found: dict[str, Any] = {}
    for rules in ("", "same-clients = true"):
        grid = ruled(tmp_path, rules, 4, kind=Late, secure=True)
        partial: dict[str, Any] = {"agents": 4, "on_timeout": "partial", "min_clients": 3, "deadline": 4.0}
        try:
            found[rules] = run(FEDPD, 2, grid, secure_range=BOUND, **partial).history["round"][-1]
        except FederationError as error:
            found[rules] = str(error)
    assert found[""] == 2
    assert "0 clients sent their shares" in found["same-clients = true"]


def test_evaluations_are_masked_and_equal_the_plain_ones() -> None:
    """f_i in the open, at many models, is the gradient of a client; the server sees only the sum of all."""
    grid = Listening(FEDPD)
    masked = run(FEDPD, 4, grid, secure_range=BOUND, evaluate_every=1)
    told = [one for content in grid.told for one in content.metric_records.values()]
    assert not any("loss" in record for record in told)
    plain = run(FEDPD, 4, evaluate_every=1)
    np.testing.assert_allclose(masked.history["loss"], plain.history["loss"], rtol=1e-6)  # of models in fixed point
    np.testing.assert_allclose(masked.history["loss"][0], plain.history["loss"][0], rtol=1e-15)  # of the start


def test_the_policy_caps_the_number_of_evaluations_over_all_runs(tmp_path: Path, caplog: Any) -> None:
    for rules, settings, options in (
        ("max-evaluations = 3", {}, {}),
        ("max-evaluations = 3", {"secure_range": BOUND}, {"secure": True}),
    ):
        for path in (tmp_path / "clients").glob("*/memory.json"):
            path.unlink()
        losses_of_both = [
            run(FEDPD, 1, ruled(tmp_path, rules, **options), evaluate_every=1, **settings).history["loss"]
            for _ in range(2)
        ]
        assert np.isfinite(losses_of_both).tolist() == [[True, True], [True, False]]
        assert "has answered 3 evaluations in all its runs and answers no more" in caplog.text


def test_a_damaged_memory_refuses_everything(tmp_path: Path) -> None:
    run(FEDPD, 1, ruled(tmp_path, "", secure=True), secure_range=BOUND)
    (tmp_path / "clients" / "1" / "memory.json").write_text("{")
    with pytest.raises(FederationError, match=r"'1': .*memory\.json: this client's memory cannot be read"):
        run(FEDPD, 1, ruled(tmp_path, "", secure=True), secure_range=BOUND)


@pytest.mark.parametrize("error", [EOFError, MemoryError, AttributeError, ValueError])
def test_a_malformed_masked_reply_costs_its_sender_and_not_the_run(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Ring.read

    def reading(ring: Ring, content: bytes) -> np.ndarray:
        if content == b"x" * len(content):
            raise error("a value that says nothing")
        return read(ring, content)

    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if reply is not None and stage_of(message) == "vectors" and message.metadata.dst_node_id == 4:
            record: Any = reply.content.config_records[CONFIGS]
            record["vector"] = b"x" * len(record["vector"])
        return reply

    class Four(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            return fault(message, super().deliver)

    monkeypatch.setattr(Ring, "read", reading)
    grid = Four(app(FEDPD, SIZES, secure=True), 4, {})
    partial: dict[str, Any] = {"agents": 4, "on_timeout": "partial", "min_clients": 3, "deadline": 5.0}
    found = run(FEDPD, 2, grid, secure_range=BOUND, **partial)
    assert found.history["refused"][-1] >= 2
    assert found.history["round"][-1] == 2


def test_a_replayed_reply_is_refused(tmp_path: Path) -> None:
    """A reply that was recorded for one order fits another only if it repeats the nonce of the other."""
    old: dict[int, Any] = {}

    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        agent, number = order_of(message)
        if reply is None or message.metadata.message_type != TRAIN or agent != 1:
            return reply
        if number == 0:
            old[0] = reply.content.config_records["config"]["fedpd-nonce"]
        else:
            reply.content.config_records["config"]["fedpd-nonce"] = old[0]
        return reply

    with pytest.raises(FederationError, match="'1': reply: does not repeat the nonce of its order"):
        run(FEDPD, 2, Fallible(FEDPD, fault))


SECRET = "Erika Mustermann, born 1961-02-03"


def failing(context: Context) -> Local:
    raise ValueError(f"could not convert string to float: {SECRET!r}")


@pytest.mark.parametrize("rules", ["", "error-texts = true"])
def test_the_text_of_an_error_stays_at_the_site_unless_its_policy_allows_it(rules: str, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(rules)
    policy = {"fedpd-policy": str(tmp_path / "policy.toml")}
    grid = InProcessGrid(client_app(lambda config: FEDPD, start, failing), AGENTS, {}, **policy)
    with pytest.raises(FederationError, match=r"client '0': ValueError in test_memory\.py, line \d+") as caught:
        run(FEDPD, 1, grid)
    assert (SECRET in str(caught.value)) == bool(rules)


def test_an_error_that_flower_would_report_has_no_text_either(caplog: pytest.LogCaptureFixture) -> None:
    """An error that may pass, such as a full disk, leaves the app, and Flower sends its text to the server."""
    told: list[str] = []

    class Noting(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            reply = super().deliver(message)
            if reply is not None and reply.has_error():
                told.append(str(reply.error.reason))
            return reply

    def full(context: Context) -> Local:
        if order_seen:
            raise OSError(f"no space left for {SECRET}")
        return Local(losses, samples()[0])

    order_seen: list[int] = []
    made = client_app(lambda config: FEDPD, start, full)
    grid = Noting(made, 1, {})

    def forget(done: int, rounds: int, stationarity: float) -> None:
        order_seen.append(done)
        grid.app = client_app(lambda config: FEDPD, start, full)

    settings = Settings(1, 2, poll=0.001, evaluate_every=0, resend=0.01, deadline=5.0)
    with pytest.raises(FederationError, match="OSError in test_memory"):
        federate(grid, FEDPD, start(), settings, forget)
    assert told
    assert not any(SECRET in text.splitlines()[-1] for text in told)


def test_control_characters_of_a_client_do_not_reach_the_log(tmp_path: Path) -> None:
    def fault(message: Message, deliver: Deliver) -> Message | None:
        reply = deliver(message)
        if reply is not None and message.metadata.message_type == TRAIN and message.metadata.dst_node_id == 2:
            forged = "no\n2026-01-01 00:00:00,000 INFO Finished: 9 rounds. \x1b[2J"
            reply.content.config_records["config"].update({"fedpd-status": "refused", "fedpd-note": forged})
        return reply

    with pytest.raises(FederationError) as caught:
        run(FEDPD, 1, Fallible(FEDPD, fault), out=tmp_path)
    assert "\n" not in str(caught.value)
    lines = (tmp_path / "log.txt").read_text().splitlines()
    assert not any(line.startswith("2026-01-01 00:00:00,000 INFO Finished") for line in lines)
    assert not any("\x1b" in line for line in lines)


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ("[config]\nbatch = { min = 32 }", "'config' of .*: batch = 1 must be at least 32"),
        ("[config]\nbatch = { max = 0 }", "batch = 1 must be at most 0"),
        ('[config]\nname = { one-of = ["adam"] }', "name = 'sgd' must be one of 'adam'"),
        ("[config]\nother = { min = 1 }", "other = None is not in the run's configuration"),
        ('privacy = "examples"', "the method has no differential privacy of examples. Use oracle"),
        ("epsilon = 4.0", "the method has no differential privacy. Use"),
        ("min-clients = 2", "without masks the server sees each message"),
    ],
)
def test_a_run_outside_of_the_policys_ranges_does_not_start(rules: str, message: str, tmp_path: Path) -> None:
    grid = ruled(tmp_path, rules)
    for context in grid.contexts.values():
        context.run_config |= {"batch": 1, "name": "sgd"}
    with pytest.raises(FederationError, match=message):
        run(FEDPD, 1, grid)


def test_ranges_that_fit_let_the_run_start(tmp_path: Path) -> None:
    grid = ruled(tmp_path, '[config]\nbatch = { min = 1, max = 1 }\nname = { one-of = ["sgd"] }')
    for context in grid.contexts.values():
        context.run_config |= {"batch": 1, "name": "sgd"}
    run(FEDPD, 1, grid)


@pytest.mark.parametrize("rules", ["[config]\nbatch = { least = 3 }", "epsilon = 0.0", 'privacy = "all"'])
def test_a_mistake_in_a_rule_is_refused(rules: str, tmp_path: Path) -> None:
    with pytest.raises(FederationError, match=r"policy\.toml"):
        run(FEDPD, 1, ruled(tmp_path, rules))


def dp(**numbers: Any) -> Any:
    given: dict[str, Any] = {"clip": 1.0, "share": 0.5, "delta": 1e-3, **numbers}
    return algorithms.fedpd(eta=0.5, oracle=oracles.dp_sgd(step=0.1, iterations=3, **given))


def example_epsilon(noise: float, share: float, steps: int, delta: float) -> float:
    """Google's own accountant."""
    counted = RdpAccountant()
    event = dp_accounting.PoissonSampledDpEvent(share, dp_accounting.GaussianDpEvent(noise))
    return float(counted.compose(event, steps).get_epsilon(delta))


@pytest.mark.slow
def test_private_samples_on_flower_equal_the_simulation_with_its_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the operating system's draws, two runs differ, and neither is the simulation."""
    method = dp(noise_multiplier=2.0)
    simulated = simulate(method, whole(), rounds=3)
    drawn = [run(method, 3) for _ in range(2)]
    assert np.abs(drawn[0].model["w"] - drawn[1].model["w"]).max() > 1e-3
    expected = [0.0, *(example_epsilon(2.0, 0.5, 3 * rounds, 1e-3) for rounds in (1, 2, 3))]
    np.testing.assert_allclose(drawn[0].history["epsilon_examples"], expected, rtol=1e-6)
    np.testing.assert_allclose(simulated.history["epsilon_examples"], expected, rtol=1e-6)
    jax.clear_caches()
    monkeypatch.setattr(dp_sgd.SystemDPSGD, "draws", property(lambda self: dp_sgd.FROM_KEY))
    assert_same(run(method, 3).model, simulated.model)
    jax.clear_caches()


@pytest.mark.slow
def test_epsilon_finds_the_noise_of_each_hospital_from_its_own_size(tmp_path: Path) -> None:
    """A hospital with more samples has a smaller share, and so needs less noise for the same epsilon."""
    method = dp(epsilon=3.0, share=None, expected_batch=3)
    grid = InProcessGrid(app(method, (6, 12, 24)), AGENTS, {})
    found = run(method, 2, grid)
    assert found.history["epsilon_examples"][-1] == pytest.approx(3.0, rel=1e-4)
    for client in "012":
        spent = [one["spent"] for one in memory(client, tmp_path)["runs"].values()]
        assert spent[0][1] == pytest.approx(3.0, rel=1e-4)


def test_the_client_keeps_its_budget_over_runs_and_restarts(tmp_path: Path) -> None:
    method = dp(noise_multiplier=4.0)
    one = example_epsilon(4.0, 0.5, 3 * 2, 1e-3)  # of a run with two rounds
    rules = f'privacy = "examples"\nepsilon = {2.2 * one}\ndelta = 2e-3'
    for _ in range(2):
        run(method, 2, ruled(tmp_path, rules, algorithm=method))
    with pytest.raises(FederationError, match=r"'epsilon' of .*: all runs together would spend .*, but may spend"):
        run(method, 2, ruled(tmp_path, rules, algorithm=method))
    spent = [one["spent"] for one in memory("0", tmp_path)["runs"].values()]
    assert [number for number, _, _ in spent] == [2, 2]
    np.testing.assert_allclose([epsilon for _, epsilon, _ in spent], one, rtol=1e-6)
    with pytest.raises(FederationError, match="'delta'"):
        run(method, 1, ruled(tmp_path, "delta = 2e-3", algorithm=method))


@pytest.mark.slow
def test_a_server_that_names_fewer_rounds_gains_no_epsilon(tmp_path: Path) -> None:
    """Noise for one round, then an order of a second one: the client refuses it."""
    method = dp(epsilon=3.0)

    class Lying(InProcessGrid):
        def deliver(self, message: Message) -> Message | None:
            config: Any = message.content.config_records.get("config", {})
            if "fedpd-rounds" in config:
                config["fedpd-rounds"] = 1
            return super().deliver(message)

    with pytest.raises(FederationError, match=r"its method may spend 3\. Its rounds are done"):
        run(method, 2, Lying(app(method), AGENTS, {}))


def test_what_noise_does_not_cover_is_refused() -> None:
    method = dp(noise_multiplier=2.0)
    with pytest.raises(FedpdError, match=r"evaluate-every = 1: .* noise does not cover evaluations"):
        run(method, 1, evaluate_every=1)
    with pytest.raises(FedpdError, match="must be given, or epsilon, and not both"):
        oracles.dp_sgd(step=0.1, iterations=1, clip=1.0)


def test_the_server_needs_the_accountant_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    grid = InProcessGrid(app(dp(noise_multiplier=2.0)), AGENTS, {})
    with pytest.raises(FedpdError, match=r"fedpd\[privacy\]"):
        run(dp(noise_multiplier=2.0), 1, grid)
    assert grid.pushed == 0


def test_only_the_sites_own_programs_may_ask_for_a_step_without_a_run() -> None:
    def ask(**node_config: Any) -> str:
        grid = InProcessGrid(client_app(lambda config: FEDPD, start, failing), 1, {}, **node_config)
        message = Message(RecordDict(), 1, "query.dry_step")
        message.metadata.__dict__["_message_id"] = "1"
        reply = grid.deliver(message)
        assert reply is not None
        return str(reply.content.config_records["config"]["fedpd-problem"])

    assert "only programs of this client's own site" in ask()
    assert SECRET in ask(**{LOCAL: True})
