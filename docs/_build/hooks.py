"""Fill in the pages from the code: methods from their cards, commands from their help, notebooks, and MathJax.

Pages say where with a line of their own. What short tables say is also written into the files, up to <!-- end -->, for those
who read the repository: `make pages` writes it, and a build warns where it is not current.

    <!-- methods -->       the table of `fedpd methods --wide`
    <!-- method list -->   every function with its page and its paper
    <!-- columns -->       the columns of a history; `<!-- columns: accuracy -->` only those that record= asks for by that
                           word
    <!-- loaders -->       the functions that read or generate federated data
    <!-- problems -->      the problems of the suite
    <!-- commands -->      the help of every command

Other parts are only on the site:

    <!-- paper -->         on a method's page: its reference
    <!-- facts -->         on a method's page: parameters, costs, theory, notes. `<!-- facts: 2 -->` says that the page
                           has the first two blocks of equations of the module's docstring; otherwise it is one.
    <!-- gallery -->       a picture of every notebook
    <!-- picture -->       on a method's page: its path on a problem with two parameters, and its error
    <!-- picture: NAME --> the picture of that name of PICTURES in docs/_build/pictures.py
"""

import hashlib
import logging
import os
import re
import sys
import warnings
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

with (
    warnings.catch_warnings()
):  # of the typer that flwr asks for: it imports what Click deprecates
    warnings.simplefilter("ignore", DeprecationWarning)
    import command_help
    import lists
    import method_pages
    import notebooks
    import pictures

LOG = logging.getLogger("mkdocs.hooks.fedpd")
PAGES = Path(__file__).parents[1]
MATHJAX = "assets/mathjax/tex-svg.js"
MATHJAX_PACKAGE = "sphinx-mathjax-offline"  # has the files of MathJax 3.2.2
MATHJAX_SHA256 = "d4295dc33744836935c1399feece5159577b34c5c8ffb9f1c6324cd82e03a882"


MOVED = {  # pages that became a part of another one
    "report.html": "results.html#the-page",
    "theory/memory_measured.html": "memory.html#what-each-rule-is-worth",
    "deploy/problems.html": "running.html#problems-of-flower-that-you-can-avoid",
    "choose/agents.html": "../choose.html#if-agents-are-absent",
    "choose/conditioning.html": "../choose.html#on-ill-conditioned-problems",
    "choose/step_size.html": "../choose.html#step-size-and-skipping",
}


def on_config(config: Any, **kwargs: Any) -> Any:
    """Add the methods to the navigation, by family, and the notebooks; SITE_URL is the address of the site, ending in /."""
    config.site_url = config.site_url or os.environ.get("SITE_URL")
    add_methods(config.nav)
    _section(config.nav, "Notebooks").extend(notebooks.navigation())
    return config


def add_methods(nav: list[Any]) -> None:
    _section(nav, "Methods").extend(method_pages.navigation())


def _section(nav: list[Any], title: str) -> list[Any]:
    """Return the entries of the section with a title, wherever it is in the navigation."""
    (found,) = _sections(nav, title)
    return found


def _sections(nav: list[Any], title: str) -> Iterator[list[Any]]:
    for name, inner in (
        pair for entry in nav if isinstance(entry, dict) for pair in entry.items()
    ):
        if name == title:
            yield inner
        elif isinstance(inner, list):
            yield from _sections(inner, title)


def on_files(files: Any, config: Any, **kwargs: Any) -> Any:
    """Serve MathJax from the site, so that formulas need no network, the methods' colours, and notebooks with outputs."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, MATHJAX, abs_src_path=str(find_mathjax())))
    files.append(File.generated(config, "assets/hues.css", content=pictures.hues_css()))
    if config.site_url:  # a social network needs the address of the picture
        files.append(File.generated(config, "assets/card.png", content=pictures.card()))
    for old, new in MOVED.items():
        redirect = f'<!doctype html><meta http-equiv="refresh" content="0; url={new}"><a href="{new}">moved</a>'
        files.append(File.generated(config, old, content=redirect))
    for name in notebooks.NAMES:
        done = notebooks.run(name)
        logging.getLogger("mkdocs.notebooks").info(
            "Notebook %s: %.0f s of processor time", name, done.seconds
        )
        content = {f"{name}.md": done.page, f"{name}.ipynb": done.file} | done.pictures
        for file, data in content.items():
            files.append(File.generated(config, f"notebooks/{file}", content=data))
    return files


def find_mathjax() -> Path:
    """Return the installed file of MathJax, if it is the one that we know."""
    try:
        package = distribution(MATHJAX_PACKAGE)
    except PackageNotFoundError:
        sys.exit(
            "MathJax is not installed, so no page could show formulas. Run make docs, or pip install '.[docs]'."
        )
    path = Path(str(package.locate_file(f"{MATHJAX_PACKAGE}/static/mathjax/tex-svg.js")))
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != MATHJAX_SHA256:
        sys.exit(
            f"{path} has the SHA-256 {found}, not {MATHJAX_SHA256}: it is not MathJax 3.2.2. Install it again."
        )
    return path


def on_page_markdown(markdown: str, page: Any, **kwargs: Any) -> str:
    if written(markdown) != markdown:
        LOG.warning(
            "docs/%s: a table that is made from the code is not current. Run: make pages",
            page.file.src_uri,
        )
    return _display_formulas(fill_in(_for_readers(markdown), page.file.name))


def _for_readers(markdown: str) -> str:
    """Return a page without the section that says where a method's card was checked, which maintainers read in the file."""
    return markdown.partition("\n## What was checked\n")[0]


