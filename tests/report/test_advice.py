"""The setting that a factor on a method's step size multiplies."""

import math

import pytest

from fedpd.algorithms import variants
from fedpd.experiments.calls import table_of
from fedpd.report.advice import scaled_setting, step_text


def number(text: str) -> float:
    return float(text.partition(" = ")[2].removesuffix("/sqrt"))


@pytest.mark.parametrize("label", variants())
def test_the_setting_shown_is_the_one_that_the_factor_scales(label: str) -> None:
    """Twice the factor must show twice the number, or half of it where a method has the inverse of a step."""
    once, twice = (step_text(label, table_of(variants()[label].rule(1.0, 4, factor).spec)) for factor in (1.0, 2.0))
    assert once.partition(" = ")[0] == twice.partition(" = ")[0]
    ratio = number(twice) / number(once)
    assert any(math.isclose(ratio, factor, rel_tol=0.02) for factor in (2, 0.5)), (once, twice)


@pytest.mark.parametrize(
    ("label", "path"),
    [
        ("FedPD-GD", ("eta",)),
        ("FedPD-VR", ("eta",)),
        ("FedADMM", ("rho",)),
        ("FedDyn", ("alpha",)),
        ("FedDANE", ("mu",)),
        ("Local GD", ("step",)),
        ("Cooperative SGD", ("oracle", "step")),
        ("FedAvg-SGD", ("oracle", "step", "initial")),
    ],
)
def test_methods_call_it_differently(label: str, path: tuple[str, ...]) -> None:
    assert scaled_setting(label) == path


def test_cooperative_sgd_shows_the_step_of_its_oracle() -> None:
    table = table_of(variants()["Cooperative SGD"].rule(1.0, 4, 2.0).spec)
    assert step_text("Cooperative SGD", {"label": "Cooperative SGD"} | table) == f"step = {table['oracle']['step']:.3g}"
    table = table_of(variants()["FedAvg-SGD"].rule(1.0, 4, 2.0).spec)
    assert step_text("FedAvg-SGD", table).endswith("/sqrt")
