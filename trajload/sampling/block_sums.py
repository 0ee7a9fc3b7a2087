"""Prefix sums of permuted block sizes, and the keyed order inside a block: the compiled half of `interleaved`.

Only the last block of an episode is shorter than `block_windows`, so the sum of the first j sizes is
`j * block_windows` less what the short blocks among them lack. It suffices to know where each short block falls: the
pass over an epoch and its memory grow with the number of episodes, not of blocks or windows.
Source: docs/decisions/0044-interleaved-order.md
"""

# Shapes: B places or windows, S short blocks, K buckets of 2**shift neighbouring places, R rounds

from __future__ import annotations

from typing import Any

import numpy as np

from trajload.sampling.permute import mix64, njit
from trajload.types import Int64Array, UInt64Array

__all__ = ["BlockSums", "permute_inside"]

_SHORT_PER_BUCKET = 8
"""On average. A look-up scans the short blocks of one bucket, so fewer is faster; a bucket costs 16 bytes."""
GOLDEN = 0x9E3779B97F4A7C15


@njit
def _fill(place_S: Any, lacking_S: Any, shift: Any, first_K1: Any, low_S: Any, lost_S: Any) -> None:
    # Counting sort into buckets, insertion sort inside (about eight each), then sums of what is lacking per bucket.
    for s in range(place_S.size):
        first_K1[(place_S[s] >> shift) + 1] += 1
    for k in range(first_K1.size - 1):
        first_K1[k + 1] += first_K1[k]
    next_K = first_K1[:-1].copy()
    mask = (np.int64(1) << shift) - np.int64(1)
    for s in range(place_S.size):
        k = place_S[s] >> shift
        low = place_S[s] & mask
        t = next_K[k]
        next_K[k] += 1
        while t > first_K1[k] and np.int64(low_S[t - 1]) > low:
            low_S[t], lost_S[t] = low_S[t - 1], lost_S[t - 1]
            t -= 1
        low_S[t], lost_S[t] = low, lacking_S[s]
    for k in range(first_K1.size - 1):
        for t in range(first_K1[k] + 1, first_K1[k + 1]):
            lost_S[t] += lost_S[t - 1]


@njit
def _find(
    index_B: Any,
    whole: Any,
    shift: Any,
    start_K1: Any,
    first_K1: Any,
    low_S: Any,
    lost_S: Any,
    place_B: Any,
    rank_B: Any,
) -> None:
    for i in range(index_B.size):
        x = index_B[i]
        lo, hi = np.int64(0), np.int64(start_K1.size - 1)
        while hi - lo > 1:  # start_K1[lo] <= x < start_K1[hi]
            mid = (lo + hi) >> 1
            if start_K1[mid] <= x:
                lo = mid
            else:
                hi = mid
        x -= start_K1[lo]
        lost = np.int64(0)
        for t in range(first_K1[lo], first_K1[lo + 1]):
            if x < whole * (np.int64(low_S[t]) + 1) - lost_S[t]:  # before the end of this short block
                break
            lost = lost_S[t]
        low = (x + lost) // whole
        place_B[i] = (lo << shift) + low
        rank_B[i] = x + lost - low * whole


@njit
def _start(
    place_B: Any, whole: Any, shift: Any, start_K1: Any, first_K1: Any, low_S: Any, lost_S: Any, out_B: Any
) -> None:
    for i in range(place_B.size):
        k = place_B[i] >> shift
        low = place_B[i] - (k << shift)
        lost = np.int64(0)
        for t in range(first_K1[k], first_K1[k + 1]):
            if np.int64(low_S[t]) >= low:
                break
            lost = lost_S[t]
        out_B[i] = start_K1[k] + whole * low - lost


