"""One byte string for every JSON value, so that equal manifests have equal digests."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

__all__ = ["canonical_json", "sha256_hex"]


def _plain(value: Any) -> Any:
    """Return the JSON form of NumPy values, which users put into metadata without noticing."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def canonical_json(value: Any) -> bytes:
    """Return `value` as canonical JSON in UTF-8: keys sorted by code point, no spaces, no escapes beyond JSON's own.

    Integers are decimal; other numbers have the shortest form that reads back equal, as Python's `repr` gives it.

    Raises:
        TypeError: A value has no JSON form.
        ValueError: A number is NaN or infinite, which JSON cannot say.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False, default=_plain)
    return text.encode("utf-8")


def sha256_hex(data: bytes) -> str:
    """Return the SHA-256 of `data` in lower-case hex."""
    return hashlib.sha256(data).hexdigest()
