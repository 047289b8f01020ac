"""Run `fedpd compare FILE`: read the file, compare the methods, and write the tables, the figure and the page."""

import inspect
import sys
from pathlib import Path
from shutil import rmtree
from typing import Any

from fedpd.base.checks import FedpdError, count, refuse
from fedpd.base.saved import FILE
from fedpd.cli.arguments import method_names
from fedpd.cli.terminal import console, interruptible, new_folder, say, show_lines, steps, write
from fedpd.experiments import calls, experiment
from fedpd.experiments.experiment import FoundComparison
from fedpd.experiments.own_code import explain_errors
from fedpd.report import page, save_figure
from fedpd.report.advice import experiment_text
from fedpd.report.tables import text_table
from fedpd.search.candidates import FromTable
from fedpd.search.compare import Comparison, compare
from fedpd.search.tuned import TRIES
from fedpd.search.views import comparison_notes, comparison_rows, comparison_title, setting_lines, target_rows

TUNED = "tuned.toml"  # the experiment file with the tuned methods
WRITTEN = (TRIES, FILE, TUNED, "report.html", "comparison.png", "comparison.svg", "checkpoints")
# The options of [run] that a comparison sets by itself.
UNUSED = ("checkpoint_every", "until", "log", "callback", "store")


def check_no_file(given: dict[str, Any]) -> None:
    """Refuse options that need a file."""
    for name, value in given.items():
        refuse(f"--{name}", value, "needs an experiment file", "Give FILE, or: fedpd compare strong")


def compare_file(source: str, methods: str, given: dict[str, Any], out: Path | None, overwrite: bool) -> None:
    """Compare methods on the problem of a file.

    Args:
        methods: The names of methods, separated by commas; "": those of the file, or the usual ones.
        given: The options of the command line, which precede those of the file.
    """
    folder = out or new_folder("compare")
    found = experiment.find_comparison(source, say)
    options = _options(source, found, given)
    tables = {label: FromTable(table, found.problem.find) for label, table in found.methods.items()} or None
    chosen = method_names(methods) or options.pop("methods", None) or tables
    options.pop("methods", None)
    _prepare(folder, overwrite)
    with explain_errors(found.problem.code):
        problem = calls.build_problem(found.problem.problem, found.problem.find)
        again = " ".join(one for one in sys.argv[1:] if one != "--overwrite")
        again += "" if out is not None else f" --out {folder}"
        with interruptible(f"Interrupted. Continue: fedpd {again}") as check_interrupt, steps() as display:

            def show(what: str, done: int, total: int) -> None:
                check_interrupt()
                display("comparison", done, total)

            result = compare(problem, chosen, folder=folder, progress=show, **options)
    _show(result, folder)
    _write_tuned(result, found, options, folder)
    page(result, problem, name=comparison_title(result)).save(folder / "report.html")
    show_lines(f"Page: {folder / 'report.html'}\nIn Python: fedpd.load({str(folder)!r})")


def _options(source: str, found: FoundComparison, given: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of `fedpd.compare`: those of [run], of [compare] and of the command line, the last first."""
    taken = {name: one for name, one in inspect.signature(compare).parameters.items() if one.kind is one.KEYWORD_ONLY}
    known = ["methods", *(name for name in taken if name not in ("folder", "progress", "record"))]
    calls.known_keys(f"{source}: [compare]", found.compare, known, required=())
    options = {name: value for name, value in found.run.items() if name not in UNUSED}
    options |= {**found.compare, **given}
    if "seeds" in options and isinstance(options["seeds"], int):
        options["seeds"] = range(count("--seeds", options["seeds"], "Give the number of seeds, e.g. 5", bits=16))
    return options


def _prepare(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds something else, and remove an earlier comparison if it is to be replaced."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise FedpdError(f"--out {folder}: this is a file, not a folder. Choose another folder.")
    others = [path.name for path in folder.iterdir() if path.name not in WRITTEN and not path.name.startswith(".")]
    if others or (any(folder.iterdir()) and not (folder / TRIES).exists()):
        what = f"it holds {others[0]!r}" if others else "it holds no comparison"
        raise FedpdError(f"--out {folder}: {what}, and fedpd never mixes results. Choose another folder.")
    for name in WRITTEN if overwrite else ():
        path = folder / name
        rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _show(result: Comparison, folder: Path) -> None:
    """Print the tables and the notes, and save the figure."""
    head, rows = comparison_rows(result)
    console.print(text_table(comparison_title(result), head, rows, right=head[1:], fold=head))
    if result.targets:
        head, rows = target_rows(result)
        title = "Costs until the target was reached and kept, means over the seeds that kept it"
        console.print(text_table(title, head, rows, right=head[2:], fold=head))
    show_lines("\n".join(setting_lines(result)))
    for note in comparison_notes(result):
        say(f"- {note}")
    show_lines(f"Figure: {save_figure(result.plot(), folder, 'comparison')[0]}")


def _write_tuned(result: Comparison, found: FoundComparison, options: dict[str, Any], folder: Path) -> None:
    """Write the experiment file with the tuned methods and the same seeds, if a file can hold them."""
    tables = [one.table for one in result.methods]
    if not all(tables):
        return
    rounds = int(max(run.history["round"][-1] for one in result.methods for run in one.runs))
    kept = {name: value for name, value in found.run.items() if name in experiment.TAKING_PART or name == "average"}
    run = {"rounds": rounds, "seeds": list(result.seeds), **kept}
    write(folder / TUNED, experiment_text(calls.toml_text(found.problem.problem), run, tables))
