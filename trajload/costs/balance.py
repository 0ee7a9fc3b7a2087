"""Which episodes share a shard, so that all shards cost the same; and how uneven shards are."""

# Shapes: E episodes, S shards

from __future__ import annotations

import heapq
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from trajload.errors import ConfigError
from trajload.types import Int64Array, NDArray

__all__ = ["Spread", "assign_episodes", "check_num_shards", "shard_sums"]

_MAX_SWAPS = 2_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """How uneven the shards of a dataset are."""

    num_shards: int
    max_over_mean: float
    """1 is even. What the slowest of as many workers takes, against the average."""
    min_over_mean: float

    @classmethod
    def of(cls, cost_S: NDArray) -> Spread:
        """Return the spread of shards that cost so much each."""
        cost_S = np.asarray(cost_S, dtype=np.float64)
        mean = float(cost_S.mean()) if len(cost_S) else 0.0
        if mean <= 0:
            return cls(num_shards=len(cost_S), max_over_mean=1.0, min_over_mean=1.0)
        return cls(
            num_shards=len(cost_S),
            max_over_mean=float(cost_S.max()) / mean,
            min_over_mean=float(cost_S.min()) / mean,
        )

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return f"max/mean {self.max_over_mean:.3f}, min/mean {self.min_over_mean:.3f} over {self.num_shards} shards"


def shard_sums(cost_E: NDArray, shards: list[Int64Array]) -> NDArray:
    """Return what each shard costs, (S,), given the episodes of each."""
    return np.array([cost_E[episodes].sum() for episodes in shards])


def check_num_shards(num_shards: int, num_episodes: int) -> None:
    """Raise ConfigError unless so many episodes can be dealt to so many shards, none empty."""
    if isinstance(num_shards, bool) or not isinstance(num_shards, int) or not 1 <= num_shards <= num_episodes:
        raise ConfigError(
            f"num_shards={num_shards!r} is invalid: expected 1 to {num_episodes}, the number of episodes, since a shard holds "
            "whole episodes."
        )


def assign_episodes(cost_E: NDArray, num_shards: int) -> list[Int64Array]:
    """Return the episodes of each shard, rising, none empty, so that the dearest shard costs as little as can be found.

    The dearest episodes first, each to the cheapest shard so far; then swaps between the dearest shard and the cheapest
    one as long as they help. Same arguments, same shards.

    Raises:
        ConfigError: Fewer episodes than shards, or less than one shard.
    """
    cost_E = np.asarray(cost_E, dtype=np.float64)
    check_num_shards(num_shards, len(cost_E))
    if not np.isfinite(cost_E).all() or (len(cost_E) and cost_E.min() < 0):
        raise ConfigError("costs of episodes are unusable: expected finite numbers >= 0.")
    order = np.lexsort((np.arange(len(cost_E)), -cost_E)).tolist()
    heap: list[tuple[float, int, int]] = [(0.0, 0, s) for s in range(num_shards)]
    members: list[list[int]] = [[] for _ in range(num_shards)]
    for episode in order:
        # Of shards that cost the same the one with fewer episodes: episodes that cost nothing spread too.
        total, count, shard = heapq.heappop(heap)
        members[shard].append(episode)
        heapq.heappush(heap, (total + float(cost_E[episode]), count + 1, shard))
    _swap(cost_E, members)
    shards = [np.array(sorted(group), dtype=np.int64) for group in members]
    return sorted(shards, key=lambda group: int(group[0]))


def _swap(cost_E: NDArray, members: list[list[int]]) -> None:
    """Exchange pairs of episodes between the dearest and the cheapest shard while that lowers the dearest."""
    if len(members) < 2:
        return
    sums = np.array([cost_E[group].sum() for group in members])
    for _ in range(_MAX_SWAPS):
        high, low = int(sums.argmax()), int(sums.argmin())
        gap = float(sums[high] - sums[low])
        if gap <= 1e-4 * float(sums.mean()):
            return
        # The best exchange moves half of the gap: for each episode of the dearest shard the partner nearest to that.
        high_H, low_L = np.array(members[high]), np.array(members[low])
        by_cost = np.argsort(cost_E[low_L], kind="stable")
        wanted_H = cost_E[high_H] - gap / 2
        place_H = np.clip(np.searchsorted(cost_E[low_L][by_cost], wanted_H), 0, len(low_L) - 1)
        moved_H2 = np.stack(
            [cost_E[high_H] - cost_E[low_L][by_cost[np.maximum(place_H - back, 0)]] for back in (0, 1)], axis=1
        )
        off_H2 = np.abs(moved_H2 - gap / 2)
        h, back = np.unravel_index(int(off_H2.argmin()), off_H2.shape)
        moved = float(moved_H2[h, back])
        if not 0 < moved < gap:
            return
        partner = int(by_cost[max(int(place_H[h]) - int(back), 0)])
        members[high][int(h)], members[low][partner] = members[low][partner], members[high][int(h)]
        sums[high] -= moved
        sums[low] += moved
