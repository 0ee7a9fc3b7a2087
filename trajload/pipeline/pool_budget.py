"""How much memory decoded blocks may take: what was asked for, or what the lanes of an order need within bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from trajload.align.rows import window_offsets
from trajload.checks import check_int
from trajload.decode import row_shape
from trajload.errors import ConfigError
from trajload.machine import free_memory
from trajload.pipeline.arena import aligned
from trajload.pipeline.block_rows import pooled_streams
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats import StageStats
from trajload.types import Int64Array

__all__ = ["MAX_AHEAD_STEPS", "PoolBudget", "check_pool_bytes", "choose_pool", "pool_figures"]

_MAX_AUTO_BYTES = 2 << 30
MAX_AHEAD_STEPS = 64
_MIN_AHEAD_STEPS = 4
_MANY_LANES = 32
_EVEN_BYTES = 400 << 20
"""Up to so much there is room for blocks that are decoded ahead, so that decoding is spread evenly; beyond it, for what all
lanes have in use."""
_LEAD_BYTES = 32 << 20
"""Of blocks beside those of the lanes, at least: without them one in sixteen is evicted at 240x320 and decoded again."""


@dataclass(frozen=True, slots=True)
class PoolBudget:
    """Bound of the pool, and why."""

    num_bytes: int
    """0: no pool, each row decodes its own window."""
    why: str
    block_bytes: int = 0
    """Of the largest block, as far as lengths tell."""
    lanes_per_row: int = 1
    num_lanes: int = 0
    """Blocks in use at a time."""
    blocks_per_step: float = 0.0
    """Blocks that a train_step uses up, about."""
    is_asked: bool = False
    """Whether the user gave the number: then a block beyond it is an error, else its rows decode by themselves."""
    enough_bytes: int = 0
    """That no block exceeds, whatever clocks say and whichever windows are left out."""

    def check_share(self, num_parts: int) -> None:
        """Raise ConfigError where a number that the user gave holds no block once so many processes share it."""
        if self.is_asked and self.num_bytes // num_parts < self.block_bytes:
            raise ConfigError(
                f"pool_bytes={self.num_bytes} is shared by {num_parts} worker processes: got {self.num_bytes // num_parts} "
                f"bytes for each, expected at least {self.enough_bytes} for one block of decoded pictures, which are "
                f"pool_bytes={self.enough_bytes * num_parts}. Raise it, use fewer processes or workers='threads', or lower "
                "block_windows of tl.Interleaved, num_steps or the pictures' size; pool_bytes=0 decodes each window by itself."
            )

    def share(self, num_parts: int) -> PoolBudget:
        """Return the bound of one of so many pools that share this one; 0 where a share holds no block."""
        num_bytes = self.num_bytes // num_parts
        if num_bytes < self.block_bytes:
            return replace(self, num_bytes=0, why=f"{self.why}: {num_bytes} bytes for each process hold no block")
        return replace(
            self,
            num_bytes=num_bytes,
            why=f"{self.why}, shared by {num_parts} processes",
            num_lanes=-(-self.num_lanes // num_parts),
            blocks_per_step=self.blocks_per_step / num_parts,
        )

    def ahead(self, num_decoders: int) -> tuple[int, str]:
        """Return over how many train_steps the work on a block is spread ahead of its first use, and what limits that."""
        num_spare = self.num_bytes // max(self.block_bytes, 1) - self.num_lanes - num_decoders
        steps = int(max(num_spare, 0) / max(self.blocks_per_step, 1e-9))
        if steps >= MAX_AHEAD_STEPS:
            return MAX_AHEAD_STEPS, f"at most {MAX_AHEAD_STEPS} train_steps"
        why = f"room for {max(num_spare, 0)} blocks beside those of {self.num_lanes} lanes and {num_decoders} decoders"
        return max(steps, _MIN_AHEAD_STEPS), f"{why}, {self.blocks_per_step:.3g} used up in a train_step"

    def too_small(self, needed: int) -> ConfigError:
        """Return the error of a block that is larger than the pool."""
        return ConfigError(
            f"pool_bytes={self.num_bytes} holds no block: got {self.num_bytes} bytes, expected at least "
            f"{max(needed, self.enough_bytes)} for one block of decoded pictures. Raise pool_bytes, or lower block_windows "
            "of tl.Interleaved, num_steps or the pictures' size; pool_bytes=0 decodes each window by itself."
        )


def check_pool_bytes(pool_bytes: int | None) -> int | None:
    """Return `pool_bytes` if it is None or an int of at least 0, else raise ConfigError."""
    if pool_bytes is None:
        return None
    return check_int("pool_bytes", pool_bytes, 0, expected="an int of at least 0, or None")


def choose_pool(builder: BatchBuilder, pool_bytes: int | None, num_workers: int) -> PoolBudget:
    """Return the memory bound of the block pool.

    Raises:
        ConfigError: Not a number of bytes, or too few for one block.
    """
    asked = check_pool_bytes(pool_bytes)
    if asked == 0:
        return PoolBudget(0, "asked for")
    found = [_shape(source) for source in builder.sources if pooled_streams(source)]
    shapes = [shape for shape in found if shape is not None]
    if not shapes:
        return PoolBudget(0, "no stream of pictures in an order of blocks")
    block_bytes = max(shape.num_bytes for shape in shapes)
    lanes_per_row = max(shape.lanes_per_row for shape in shapes)
    per_step = builder.num_rows / min(shape.block_windows for shape in shapes)
    num_lanes = builder.num_rows * lanes_per_row
    if asked is not None:
        enough = max(shape.enough_bytes for shape in shapes)
        budget = PoolBudget(
            asked, "asked for", block_bytes, lanes_per_row, num_lanes, per_step, is_asked=True, enough_bytes=enough
        )
        if asked < block_bytes:
            raise budget.too_small(block_bytes)
        return budget
    # Of many lanes some are between two blocks, and leave room for the next. It is a tight fit: a few more spare evictions.
    num_needed = num_lanes + (num_lanes < _MANY_LANES) + min(num_workers + 2, _LEAD_BYTES // max(block_bytes, 1))
    # Where epochs begin with a new block in each lane, there is room for those beside the last ones of the epoch before.
    num_ahead = num_lanes // 4 if all(shape.has_seams for shape in shapes) else num_lanes + num_lanes // 8
    num_even = num_lanes + num_ahead + 2 * num_workers + 4
    num_blocks = max(num_needed, min(num_even, _EVEN_BYTES // max(block_bytes, 1)))
    free = free_memory()
    bound = _MAX_AUTO_BYTES if free is None else min(_MAX_AUTO_BYTES, free // 4)
    why = f"auto: {num_blocks} blocks of up to {block_bytes} bytes for {num_lanes} lanes, at most {bound} bytes"
    if block_bytes > bound:
        return PoolBudget(0, f"{why}: not one fits, so each window is decoded by itself")
    return PoolBudget(min(num_blocks * block_bytes, bound), why, block_bytes, lanes_per_row, num_lanes, per_step)


def pool_figures(budget: PoolBudget, stats: StageStats, num_decoders: int) -> dict[str, Any]:
    """Return what `Loader.stats` tells of the pool."""
    counts = stats.counted(
        "pool_used_bytes",
        "pool_peak_bytes",
        "pool_rows",
        "blocks_decoded",
        "blocks_decoded_again",
        "blocks_evicted",
        "blocks_failed",
        "frames_decoded",
        "frames_copied",
    )
    copied = counts["frames_copied"]
    ahead, ahead_why = budget.ahead(num_decoders) if budget.num_bytes else (0, "no pool")
    return {
        "budget_bytes": budget.num_bytes,
        "budget_why": budget.why,
        "block_bytes": budget.block_bytes,
        **{"ahead_train_steps": ahead, "ahead_why": ahead_why},
        "used_bytes": counts["pool_used_bytes"],
        "peak_bytes": counts["pool_peak_bytes"],
        "rows": counts["pool_rows"],
        **{name: value for name, value in counts.items() if name.startswith(("blocks_", "frames_"))},
        "decoded_per_copied": counts["frames_decoded"] / copied if copied else None,
    }


@dataclass(frozen=True, slots=True)
class _Shape:
    """Of a source's order."""

    num_bytes: int
    """Of a block, as far as lengths tell."""
    enough_bytes: int
    """That no block exceeds."""
    block_windows: int
    lanes_per_row: int
    has_seams: bool
    """Whether lanes go on over the ends of epochs."""


