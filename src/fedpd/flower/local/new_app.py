"""Writes a complete Flower app to a new folder, from fedpd's own templates, without network access."""

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
PACKAGED = (".py",)  # these files go into the app's package, the others beside it


def new_app(folder: Path, framework: str) -> list[Path]:
    """Write an app with the name of its folder, and return the files.

    Args:
        folder: A new or empty folder.
        framework: "jax", "torch" or "numpy".

    Raises:
        FedpdError: If the folder is not empty, its name cannot be the name of an app, or there is no such framework.
    """
    choice("--framework", framework, EXTRAS)
    folder = folder.absolute()
    name = _check_name(folder.name)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        refuse("DIR", str(folder), "exists already and is not empty", "Give a new folder")
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
    """Return the folder's name if it can be the name of an app and of a Python package."""
    remedy = "Name the folder e.g. my-app"
    package = name.replace("-", "_")
    if not re.fullmatch(r"[a-z][a-z0-9_-]*", name):
        rule = "the app's name must have lower-case letters, digits, - and _ only, and start with a letter"
        refuse("DIR", name, rule, remedy)
    if keyword.iskeyword(package):
        refuse("DIR", name, "the app's name must not be a Python keyword", remedy)
    if len(name) > LONGEST_NAME:
        refuse("DIR", name, f"the app's name must have at most {LONGEST_NAME} characters", remedy)
    if find_spec(package) is not None:
        refuse("DIR", name, f"is the app's name, but a Python package {package} exists already", remedy)
    return name
