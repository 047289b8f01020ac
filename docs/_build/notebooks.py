"""Run the notebooks of docs/notebooks, and make a page of each with its outputs.

With FEDPD_DOCS_NOTEBOOKS=off in the environment the pages have the cells without outputs, and are there in seconds.

A notebook is a Python file without outputs: a line `# %% [markdown]` starts a text in comments, and a line `# %%` starts
code. A cell that fails ends the build.
"""

import base64
import os
import re
import resource
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NAMES = (
    "own_data",
    "own_network",
    "choose_and_tune",
    "federation",
)  # in the order of the navigation
EXECUTE = os.environ.get("FEDPD_DOCS_NOTEBOOKS") != "off"
TIMEOUT = 600  # seconds on the clock for a cell; a notebook takes less than a minute of processor time on a free core


class Notebook(NamedTuple):
    """A notebook that was run.

    Attributes:
        page: The text, the code and the outputs, as Markdown.
        pictures: The pictures of the outputs by file name, as PNG.
        file: The notebook with its outputs, to download.
        seconds: The processor time that it took.
    """

    page: str
    pictures: dict[str, bytes]
    file: str
    seconds: float


def read_cells(source: str) -> list[tuple[str, str]]:
    """Return the cells of a notebook's source, each as ("markdown" or "code", its text).

    Raises:
        ValueError: If the source does not start with a cell.
    """
    head, *parts = re.split(r"^# %%(?: \[(markdown)\])?\n", source, flags=re.MULTILINE)
    if head.strip():
        raise ValueError(
            f"the notebook starts with {head.splitlines()[0]!r}: its first line must be '# %% [markdown]'."
        )
    cells = []
    for kind, text in zip(parts[::2], parts[1::2], strict=True):
        text = re.sub(r"^# ?", "", text, flags=re.MULTILINE) if kind else text
        cells.append((kind or "code", text.strip("\n")))
    return cells


def title_and_summary(name: str) -> tuple[str, str]:
    """Return the heading of a notebook, and its first paragraph in one line."""
    _, text = read_cells((FOLDER / f"{name}.py").read_text(encoding="utf-8"))[0]
    heading, summary, *_ = text.split("\n\n")
    return heading.removeprefix("# "), summary.replace("\n", " ")


def navigation() -> list[dict[str, str]]:
    return [{title_and_summary(name)[0]: f"notebooks/{name}.md"} for name in NAMES]


def gallery() -> str:
    """Return one picture per notebook, which leads to it, with its title and its first paragraph."""
    shown = []
    for name in NAMES:
        title, summary = title_and_summary(name)
        page = f"notebooks/{name}.md"
        picture = f"[![{title}](notebooks/{name}_1.png){{ width=480 .drawn }}]({page})\n\n"
        shown.append(f"## [{title}]({page})\n\n{picture if EXECUTE else ''}{summary}")
    return "\n\n".join(shown)


def run(name: str, folder: Path = FOLDER) -> Notebook:
    """Return a notebook of a folder with its outputs.

    Raises:
        nbclient.exceptions.CellExecutionError: If a cell fails.
    """
    import nbformat
    from nbclient import NotebookClient
    from traitlets.config import Config

    notebook = nbformat.v4.new_notebook()
    make = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    cells = read_cells((folder / f"{name}.py").read_text(encoding="utf-8"))
    notebook.cells = [
        make[kind](text, id=str(number)) for number, (kind, text) in enumerate(cells)
    ]
    before = _processor_time()
    own = Config(KernelManager={"transport": "ipc"})  # sockets that are files, not ports
    if EXECUTE:
        NotebookClient(notebook, config=own, timeout=TIMEOUT, kernel_name="python3").execute()
    seconds = _processor_time() - before
    pictures: dict[str, bytes] = {}
    parts = [part for cell in notebook.cells for part in _shown(cell, name, pictures)]
    parts.insert(1, f"[Download this notebook with its outputs]({name}.ipynb).")
    return Notebook("\n\n".join(parts) + "\n", pictures, nbformat.writes(notebook), seconds)


def _processor_time() -> float:
    """Return the processor time of all child processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _shown(cell: Any, name: str, pictures: dict[str, bytes]) -> list[str]:
    """Return a cell and its outputs as Markdown, without progress bars; its pictures are added to `pictures`."""
    if cell.cell_type == "markdown":
        heading, *rest = cell.source.split("\n\n", 1)
        return [heading, *rest]
    parts = [f"```python\n{cell.source}\n```"]
    printed = "".join(
        one.text
        for one in cell.outputs
        if one.output_type == "stream" and one.name == "stdout"
    )
    if printed:
        parts.append(f"```text\n{printed.rstrip()}\n```")
    for found in (one.data for one in cell.outputs if one.output_type != "stream"):
        if "image/png" in found:
            file = f"{name}_{len(pictures) + 1}.png"
            pictures[file] = base64.b64decode(found["image/png"])
            parts.append(f"![the figure of the cell above]({file}){{ .drawn }}")
        elif "text/html" in found and "<progress" not in found["text/html"]:
            lines = [line.strip() for line in found["text/html"].splitlines() if line.strip()]
            parts.append("<div>\n" + "\n".join(lines) + "\n</div>")
        elif "text/html" not in found:
            parts.append(f"```text\n{found['text/plain'].rstrip()}\n```")
    return parts
