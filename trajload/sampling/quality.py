"""How good an order is, in numbers: how well batches mix, how evenly work arrives, how often blocks are decoded.

Read off the order itself, without data; what a uniform shuffle would give is computed, not drawn.
"""

# Shapes: B rows of a batch, E episodes, S sizes, R ranks

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from trajload.errors import ConfigError
from trajload.sampling.assign import rank_rows
from trajload.sampling.blocks import BlockTable
from trajload.sampling.interleaved import InterleavedOrder
from trajload.sampling.sampler import Sampler
from trajload.types import Int64Array, NDArray
from trajload.world import World

__all__ = ["BlockLoad", "Mixing", "OrderQuality", "block_load", "measure_quality", "mixing", "uniform_mixing"]

_EVEN_OVER = 8
"""New blocks are averaged over so many batches: about what prefetching smooths."""


@dataclass(frozen=True, slots=True)
class Mixing:
    """Means over batches. A block is a run of `block_windows` neighbouring windows, whatever the order."""

    distinct_episodes: float
    """Different episodes in a batch."""
    distinct_blocks: float
    """Different blocks in a batch."""
    shared_with_next: float
    """Episodes of a batch that come in the next one too."""


@dataclass(frozen=True, slots=True)
class BlockLoad:
    """New blocks a batch: what must be decoded for it, and how evenly that comes."""

    mean: float
    largest_over_mean: float
    """Largest of the means over 8 neighbouring batches, by the mean of all; 1 is perfectly even."""


