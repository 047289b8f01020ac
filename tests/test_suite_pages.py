"""The pages with results are remade from a file of results."""

import json
from pathlib import Path

import numpy as np
import pytest
from tools.suite_pages import (
    against_best,
    far_from_best,
    made,
    main,
    measured_everywhere,
    summary_markdown,
    tuned_at_most,
)

from fedpd.suite import PROBLEMS
from fedpd.suite.race import COSTS, TARGET
from fedpd.suite.runner import SOLVE, Cell

NAMES = list(PROBLEMS)


def _cells() -> list[Cell]:
    """Return results in which solve takes 3 times as much as L-BFGS on the first problem, and fails on the second."""
    cells = []
    for budget in (0, 8, 64):
        for at, name in enumerate(NAMES):
            own = [30.0, np.inf, *[5.0] * len(NAMES)][at]
            for method, spent in ((SOLVE, own), ("L-BFGS", 10.0)):
                cells.append(Cell(name, method, budget, spent, 2 * spent, 16 * spent, spent, 1e-11, 1.0))
        cells.append(Cell(NAMES[0], "Nesterov", budget, 1.0, 2.0, 16.0, 1.0, 1e-11, 1.0))  # on one problem only
    return cells


def test_methods_that_were_not_run_everywhere_are_left_out() -> None:
    assert {cell.method for cell in measured_everywhere(_cells(), 64)} == {SOLVE, "L-BFGS"}


def test_a_method_with_a_smaller_budget_is_judged_by_it_and_named() -> None:
    cells = [cell for cell in _cells() if cell.method != "L-BFGS" or cell.budget < 64]
    found, smaller = tuned_at_most(cells, 64)
    assert {(cell.method, cell.budget) for cell in found} == {(SOLVE, 64), ("L-BFGS", 64)}
    assert smaller == {"L-BFGS": 8}
    assert "each with the best of up to 8 tries" in made(cells, "brief")
    other = [cell._replace(method="GIANT") for cell in _cells() if cell.method == "L-BFGS"]
    assert "up to 64 tries" in made([*cells, *other], "brief")
    assert "Only 8 tries: L-BFGS." in made([*cells, *other], "brief")


def test_a_method_against_its_best_rival() -> None:
    first, second, third, *_ = against_best(measured_everywhere(_cells(), 8), SOLVE, "vectors", 8)
    assert (first.own, first.rival, first.least, first.factor) == (60, "L-BFGS", 20, 3)
    assert (second.factor, third.factor) == (np.inf, 0.5)
    assert far_from_best(_cells(), SOLVE, "vectors", 8) == [
        f"{NAMES[0]}: takes 60, 3.0 times L-BFGS with 20.",
        f"{NAMES[1]}: fails; the best is L-BFGS with 20.",
    ]
    assert f"| {SOLVE} | 36, 36, 37 |" in summary_markdown(_cells(), [64], "vectors")


def test_pages_are_remade(tmp_path: Path) -> None:
    settings = {"target": TARGET, "rounds": 1024, "costs": list(COSTS)}
    rows = [settings, *(cell._asdict() for cell in _cells())]
    (tmp_path / "cells.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (tmp_path / "docs" / "images").mkdir(parents=True)
    page = tmp_path / "docs" / "page.md"
    parts = ["headline", "brief", "summary", "rivals", "far", "few", "few 1", "vectors 64"]
    page.write_text("\n".join(f"<!-- measured: {part} -->\nold\n<!-- end -->" for part in parts), encoding="utf-8")
    (tmp_path / "README.md").write_text("by hand\n", encoding="utf-8")
    main(str(tmp_path / "cells.jsonl"), str(tmp_path / "docs"))
    text = page.read_text(encoding="utf-8")
    assert "old" not in text
    assert text.count("<!-- end -->") == len(parts)
    assert f"| {NAMES[2]} | 5; 10; 0; 5 | 20, L-BFGS | 20, L-BFGS | 20, L-BFGS | 0.5 |" in text
    assert text.count("| L-BFGS | 10 / 10 |") == text.count(f"| {SOLVE} | 5 |") - 1 == 1
    assert "solve is the best, and within twice the best, on so many of 38 problems: vectors 36 and 36" in text
    assert (tmp_path / "README.md").read_text(encoding="utf-8") == "by hand\n"
    assert {path.name for path in (tmp_path / "docs" / "images").iterdir()} == {f"suite_{b}.png" for b in (0, 8, 64)}


def test_a_part_that_there_is_not_is_an_error() -> None:
    with pytest.raises(KeyError, match="nothing"):
        made(_cells(), "nothing")
