"""State as plain data: any nesting of Python, NumPy and torch values as JSON and named tensors, and back, exactly.

JSON's own kinds stand for themselves. Whatever JSON cannot say, or cannot say exactly, is an object with one key that
begins with `$`: `{"$tensor": "model.weight"}`, `{"$float": "inf"}`, `{"$tuple": [1, 2]}`, `{"$map": [[0, "int keys"]]}`. The
types are those below and no others: classes are never looked up by name, and nothing is ever pickled. What cannot be kept
raises with its path. See docs/decisions/0126-state-is-json-and-tensors.md.
"""

from __future__ import annotations

import base64
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajload.checkpoint.tensors import check_tensor, dtype_name
from trajload.errors import CheckpointError

__all__ = ["FACTORIES", "MAX_DEPTH", "ROOT_NAME", "child_path", "flatten"]

MAX_DEPTH = 100
"""Containers within containers; beyond it is a mistake, or a linked list that JSON readers would choke on."""
ROOT_NAME = "value"
"""Name of a tensor that is the whole state."""
LONG_BYTES = 1024
"""Longer byte strings stand among the tensors: base64 costs a third more, and JSON is held in memory."""
MAX_PLAIN_INT = 2**63
FACTORIES: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "set": set,
    "int": int,
    "float": float,
    "str": str,
}
"""What a defaultdict may make."""
ARRAY_KINDS = "biufcSUMm"
"""Kinds of NumPy values that are their bytes: not objects, and not records, whose dtype is more than its name."""
_TENSOR_KINDS = "biufc"


def flatten(state: Any, *, path: str = "state") -> tuple[dict[str, Tensor], Any]:
    """Return (tensors by name, JSON value) of a state; `unflatten` gives the state back.

    Tensors are not copied. NumPy arrays and long byte strings are among the tensors and share the memory of the original
    where they can. Names follow the paths (`state.0.exp_avg`), so that other tools can read them.

    Args:
        state: dict, list, tuple, set, frozenset, deque, OrderedDict, defaultdict, Counter of: None, bool, int, float, complex,
            str, bytes, bytearray, tensors, NumPy arrays and scalars, torch dtypes, devices and sizes.
        path: Of the state itself, for messages.

    Raises:
        CheckpointError: A value cannot be kept; the message has its path.
    """
    walk = _Flattener()
    plain = walk.plain(state, path, "")
    return walk.tensors, plain


def child_path(path: str, key: Any) -> str:
    """Return the path of an item: `state.name`, `state['odd key']`, `state[3]`."""
    if isinstance(key, str) and key.replace("_", "a").isalnum():
        return f"{path}.{key}"
    text = _word(key)
    return f"{path}[{text if len(text) <= 60 else text[:59] + '…'}]"


