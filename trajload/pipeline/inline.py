"""Iteration without threads: the same units as theirs, one after the other in the calling thread."""

from __future__ import annotations

from trajload.collate.batch import Batch
from trajload.decode import DecodeContext
from trajload.pipeline.ahead import RefsAhead
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.units import QueuedUnits

__all__ = ["InlineRun"]


class InlineRun:
    """Makes batches of consecutive train_steps when they are asked for. For one thread at a time."""

    def __init__(self, builder: BatchBuilder, planner: QueuedUnits) -> None:
        self._builder = builder
        self._planner = planner
        self._refs = RefsAhead(builder)

    def batch(self, train_step: int, context: DecodeContext) -> Batch:
        """Return the batch of `train_step`; equals what `BatchBuilder.build` gives."""
        job = self._builder.open_job(train_step, self._refs(train_step))
        for unit in self._planner.units(job):
            unit.run(context)
        return self._builder.finish(job)
