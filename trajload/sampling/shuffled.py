"""Orders that know nothing but the number of windows: sequential/1 and shuffled/1."""

# Shapes: B windows

from __future__ import annotations

from trajload.sampling.order_base import OrderInputs, check_epoch, check_range, round_keys
from trajload.sampling.permute import KeyedPermutation
from trajload.types import Int64Array

__all__ = ["SequentialOrder", "ShuffledOrder"]


class SequentialOrder:
    """Windows by rising id, the same in every epoch: for evaluation and export."""

    version = "sequential/1"

    def __init__(self, inputs: OrderInputs) -> None:
        self.num_windows = inputs.num_windows

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        check_epoch(epoch)
        return check_range("offset", offset_B, self.num_windows).copy()

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        check_epoch(epoch)
        return check_range("window id", window_id_B, self.num_windows).copy()


class ShuffledOrder:
    """All windows once an epoch, as if shuffled uniformly: a keyed bijection per epoch, O(1) memory."""

    version = "shuffled/1"

    def __init__(self, inputs: OrderInputs) -> None:
        self.num_windows = inputs.num_windows
        self.seed = inputs.seed

    def window_ids(self, epoch: int, offset_B: Int64Array) -> Int64Array:
        return self._permutation(epoch).forward(check_range("offset", offset_B, self.num_windows))

    def offsets(self, epoch: int, window_id_B: Int64Array) -> Int64Array:
        return self._permutation(epoch).inverse(check_range("window id", window_id_B, self.num_windows))

    def _permutation(self, epoch: int) -> KeyedPermutation:
        # Made anew for each call: two hashes of 32 bytes cost less than a cache shared by threads would.
        return KeyedPermutation(self.num_windows, round_keys(self.seed, "order", check_epoch(epoch)))