class _Flattener:
    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self._open: set[int] = set()

    def plain(self, value: Any, path: str, name: str) -> Any:
        """Return the JSON form of `value`; `name` is what a tensor here would be called."""
        kind = type(value)
        if kind is str or kind is bool or value is None:
            return value
        if kind is int:
            return value if -MAX_PLAIN_INT <= value < MAX_PLAIN_INT else {"$int": hex(value)}
        if kind is float:
            return value if math.isfinite(value) else {"$float": _float_word(value)}
        if isinstance(value, Tensor):
            return {"$tensor": self._keep(value, path, name)}
        if kind in _CONTAINERS:
            return self._container(value, path, name)
        if kind is bytes or kind is bytearray:
            return self._bytes(value, kind, path, name)
        if kind is np.ndarray:
            return self._array(value, path, name)
        if isinstance(value, np.generic):
            return self._scalar(value, path)
        if kind is complex:
            return {"$complex": [self.plain(value.real, path, name), self.plain(value.imag, path, name)]}
        if kind is torch.dtype:
            return {"$dtype": dtype_name(value)}
        if kind is torch.device:
            return {"$device": str(value)}
        raise self._refusal(value, path)

    def _container(self, value: Any, path: str, name: str) -> Any:
        if id(value) in self._open:
            raise CheckpointError(f"{path} contains itself: expected a tree. Save only what it is made of.")
        if len(self._open) >= MAX_DEPTH:
            raise CheckpointError(f"{path} is nested deeper than {MAX_DEPTH} levels: save it in a flatter form.")
        self._open.add(id(value))
        try:
            return _CONTAINERS[type(value)](self, value, path, name)
        finally:
            self._open.discard(id(value))

    # ---- containers ----

    def _items(self, value: Any, path: str, name: str) -> list[Any]:
        if all(map(_is_json, value)):  # a history of a million numbers needs no path for each
            return list(value)
        return [self.plain(item, f"{path}[{i}]", _join(name, i)) for i, item in enumerate(value)]

    def _list(self, value: Any, path: str, name: str) -> Any:
        return self._items(value, path, name)

    def _tuple(self, value: Any, path: str, name: str) -> Any:
        return {"$tuple": self._items(value, path, name)}

    def _size(self, value: Any, path: str, name: str) -> Any:
        return {"$size": list(value)}

    def _deque(self, value: Any, path: str, name: str) -> Any:
        return {"$deque": [value.maxlen, self._items(value, path, name)]}

    def _set(self, value: Any, path: str, name: str) -> Any:
        # Items of a set are hashable, so without tensors by value; sorted, so that equal sets have equal bytes.
        items = sorted(self._items(value, path, name), key=repr)
        return {"$set" if type(value) is set else "$frozenset": items}

    def _dict(self, value: Mapping[Any, Any], path: str, name: str) -> Any:
        if all(type(key) is str and not key.startswith("$") for key in value):
            return {key: self.plain(item, child_path(path, key), _join(name, key)) for key, item in value.items()}
        return {"$map": self._pairs(value, path, name)}

    def _pairs(self, value: Mapping[Any, Any], path: str, name: str) -> list[list[Any]]:
        pairs = []
        for key, item in value.items():
            if isinstance(key, Tensor):  # hashed by identity: no other process has the same key
                raise CheckpointError(f"{path} has a tensor as a key: expected numbers, strings, tuples of them.")
            here = child_path(path, key)
            pairs.append([self.plain(key, f"key of {here}", name), self.plain(item, here, _join(name, key))])
        return pairs

    def _ordered(self, value: Any, path: str, name: str) -> Any:
        told = {"$ordered": self._dict(value, path, name)}
        if (versions := getattr(value, "_metadata", None)) is not None:
            # Versions of a module's parts: without them load_state_dict takes the state for one of an old release.
            told = {"$ordered": [told["$ordered"], self.plain(versions, f"{path}._metadata", _join(name, "_metadata"))]}
        return told

    def _defaultdict(self, value: Any, path: str, name: str) -> Any:
        factory = next((word for word, made in FACTORIES.items() if made is value.default_factory), None)
        if factory is None and value.default_factory is not None:
            raise CheckpointError(
                f"{path} is a defaultdict that makes {value.default_factory!r}: expected one of {sorted(FACTORIES)}. Save dict(...) of it."
            )
        return {"$defaultdict": [factory, self._pairs(value, path, name)]}

    def _counter(self, value: Any, path: str, name: str) -> Any:
        return {"$counter": self._pairs(value, path, name)}

    # ---- values with bytes ----

    def _keep(self, tensor: Tensor, path: str, name: str) -> str:
        check_tensor(tensor, path)
        # Names go into files that others read: no lone surrogates, and not the one word that the format keeps for itself.
        wanted = name.encode("utf-8", "backslashreplace").decode() or ROOT_NAME
        unique, count = wanted, 1
        while unique in self.tensors or unique == "__metadata__":
            count += 1
            unique = f"{wanted}#{count}"
        self.tensors[unique] = tensor.detach()
        return unique

    def _bytes(self, value: bytes | bytearray, kind: type, path: str, name: str) -> Any:
        word = "$bytes" if kind is bytes else "$bytearray"
        if len(value) <= LONG_BYTES:
            return {word: base64.b64encode(value).decode()}
        return {word: [self._keep(torch.from_numpy(np.frombuffer(value, np.uint8).copy()), path, name)]}

    def _scalar(self, value: np.generic, path: str) -> Any:
        dtype = value.dtype
        if not _is_its_bytes(dtype):
            raise self._refusal(value, path)
        data = value.tobytes()
        if isinstance(value, np.str_):  # its bytes by way of an array may gain or lose NULs
            data = str(value).encode("utf-32-le", "surrogatepass")
        elif isinstance(value, np.bytes_):
            data = bytes(value)
        return {"$scalar": [dtype.str, base64.b64encode(data).decode()]}

    def _array(self, value: np.ndarray[Any, Any], path: str, name: str) -> Any:
        dtype = value.dtype
        if not _is_its_bytes(dtype) or dtype.itemsize == 0:
            raise CheckpointError(
                f"{path} is an array of dtype {dtype}: expected numbers, fixed-length strings or times. Save its fields apart."
            )
        is_fortran = value.flags.f_contiguous and not value.flags.c_contiguous
        flat = np.ascontiguousarray(value.reshape(-1, order="F" if is_fortran else "C"))
        if dtype.kind in _TENSOR_KINDS and dtype.isnative:
            tensor = _from_numpy(flat).reshape(value.shape[::-1] if is_fortran else value.shape)
        else:
            tensor = (
                torch.frombuffer(bytearray(flat.tobytes()), dtype=torch.uint8)
                if flat.size
                else torch.empty(0, dtype=torch.uint8)
            )
        return {"$array": [dtype.str, list(value.shape), "F" if is_fortran else "C", self._keep(tensor, path, name)]}

    # ---- what cannot be kept ----

    def _refusal(self, value: Any, path: str) -> CheckpointError:
        kind = type(value)
        named = f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.")
        if isinstance(value, Enum):
            cure = f"save its value ({value.value!r}) or name ({value.name!r}) and look it up on loading"
        elif isinstance(value, (np.random.Generator, np.random.RandomState, torch.Generator)):
            cure = "register it: Streams(name=generator)"
        elif isinstance(value, (tuple, dict, list, str, int, float, set, frozenset)):
            base = next(b.__name__ for b in kind.__mro__ if b.__module__ == "builtins" and b is not object)
            cure = f"classes are not looked up on loading: save {base}(...) of it"
        elif hasattr(value, "state_dict"):
            cure = "give its state_dict(), or make it a component of its own"
        else:
            cure = "save the numbers, strings and tensors it is made of, or wrap it in Component(get, set)"
        return CheckpointError(f"{path} is a {named}, which cannot be kept without pickling: {cure}.")


