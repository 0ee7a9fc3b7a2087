"""A keyed order of short blocks in which sizes alternate, so that never many small ones come at a time."""

# Shapes: B places or numbers

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trajload.sampling.permute import KeyedPermutation
from trajload.types import Int64Array

__all__ = ["NUM_HANDS", "DealtOrder"]

_HANDS = (0, 4, 2, 6, 1, 5, 3, 7)
"""Which hand each of 8 neighbouring places takes from: neighbours differ by about half of all sizes."""
NUM_HANDS = len(_HANDS)


class DealtOrder:
    """A bijection on [0, num): numbers, which rise with size, are cut into 8 hands, and hands are dealt from in turn.

    Each hand is in keyed order. Immutable and thread-safe.
    """

    def __init__(self, num: int, hand_keys: Sequence[tuple[int, ...]]) -> None:
        """Shuffle the hands; `hand_keys` has the keys of each."""
        size_of_hand = dict(
            zip(_HANDS, ((num + NUM_HANDS - 1 - i) // NUM_HANDS for i in range(NUM_HANDS)), strict=True)
        )
        self._hands = [KeyedPermutation(max(size_of_hand[h], 1), hand_keys[h]) for h in range(NUM_HANDS)]
        self._start_H1 = np.cumsum([0, *(size_of_hand[h] for h in range(NUM_HANDS))])

    def forward(self, place_B: Int64Array) -> Int64Array:
        """Return the number at each place, a flat array."""
        out_B = np.empty(len(place_B), dtype=np.int64)
        turn_B, at_B = place_B // NUM_HANDS, place_B % NUM_HANDS
        for i, hand in enumerate(_HANDS):
            mine_B = np.flatnonzero(at_B == i)
            if mine_B.size:
                out_B[mine_B] = self._start_H1[hand] + self._hands[hand].forward(turn_B[mine_B])
        return out_B

    def inverse(self, number_B: Int64Array) -> Int64Array:
        """Return the place of each number."""
        out_B = np.empty(len(number_B), dtype=np.int64)
        hand_B = np.searchsorted(self._start_H1, number_B, side="right") - 1
        for i, hand in enumerate(_HANDS):
            mine_B = np.flatnonzero(hand_B == hand)
            if mine_B.size:
                turn_B = self._hands[hand].inverse(number_B[mine_B] - self._start_H1[hand])
                out_B[mine_B] = turn_B * NUM_HANDS + i
        return out_B
