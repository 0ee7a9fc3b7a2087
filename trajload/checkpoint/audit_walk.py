"""Everything that can be reached from some objects, by path: what it is, and a digest of its value.

Attributes, slots, items, closures, the globals that functions of a script use, and values of classes of one's own are followed;
libraries are not entered.
Reading changes nothing, and draws nothing.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import io
import itertools
import random
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
import torch
import xxhash
from torch import Tensor

from trajload.checkpoint.components import Component
from trajload.checkpoint.streams import Streams
from trajload.checkpoint.tensors import tensor_bytes
from trajload.checkpoint.tree import child_path, flatten
from trajload.checkpoint.tree_read import dump
from trajload.errors import CheckpointError

__all__ = ["GENERATORS", "Graph", "Leaf", "Place", "generator_state", "walk"]

MAX_OBJECTS = 200_000
GENERATORS = (np.random.Generator, np.random.RandomState, torch.Generator, random.Random)
_PLAIN = (int, float, bool, complex, str, bytes, bytearray, type(None))
_LIBRARIES = {"torch", "numpy", "trajload", "xxhash", *sys.stdlib_module_names}
_MODULE_INTERNALS = frozenset(vars(torch.nn.Module())) - {"training"}
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")
_SKIPPED = (
    types.ModuleType,
    types.BuiltinFunctionType,
    torch.dtype,
    torch.device,
    property,
    functools.cached_property,
)


class Leaf(NamedTuple):
    """A value that is compared as a whole."""

    kind: str
    digest: str
    shown: str


class Place(NamedTuple):
    """An object that is state by its nature: a module, an optimiser, a generator, a scheduler, a loader."""

    path: str
    value: Any
    owners: tuple[int, ...]
    """ids of the objects on the way to it."""


@dataclass
class Graph:
    """What was reached."""

    leaves: dict[str, Leaf] = field(default_factory=dict)
    places: list[Place] = field(default_factory=list)
    opaque: list[str] = field(default_factory=list)
    """Paths whose insides cannot be seen."""
    is_cut: bool = False
    """Whether there was more than could be looked at."""


def walk(roots: Mapping[str, Any]) -> Graph:
    """Return what can be reached from `roots`, each object under the shortest path to it."""
    return _Walk().run(roots)


class _Walk:
    def __init__(self) -> None:
        self.graph = Graph()
        self._seen: dict[int, Any] = {}  # values are held, so that no id is used twice
        self._queue: deque[tuple[str, Any, tuple[int, ...]]] = deque()

    def run(self, roots: Mapping[str, Any]) -> Graph:
        self._queue.extend((name, value, ()) for name, value in roots.items())
        while self._queue:
            if len(self._seen) > MAX_OBJECTS:
                self.graph.is_cut = True
                break
            path, value, owners = self._queue.popleft()
            self._visit(path, value, owners)
        return self.graph

    def _visit(self, path: str, value: Any, owners: tuple[int, ...]) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self.graph.leaves[path] = Leaf(kind.__name__, _digest(_word(value)), _short(value))
            return
        if isinstance(value, Enum):
            self.graph.leaves[path] = Leaf("enum", value.name, str(value))
            return
        if isinstance(value, _SKIPPED) or id(value) in self._seen:
            return
        if isinstance(value, type):
            if not _is_own(value) or issubclass(value, Enum):
                return
            path = f"class {value.__qualname__}"
        self._seen[id(value)] = value
        try:
            leaf = None if isinstance(value, type) else self._leaf(path, value, owners)
            if leaf is not None:
                self.graph.leaves[path] = leaf
                return
            inner = (*owners, id(value))
            self._queue.extend([(below, item, inner) for below, item in self._children(path, value)])
        except Exception:  # objects of others may refuse to be looked at
            self.graph.opaque.append(f"{path} (a {kind.__name__})")

    def _leaf(self, path: str, value: Any, owners: tuple[int, ...]) -> Leaf | None:
        """Return the leaf that a value is, if it is one."""
        if isinstance(value, Tensor):
            return self._tensor(path, value)
        if isinstance(value, np.ndarray):
            data = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
            return Leaf("array", _digest(data, value.dtype, value.shape), f"{value.dtype} {list(value.shape)}")
        if isinstance(value, np.generic):
            return Leaf("number", _digest(value.tobytes(), value.dtype), _short(value))
        if isinstance(value, GENERATORS):
            self.graph.places.append(Place(path, value, owners))
            return Leaf("generator", _digest(generator_state(value)), type(value).__name__)
        if isinstance(value, itertools.count):
            return Leaf("counter", repr(value), repr(value))
        if isinstance(value, (list, tuple, deque)) and all(type(item) in _PLAIN for item in value):
            return Leaf(type(value).__name__, _digest(b"\0".join(map(_word, value))), _short(value))
        if isinstance(value, (set, frozenset)):
            return Leaf("set", _digest(repr(sorted(map(_item_word, value))).encode()), f"{len(value)} items")
        if _is_stateful(value):
            self.graph.places.append(Place(path, value, owners))
            return self._stateful(path, value) if _is_of_library(value) else None
        if isinstance(value, (torch.nn.Module, torch.optim.Optimizer)):
            self.graph.places.append(Place(path, value, owners))
        elif isinstance(value, Iterator) and _is_of_library(value) and not isinstance(value, io.IOBase):
            self.graph.opaque.append(f"{path} (a {type(value).__name__}, whose position cannot be read)")
        return None

    def _tensor(self, path: str, value: Tensor) -> Leaf:
        shown = f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
        try:
            data = tensor_bytes(value) if value.numel() and not value.is_meta else b""
        except Exception:
            self.graph.opaque.append(f"{path} (a {type(value).__name__})")
            data = b""
        return Leaf("tensor", _digest(data, shown), shown)

    def _stateful(self, path: str, value: Any) -> Leaf:
        """Return the leaf of a library's own object: what its state_dict says, caches and counts of time left out."""
        state = value.state_dict()
        if (
            isinstance(state, Mapping) and "cursor" in state and "config_digest" in state
        ):  # a loader: what is pending is no state
            state = {"cursor": state["cursor"], "quarantine": state.get("quarantine")}
        try:
            tensors, plain = flatten(state)
        except CheckpointError:
            self.graph.opaque.append(f"{path} (a {type(value).__name__}, whose state cannot be kept)")
            return Leaf("stateful", "", type(value).__name__)
        told = [dump(plain), *(bytes(tensor_bytes(tensor)) for tensor in tensors.values() if tensor.numel())]
        return Leaf("stateful", _digest(b"\0".join(told)), type(value).__name__)

    # ---- what is inside ----

    def _children(self, path: str, value: Any) -> Iterator[tuple[str, Any]]:
        if isinstance(value, type):
            yield from _of_class(path, value)
            return
        yield from (("", owner) for owner in type(value).__mro__ if _is_own(owner))
        if isinstance(value, Mapping):
            for i, (key, item) in enumerate(list(value.items())):
                yield f"{path}[tensor {i}]" if isinstance(key, Tensor) else child_path(path, key), item
        elif isinstance(value, (list, tuple, deque)):
            yield from ((f"{path}[{i}]", item) for i, item in enumerate(value))
        elif isinstance(value, functools.partial):
            yield from (
                (f"{path}.func", value.func),
                (f"{path}.args", value.args),
                (f"{path}.keywords", value.keywords),
            )
        elif isinstance(value, types.MethodType):
            yield f"{path}.__self__", value.__self__
            yield from _of_function(path, value.__func__)
        elif isinstance(value, types.FunctionType):
            yield from _of_function(path, value)
        elif isinstance(value, (Streams, Component)):
            return
        yield from _attributes(path, value)