def _is_json(value: Any) -> bool:
    kind = type(value)
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return -MAX_PLAIN_INT <= value < MAX_PLAIN_INT
    return kind is str or kind is bool or value is None


def _is_its_bytes(dtype: np.dtype[Any]) -> bool:
    """Whether a value of this dtype is its bytes, on every machine: not objects, records, or long doubles."""
    if dtype.kind in "fc":
        return dtype.str[1:] in ("f2", "f4", "f8", "c8", "c16")
    return dtype.kind in ARRAY_KINDS


def _join(name: str, key: Any) -> str:
    text = key if isinstance(key, str) else _word(key)
    return f"{name}.{text}" if name else text


def _word(key: Any) -> str:
    try:
        return repr(key)
    except ValueError:  # Python writes no integers of thousands of digits
        return f"<{type(key).__name__}>"


def _float_word(value: float) -> str:
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return struct.pack(">d", value).hex()


def _from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    if not array.flags.writeable:  # torch has no read-only tensors, and warns
        array = array.copy()
    return torch.from_numpy(array)


_CONTAINERS: dict[type, Callable[[_Flattener, Any, str, str], Any]] = {
    dict: _Flattener._dict,
    list: _Flattener._list,
    tuple: _Flattener._tuple,
    set: _Flattener._set,
    frozenset: _Flattener._set,
    deque: _Flattener._deque,
    OrderedDict: _Flattener._ordered,
    defaultdict: _Flattener._defaultdict,
    Counter: _Flattener._counter,
    torch.Size: _Flattener._size,
}
