"""The windows of coming train_steps, computed several at a time: planning one small batch costs mostly what it costs to begin."""

from __future__ import annotations

from collections import deque
from typing import TypeAlias

import numpy as np

from trajload.errors import at
from trajload.pipeline.build import BatchBuilder
from trajload.sampling.interleaved import BlockUses
from trajload.sampling.sampler import BatchRefs, Sampler

__all__ = ["RefsAhead", "UseRow", "UsesAhead"]

UseRow: TypeAlias = "tuple[int, int, int, int, int, int, int, bool]"
"""(source, epoch in which its use began, lane, block, episode, first window, windows, whether its use ends there) of one row.

Rows that fill up the last batch repeat the last window, and nothing comes after them.
"""

_MAX_WINDOWS = 4096
_MAX_STEPS = 16


class RefsAhead:
    """Gives the windows of train_steps that are asked for in rising order. For one thread.

    They are what `Sampler.refs` gives. Few enough are computed ahead that their time is never felt as a gap.
    """

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder
        self._ready: deque[BatchRefs] = deque()
        self._num_ahead = max(1, min(_MAX_STEPS, _MAX_WINDOWS // max(builder.num_rows, 1)))

    def __call__(self, train_step: int) -> BatchRefs | None:
        """Return the windows of `train_step`, or None where they are to be asked for one by one."""
        ready = self._ready
        if ready and ready[0].train_step == train_step:
            return ready.popleft()
        ready.clear()
        ready.extend(self.next_few(train_step))
        return ready.popleft() if ready else None

    def next_few(self, train_step: int) -> list[BatchRefs]:
        """Return the windows of `train_step` and of some after it; none where they are to be asked for one by one."""
        sampler = self._builder.sampler
        if self._num_ahead == 1 or not self._builder.has_fixed_rows or not isinstance(sampler, Sampler):
            return []
        with at(dataset=self._builder.sources[0].name, train_step=train_step):
            return sampler.refs_ahead(train_step, self._num_ahead, self._builder.rows_at(train_step))


class UsesAhead:
    """Gives windows and their blocks of train_steps that are asked for in rising order. For one thread."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder
        self._refs = RefsAhead(builder)
        self._ready: deque[tuple[BatchRefs, list[UseRow]]] = deque()

    def __call__(self, train_step: int) -> tuple[BatchRefs, list[UseRow]]:
        """Return the windows of `train_step`, and the block use of each."""
        sampler, ready = self._builder.sampler, self._ready
        if ready and ready[0][0].train_step == train_step:
            return ready.popleft()
        ready.clear()
        few = self._refs.next_few(train_step)
        if few and isinstance(sampler, Sampler):
            rows = _use_rows(few, sampler.block_uses_ahead(few))
        else:
            few = [sampler.refs(train_step, self._builder.rows_at(train_step))]
            rows = _use_rows(few, sampler.block_uses(few[0]))
        start = 0
        for refs in few:
            ready.append((refs, rows[start : start + len(refs)]))
            start += len(refs)
        return ready.popleft()


def _use_rows(refs_K: list[BatchRefs], uses: BlockUses | None) -> list[UseRow]:
    if uses is None:  # no row at all: a rank of a batch smaller than the ranks
        assert not any(len(refs) for refs in refs_K)
        return []
    own = [[getattr(refs, name) for refs in refs_K] for name in ("source_B", "row_is_pad_B")]
    source_N, is_pad_N = (parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in own)
    columns = (
        *(source_N, uses.use_epoch_B, uses.lane_B, uses.block_B, uses.episode_B),
        *(uses.first_window_id_B, uses.size_B, uses.ends_B | is_pad_N),
    )
    return list(zip(*(column.tolist() for column in columns), strict=True))
