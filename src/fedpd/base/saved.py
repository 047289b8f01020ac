"""Save a result to a folder of its own, and load it exactly. fedpd stores no code and runs none.

The folder holds one file with a checksum and without pickle. A process that is killed leaves a whole file or none.
A result is written as plain JSON and named arrays. It may consist of numbers, texts, arrays, dicts, lists, tuples,
NamedTuples, specs and fedpd's own dataclasses. A class is written as its name, and looked up among the imported
modules; fedpd imports only itself and the packages that it is built on. For a pytree of another kind, such as a module
of a neural network, only the arrays are written. To read it, give a pytree `like` it.
"""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np

from fedpd.base import checkpoint
from fedpd.base.checks import FedpdError, refuse, shown
from fedpd.base.identity import UnidentifiedError
from fedpd.base.process import versions
from fedpd.base.spec import SavedThing, Spec, Thing

Arrays = dict[str, np.ndarray]
Plain = Any  # a value of JSON
NATIVE = frozenset(
    ["bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]
)
IMPORTED = ("fedpd", "jax", "optax", "tree_math")  # importing them runs no code of the user's
KEYS = (bool, int, float, str, type(None))
_METHODS = {  # in fedpd.algorithms
    "_adaptive_server": "fedadam",
    "_automatic": "_corrected",
    "_averaging": "fedavg",
    "_changes": "fednova",
    "_controlled_averaging": "scafcom",
    "_descent": "_memory",
    "_dual_agents": "admm",
    "_gradients_first": "fedlin",
    "_memory_agents": "_memory_parts",
    "_memory_server": "_memory_parts",
}
# Modules whose classes are elsewhere now, for results that were saved before.
MOVED = {f"fedpd.algorithms.{old}": f"fedpd.algorithms.{new}" for old, new in _METHODS.items()}
MOVED |= {
    "fedpd.engine.backends.cohort_rounds": "fedpd.engine.backends.compiled",
    "fedpd.engine.clock.events": "fedpd.engine.clock",
    "fedpd.engine.measure.divergence": "fedpd.engine.measure.history",
    "fedpd.transforms._weighted": "fedpd.transforms._means",
}


def pack(value: Any, name: str = "", model: Any = None) -> tuple[Plain, Arrays]:
    """Return a value as plain JSON, and its arrays by name.

    Args:
        name: The beginning of the arrays' names.
        model: A pytree of any kind. If JSON cannot describe its structure, only its arrays are written wherever it
            occurs in `value`.

    Raises:
        FedpdError: Something in `value` cannot be described.
    """
    arrays: Arrays = {}
    kept = None if model is None or _is_described(model) else jax.tree.structure(model)
    return _pack(value, name, arrays, kept), arrays


def unpack(plain: Plain, arrays: Mapping[str, np.ndarray], like: Any = None) -> Any:
    """Return the value from which `pack` made these.

    Args:
        like: A pytree with the structure of the model, if JSON could not describe the model.

    Raises:
        FedpdError: A class is not imported, or `like` is needed.
    """
    return _unpack(plain, arrays, like)


def _is_described(tree: Any) -> bool:
    try:
        _pack(tree, "", {}, None)
    except FedpdError:
        return False
    return True


def _pack(value: Any, name: str, arrays: Arrays, model: Any) -> Plain:
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _pack_array(value, name, arrays)
    if model is not None and jax.tree.structure(value) == model:
        leaves = jax.tree_util.tree_flatten_with_path(value)[0]
        packed = [_pack(leaf, name + jax.tree_util.keystr(path), arrays, None) for path, leaf in leaves]
        return {"model": packed, "structure": _text(model)}
    if isinstance(value, Spec):
        settings = [[key, _pack(one, f"{name}.{key}", arrays, model)] for key, one in value.settings]
        return {"spec": value.name, "settings": settings, "usual": sorted(value.usual)}
    if isinstance(value, Thing):
        return _pack_thing(value, name, arrays)
    if type(value) is dict:
        return {"dict": [[_key(k, name), _pack(v, f"{name}[{k!r}]", arrays, model)] for k, v in value.items()]}
    if type(value) in (list, tuple):
        parts = [_pack(one, f"{name}[{i}]", arrays, model) for i, one in enumerate(value)]
        return {type(value).__name__: parts}
    named = {key: _pack(one, f"{name}.{key}", arrays, model) for key, one in _fields(value, name)}
    return {"class": _class_name(type(value)), "fields": named}


def _pack_array(value: Any, name: str, arrays: Arrays) -> Plain:
    array = np.asarray(value, order="C")
    if array.dtype == object:
        raise FedpdError(f"{name}: fedpd cannot save an array of objects. Use arrays of numbers.")
    native = array.dtype.name in NATIVE and array.dtype.isnative
    arrays[name] = array if native else array.reshape(-1).view(np.uint8)
    about: dict[str, Any] = {} if native else {"dtype": _dtype_name(array.dtype, name), "shape": list(array.shape)}
    return {"array": name, **about, **({"scalar": True} if isinstance(value, np.generic) else {})}


def _dtype_name(dtype: np.dtype, name: str) -> str:
    """Return a name that NumPy or JAX turns into the type again, such as "bfloat16", or ">f8" with its byte order."""
    for text in (dtype.str, dtype.name):
        if not text.startswith(("|V", "<V", ">V", "void")) and jax.numpy.dtype(text) == dtype:
            return text
    raise FedpdError(f"{name}: fedpd cannot save an array of {dtype}. Use arrays of numbers.")


def _pack_thing(thing: Thing, name: str, arrays: Arrays) -> Plain:
    """Return a setting of a spec as JSON: an array as it is, anything else as its name and hash."""
    if isinstance(thing.value, np.ndarray | np.generic | jax.Array):
        return {"thing": _pack_array(thing.value, name, arrays)}
    try:
        return {"thing": None, "name": thing.word(), "sha256": thing.digest}
    except UnidentifiedError:  # two of them cannot be told apart in any case
        return {"thing": None, "name": thing.word(), "sha256": ""}


def _key(key: Any, name: str) -> Plain:
    if type(key) in KEYS:
        return key
    raise FedpdError(f"{name}: fedpd cannot save a dict with the key {key!r}. Use texts or numbers as keys.")


def _fields(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a value whose class can be found again by its name."""
    kind = type(value)
    if _find(_class_name(kind)) is kind:
        if _is_named_tuple(kind):
            return zip(kind._fields, value, strict=True)
        if _is_record(kind):
            return ((field.name, getattr(value, field.name)) for field in fields(value))
        if _is_vector(kind):
            return iter([("tree", value.tree)])
    raise FedpdError(
        f"{name or 'the value'}: fedpd cannot save {_class_name(kind)}. Use dicts, lists, tuples, or NamedTuples "
        "that are defined at the top level of a module."
    )


def _unpack(plain: Plain, arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    if not isinstance(plain, dict):
        return plain
    if "array" in plain:
        return _unpack_array(plain, arrays)
    if "model" in plain:
        return _unpack_model(plain, arrays, like)
    if "thing" in plain:
        return _unpack_thing(plain, arrays)
    if "spec" in plain:
        settings = tuple((key, _unpack(one, arrays, like)) for key, one in plain["settings"])
        return Spec(plain["spec"], settings, frozenset(plain["usual"]))
    if "dict" in plain:
        return {key: _unpack(one, arrays, like) for key, one in plain["dict"]}
    if "list" in plain:
        return [_unpack(one, arrays, like) for one in plain["list"]]
    if "tuple" in plain:
        return tuple(_unpack(one, arrays, like) for one in plain["tuple"])
    return _make(plain["class"], {key: _unpack(one, arrays, like) for key, one in plain["fields"].items()})


def _unpack_array(plain: Plain, arrays: Mapping[str, np.ndarray]) -> Any:
    array = arrays[plain["array"]]
    if "dtype" in plain:
        array = array.view(jax.numpy.dtype(plain["dtype"])).reshape(plain["shape"])
    return array[()] if plain.get("scalar") else array


def _unpack_model(plain: Plain, arrays: Mapping[str, np.ndarray], like: Any) -> Any:
    structure = None if like is None else jax.tree.structure(like)
    if structure is None or _text(structure) != plain["structure"]:
        found = "" if structure is None else f", and like= has {_text(structure)}"
        raise FedpdError(
            f"the model is a pytree that a file cannot describe, {plain['structure']}{found}. "
            "Give a model of the same structure, e.g. like=problem.start."
        )
    return jax.tree.unflatten(structure, [_unpack(one, arrays, None) for one in plain["model"]])


def _unpack_thing(plain: Plain, arrays: Mapping[str, np.ndarray]) -> Thing:
    if plain["thing"] is not None:
        return Thing(_unpack_array(plain["thing"], arrays))
    return Thing(SavedThing(plain["name"], plain["sha256"]))


def _make(name: str, values: dict[str, Any]) -> Any:
    """Return an object of this class with these fields, without calling the code of the class."""
    kind = _find(name)
    if kind is not None and _is_named_tuple(kind) and set(kind._fields) == set(values):
        return tuple.__new__(kind, [values[field] for field in kind._fields])
    if kind is not None and _is_record(kind) and {field.name for field in fields(kind)} == set(values):
        made = object.__new__(kind)
        vars(made).update(values)
        return made
    if kind is not None and _is_vector(kind):
        return kind(values["tree"])
    module, _, own = name.partition(":")
    if kind is None:
        remedy = f"If {module} is a module of your own, import it first."
    else:
        remedy = f"The fields of {own} have changed since. Read it with the version that saved it."
    raise FedpdError(f"the saved result needs the class {name}, which fedpd cannot use. {remedy}")


def _find(name: str) -> Any:
    """Return the class of this name, e.g. "fedpd.engine.run:Run"; None if its module is not imported."""
    path, _, own = name.partition(":")
    path = MOVED.get(path, path)
    if path.partition(".")[0] in IMPORTED and path not in sys.modules:
        try:
            import_module(path)
        except ImportError:
            return None
    found: Any = sys.modules.get(path)
    for part in own.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"


def _text(structure: Any) -> str:
    """Return a structure as text, without the addresses of functions, which differ from process to process."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(structure))


def _is_named_tuple(kind: Any) -> bool:
    return issubclass(kind, tuple) and hasattr(kind, "_fields")


def _is_record(kind: Any) -> bool:
    return is_dataclass(kind) and kind.__module__.startswith("fedpd.")


def _is_vector(kind: Any) -> bool:
    return kind.__module__.startswith("tree_math.") and kind.__name__ == "Vector"


FILE = "result.safetensors"


def save_result(result: Any, folder: str | Path, *, model: Any = None, overwrite: bool = False) -> Path:
    """Write a result to a folder, from which `fedpd.load` reads it.

    Args:
        result: A result of fedpd, e.g. a `Run`.
        folder: A folder that is empty or does not exist yet.
        model: The model of the result, which may be a pytree of any kind.
        overwrite: Whether to replace the result that the folder holds. fedpd never replaces anything else.

    Returns:
        The folder.

    Raises:
        FedpdError: The folder holds something else, or the result cannot be described in a file.
    """
    if not isinstance(folder, str | Path) or not str(folder):
        refuse("folder", folder, "must be the path of a folder", 'Give e.g. "runs/a"')
    check_free(Path(folder), overwrite)
    return write_result(result, Path(folder), model)


def write_result(result: Any, folder: Path, model: Any = None) -> Path:
    """Write a result to a folder that may hold other files too, and return the folder; see `save_result`."""
    plain, arrays = pack(result, "result", model)
    meta = {"kind": type(result).__name__, "result": plain, "versions": versions()}
    checkpoint.write(folder / FILE, arrays, meta)
    return folder


def is_saved(folder: Path) -> bool:
    """Return whether a folder holds a saved result."""
    return (folder / FILE).is_file()


def load_result(folder: Path, like: Any = None, leave_out: Sequence[str] = ()) -> Any:
    """Return the result that a folder holds.

    Args:
        like: A model of the same structure, if the model is a pytree that a file cannot describe.
        leave_out: Fields of fedpd's own classes to leave out. They become None.
    """
    arrays, meta = checkpoint.read(folder / FILE)
    if "result" not in meta:
        raise FedpdError(f"{folder / FILE}: the file holds no saved result. Give a folder that save() wrote.")
    try:
        return unpack(_without(meta["result"], leave_out), arrays, like)
    except FedpdError as error:
        raise FedpdError(f"{folder}: {error}") from None


def _without(plain: Any, names: Sequence[str]) -> Any:
    """Return a packed result with these fields of fedpd's own classes set to None."""
    if isinstance(plain, list):
        return [_without(one, names) for one in plain]
    if not isinstance(plain, dict):
        return plain
    if str(plain.get("class", "")).startswith("fedpd."):
        fields = {key: None if key in names else _without(one, names) for key, one in plain["fields"].items()}
        return {**plain, "fields": fields}
    return {key: _without(one, names) for key, one in plain.items()}


def check_free(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that holds anything that must not be replaced."""
    try:
        is_free = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    except (OSError, ValueError) as error:  # it cannot be read, or its name is not possible
        raise FedpdError(f"{shown(str(folder))} cannot be used: {error}. Choose another folder.") from None
    if is_free:
        return
    if not folder.is_dir():
        raise FedpdError(f"{folder}: this is a file, not a folder. Choose another folder.")
    if not is_saved(folder):
        raise FedpdError(f"{folder}: the folder is not empty, and it holds no saved result. Choose another folder.")
    if not overwrite:
        remedy = "Choose another folder, or give overwrite=True (in a shell: --overwrite)"
        raise FedpdError(f"{folder}: the folder holds a saved result. {remedy}.")
    checkpoint.read(folder / FILE)  # refuses a file that fedpd did not write
