"""Writes a complete Flower app into a new folder, from fedpd's own templates, without the internet."""

import keyword
import re
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from string import Template

from fedpd.base.checks import choice, refuse

EXTRAS = {
    "jax": "flower",
    "torch": "flower,torch",
    "numpy": "flower",
}  # by framework, the extras of fedpd that the app needs
TITLES = {"jax": "JAX", "torch": "PyTorch", "numpy": "NumPy"}
LONGEST_NAME = 32  # Flower's own limit
SUFFIX = ".tmpl"
PACKAGED = (".py",)  # files of the app's package; the others are beside it


def new_app(folder: Path, framework: str) -> list[Path]:
    """Write an app, named after its folder, and return the files.

    Args:
        folder: A new or empty folder.
        framework: "jax", "torch" or "numpy".

    Raises:
        FedpdError: The folder is in use, its name cannot be an app's, or there is no such framework.
    """
    choice("--framework", framework, EXTRAS)
    folder = folder.absolute()
    name = _check_name(folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        refuse("DIR", str(folder), "is there already and is not empty", "Give a new folder")
    package = name.replace("-", "_")
    words = {"name": name, "package": package, "extras": EXTRAS[framework], "framework": TITLES[framework]}
    written = []
    for part in ("common", framework):
        for template in sorted(
            files("fedpd.flower.local").joinpath("templates", part).iterdir(), key=lambda one: one.name
        ):
            path = Path(template.name.removesuffix(SUFFIX))
            path = folder / (package if path.suffix in PACKAGED else "") / path
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(Template(template.read_text(encoding="utf-8")).substitute(words), encoding="utf-8")
            written.append(path)
    init = folder / package / "__init__.py"
    init.write_text(f'"""{name}: FedPD on Flower."""\n', encoding="utf-8")
    return [*written, init]


def _check_name(name: str) -> str:
    """Return the folder's name, if it can be the name of an app and of a Python package."""
    remedy = "Name the folder e.g. my-app"
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        refuse("DIR", name, "is to be the app's name: lower-case letters, digits, - and _, from a letter on", remedy)
    if keyword.iskeyword(package):
        refuse("DIR", name, "is to be the app's name, and is a word of Python's own", remedy)
    if len(name) > LONGEST_NAME:
        refuse("DIR", name, f"is to be the app's name, of at most {LONGEST_NAME} characters", remedy)
    if find_spec(package) is not None:
        refuse("DIR", name, f"is to be the app's name, and there is a Python package {package} already", remedy)
    return name
