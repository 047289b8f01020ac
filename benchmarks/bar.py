"""Show the progress of a benchmark: the current step, the part that is done, and the time. It disappears at the end."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


def bar(console: Console) -> Progress:
    what = TextColumn("{task.description}")
    columns = (SpinnerColumn(), what, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)
