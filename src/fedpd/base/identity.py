"""The identity of Python values: a hash of numbers, arrays, functions and objects, exact to the last bit.

The hash of a function contains its source (its code, if there is no source), its attributes and the values that it
captures: defaults, closure, and the globals that it names, except variables that it only writes. Of a module of the
user's own, these are the attributes that the function names. For a function of an installed package the hash contains
its name and the values that it captures; every checkpoint records the versions of packages. A value that cannot be
identified this way raises `UnidentifiedError`.

The same hash finds compiled programs that are out of date: `drop_stale_programs`.
"""

import ast
import dis
import functools
import hashlib
import inspect
import linecache
import logging
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from enum import Enum
from functools import partial
from itertools import count
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np

from fedpd.base.checks import FedpdError

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
NOT_RUN = {"annotation", "returns", "type_comment", "type_params", "kind", "ctx"}  # what changes no result


def syntax_of(code: CodeType) -> str | None:
    """Return the syntax of a function, without decorators and docstring; None if its source is not known.

    The source is not known in an interactive Python, and after a change of the file: the file then gives other code.
    """
    text = "".join(linecache.getlines(code.co_filename))
    codes, functions = _functions(code.co_filename, text)
    if code not in codes:
        return None
    found = [one for one in functions if _fits(one, code)]
    if not found:
        return None
    return _shown(min(found, key=_size))  # of lambdas inside of each other, the innermost


@functools.lru_cache(16)  # of files
def _functions(name: str, text: str) -> tuple[frozenset[CodeType], tuple[Function, ...]]:
    """Return the code and the syntax of all functions of a file; nothing if the text is not Python."""
    try:
        tree = ast.parse(text)
        whole = compile(text, name, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):  # e.g. a cell of a notebook with a command
        return frozenset(), ()
    nodes = tuple(node for node in ast.walk(tree) if isinstance(node, Function))
    return frozenset(_inside(whole)), nodes


def _inside(code: CodeType) -> Iterator[CodeType]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _inside(constant)


def _fits(node: Function, code: CodeType) -> bool:
    """Return whether a node is the source of some code: by its name and line, or for lambdas by the place."""
    if not isinstance(node, ast.Lambda):
        first = node.decorator_list[0] if node.decorator_list else node
        return (node.name, first.lineno) == (code.co_name, code.co_firstlineno)
    if (code.co_name, code.co_firstlineno) != ("<lambda>", node.lineno):
        return False
    low, high = (node.body.lineno, node.body.col_offset), (node.body.end_lineno, node.body.end_col_offset)
    for line, end_line, column, end_column in code.co_positions():
        begin, end = (line, column), (end_line, end_column)
        if None in begin or None in end or begin == end:  # e.g. of the first instruction, which has no place
            continue
        if begin < low or end > high:
            return False
    return True


def _size(node: Function) -> tuple[int, int]:
    lines = (node.end_lineno or node.lineno) - node.lineno
    return lines, (node.end_col_offset or 0) - node.col_offset


def _shown(node: Function) -> str:
    """Return a function's arguments and body as text."""
    body: list[ast.stmt] | ast.expr = node.body
    if not isinstance(node, ast.Lambda):
        documented = ast.get_docstring(node, clean=False) is not None
        body = node.body[documented:]
    return repr((_plain(node.args), _plain(body)))


def _plain(part: Any) -> Any:
    """Return a part of a syntax tree as tuples. `ast.dump` would write them differently in other versions of Python."""
    if isinstance(part, list):
        return [_plain(one) for one in part]
    if not isinstance(part, ast.AST):
        return part
    named = [(name, _plain(one)) for name, one in ast.iter_fields(part) if name not in NOT_RUN]
    return type(part).__name__, *((name, one) for name, one in named if one not in (None, []))


# A list that a function appends to is a record of its calls, not a setting: it changes with every call. These methods
# return nothing, so a function that calls nothing else does not read the list.
CHANGERS = frozenset({"add", "append", "clear", "extend", "insert", "remove", "update"})
OWN = ("_abc_impl", "__annotate_func__")  # what Python keeps in a class: caches, and annotations from 3.14 on
LARGE = 2**20  # bytes
NEVER = count()  # numbers that no value has had before
INSTALLED = tuple(sysconfig.get_paths()[name] for name in ("purelib", "platlib", "stdlib", "platstdlib"))


