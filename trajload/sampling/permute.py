"""A keyed bijection on [0, n): the arithmetic behind shuffled orders. No array of a permutation is ever kept.

A balanced Feistel network permutes the smallest domain of an even number of bits that holds n; values that fall
outside [0, n) are sent through it again until they fall inside (cycle walking), which keeps it a bijection.

One round, on halves of h bits:  (left, right) -> (right, left ^ (mix64(right + key) mod 2**h)).
`mix64` is the finaliser of SplitMix64 (Steele, Lea, Flood 2014; constants by Stafford, "Mix13").

These lines fix the order of every training run: they never change. Another rule gets another order version.
Source: docs/decisions/0040-shuffled-order.md
"""

# Shapes: B positions, R rounds

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

from trajload.errors import ConfigError, WindowError
from trajload.jit import loaded_quickly
from trajload.types import Int64Array, UInt64Array

__all__ = [
    "MAX_N",
    "NUM_ROUNDS",
    "KeyedPermutation",
    "half_bits_of",
    "mix64",
    "njit",
    "reference_forward",
    "reference_inverse",
    "reference_mix64",
]

NUM_ROUNDS = 12
"""Rounds that orders use: the evidence stands in docs/decisions/0040-shuffled-order.md."""
MAX_N = 2**62

_BLOCK = 512
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
_U64 = 2**64 - 1


def njit(func: Callable[..., Any]) -> Callable[..., Any]:
    """Compile on first call, releasing the GIL; keep machine code on disk where some folder can be written."""
    try:
        return loaded_quickly(numba.njit(nogil=True, cache=True)(func))
    except RuntimeError:  # no folder to cache in (read-only install, no home): compile in each process instead
        return numba.njit(nogil=True)(func)


@njit
def mix64(x: Any) -> Any:
    """SplitMix64's finaliser on np.uint64, for compiled callers; see `reference_mix64`."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(_M1)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(_M2)
    return x ^ (x >> np.uint64(31))


@njit
def _walk(i_B: Any, n: Any, half_bits: Any, key_R: Any, is_inverse: Any, out_B: Any) -> None:
    # Blocks of values go through each round together, so that the inner loop has no branch and LLVM vectorises it;
    # those still outside [0, n) are moved to the front for the next walk. One value at a time is 3 to 5 times slower,
    # because each walk's end is a branch that cannot be predicted (docs/decisions/0040-shuffled-order.md).
    n, h = np.uint64(n), np.uint64(half_bits)
    mask = (np.uint64(1) << h) - np.uint64(1)
    left = np.empty(_BLOCK, dtype=np.uint64)
    right = np.empty(_BLOCK, dtype=np.uint64)
    place = np.empty(_BLOCK, dtype=np.int64)
    for lo in range(0, i_B.size, _BLOCK):
        num = np.int64(min(_BLOCK, i_B.size - lo))
        for b in range(num):
            x = np.uint64(i_B[lo + b])
            left[b], right[b], place[b] = x >> h, x & mask, lo + b
        while num > 0:
            if is_inverse:
                for r in range(key_R.size - 1, -1, -1):
                    key = key_R[r]
                    for b in range(num):
                        x = right[b] ^ (mix64(left[b] + key) & mask)
                        right[b] = left[b]
                        left[b] = x
            else:
                for r in range(key_R.size):
                    key = key_R[r]
                    for b in range(num):
                        x = left[b] ^ (mix64(right[b] + key) & mask)
                        left[b] = right[b]
                        right[b] = x
            num_outside = np.int64(0)
            for b in range(num):
                x = (left[b] << h) | right[b]
                out_B[place[b]] = np.int64(x)  # overwritten by the next walk if outside
                left[num_outside], right[num_outside], place[num_outside] = left[b], right[b], place[b]
                num_outside += np.int64(x >= n)
            num = num_outside


class KeyedPermutation:
    """A bijection on [0, n) chosen by `keys`: same arguments, same bijection, on any machine.

    Needs memory for the keys only. Immutable, thread-safe, releases the GIL. On average a value passes the
    network `4**half_bits / n` times, which is less than 4.
    """

    def __init__(self, n: int, keys: tuple[int, ...]) -> None:
        """Choose a bijection.

        Args:
            n: Size of the set, 1 <= n <= 2**62.
            keys: One unsigned 64-bit integer per round; orders use `NUM_ROUNDS`.
        """
        if isinstance(n, bool) or not isinstance(n, (int, np.integer)) or not 1 <= n <= MAX_N:
            raise ConfigError(f"n={n!r} is invalid: expected an int with 1 <= n <= 2**62.")
        if not keys or any(isinstance(k, bool) or not isinstance(k, int) or not 0 <= k <= _U64 for k in keys):
            raise ConfigError(f"keys={keys!r} is invalid: expected at least one int with 0 <= key < 2**64.")
        self.n = int(n)
        self.half_bits = half_bits_of(self.n)
        self._key_R: UInt64Array = np.array(keys, dtype=np.uint64)

    def forward(self, i_B: Int64Array) -> Int64Array:
        """Return where each of `i_B` (any shape, in [0, n)) goes: int64 of the same shape."""
        return self._apply(i_B, is_inverse=False)

    def inverse(self, j_B: Int64Array) -> Int64Array:
        """Return where each of `j_B` comes from; `inverse(forward(i)) == i`."""
        return self._apply(j_B, is_inverse=True)

    def _apply(self, x_B: Int64Array, *, is_inverse: bool) -> Int64Array:
        x_B = np.asarray(x_B, dtype=np.int64)
        flat_B = np.ascontiguousarray(x_B).reshape(-1)
        if flat_B.size:
            low, high = int(flat_B.min()), int(flat_B.max())
            if low < 0 or high >= self.n:
                raise WindowError(
                    f"{low if low < 0 else high} is outside the permuted set: expected 0 <= i < {self.n}."
                )
        out_B = np.empty(flat_B.size, dtype=np.int64)
        _walk(flat_B, self.n, self.half_bits, self._key_R, is_inverse, out_B)
        return out_B.reshape(x_B.shape)


def half_bits_of(n: int) -> int:
    """Return h of the smallest domain 2**(2h) that holds n values, h >= 1."""
    return max(1, ((n - 1).bit_length() + 1) // 2)


def reference_mix64(x: int) -> int:
    """Return `mix64` in plain Python."""
    x &= _U64
    x = ((x ^ (x >> 30)) * _M1) & _U64
    x = ((x ^ (x >> 27)) * _M2) & _U64
    return x ^ (x >> 31)


def reference_forward(i: int, n: int, keys: tuple[int, ...]) -> int:
    """Return `KeyedPermutation(n, keys).forward(i)` in plain Python: the definition the fast path is tested against."""
    h = half_bits_of(n)
    mask = (1 << h) - 1
    while True:
        left, right = i >> h, i & mask
        for key in keys:
            left, right = right, left ^ (reference_mix64(right + key) & mask)
        i = (left << h) | right
        if i < n:
            return i


def reference_inverse(j: int, n: int, keys: tuple[int, ...]) -> int:
    """Return `KeyedPermutation(n, keys).inverse(j)` in plain Python."""
    h = half_bits_of(n)
    mask = (1 << h) - 1
    while True:
        left, right = j >> h, j & mask
        for key in reversed(keys):
            left, right = right ^ (reference_mix64(left + key) & mask), left
        j = (left << h) | right
        if j < n:
            return j