@dataclass(frozen=True, slots=True)
class OrderQuality:
    """What `trajload order --quality` shows."""

    order: str
    num_windows: int
    num_blocks: int
    num_lanes: int | None
    """Blocks in use at a time; None for an order without lanes."""
    train_steps: tuple[int, int]
    """Half-open range of those looked at."""
    got: Mixing
    uniform: Mixing
    """What a uniform shuffle of the same windows gives on average."""
    load: BlockLoad | None
    """None for an order without blocks."""
    uses_per_block: float
    """Times that a block is taken up in an epoch: 1 and a little for a block cut between two lanes. Without lanes every
    window is a use of its own."""
    ranks_per_block: dict[int, float]
    """Number of ranks → how many of them need a block, on average over an epoch; None without lanes."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure_quality(
    sampler: Sampler,
    *,
    block_windows: int = 16,
    num_batches: int = 256,
    num_ranks: Iterable[int] = (2, 3, 4, 8),
) -> OrderQuality:
    """Return the scores of a sampler's order, over batches from the middle of the first epoch.

    Args:
        sampler: Windows, order and batch size.
        block_windows: Size of the blocks that are counted; `interleaved` brings its own.
        num_batches: How many to look at, at least 2; fewer where half an epoch has fewer.
        num_ranks: Numbers of ranks to count decodes for; those above the batch size are left out.
    """
    if num_batches < 2:
        raise ConfigError(f"num_batches={num_batches!r} is invalid: expected an int of at least 2.")
    order = sampler.window_order
    interleaved = order if isinstance(order, InterleavedOrder) else None
    blocks = interleaved.blocks if interleaved else BlockTable(sampler.table.first_E1, block_windows)
    per_epoch = order.num_windows // sampler.global_batch_size
    # Away from the start of the epoch, where all lanes of `interleaved` take up a block at once.
    first = min(per_epoch // 2, max(per_epoch // 2 - num_batches // 2, per_epoch // 8))
    last = max(min(first + num_batches, per_epoch - 1), first + 2)
    if sampler.num_train_steps is not None:
        last = min(last, sampler.num_train_steps)
        first = max(0, min(first, last - 2))
    train_steps = range(first, last)
    sizes = [r for r in num_ranks if r <= sampler.global_batch_size]
    return OrderQuality(
        order=sampler.order,
        num_windows=sampler.num_windows,
        num_blocks=blocks.num_blocks,
        num_lanes=interleaved.num_lanes if interleaved else None,
        train_steps=(first, last),
        got=mixing(sampler, blocks, train_steps),
        uniform=uniform_mixing(blocks, np.diff(sampler.table.first_E1), sampler.global_batch_size),
        load=block_load(sampler, train_steps),
        uses_per_block=_uses_per_block(sampler, blocks),
        ranks_per_block={r: ranks_per_block(interleaved, sampler.global_batch_size, r) for r in sizes}
        if interleaved
        else {},
    )


def mixing(sampler: Sampler, blocks: BlockTable, train_steps: range) -> Mixing:
    """Return how well the batches of `train_steps`, at least two, mix."""
    episodes, num_blocks = [], []
    for train_step in train_steps:
        refs = sampler.refs(train_step)
        episodes.append(np.unique(refs.episode_B))
        num_blocks.append(len(np.unique(blocks.block_of(refs.window_id_B)[0])))
    shared = [len(np.intersect1d(a, b, assume_unique=True)) for a, b in pairwise(episodes)]
    return Mixing(
        distinct_episodes=float(np.mean([len(e) for e in episodes])),
        distinct_blocks=float(np.mean(num_blocks)),
        shared_with_next=float(np.mean(shared)) if shared else float("nan"),
    )


def uniform_mixing(blocks: BlockTable, num_windows_E: Int64Array, global_batch_size: int) -> Mixing:
    """Return what two neighbouring batches of a uniform shuffle give on average, exactly.

    A group of n of N windows is absent from g drawn ones with probability C(N - n, g) / C(N, g).
    """
    num_windows = blocks.num_windows
    size_S, count_S = np.unique(num_windows_E[num_windows_E > 0], return_counts=True)
    once, twice = (min(g, num_windows) for g in (global_batch_size, 2 * global_batch_size))
    absent_S, absent_twice_S = (_absent(size_S, num_windows, g) for g in (once, twice))
    rest_S, rest_count_S = np.unique(blocks.short_blocks()[1], return_counts=True)
    block_S = np.concatenate([[blocks.block_windows], blocks.block_windows - rest_S]).astype(np.int64)
    block_count_S = np.concatenate([[blocks.num_blocks - rest_count_S.sum()], rest_count_S])
    return Mixing(
        distinct_episodes=float((count_S * (1 - absent_S)).sum()),
        distinct_blocks=float((block_count_S * (1 - _absent(block_S, num_windows, once))).sum()),
        shared_with_next=float((count_S * (1 - 2 * absent_S + absent_twice_S)).sum()),
    )


def _absent(size_S: Int64Array, num_windows: int, num_drawn: int) -> NDArray:
    log_S = np.zeros(len(size_S))
    for low in range(0, num_drawn, 1024):
        left = num_windows - np.arange(low, min(low + 1024, num_drawn), dtype=np.float64)
        with np.errstate(divide="ignore"):  # log(0): all that is left lies in the group, so it cannot be absent
            log_S += np.log1p(-np.minimum(size_S[:, None] / left, 1.0)).sum(axis=1)
    return np.exp(log_S)


def block_load(sampler: Sampler, train_steps: range) -> BlockLoad | None:
    """Return how evenly new blocks begin over `train_steps`; None without blocks, or for fewer than 8 batches."""
    begins = []
    for train_step in train_steps:
        uses = sampler.block_uses(sampler.refs(train_step))
        if uses is None:
            return None
        begins.append(int(uses.begins_B.sum()))
    if len(begins) < _EVEN_OVER:
        return None
    means = np.convolve(begins, np.full(_EVEN_OVER, 1 / _EVEN_OVER), mode="valid")
    mean = float(np.mean(begins))
    return BlockLoad(mean=mean, largest_over_mean=float(means.max()) / mean if mean else 1.0)


def _uses_per_block(sampler: Sampler, blocks: BlockTable) -> float:
    order = sampler.window_order
    if not isinstance(order, InterleavedOrder):
        return order.num_windows / blocks.num_blocks
    # Not of the first epoch: what the others go on with begins in it.
    block_P, _ = order.cut_parts(1)
    return 1 + (len(block_P) - len(np.unique(block_P)) - order.num_continued(1)) / blocks.num_blocks


def ranks_per_block(order: InterleavedOrder, global_batch_size: int, num_ranks: int, *, epoch: int = 0) -> float:
    """Return how many ranks need a block in `epoch`, on average: 1 if each rank has whole blocks.

    Only a block that is cut can belong to two ranks, so it suffices to look at those.
    """
    rank_B = np.empty(global_batch_size, dtype=np.int64)
    for rank in range(num_ranks):
        rank_B[rank_rows(global_batch_size, World(rank=rank, world_size=num_ranks))] = rank
    block_P, lane_P = order.cut_parts(epoch)
    pairs = set(
        zip(block_P.tolist(), rank_B[(order.first_row(epoch) + lane_P) % global_batch_size].tolist(), strict=True)
    )
    return 1 + (len(pairs) - len(np.unique(block_P))) / order.blocks.num_blocks
