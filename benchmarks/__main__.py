"""Time the engine, plain NumPy and PyTorch in turns, and print the medians and the ratios with their goals.

The goal compares the engine with the quickest plain vectorised NumPy program. A hand-tuned one is printed too.
"""

import os
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks import cohorts, grid
from benchmarks.bar import bar
from benchmarks.workloads import Contender, Workload, full_gradients, largest_difference, stochastic_gradients

REPETITIONS = 9
ROUNDING = 1e-4  # relative difference of float32 iterates after a few rounds that rounding explains

Times = dict[Contender, list[float]]


def main() -> None:
    console = Console()
    console.print(
        f"Seconds per round, median of {REPETITIONS} interleaved repetitions, float32, on {os.cpu_count()} cores "
        f"(fedpd {version('fedpd')}, jax {version('jax')}, numpy {np.__version__})"
    )
    workloads = [full_gradients(), stochastic_gradients()]
    if find_spec("torch") is None:
        console.print(
            "PyTorch is not installed, so networks are not timed. Run pip install torch==2.13.0 to time them."
        )
    else:
        from benchmarks import networks

        workloads += networks.workloads()
    agree = [run(workload, console) for workload in workloads]
    console.print(grid_table(grid.measure()))
    console.print(cohort_table(cohorts.measure()))
    if not all(agree):
        raise SystemExit("The contenders do not compute the same iterates: the times above compare different things.")


def run(workload: Workload, console: Console) -> bool:
    """Check, time and print one workload, and return whether all contenders computed the same iterates."""
    with bar(console) as progress:
        task = progress.add_task("", total=1 + REPETITIONS)

        def tell(text: str) -> None:
            progress.update(task, description=f"{workload.name}: {text}")

        tell("comparing iterates")
        difference = largest_difference(workload.contenders)
        progress.advance(task)
        times = measure(workload.contenders, tell, lambda: progress.advance(task))
    console.print(table(workload, times, difference))
    return difference < ROUNDING


def measure(contenders: tuple[Contender, ...], tell: Callable[[str], None], advance: Callable[[], None]) -> Times:
    """Return the times of each contender. They run in turns, so that other load on the machine affects all of them."""
    for contender in contenders:  # compiles the engine, wakes NumPy's threads
        tell(f"warming up {contender.name}")
        contender.play(contender.rounds)
    times: Times = {contender: [] for contender in contenders}
    for repetition in range(REPETITIONS):
        for contender in contenders:
            if contender.kind != "loop" or repetition % 3 == 0:  # slow, and never the quickest
                tell(contender.name)
                times[contender].append(contender.play(contender.rounds))
        advance()
    return times


def table(workload: Workload, times: Times, difference: float) -> Table:
    medians = {contender: float(np.median(values)) for contender, values in times.items()}
    ours = next(medians[contender] for contender in medians if contender.kind == "engine")
    best = min((c for c in medians if c.kind in ("vectorised", "torch")), key=medians.__getitem__)
    verdict = "same iterates" if difference < ROUNDING else "DIFFERENT ITERATES"
    result = Table(
        title=f"{workload.name}: {workload.about}",
        caption=f"{verdict}: largest relative difference {difference:.1e}",
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("implementation")
    for heading in ("ms per round", "quickest", "fedpd is", "goal"):
        result.add_column(heading, justify="right")
    for contender, median in medians.items():
        ratio = median / ours
        goal = f"{workload.goal:g}x: {'met' if ratio >= workload.goal else 'missed'}" if contender is best else ""
        faster = "" if contender.kind == "engine" else f"{ratio:.1f}x"
        style = "bold" if contender.kind == "engine" or contender is best else None
        cells = (label(contender), f"{1e3 * median:.2f}", f"{1e3 * min(times[contender]):.2f}", faster, goal)
        result.add_row(*cells, style=style)
    return result


def grid_table(times: grid.Times) -> Table:
    result = Table(
        title=f"A {grid.POINTS}-point grid of FedPD-GD, {grid.ROUNDS} rounds, compilation included",
        caption=f"commands: the mean of {grid.TRIED}, times {grid.POINTS}",
        title_justify="left",
        caption_justify="left",
    )
    for heading in ("", "seconds", "fedpd.sweep is", "goal"):
        result.add_column(heading, justify="left" if not heading else "right")
    ratio = times.commands / times.sweep
    verdict = f"{grid.GOAL:.0f}x: {'met' if ratio >= grid.GOAL else 'missed'}"
    result.add_row("fedpd.sweep", f"{times.sweep:.1f}", "", "", style="bold")
    result.add_row(f"{grid.POINTS} fedpd run commands", f"{times.commands:.0f}", f"{ratio:.1f}x", verdict)
    return result


def cohort_table(measured: list[cohorts.Measured]) -> Table:
    result = Table(
        title=f"Rounds of {cohorts.COHORT} agents out of {cohorts.FEW:,} and out of {cohorts.MANY:,}, one device",
        caption=f"memory: beyond the data, at most, in the first run with {cohorts.MANY:,} agents",
        title_justify="left",
        caption_justify="left",
    )
    result.add_column("")
    for heading in (f"ms, {cohorts.FEW:,}", f"ms, {cohorts.MANY:,}", "ratio", "goal", "state MB", "memory MB", "goal"):
        result.add_column(heading, justify="right")
    for one in measured:
        most = cohorts.MOST_STATE * one.state + cohorts.MOST_MEMORY
        in_time, in_memory = (
            "met" if met else "missed" for met in (one.ratio <= cohorts.MOST_TIME, one.memory <= most)
        )
        times = [f"{1e3 * np.median(values):.2f}" for values in (one.few, one.many)]
        goals = f"{cohorts.MOST_TIME}: {in_time}", f"{most:.0f}: {in_memory}"
        numbers = f"{one.ratio:.2f}", goals[0], f"{one.state:.0f}", f"{one.memory:.0f}", goals[1]
        result.add_row(one.method, *times, *numbers)
    return result


def label(contender: Contender) -> str:
    kinds = {
        "engine": "this engine",
        "vectorised": "vectorised NumPy",
        "tuned": "NumPy",
        "loop": "Python loop",
        "torch": "PyTorch",
    }
    return f"{kinds[contender.kind]}: {contender.name}"


if __name__ == "__main__":
    main()
