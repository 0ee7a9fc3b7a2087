"""The way back from JSON and tensors to state: `unflatten`, and `parse` for JSON that is read exactly or not at all."""

from __future__ import annotations

import base64
import json
import math
import struct
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trajload.checkpoint.tree import ARRAY_KINDS, FACTORIES
from trajload.errors import CheckpointCorruptError

__all__ = ["dump", "parse", "tensor_names", "unflatten"]


def dump(plain: Any) -> bytes:
    """Return a JSON value as bytes: keys in their order, ASCII, every number as it reads back."""
    return json.dumps(plain, separators=(",", ":"), allow_nan=False).encode()


def parse(data: bytes, what: str) -> Any:
    """Return the JSON value in `data`.

    Raises:
        CheckpointCorruptError: It is no JSON, or no JSON that `dump` writes: a name twice, a NaN.
    """
    try:
        return json.loads(data, object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as err:
        raise CheckpointCorruptError(f"{what} cannot be read as JSON: {err}. Use another checkpoint.") from err


def unflatten(plain: Any, tensors: Mapping[str, Tensor], *, what: str = "state") -> Any:
    """Return the state that `flatten` took apart. Tensors are those given, not copies; arrays may share their memory.

    Args:
        plain: The JSON value.
        tensors: By name.
        what: For messages.

    Raises:
        CheckpointCorruptError: A tensor is missing, a `$` word is unknown, or what stands behind it is not of its kind.
    """
    return _Builder(tensors, what).value(plain)


def tensor_names(plain: Any) -> list[str]:
    """Return the names of the tensors that a JSON value of `flatten` refers to, in order, without building anything."""
    found: list[str] = []
    stack = [plain]
    while stack:
        value = stack.pop()
        if isinstance(value, list):
            stack.extend(reversed(value))
        elif isinstance(value, dict):
            if isinstance(name := value.get("$tensor"), str) and len(value) == 1:
                found.append(name)
            else:
                stack.extend(reversed(value.values()))
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in one object")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is no JSON number")


class _Builder:
    def __init__(self, tensors: Mapping[str, Tensor], what: str) -> None:
        self._tensors = tensors
        self._what = what

    def value(self, plain: Any) -> Any:
        if isinstance(plain, list):
            return [self.value(item) for item in plain]
        if not isinstance(plain, dict):
            return plain
        word = next(iter(plain), "")
        if not word.startswith("$"):
            return {key: self.value(item) for key, item in plain.items()}
        make = _MAKERS.get(word)
        if make is None or len(plain) != 1:
            raise CheckpointCorruptError(
                f"{self._what} holds a value of the unknown kind {word!r}: expected one of {sorted(_MAKERS)}. "
                "It may have been written by a newer version."
            )
        try:
            return make(self, plain[word])
        except (TypeError, ValueError, KeyError, AttributeError, RuntimeError, struct.error) as err:
            raise CheckpointCorruptError(
                f"{self._what} holds a damaged value of the kind {word!r}: {type(err).__name__}: {err}."
            ) from err

    def _tensor(self, name: str) -> Tensor:
        if name not in self._tensors:
            raise CheckpointCorruptError(f"{self._what} refers to the tensor {name!r}, which its file does not hold.")
        return self._tensors[name]

    def _pairs(self, pairs: Any) -> list[tuple[Any, Any]]:
        return [(self.value(key), self.value(item)) for key, item in pairs]

    def _ordered(self, told: Any) -> Any:
        if not isinstance(told, list):
            return OrderedDict(self.value(told))
        items, versions = told
        found: Any = OrderedDict(self.value(items))
        found._metadata = self.value(versions)
        return found

    def _defaultdict(self, told: Any) -> Any:
        factory, pairs = told
        return defaultdict(None if factory is None else FACTORIES[factory], self._pairs(pairs))

    def _counter(self, told: Any) -> Any:
        return Counter(dict(self._pairs(told)))

    def _deque(self, told: Any) -> Any:
        maxlen, items = told
        return deque(self.value(items), maxlen=maxlen)

    def _bytes(self, told: Any) -> bytes:
        if isinstance(told, list):
            return self._tensor(told[0]).numpy().tobytes()
        return base64.b64decode(told, validate=True)

    def _float(self, told: Any) -> float:
        if told in ("inf", "-inf"):
            return float(told)
        (value,) = struct.unpack(">d", bytes.fromhex(told))
        if math.isfinite(value):
            raise ValueError(f"{told!r} is the finite number {value!r}")
        return value

    def _scalar(self, told: Any) -> Any:
        name, text = told
        dtype, data = _dtype(name), base64.b64decode(text, validate=True)
        if dtype.kind == "S":  # an array would drop NULs at the end
            return np.bytes_(data)
        if dtype.kind == "U":
            return np.str_(data.decode("utf-32-le", "surrogatepass"))
        return np.frombuffer(data, dtype)[0]

    def _array(self, told: Any) -> Any:
        name, shape, order, tensor = told
        dtype = _dtype(name)
        array = self._tensor(tensor).numpy()
        if array.dtype != dtype:
            array = np.frombuffer(bytearray(array.tobytes()), dtype) if array.size else np.empty(0, dtype)
        return array.reshape(shape[::-1]).transpose() if order == "F" else array.reshape(shape)

    def _dtype_of_torch(self, told: Any) -> torch.dtype:
        found = vars(torch).get(told)  # not getattr: torch imports modules for some names
        if not isinstance(found, torch.dtype):
            raise TypeError(f"{told!r} is no dtype")
        return found


def _dtype(name: Any) -> np.dtype[Any]:
    dtype = np.dtype(name)
    if not isinstance(name, str) or dtype.kind not in ARRAY_KINDS:
        raise TypeError(f"{name!r} is no dtype of numbers, strings or times")
    return dtype


_MAKERS: dict[str, Callable[[_Builder, Any], Any]] = {
    "$tensor": _Builder._tensor,
    "$int": lambda builder, told: int(told, 16),
    "$float": _Builder._float,
    "$complex": lambda builder, told: complex(*(builder.value(part) for part in told)),
    "$tuple": lambda builder, told: tuple(builder.value(item) for item in told),
    "$set": lambda builder, told: {builder.value(item) for item in told},
    "$frozenset": lambda builder, told: frozenset(builder.value(item) for item in told),
    "$deque": _Builder._deque,
    "$map": lambda builder, told: dict(builder._pairs(told)),
    "$ordered": _Builder._ordered,
    "$defaultdict": _Builder._defaultdict,
    "$counter": _Builder._counter,
    "$bytes": _Builder._bytes,
    "$bytearray": lambda builder, told: bytearray(builder._bytes(told)),
    "$scalar": _Builder._scalar,
    "$array": _Builder._array,
    "$dtype": _Builder._dtype_of_torch,
    "$device": lambda builder, told: torch.device(told),
    "$size": lambda builder, told: torch.Size(told),
}