class UnidentifiedError(FedpdError):
    """A value cannot be identified in another process, so fedpd cannot check whether two runs are the same."""


def fingerprint(*values: Any) -> str:
    """Return a hash that is the same for the same values, in every process.

    Args:
        *values: Numbers, texts, arrays, containers of them, functions, dataclasses and other plain objects.

    Returns:
        64 hexadecimal digits.

    Raises:
        UnidentifiedError: If a value, or a value that it captures, cannot be identified.

    Examples:
        >>> from fedpd.base.identity import fingerprint
        >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 1)
        True
        >>> fingerprint(lambda x: x + 1) == fingerprint(lambda x: x + 2)
        False
    """
    try:
        return _hash(_each(values, Seen())).hex()
    except RecursionError:
        raise UnidentifiedError(
            "a function uses an object that holds the function itself, such as a global with the problem, or that is "
            "nested too deeply. Give the function what it needs as an argument."
        ) from None


def content_hash(value: Any) -> str:
    """Return a hash of a value as it is in this process, also behind names that users gave to functions.

    A value that cannot be identified has another hash at every call.
    """
    return _hash(_parts(value, Seen(now=True))).hex()


@dataclass
class Seen:
    """The objects visited so far, by their id.

    Attributes:
        path: The depth of each object that is being hashed; an object inside itself is a cycle.
        done: The objects already hashed. They are kept alive, because Python reuses the id of a deleted object.
        inside: The objects inside a cycle, whose hash depends on where the cycle was entered.
        now: Whether the hash is for this process only. Then it looks behind names that users gave, and a value that
            cannot be identified has another hash every time.
    """

    path: dict[int, int] = field(default_factory=dict)
    done: dict[int, tuple[Any, bytes]] = field(default_factory=dict)
    inside: set[int] = field(default_factory=set)
    now: bool = False


class WeakHashes:
    """Hashes of objects by their identity, as long as the objects live. They need not be hashable.

    An object that allows no weak reference stays alive, as it does in JAX's own table of compiled programs.
    """

    def __init__(self) -> None:
        self._found: dict[int, tuple[Callable[[], Any], bytes]] = {}

    def get(self, value: Any) -> bytes | None:
        found = self._found.get(id(value))
        return None if found is None or found[0]() is not value else found[1]

    def set(self, value: Any, digest: bytes) -> None:
        key = id(value)
        try:
            reference: Callable[[], Any] = weakref.ref(value, lambda _: self._found.pop(key, None))
        except TypeError:  # an object with __slots__
            reference = partial(_itself, value)
        self._found[key] = reference, digest


def _itself(value: Any) -> Any:
    return value


_traced = WeakHashes()  # the functions and objects of the last calls of `drop_stale_programs`
_equals: dict[Any, bytes] = {}  # callable objects with an equality of their own
_arrays = WeakHashes()  # large arrays of JAX, which never change


def drop_stale_programs(*values: Any) -> None:
    """Drop JAX's compiled programs if a function, or anything that it uses, has changed since the last call with it.

    JAX selects a compiled program by the identity of a function, not by its content: a loss that reads a global keeps
    the program of the global's first value. This also holds for functions inside it (`jax.jit`, `jax.checkpoint`, the
    body of a `lax.scan`), so one key of fedpd's own would not be enough. Dropping all programs is rare, and right.

    Args:
        *values: The functions that are about to be traced, or containers of them.
    """
    seen = Seen(now=True)
    for _ in _each(values, seen):
        pass
    changed = False
    for value, digest in seen.done.values():
        if id(value) in seen.inside or not _can_be_watched(value):
            continue
        before, equal = _traced.get(value), _before_of_equal(value, digest)
        if before is None and hasattr(value, "clear_cache"):  # of jax.jit: the user may have called it before
            value.clear_cache()
        changed = changed or any(old is not None and old != digest for old in (before, equal))
        _traced.set(value, digest)
    if changed:
        jax.clear_caches()


def _can_be_watched(value: Any) -> bool:
    """Return whether an object can change and be found again. A change of a list or a dict shows in its owner."""
    return not isinstance(value, jax.Array | tuple | list | dict | set | frozenset | range)