def _attributes(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    is_module, is_optimizer = isinstance(value, torch.nn.Module), isinstance(value, torch.optim.Optimizer)
    is_library = _is_of_library(value)
    if is_library and not (is_module or is_optimizer or type(value).__module__.startswith(("torch.", "types"))):
        return
    for name, item in _variables(value):
        if is_module and name in _MODULE_PARTS:
            yield from ((f"{path}.{key}", part) for key, part in item.items())
        elif is_module and name in _MODULE_INTERNALS:
            continue
        elif is_optimizer and (name.startswith("_") or name in ("defaults", "step", "zero_grad")):
            continue  # hooks, and what schedulers patch in
        elif is_library and name.startswith("_"):
            continue
        else:
            yield f"{path}.{name}", item


def _variables(value: Any) -> Iterable[tuple[str, Any]]:
    found: dict[str, Any] = {}
    for owner in type(value).__mro__:
        slots = owner.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            member = owner.__dict__.get(name)
            if isinstance(member, types.MemberDescriptorType):
                try:
                    found[name] = member.__get__(value)
                except AttributeError:
                    continue  # not set
    with contextlib.suppress(AttributeError):
        found.update(object.__getattribute__(value, "__dict__"))
    return found.items()


def _of_function(path: str, function: Any) -> Iterator[tuple[str, Any]]:
    """Yield what a function of the user's own holds: its closure, and the globals it names."""
    if not isinstance(function, types.FunctionType) or _top(function.__module__) in _LIBRARIES:
        return
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f"{path}.{name}", cell.cell_contents
        except ValueError:
            continue  # not bound yet
    for name in _names(function.__code__):
        if name in function.__globals__ and not name.startswith("__"):
            yield f"global {name}", function.__globals__[name]


def _names(code: types.CodeType) -> Iterator[str]:
    """Yield the names of globals; attributes may be called the same."""
    yield from (step.argval for step in dis.get_instructions(code) if step.opname.endswith(("_GLOBAL", "_NAME")))
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)