class BlockSums:
    """Where in the sequence of permuted blocks each block starts: index <-> (place, rank). Immutable, thread-safe."""

    def __init__(self, num_blocks: int, block_windows: int, place_S: Int64Array, lacking_S: Int64Array) -> None:
        """Sort the short blocks.

        Args:
            num_blocks: Blocks, hence places.
            block_windows: Size of a whole block.
            place_S: Where the permutation puts each short block, in any order.
            lacking_S: By how much each is shorter.
        """
        self._whole = block_windows
        per_bucket = _SHORT_PER_BUCKET * num_blocks // max(len(place_S), 1)
        # The last term keeps the sum of a bucket's whole blocks in int64.
        self._shift = max(min(per_bucket.bit_length() - 1, num_blocks.bit_length(), 62 - block_windows.bit_length()), 0)
        num_buckets = ((num_blocks - 1) >> self._shift) + 1
        self._first_K1 = np.zeros(num_buckets + 1, dtype=np.int64)
        self._low_S = np.empty(len(place_S), dtype=np.uint32 if self._shift <= 32 else np.int64)
        self._lost_S = np.empty(len(place_S), dtype=np.int64)
        _fill(place_S, lacking_S, self._shift, self._first_K1, self._low_S, self._lost_S)
        lost_K = np.zeros(num_buckets, dtype=np.int64)
        has_any_K = self._first_K1[1:] > self._first_K1[:-1]
        lost_K[has_any_K] = self._lost_S[self._first_K1[1:][has_any_K] - 1]
        self._start_K1 = np.arange(num_buckets + 1, dtype=np.int64) * (block_windows << self._shift)
        self._start_K1[-1] = num_blocks * block_windows
        self._start_K1[1:] -= np.cumsum(lost_K)

    def find(self, index_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (place_B, rank_B): the block that holds each index of the sequence, and the place in that block."""
        index_B = np.ascontiguousarray(index_B, dtype=np.int64)
        place_B, rank_B = np.empty_like(index_B), np.empty_like(index_B)
        _find(
            index_B.reshape(-1), self._whole, self._shift, self._start_K1, self._first_K1, self._low_S, self._lost_S,
            place_B.reshape(-1), rank_B.reshape(-1),
        )  # fmt: skip
        return place_B, rank_B

    def start(self, place_B: Int64Array) -> Int64Array:
        """Return the index at which each block of the permuted sequence starts."""
        place_B = np.ascontiguousarray(place_B, dtype=np.int64)
        out_B = np.empty_like(place_B)
        _start(
            place_B.reshape(-1), self._whole, self._shift, self._start_K1, self._first_K1, self._low_S, self._lost_S,
            out_B.reshape(-1),
        )  # fmt: skip
        return out_B

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(a.nbytes for a in (self._first_K1, self._low_S, self._lost_S, self._start_K1))


@njit
def _inside(rank_B: Any, size_B: Any, block_B: Any, key_R: Any, is_inverse: Any, out_B: Any) -> None:
    round_R = np.empty(key_R.size, dtype=np.uint64)
    for i in range(rank_B.size):
        size = np.uint64(size_B[i])
        h = np.uint64(1)
        while (np.uint64(1) << (h + h)) < size:
            h += np.uint64(1)
        mask = (np.uint64(1) << h) - np.uint64(1)
        number = np.uint64(block_B[i]) * np.uint64(GOLDEN)
        for r in range(key_R.size):
            round_R[r] = mix64(key_R[r] + number)
        x = np.uint64(rank_B[i])
        while True:
            left, right = x >> h, x & mask
            if is_inverse:
                for r in range(key_R.size - 1, -1, -1):
                    left, right = right ^ (mix64(left + round_R[r]) & mask), left
            else:
                for r in range(key_R.size):
                    left, right = right, left ^ (mix64(right + round_R[r]) & mask)
            x = (left << h) | right
            if x < size:
                break
        out_B[i] = np.int64(x)


def permute_inside(
    rank_B: Int64Array, size_B: Int64Array, block_B: Int64Array, key_R: UInt64Array, *, is_inverse: bool
) -> Int64Array:
    """Return where the keyed bijection of each block sends a place in [0, size) of it.

    The bijection is the Feistel network of `permute`, its round key r for block b being output b of a SplitMix64
    generator seeded with `key_R[r]`: hashing a key for every block would cost more than all the rest.
    """
    out_B = np.empty(rank_B.shape, dtype=np.int64)
    flat = [np.ascontiguousarray(x, dtype=np.int64).reshape(-1) for x in (rank_B, size_B, block_B)]
    _inside(*flat, key_R, is_inverse, out_B.reshape(-1))
    return out_B