def _before_of_equal(value: Any, digest: bytes) -> bytes | None:
    """Return the hash of an equal object that was traced before. JAX takes equal functions for the same one."""
    kind = type(value)
    if not callable(value) or kind.__eq__ is object.__eq__ or kind.__hash__ is None or _is_installed(kind):
        return None
    try:
        before = _equals.get(value)
        _equals[value] = digest
    except Exception:  # its hash or its equality fails, as that of modules of equinox: JAX cannot look it up either
        return None
    return before


def _hash(parts: Iterable[bytes | memoryview]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.digest()


def _parts(value: Any, seen: Seen) -> Iterable[bytes | memoryview]:
    """Yield the bytes that identify a value."""
    if value is None or isinstance(value, bool | int | str | bytes | PurePath | type(...)):
        yield f"{type(value).__name__} {value!r}".encode()
    elif isinstance(value, jax.tree_util.PyTreeDef):
        yield f"structure {value}".encode()
    elif isinstance(value, float | complex) and not isinstance(value, np.generic):
        yield f"{type(value).__name__} {value!r}".encode()  # repr of a float is exact
    elif isinstance(value, np.ndarray | np.generic | jax.Array) and not isinstance(value, jax.core.Tracer):
        yield _array_hash(value)
    elif isinstance(value, np.dtype | Enum | ModuleType | np.ufunc | logging.Logger):
        name = value.name if isinstance(value, logging.Logger) else getattr(value, "__name__", value)
        yield f"named {type(value).__name__} {name}".encode()
    elif isinstance(value, MethodType):  # made anew at every access: its object stands for it, also in a cycle
        yield b"method"
        yield from _each((value.__self__, value.__func__), seen)
    elif id(value) in seen.path:
        depth = seen.path[id(value)]
        seen.inside.update(key for key, one in seen.path.items() if one > depth)
        yield f"inside itself {len(seen.path) - depth}".encode()
    else:
        if id(value) not in seen.done:
            seen.path[id(value)] = len(seen.path)
            seen.done[id(value)] = value, _hash(_compound(value, seen))
            del seen.path[id(value)]
        yield seen.done[id(value)][1]


def _array_hash(value: Any) -> bytes:
    """Return the hash of an array. That of a large array of JAX is computed once, at 1.8 GB per second."""
    if not isinstance(value, jax.Array) or value.nbytes < LARGE:
        return _hash(_array(value))
    found = _arrays.get(value)
    if found is None:
        found = _hash(_array(value))
        _arrays.set(value, found)
    return found


def _array(value: Any) -> Iterable[bytes | memoryview]:
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, np.ma.MaskedArray):
        yield from _array(np.ma.getmaskarray(value))
    array = np.asarray(value, order="C")
    if array.dtype == object:
        raise UnidentifiedError("an array of objects cannot be identified. Give an array of numbers.")
    yield f"array {array.dtype} {array.shape}".encode()
    yield array.reshape(-1).view(np.uint8).data  # the memory itself, without a copy: data can be gigabytes


def _compound(value: Any, seen: Seen) -> Iterable[bytes | memoryview]:
    """Yield the parts of a value that contains other values."""
    if seen.now and _is_spec(value):  # the value that has it is hashed itself
        yield b"spec"
    elif not seen.now and _is_spec(getattr(value, "spec", None)):
        yield b"spec"
        yield from _parts(value.spec.plain(), seen)
    elif isinstance(value, Mapping):
        yield f"mapping {len(value)}".encode()
        for key in sorted(value, key=repr):
            yield from _each((key, value[key]), seen)
    elif isinstance(value, set | frozenset):
        yield f"set {len(value)}".encode()
        yield from _each(sorted(value, key=repr), seen)
    elif isinstance(value, tuple | list | range):
        yield f"{_name(type(value))} {len(value)}".encode()
        yield from _each(value, seen)
    elif isinstance(value, functools.partial):
        yield b"partial"
        yield from _each((value.func, value.args, value.keywords), seen)
    elif isinstance(value, FunctionType):
        yield from _function(value, seen)
    elif isinstance(value, BuiltinFunctionType):
        yield f"built-in {_name(value)}".encode()
        if not isinstance(value.__self__, ModuleType | None):
            yield from _parts(value.__self__, seen)
    elif isinstance(value, type):
        yield from _class(value, seen)
    elif hasattr(value, "__wrapped__"):  # jax.jit, jax.custom_vjp, functools.cache and the like
        yield f"wrapped by {_name(type(value))}".encode()
        inner = {name: one for name, one in _attributes(value).items() if callable(one)}  # forward and backward
        yield from _each((value.__wrapped__, inner), seen)
    else:
        yield from _object(value, seen)


