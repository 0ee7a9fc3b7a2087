"""Rows of a batch made from decoded blocks: pictures copied, masks and keys looked up, the rest read as ever.

Anything out of the ordinary, a row whose block failed or whose window is known to be bad, goes through
`BatchBuilder.build_row`, which knows the policy for bad windows and words the errors.
"""

# Shapes: R rows written together, T places of one stream

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from trajload.collate.slots import BatchSlots
from trajload.collate.stream_slots import StreamSlots
from trajload.decode import DecodeContext
from trajload.pipeline.block_plan import BlockPlan
from trajload.pipeline.block_pool import Block, State
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.gather import GatherPart
from trajload.pipeline.job import Job
from trajload.pipeline.source_rows import SourceRows

__all__ = ["BlockRows", "pooled_streams"]

_Taken: TypeAlias = tuple[int, BlockPlan, int, int]
"""(row of the batch, its block's plan, place of the window in the block, address of the block's memory)."""


def pooled_streams(source: SourceRows) -> tuple[StreamChoice, ...]:
    """Return the streams of a source that blocks hold: pictures that are taken from one row a place."""
    return tuple(c for c in source.choices if c.spec.is_picture and c.request.align not in ("linear", "interval"))


class BlockRows:
    """Writes rows whose blocks are decoded. Thread-safe."""

    def __init__(self, builder: BatchBuilder, gather: GatherPart | None = None) -> None:
        self._builder = builder
        self.pictures = [pooled_streams(source) for source in builder.sources]
        """Of each source: streams that blocks hold."""
        self._rest = [
            tuple(c for c in source.choices if c not in pooled)
            for source, pooled in zip(builder.sources, self.pictures, strict=True)
        ]
        """Of each source: the other streams."""
        self._ungathered = [
            rest if gather is None else tuple(c for c in rest if c in gather.rest(number))
            for number, rest in enumerate(self._rest)
        ]
        """Of them those that a gather leaves."""

    def write(
        self,
        job: Job,
        rows: list[int],
        blocks: list[Block | None],
        address: int,
        is_gathered: bool,
        context: DecodeContext,
    ) -> list[tuple[int, Exception]]:
        """Write `rows` of the batch; return what went wrong, by row.

        Args:
            job: The batch.
            rows: Places in it.
            blocks: Of each row; None where a row needs none.
            address: Of the pool's memory.
            is_gathered: Whether keys and what can be gathered are in place. Not with transforms.
            context: The calling thread's.
        """
        groups: dict[int, list[_Taken]] = {}
        plain: list[int] = []
        errors: list[tuple[int, Exception]] = []
        for b, block, window_id in zip(rows, blocks, job.window_id_B[rows].tolist(), strict=True):
            if block is not None and block.error is not None:
                errors.append((b, block.error))
            elif block is None or not self._is_good(job, window_id, block):
                plain.append(b)
            else:
                assert block.plan is not None
                taken = (b, block.plan, window_id - block.first_window_id, address + block.offset)
                groups.setdefault(block.key[0], []).append(taken)
        for number, pairs in groups.items():
            source = self._builder.sources[number]
            if source.transforms is None:
                plain += self._write(job, source, number, pairs, is_gathered, context)
                continue
            for pair in pairs:
                try:
                    plain += self._transform(job, source, number, pair, context)
                except Exception as err:
                    errors.append((pair[0], err))
        for b in sorted(plain):
            try:
                self._builder.build_row(job, b, context)
            except Exception as err:
                errors.append((b, err))
        return errors

    def _is_good(self, job: Job, window_id: int, block: Block) -> bool:
        """Return whether a window can be taken from its block."""
        if block.state is not State.READY or block.plan is None:
            return False
        if block.plan.is_bad_W[window_id - block.first_window_id]:
            return False
        return self._builder.on_error == "raise" or not self._builder.quarantine.holds(
            window_id, job.train_step, block.key[0]
        )

    def _write(
        self,
        job: Job,
        source: SourceRows,
        number: int,
        pairs: list[_Taken],
        is_gathered: bool,
        context: DecodeContext,
    ) -> list[int]:
        """Write rows of one source straight into the batch; return those that must be made the plain way."""
        rest = (self._ungathered if is_gathered else self._rest)[number]
        good, plain = self._write_rest(job, source, rest, pairs, context, job.slots, None)
        try:
            with self._builder.stats.timed("collate"):
                self._copy(number, good, job.slots, None, is_all=not rest)
                if not is_gathered:
                    _write_keys(job, source, good)
        except Exception:
            return plain + [taken[0] for taken in good]
        return plain

    def _transform(self, job: Job, source: SourceRows, number: int, taken: _Taken, context: DecodeContext) -> list[int]:
        """Copy one row beside the batch and run its transforms; return it where it must be made the plain way."""
        row = source.empty_row()
        try:
            rest = self._rest[number]
            good, plain = self._write_rest(job, source, rest, [taken], context, row, 0)
            if plain:
                return plain
            with self._builder.stats.timed("collate"):
                self._copy(number, good, row, 0, is_all=not rest)
                _write_keys(job, source, good)
        except Exception:
            return [taken[0]]
        with self._builder.stats.timed("augment"):
            source.transform(job, taken[0], row)
        return []

    def _write_rest(
        self,
        job: Job,
        source: SourceRows,
        rest: tuple[StreamChoice, ...],
        pairs: list[_Taken],
        context: DecodeContext,
        slots: StreamSlots,
        row: int | None,
    ) -> tuple[list[_Taken], list[int]]:
        """Write the streams that blocks do not hold; return the rows where that went well, and the others."""
        if not rest:
            return pairs, []
        good, plain = [], []
        for taken in pairs:
            b = taken[0]
            try:
                work = source.read(
                    int(job.window_id_B[b]), int(job.episode_B[b]), int(job.start_B[b]), job.train_step, rest
                )
                source.decode(work, job.train_step, context, slots, b if row is None else row)
                good.append(taken)
            except Exception:
                plain.append(b)
        return good, plain

    def _copy(self, number: int, pairs: list[_Taken], slots: StreamSlots, row: int | None, *, is_all: bool) -> None:
        """Copy the pictures of rows, and write their masks. `row`: place in `slots`, None for that in the batch."""
        from trajload.pipeline.block_copy import copy_windows

        num_frames = 0
        for k, choice in enumerate(self.pictures[number]):
            key = choice.key
            values = slots.values[key]
            base, window_bytes = values.ctypes.data, values.strides[0]
            to, sources, places = [], [], []
            row_bytes = 0
            for b, plan, w, address in pairs:
                to_row, stream = b if row is None else row, plan.streams[k]
                if stream.track is None:
                    slots.set_missing(key, to_row)
                    continue
                row_bytes = stream.row_bytes
                to.append(base + to_row * window_bytes)
                sources.append(address + stream.offset)
                places.append(stream.place_WT[w])
                if stream.age_ns_WT is not None:
                    slots.age_ns[key][to_row] = stream.age_ns_WT[w]
            if not to:
                continue
            copy_windows(np.array(to, np.int64), np.array(sources, np.int64), np.array(places), row_bytes)
            num_frames += len(to) * choice.places.num_places
            # Zeros are written over what was copied.
            for b, plan, w, _ in pairs:
                to_row, stream = b if row is None else row, plan.streams[k]
                if stream.has_pad_W[w]:
                    slots.is_pad[key][to_row] = stream.is_pad_WT[w]
                    if stream.has_zero_W[w]:
                        slots.zero(key, to_row, stream.is_zero_WT[w])
        counts = {"frames": num_frames, "frames_copied": num_frames, "pool_rows": len(pairs)}
        if is_all:  # else whoever writes the other streams counts windows
            counts["windows"] = len(pairs)
        self._builder.stats.count(**counts)


def _write_keys(job: Job, source: SourceRows, pairs: list[_Taken]) -> None:
    """Write what `SourceRows.write_keys` does, from what was planned with the blocks."""
    slots: BatchSlots = job.slots
    for b, plan, w, _ in pairs:
        keys = plan.keys
        slots.is_first[b] = keys.is_first_WT[w]
        slots.is_last[b] = keys.is_last_WT[w]
        slots.is_terminal[b] = keys.is_terminal_WT[w]
        slots.step_index[b] = keys.step_index_WT[w]
        slots.timestamp_ns[b] = keys.timestamp_ns_WT[w]
        slots.source[b] = source.name
        for choice in source.absent:
            slots.set_missing(choice.key, b)
    rows = [taken[0] for taken in pairs]
    slots.episode_index[rows] = job.episode_B[rows]
    slots.window_id[rows] = job.window_id_B[rows]
    slots.epoch[rows] = job.refs.epoch_B[rows]
    if slots.row_is_pad is not None:
        slots.row_is_pad[rows] = job.refs.row_is_pad_B[rows]
