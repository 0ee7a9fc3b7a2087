"""Iteration without threads: the same units as theirs, one after the other in the calling thread."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trajload.errors import StageFailedError
from trajload.pipeline.ahead import RefsAhead
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.units import QueuedUnits

if TYPE_CHECKING:
    import torch

    from trajload.collate.batch import Batch
    from trajload.sampling.sampler import BatchRefs

__all__ = ["InlineRun"]


class InlineRun:
    """Makes batches of consecutive train_steps when they are asked for. For one thread at a time.

    Args:
        builder: Makes the batches.
        planner: Cuts them into units.
        start: First train_step.
        stop: Half-open end of a finite run, None without end.
        device: Where the batches are wanted, None for where they are made.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        planner: QueuedUnits,
        *,
        start: int,
        stop: int | None,
        device: torch.device | None = None,
    ) -> None:
        self._builder = builder
        self._planner = planner
        self._next, self._stop = start, stop
        self._device = device
        self._refs = RefsAhead(builder)
        self._context = builder.new_context()
        self._is_closed = False

    def check_process(self) -> None:
        """Do nothing: there is no thread that a fork could lose."""

    def next(self) -> Batch | None:
        """Return the batch of the next train_step, None at the end; equals what `BatchBuilder.build` gives."""
        if self._is_closed:
            raise StageFailedError("the loader was closed while a batch was awaited. Iterate it again to go on.")
        if self._stop is not None and self._next >= self._stop:
            return None
        batch = self._made(self._next, self._refs(self._next))
        self._next += 1
        return batch

    def at(self, train_step: int, rows: slice | None = None) -> Batch:
        """Return the batch of any train_step, of this rank's rows or others of the global batch; `next` does not move."""
        return self._made(train_step, self._builder.refs_of(train_step, rows))

    def _made(self, train_step: int, refs: BatchRefs | None) -> Batch:
        job = self._builder.open_job(train_step, refs)
        for unit in self._planner.units(job):
            unit.run(self._context)
        batch = self._builder.finish(job)
        if self._device is None:
            return batch
        with self._builder.stats.timed("transfer"):
            return batch.to(self._device)

    def close(self) -> None:
        """Free decoders. Idempotent."""
        self._is_closed = True
        self._context.close()
