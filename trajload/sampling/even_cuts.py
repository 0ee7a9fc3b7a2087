"""A range cut into parts as equal as can be: the arithmetic of lanes, rows and strata, both ways."""

# Shapes: B parts or places

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trajload.types import Int64Array

__all__ = ["EvenCuts"]


@dataclass(frozen=True, slots=True)
class EvenCuts:
    """[0, total) in `num_parts` neighbouring parts; the first `total % num_parts` are one longer."""

    total: int
    num_parts: int

    @property
    def length(self) -> int:
        """Length of a shorter part."""
        return self.total // self.num_parts

    @property
    def num_longer(self) -> int:
        return self.total % self.num_parts

    def start(self, part_B: Int64Array) -> Int64Array:
        """Return where each part starts; `num_parts` itself gives the total."""
        return part_B * self.length + np.minimum(part_B, self.num_longer)

    def size(self, part_B: Int64Array) -> Int64Array:
        """Return how long each part is."""
        return self.length + (part_B < self.num_longer)

    def find(self, place_B: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Return (part_B, rank_B) of places in the range: the inverse of `start(part) + rank`."""
        in_longer = self.num_longer * (self.length + 1)
        longer_B, longer_rank_B = np.divmod(place_B, self.length + 1)
        # With length 0 every place lies in a longer part, and this branch is not taken.
        part_B, rank_B = np.divmod(place_B - in_longer, max(self.length, 1))
        is_longer_B = place_B < in_longer
        return (
            np.where(is_longer_B, longer_B, part_B + self.num_longer),
            np.where(is_longer_B, longer_rank_B, rank_B),
        )