def _each(values: Iterable[Any], seen: Seen) -> Iterable[bytes | memoryview]:
    for value in values:
        yield from _parts(value, seen)


def _function(function: FunctionType, seen: Seen) -> Iterable[bytes | memoryview]:
    yield b"function"
    names, captured = set(_names(function.__code__)), []
    installed = _is_installed(function)
    if installed:
        yield _name(function).encode()
    if not installed or function.__name__ == "<lambda>":  # several functions of a package may have this name
        # The source is the same for every version of Python. A running process has its own code, whatever the file is.
        source = None if seen.now else syntax_of(function.__code__)
        yield from _code(function.__code__, seen) if source is None else [source.encode()]
    if not installed:
        used = _globals(function.__code__) & set(function.__globals__)
        captured = [(name, function.__globals__[name]) for name in sorted(used)]
    yield from _each((function.__defaults__, function.__kwdefaults__, _attributes(function)), seen)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        if cell == CellType():  # not filled yet, as in a function that calls itself
            yield b"empty"
        else:
            captured.append((name, cell.cell_contents))
    stored, appended = _written(function.__code__)
    for name, value in captured:
        notes = name in stored or (name in appended and isinstance(value, list | dict | set))
        kept = "its own notes" if notes else value
        kept = "a mark" if installed and type(value) is object else kept  # as in the functions that jax.vmap returns
        yield from _each((name, _used(kept, names) if isinstance(kept, ModuleType) else kept), seen)


def _used(module: ModuleType, names: set[str], outer: tuple[ModuleType, ...] = ()) -> Any:
    """Return what a function may use of a module of the user's own, such as `settings.rate`; the attributes it names.

    An installed module stands for itself: every checkpoint records the versions of packages.
    """
    if module in outer or _is_installed_module(module.__name__):
        return module
    found = {name: vars(module)[name] for name in sorted(names & set(vars(module)))}
    inner = {name: _used(one, names, (*outer, module)) for name, one in found.items() if isinstance(one, ModuleType)}
    return module, found | inner


def _code(code: CodeType, seen: Seen) -> Iterable[bytes | memoryview]:
    """Yield the code of a function, without file names and line numbers."""
    yield f"{code.co_flags} {code.co_argcount} {code.co_kwonlyargcount} {code.co_names} {code.co_varnames}".encode()
    yield code.co_code
    yield code.co_exceptiontable
    for constant in code.co_consts:
        yield from _code(constant, seen) if isinstance(constant, CodeType) else _parts(constant, seen)


