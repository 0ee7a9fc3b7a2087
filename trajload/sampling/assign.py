"""Which rows of a global batch a rank loads. Never changes what the global batch holds.

Load weights live here and nowhere else: they move rows between ranks, and no row changes its window. Sampling weights
(`tl.Weighted`) change which windows are drawn; the two never meet.
"""

# Shapes: B rows of a global batch, R ranks

from __future__ import annotations

import operator

import numpy as np

from trajload.errors import ConfigError
from trajload.types import Int64Array
from trajload.world import World

__all__ = ["balanced_bounds", "rank_rows"]


def rank_rows(global_batch_size: int, world: World, *, cost_B: Int64Array | None = None) -> slice:
    """Return the contiguous rows of every global batch that `world.rank` owns.

    Without costs even in count: the first `global_batch_size % world_size` ranks get one row more. Ranks are disjoint,
    in order and cover the batch, with costs too.

    Args:
        global_batch_size: Rows of the global batch.
        world: This rank, and how many there are.
        cost_B: Measured cost of each row, for instance nanoseconds per batch of its lanes; integers >= 0, the same on
            every rank. The largest load of a rank is then as small as contiguous ranges allow.

    Raises:
        ConfigError: Fewer rows than ranks, since a rank without rows would have nothing to train on; unusable costs.
    """
    try:
        num_rows = operator.index(global_batch_size)
    except TypeError:
        raise ConfigError(
            f"global_batch_size={global_batch_size!r} is invalid: expected an int of at least 1."
        ) from None
    if num_rows < world.world_size:
        raise ConfigError(
            f"global_batch_size={num_rows} is too small for world_size={world.world_size}: "
            f"expected at least one row for each rank. Raise global_batch_size or use fewer data-parallel ranks."
        )
    if cost_B is not None:
        if len(cost_B) != num_rows:
            raise ConfigError(f"cost_B has length {len(cost_B)}: expected global_batch_size={num_rows}.")
        bounds = balanced_bounds(cost_B, world.world_size)
        return slice(bounds[world.rank], bounds[world.rank + 1])
    size, num_longer = divmod(num_rows, world.world_size)
    start = world.rank * size + min(world.rank, num_longer)
    return slice(start, start + size + (world.rank < num_longer))


def balanced_bounds(cost_B: Int64Array, num_ranks: int) -> list[int]:
    """Return R + 1 rising bounds of contiguous ranges, none empty, whose largest sum of costs is as small as can be.

    Integer arithmetic, so every rank finds the same bounds. Of several best cuts it takes one that leaves no rank
    with more than needed: each range stops as soon as its share of what is left is reached.

    Raises:
        ConfigError: Costs that are no integers >= 0, or fewer of them than ranks.
    """
    cost_B = np.asarray(cost_B)
    if cost_B.ndim != 1 or cost_B.dtype.kind not in "iu" or len(cost_B) < num_ranks:
        raise ConfigError(
            f"costs are unusable: got shape {cost_B.shape} of {cost_B.dtype}, expected at least {num_ranks} integers."
        )
    if int(cost_B.min()) < 0 or float(cost_B.sum(dtype=np.float64)) >= 2.0**62:
        raise ConfigError("costs are unusable: expected integers >= 0 with a sum below 2**62.")
    sum_B1 = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(cost_B.astype(np.int64))])
    low, high = max(int(cost_B.max()), -(-int(sum_B1[-1]) // num_ranks)), int(sum_B1[-1])
    while low < high:  # the smallest limit under which R ranges suffice
        limit = (low + high) // 2
        if _ranges_needed(sum_B1, limit, num_ranks) <= num_ranks:
            high = limit
        else:
            low = limit + 1
    return _cut(sum_B1, low, num_ranks)


def _ranges_needed(sum_B1: Int64Array, limit: int, num_ranks: int) -> int:
    """Return how many ranges of at most `limit` cover all rows, counting no further than num_ranks + 1."""
    at, num_rows, needed = 0, len(sum_B1) - 1, 0
    while at < num_rows and needed <= num_ranks:
        at = int(np.searchsorted(sum_B1, int(sum_B1[at]) + limit, side="right")) - 1
        needed += 1
    return needed


def _cut(sum_B1: Int64Array, limit: int, num_ranks: int) -> list[int]:
    """Return bounds with every range at most `limit`, each near its share of what is left."""
    num_rows, total = len(sum_B1) - 1, int(sum_B1[-1])
    # Rows that the last r ranks can hold at most: no range may start before that row.
    earliest = [num_rows]
    for _ in range(num_ranks):
        earliest.append(int(np.searchsorted(sum_B1, int(sum_B1[earliest[-1]]) - limit, side="left")))
    bounds = [0]
    for rank in range(num_ranks - 1):
        left = num_ranks - rank
        start = bounds[-1]
        share = -(-(total - int(sum_B1[start])) // left)
        stop = int(np.searchsorted(sum_B1, int(sum_B1[start]) + share, side="left"))
        most = int(np.searchsorted(sum_B1, int(sum_B1[start]) + limit, side="right")) - 1
        stop = max(min(stop, most), earliest[left - 1], start + 1)
        bounds.append(min(stop, num_rows - (left - 1)))
    return [*bounds, num_rows]