def on_page_content(html: str, page: Any, **kwargs: Any) -> str:
    """Mark the outcomes and verdicts of the reproduction, so that they have a colour and a sign."""
    return mark_outcomes(html) if page.file.src_uri.startswith("reproduction") else html


OUTCOMES = {
    "agrees": "agrees", "reproduced": "agrees", "as expected": "agrees", "corrected": "corrected",
    "reproduced with a correction": "corrected", "wrong as printed, holds as corrected": "wrong",
    "differs": "differs", "not reproduced": "differs",
}  # fmt: skip


def mark_outcomes(html: str) -> str:
    """Return a page whose cells with an outcome or a verdict have its class."""
    return re.sub(
        r"<td>([\w, ]+)</td>",
        lambda found: (
            f'<td class="outcome {OUTCOMES[found[1]]}">{found[1]}</td>'
            if found[1] in OUTCOMES
            else found[0]
        ),
        html,
    )


WRITTEN = {
    r"methods": lambda found: method_pages.compare_methods(),
    r"method list": lambda found: method_pages.list_methods(),
    r"columns(?:: (\w+))?": lambda found: lists.table_columns(found[1]),
    r"loaders": lambda found: lists.describe_loaders(),
    r"problems": lambda found: lists.table_problems(),
    r"commands": lambda found: command_help.describe_commands(),
}


def written(markdown: str) -> str:
    """Return a page whose written parts are current."""
    for directive, fill in WRITTEN.items():

        def replaced(found: re.Match[str], fill: Any = fill) -> str:
            return f"{found[0].partition(chr(10))[0]}\n\n{fill(found)}\n\n<!-- end -->"

        block = rf"^<!-- {directive} -->\n(?:(?!<!--).*\n)*<!-- end -->$"
        markdown = re.sub(block, replaced, markdown, flags=re.MULTILINE)
    return markdown


def fill_in(markdown: str, name: str) -> str:
    """Return a page with its directives filled in; `name` is its file's name without .md."""
    fillings = {
        r"paper": lambda found: method_pages.cite(name),
        r"facts(?:: (\d))?": lambda found: method_pages.describe(name, int(found[1] or 1)),
        r"gallery": lambda found: notebooks.gallery(),
        r"picture": lambda found: pictures.method_picture(name),
        r"picture: (\w+)": lambda found: pictures.PICTURES[found[1]](),
    }
    for directive, fill in fillings.items():
        markdown = re.sub(rf"^<!-- {directive} -->$", fill, markdown, flags=re.MULTILINE)
    return written(markdown)


def _display_formulas(markdown: str) -> str:
    """Return displayed formulas inside of lists, as GitHub takes them, in paragraphs that Python-Markdown accepts."""
    if "$$" not in markdown:  # other lists may be nested deeper, and stay as they are
        return markdown
    lines: list[str] = []
    inside = formula = code = loose = False
    for line in markdown.split("\n"):
        code ^= line.lstrip().startswith("```")
        if code or not line.startswith("  "):
            inside = not code and bool(re.match(r"(\d+\.|-) ", line))
            lines += ["", line] if inside and loose else [line]
            loose = False
            continue
        if not inside:
            lines.append(line)
            continue
        text = line.strip()
        opens = text.startswith("$$") and not formula
        if opens:
            lines.append("")
            loose = True
        lines.append("    " + text)
        formula = (formula or opens) and not text.removeprefix("$$" if opens else "").endswith(
            "$$"
        )
        if text.endswith("$$") and not formula:
            lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    for path in sorted(PAGES.rglob("*.md")):
        before = path.read_text(encoding="utf-8")
        if (after := written(before)) != before:
            path.write_text(after, encoding="utf-8")
            print(f"wrote the tables of {path.relative_to(PAGES)}")