@functools.lru_cache(4096)
def _globals(code: CodeType) -> frozenset[str]:
    """Return the globals that a function reads; an attribute may have the name of a global, and is none."""
    read = {one.argval for one in dis.get_instructions(code) if one.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return frozenset(read.union(*(_globals(one) for one in code.co_consts if isinstance(one, CodeType))))


def _names(code: CodeType) -> Iterable[str]:
    """Yield the globals and attributes that a function names."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)


@functools.lru_cache(4096)  # reading the instructions would take most of the time
def _written(code: CodeType) -> tuple[set[str], set[str]]:
    """Return the outer variables that a function stores, and those that it only changes by a method.

    An example of the first is `global calls; calls += 1`, and of the second `notes.append(1)`.
    """
    stored: set[str] = set()
    changed: set[str] = set()
    read: set[str] = set()
    instructions = list(dis.get_instructions(code))
    for one, following in zip(instructions, [*instructions[1:], None], strict=True):
        if one.opname == "STORE_GLOBAL" or (one.opname == "STORE_DEREF" and one.argval in code.co_freevars):
            stored.add(one.argval)
        elif one.opname in ("LOAD_GLOBAL", "LOAD_DEREF"):
            (changed if _calls_changer(following) else read).add(one.argval)
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            inner, appended = _written(constant)
            stored, changed = stored | inner, changed | appended
            read |= (set(_names(constant)) | set(constant.co_freevars)) - appended
    return stored, changed - read


def _calls_changer(instruction: dis.Instruction | None) -> bool:
    """Return whether an instruction calls a method that changes a list, a dict or a set."""
    is_method = instruction is not None and instruction.opname in ("LOAD_METHOD", "LOAD_ATTR")
    return is_method and instruction is not None and instruction.argval in CHANGERS


def _attributes(value: Any) -> dict[str, Any]:
    """Return the attributes that a user gave to a function, such as `loss.weight`."""
    given = getattr(value, "__dict__", {})
    return {name: one for name, one in given.items() if not name.startswith("__") and not _is_spec(one)}


def _is_spec(value: Any) -> bool:
    """Return whether a value is a `fedpd.base.spec.Spec`; that module imports this one."""
    return type(value).__name__ == "Spec" and type(value).__module__ == "fedpd.base.spec"


def _class(kind: type, seen: Seen) -> Iterable[bytes | memoryview]:
    yield f"class {_name(kind)}".encode()
    if not _is_installed(kind):
        yield from _each(kind.__bases__, seen)
        for name, member in sorted(vars(kind).items()):
            function = getattr(member, "__func__", getattr(member, "fget", getattr(member, "func", member)))
            function = inspect.unwrap(function) if callable(function) else function
            if isinstance(function, FunctionType) and name not in OWN:
                yield name.encode()
                yield from _function(function, seen)
            elif not name.startswith("__") and name not in OWN and not hasattr(type(member), "__get__"):  # no field
                yield from _each((name, member), seen)


def _object(value: Any, seen: Seen) -> Iterable[bytes | memoryview]:
    """Yield the class of an object and its contents."""
    held: Any
    if is_dataclass(value):
        hidden = {"parent"} if hasattr(value, "scope") else set()  # a flax module has a reference to its parent
        held = {f.name: getattr(value, f.name, None) for f in fields(value) if f.name not in hidden}
    elif not isinstance(value, Iterator) and not jax.tree_util.all_leaves([value]):  # a pytree
        leaves, structure = jax.tree_util.tree_flatten(value)
        held = (str(structure), leaves)
    elif (array := _as_array(value)) is not None:
        held = array
    elif hasattr(value, "__dict__") and not isinstance(value, jax.core.Tracer) and _is_all_in_dict(value):
        held = object.__getstate__(value)  # with __slots__, which vars would leave out
    elif seen.now:
        held = next(NEVER)
    else:
        raise UnidentifiedError(
            f"{_name(type(value))} cannot be identified in another process. Give it a name: fedpd.named('...', it)."
        )
    yield from _class(type(value), seen)
    yield from _parts(held, seen)


def _as_array(value: Any) -> np.ndarray | None:
    """Return the numbers of an object of PyTorch or pandas; None if it has none, or none that can be read."""
    if not hasattr(type(value), "__array__") or isinstance(value, jax.core.Tracer):
        return None
    try:
        return np.asarray(value.detach() if hasattr(value, "detach") else value)
    except Exception:  # e.g. a tensor that torchax left in a list of parameters, whose trace has ended
        return None


def _is_all_in_dict(value: Any) -> bool:
    """Return whether the whole content of an object is in its __dict__; a torch.Tensor has its numbers elsewhere."""
    try:
        object.__reduce_ex__(value, 2)
    except TypeError:
        return False
    except Exception:  # of its own __getstate__, as in parametrized modules of PyTorch: it is an object of Python
        return True
    return True


def _name(thing: Any) -> str:
    return f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', thing)}"


def _is_installed(thing: Callable[..., Any] | type) -> bool:
    """Return whether an installed package, fedpd itself or Python defines this function or class."""
    return _is_installed_module(getattr(thing, "__module__", None) or "")


def _is_installed_module(module: str) -> bool:
    """Return whether a module is of an installed package, of fedpd or of Python."""
    top = module.partition(".")[0]
    if top in ("fedpd", "builtins") or top in sys.stdlib_module_names:
        return top != "__main__"
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is not None and file.startswith(INSTALLED)
