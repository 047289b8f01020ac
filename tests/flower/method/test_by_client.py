"""What each client measured on its own data: in the checkpoint, in a report and in the live page."""

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
from flwr.app import Context

from fedpd.core import Tree
from fedpd.experiments.recorded import read
from fedpd.flower import InProcessGrid, Local, Settings, client_app, federate
from fedpd.report import watch
from fedpd.report.pages import page_of
from tests.flower.federations import AGENTS, FEDPD, losses, run, samples, start

OUT_OF_RANGE = 0.5


def correct(model: Tree, batch: Tree) -> Any:
    return jnp.abs(batch["a"] @ model["w"] + model["b"] - batch["y"]) < OUT_OF_RANGE


def grid() -> InProcessGrid:
    def part(context: Context) -> Local:
        own = samples()[int(context.node_config["partition-id"])]
        return Local(losses, own, correct=correct, test={name: value[:4] for name, value in own.items()})

    app = client_app(
        lambda config: FEDPD, start, part, name=lambda context: f"site-{context.node_config['partition-id']}"
    )
    return InProcessGrid(app, AGENTS, {})


def test_the_report_has_the_names_of_the_sites_and_the_values_of_each(tmp_path: Path) -> None:
    settings = Settings(agents=AGENTS, rounds=7, evaluate_every=5, deadline=20.0, poll=0.001, out=tmp_path / "out")
    found = federate(grid(), FEDPD, start(), settings)
    again = federate(grid(), FEDPD, start(), settings._replace(rounds=8, evaluate_every=100))
    record, names = read(tmp_path / "out"), [f"site-{i}" for i in range(AGENTS)]
    model = again.model
    for name, own in zip(names, samples(), strict=True):
        residuals = own["a"] @ model["w"] + model["b"] - own["y"]
        right = np.abs(residuals) < OUT_OF_RANGE
        wanted = {"loss": np.mean(residuals**2) / 2, "train_accuracy": right.mean(), "test_accuracy": right[:4].mean()}
        assert record.by_client[name].keys() == wanted.keys()
        np.testing.assert_allclose([record.by_client[name][key] for key in wanted], list(wanted.values()))
    page = page_of([record]).html
    (shown,) = [part for part in page.split("<table>") if "site-0" in part]
    assert all(f"<td>{name}</td><td>communication 8</td>" in shown for name in names)
    assert f"{record.by_client['site-1']['test_accuracy']:.1%}" in shown
    clients = watch.state(tmp_path / "out")["clients"]
    assert f"accuracy on all test samples {record.by_client['site-1']['test_accuracy']:.1%}" in clients[1]["measured"]
    assert len(found.history["round"]) == 8


def test_without_an_evaluation_the_page_says_that_nothing_is_known_of_a_client(tmp_path: Path) -> None:
    run(FEDPD, 3, evaluate_every=0, out=tmp_path / "out")
    assert read(tmp_path / "out").by_client == {}
    assert watch.state(tmp_path / "out")["clients"][0]["measured"] == ""