def _of_class(path: str, owner: type) -> Iterator[tuple[str, Any]]:
    """Yield the values that a class holds for all its objects: neither methods nor descriptors."""
    for name, item in vars(owner).items():
        if not name.startswith("__") and name != "_abc_impl" and not hasattr(type(item), "__get__"):
            yield f"{path}.{name}", item


def _is_own(owner: type) -> bool:
    """Whether a class is of a script, or of a package that was not installed: its values may be state, not a library's caches."""
    if _top(owner.__module__) in _LIBRARIES:
        return False
    place = getattr(sys.modules.get(owner.__module__), "__file__", None)
    return place is None or not ("site-packages" in place or "dist-packages" in place)


def _is_stateful(value: Any) -> bool:
    if isinstance(value, (torch.nn.Module, torch.optim.Optimizer, Streams)):
        return False
    return callable(getattr(type(value), "state_dict", None)) and callable(
        getattr(type(value), "load_state_dict", None)
    )


def _is_of_library(value: Any) -> bool:
    return _top(type(value).__module__) in _LIBRARIES


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


# ---- values ----


def generator_state(generator: Any) -> bytes:
    """Return the state of a generator as bytes; nothing is drawn."""
    if isinstance(generator, torch.Generator):
        return bytes(tensor_bytes(generator.get_state()))
    if isinstance(generator, np.random.Generator):
        state: Any = generator.bit_generator.state
    elif isinstance(generator, np.random.RandomState):
        state = generator.get_state(legacy=False)
    else:
        return repr(generator.getstate()).encode()
    tensors, plain = flatten(state)
    return dump(plain) + b"".join(bytes(tensor_bytes(tensor)) for tensor in tensors.values())


def _digest(data: Any, *more: Any) -> str:
    digest = xxhash.xxh3_128(data)
    digest.update(repr(more).encode())
    return digest.hexdigest()


def _word(value: Any) -> bytes:
    return (hex(value) if type(value) is int else repr(value)).encode("utf-8", "backslashreplace")


def _item_word(item: Any) -> str:
    return repr(item) if type(item) in _PLAIN or isinstance(item, tuple) else f"<{type(item).__name__}>"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except ValueError:  # too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 60 else text[:59] + "…"
