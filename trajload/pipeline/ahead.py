"""The windows of coming train_steps, computed several at a time: planning one small batch costs mostly what it costs to begin."""

from __future__ import annotations

from collections import deque

from trajload.errors import at
from trajload.pipeline.build import BatchBuilder
from trajload.sampling.sampler import BatchRefs, Sampler

__all__ = ["RefsAhead"]

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
        sampler, ready = self._builder.sampler, self._ready
        if ready and ready[0].train_step == train_step:
            return ready.popleft()
        ready.clear()
        if self._num_ahead == 1 or not self._builder.has_fixed_rows or not isinstance(sampler, Sampler):
            return None
        with at(dataset=self._builder.sources[0].name, train_step=train_step):
            ready.extend(sampler.refs_ahead(train_step, self._num_ahead, self._builder.rows_at(train_step)))
        return ready.popleft()
