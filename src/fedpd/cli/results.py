"""The commands that show results, methods and data: report, watch, methods and data inspect."""

from pathlib import Path
from typing import Annotated

import typer

from fedpd.cli.arguments import PlainList, listed

about = "Inspect federated data in files."
data = typer.Typer(no_args_is_help=True, cls=PlainList, rich_markup_mode="markdown", help=about)


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders, finished or not.")],
    out: Annotated[
        Path | None, typer.Option(help="The file to write. Default: RUN/report.html, or ./report.html.")
    ] = None,
    target: Annotated[float | None, typer.Option(help="The stationarity that the page shows first.")] = None,
    figures: Annotated[
        list[str] | None, typer.Option(help="Also write figures for a paper, e.g. pdf,png; or svg.")
    ] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Also write the histories and costs as CSV.")] = False,
    download: Annotated[
        bool, typer.Option("--download", help="Fetch the problem's data from the network, if it is not here.")
    ] = False,
    clock: Annotated[
        Path | None, typer.Option(help="Show the time on a network: a clock in TOML, or CSV with one row per agent.")
    ] = None,
) -> None:
    """Write a page with the results of runs.

    The page shows curves, the costs to reach any target, the problem, and how to repeat the runs. It opens without a
    network.
    """
    from fedpd.cli.terminal import console, say, show_lines
    from fedpd.report import write_report

    with console.status("writing the report"):
        written = write_report(
            runs, out, target=target, figures=listed(figures) or (), csv=csv, download=download, clock=clock
        )
    say(written.finding)
    for path in (written.page, *written.others):
        show_lines(f"Saved: {path}")


def watch(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The run folder of a run that is running, or finished.")],
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
    every: Annotated[float, typer.Option(help="Refresh interval in seconds.")] = 1.0,
    web: Annotated[bool, typer.Option("--web", help="Show it as a page in the browser.")] = False,
    port: Annotated[int, typer.Option(help="The port of the page.", min=1, max=65535)] = 8050,
    host: Annotated[str, typer.Option(help="The address of the page. Default: this machine only.")] = "127.0.0.1",
) -> None:
    """Show the curves of a run while it is running.

    fedpd reads the run's checkpoints. Ctrl-C ends the view, not the run. The page of --web cannot change anything, but
    whoever reaches its address can read the run's results.
    """
    from fedpd.base.checks import positive, refuse
    from fedpd.cli.terminal import console, say

    positive("--every", every, "Give seconds, e.g. 1")
    if web and not host.strip():  # it would listen on all addresses
        refuse("--host", host, "must be an address", "Leave it out for this machine only, or give 0.0.0.0 for all")
    if web:
        from fedpd.report.watch import check_served, serve

        check_served(run)
        say(f"http://{host}:{port} shows {run}. Ctrl-C ends the page, not the run.")
        serve(run, host, port, every)
        return
    from fedpd.report.watch import watch as show

    show(run, console, once=once, every=every)


def methods(
    wide: Annotated[bool, typer.Option("--wide", help="Also show what each keeps, assumes and guarantees.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the wide table as Markdown.")] = False,
) -> None:
    """List the methods and what they send.

    The wide table needs a terminal of 120 columns or more.
    """
    from fedpd.cli.terminal import console
    from fedpd.report.tables import methods_markdown, methods_table, short_table

    if markdown:
        typer.echo(methods_markdown(), nl=False)
    else:
        console.print(methods_table() if wide else short_table())


@data.callback()  # without it, Typer makes a group of one command the command itself
def _group() -> None: ...


@data.command()
def inspect(
    path: Annotated[Path, typer.Argument(help="LEAF json (a file, or a folder of train/ and test/), Parquet or CSV.")],
    client: Annotated[str | None, typer.Option(help="Tables: the column with the client's name.")] = None,
    features: Annotated[str | None, typer.Option(help="Tables: the columns of features, separated by commas.")] = None,
    label: Annotated[str, typer.Option(help="Tables: the column of labels.")] = "label",
    split: Annotated[str | None, typer.Option(help='Tables: the column with "train" or "test".')] = None,
    out: Annotated[Path, typer.Option(help="The folder of the figure.")] = Path("runs/data"),
) -> None:
    """Show how much the agents' data differ.

    fedpd prints the agents, samples and labels, measures how much the gradients of the agents differ, and saves a
    figure.
    """
    from fedpd.base.atomic import make_folder
    from fedpd.cli.terminal import console, show_lines
    from fedpd.report import save_figure
    from fedpd.report.data import load, summary_table

    with console.status("reading"):
        found = load(path, client=client, features=features, label=label, split=split)
        table = summary_table(found)
    console.print(table)
    make_folder(out)
    saved = save_figure(found.plot(), out, path.name.split(".")[0])
    show_lines(f"Figure: {saved[0]}")