def _shape(source: SourceRows) -> _Shape | None:
    """Return what the blocks of a source are like; None if its order has none."""
    config: Any = source.sampler.order_config
    block_windows: int | None = getattr(config, "block_windows", None)
    if block_windows is None:
        return None
    order = source.sampler.window_order
    lanes_per_row: int = getattr(order, "lanes_per_row", config.lanes_per_row)
    size = enough = 0
    for choice in pooled_streams(source):
        num_rows, enough_rows = _most_rows(source, choice, block_windows)
        size += aligned(num_rows * _row_bytes(choice))
        enough += aligned(enough_rows * _row_bytes(choice))
    return _Shape(size, enough, block_windows, lanes_per_row, getattr(order, "has_seams", False))


def _row_bytes(choice: StreamChoice) -> int:
    shape, dtype = row_shape(choice.spec, choice.request)
    return math.prod(shape) * dtype.itemsize


def _most_rows(source: SourceRows, choice: StreamChoice, block_windows: int) -> tuple[int, int]:
    """Return how many different rows the windows of a block take, going by steps, and what no block exceeds.

    The same number for stepwise streams, and for clocked ones at the times of steps, which take at most one row a step. Where
    windows are left out a block reaches farther; where a stream has times of its own, its clock tells which of them share a row.
    """
    window, longest = source.window, int(source.dataset.num_steps_E.max())
    num_windows = min(block_windows, max(1, -(-longest // window.stride)))
    offsets_T = _offsets(source, choice)
    first_T = offsets_T - offsets_T[0]
    # The union repeats itself with the stride: rows of one remainder form runs, so counting one pass is enough.
    rows = np.unique((first_T[:, None] + window.stride * np.arange(min(num_windows, 4096))[None, :]).reshape(-1))
    more = (num_windows - min(num_windows, 4096)) * len(np.unique(first_T % window.stride))
    most, each_its_own = min(len(rows) + more, longest), num_windows * choice.places.num_places
    if choice.places.ns_T is not None:
        return most, each_its_own
    return most, min(each_its_own, longest) if source.sampler.table.has_gaps else most


def _offsets(source: SourceRows, choice: StreamChoice) -> Int64Array:
    """Return where a stream's rows stand from the anchor, in steps; of times, at the mean distance of steps."""
    places, dataset = choice.places, source.dataset
    if places.is_own:
        return window_offsets(source.window)
    if places.ns_T is None:
        return places.steps_T
    longest = int(dataset.num_steps_E.argmax())
    ends_2 = dataset.step_times_ns(longest, np.array([0, dataset.num_steps_E[longest] - 1], dtype=np.int64))
    step_ns = max(1, int(ends_2[1] - ends_2[0]) // max(1, int(dataset.num_steps_E[longest]) - 1))
    return np.unique(np.rint(places.ns_T / step_ns).astype(np.int64))
