"""Rows of a batch made from decoded blocks: pictures copied, masks and keys looked up, the rest read as ever.

Anything out of the ordinary, a row whose block failed or whose window is known to be bad, goes through
`BatchBuilder.build_row`, which knows the policy for bad windows and words the errors.
"""

# Shapes: R rows written together, T places of one stream

from __future__ import annotations

import numpy as np

from trajload.collate.slots import BatchSlots
from trajload.collate.stream_slots import StreamSlots
from trajload.decode import DecodeContext
from trajload.pipeline.block_plan import BlockPlan
from trajload.pipeline.block_pool import Block, State
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.job import Job
from trajload.pipeline.source_rows import SourceRows

__all__ = ["BlockRows", "pooled_streams"]


def pooled_streams(source: SourceRows) -> tuple[StreamChoice, ...]:
    """Return the streams of a source that blocks hold: pictures that are taken from one row a place."""
    return tuple(c for c in source.choices if c.spec.is_picture and c.request.align not in ("linear", "interval"))


class BlockRows:
    """Writes rows whose blocks are decoded. Thread-safe."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder
        self.pictures = [pooled_streams(source) for source in builder.sources]
        """Of each source: streams that blocks hold."""
        self._rest = [
            tuple(c for c in source.choices if c not in pooled)
            for source, pooled in zip(builder.sources, self.pictures, strict=True)
        ]

    def write(
        self, job: Job, rows: list[int], blocks: list[Block | None], address: int, context: DecodeContext
    ) -> list[tuple[int, Exception]]:
        """Write `rows` of the batch; return what went wrong, by row.

        Args:
            job: The batch.
            rows: Places in it.
            blocks: Of each row; None where a row needs none.
            address: Of the pool's memory.
            context: The calling thread's.
        """
        groups: dict[int, list[tuple[int, Block]]] = {}
        plain: list[int] = []
        errors: list[tuple[int, Exception]] = []
        for b, block in zip(rows, blocks, strict=True):
            if block is not None and block.error is not None:
                errors.append((b, block.error))
            elif block is None or not self._is_good(job, b, block):
                plain.append(b)
            else:
                groups.setdefault(block.key[0], []).append((b, block))
        for number, pairs in groups.items():
            source = self._builder.sources[number]
            if source.transforms is None:
                plain += self._write(job, source, number, pairs, address, context)
                continue
            for pair in pairs:
                try:
                    plain += self._transform(job, source, number, pair, address, context)
                except Exception as err:
                    errors.append((pair[0], err))
        for b in sorted(plain):
            try:
                self._builder.build_row(job, b, context)
            except Exception as err:
                errors.append((b, err))
        return errors

    def _is_good(self, job: Job, b: int, block: Block) -> bool:
        """Return whether row `b` can be taken from its block."""
        window_id = int(job.window_id_B[b])
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
        pairs: list[tuple[int, Block]],
        address: int,
        context: DecodeContext,
    ) -> list[int]:
        """Write rows of one source straight into the batch; return those that must be made the plain way."""
        good, plain = self._write_rest(job, source, number, pairs, context, job.slots, None)
        try:
            with self._builder.stats.timed("collate"):
                self._copy(job, number, good, address, job.slots, None)
                for b, block in good:
                    _write_keys(job, source, b, block)
        except Exception:
            return plain + [b for b, _ in good]
        return plain

    def _transform(
        self,
        job: Job,
        source: SourceRows,
        number: int,
        pair: tuple[int, Block],
        address: int,
        context: DecodeContext,
    ) -> list[int]:
        """Copy one row beside the batch and run its transforms; return it where it must be made the plain way."""
        row = source.empty_row()
        try:
            good, plain = self._write_rest(job, source, number, [pair], context, row, 0)
            if plain:
                return plain
            with self._builder.stats.timed("collate"):
                self._copy(job, number, good, address, row, 0)
                _write_keys(job, source, *pair)
        except Exception:
            return [pair[0]]
        with self._builder.stats.timed("augment"):
            source.transform(job, pair[0], row)
        return []

    def _write_rest(
        self,
        job: Job,
        source: SourceRows,
        number: int,
        pairs: list[tuple[int, Block]],
        context: DecodeContext,
        slots: StreamSlots,
        row: int | None,
    ) -> tuple[list[tuple[int, Block]], list[int]]:
        """Write the streams that blocks do not hold; return the rows where that went well, and the others."""
        rest = self._rest[number]
        if not rest:
            self._builder.stats.count(windows=len(pairs))
            return pairs, []
        good, plain = [], []
        for pair in pairs:
            b = pair[0]
            try:
                work = source.read(
                    int(job.window_id_B[b]), int(job.episode_B[b]), int(job.start_B[b]), job.train_step, rest
                )
                with self._builder.stats.timed("decode"):
                    source.decode(work, job.train_step, context, slots, b if row is None else row)
                good.append(pair)
            except Exception:
                plain.append(b)
        return good, plain

    def _copy(
        self,
        job: Job,
        number: int,
        pairs: list[tuple[int, Block]],
        address: int,
        slots: StreamSlots,
        row: int | None,
    ) -> None:
        """Copy the pictures of rows, and write their masks. `row`: place in `slots`, None for that in the batch."""
        from trajload.pipeline.block_copy import copy_windows

        num_frames = 0
        for k, choice in enumerate(self.pictures[number]):
            key = choice.key
            values = slots.values[key]
            base, window_bytes = values.ctypes.data, values.strides[0]
            to, sources, places, masked = [], [], [], []
            row_bytes = 0
            for b, block in pairs:
                plan, at = block.plan, b if row is None else row
                assert plan is not None
                stream, w = plan.streams[k], int(job.window_id_B[b]) - block.first_window_id
                if stream.track is None:
                    slots.set_missing(key, at)
                    continue
                row_bytes = stream.row_bytes
                to.append(base + at * window_bytes)
                sources.append(address + block.offset + stream.offset)
                places.append(stream.place_WT[w])
                if stream.has_pad_W[w]:
                    masked.append((at, stream, w))
                if stream.age_ns_WT is not None:
                    slots.age_ns[key][at] = stream.age_ns_WT[w]
            if not to:
                continue
            copy_windows(np.array(to, np.int64), np.array(sources, np.int64), np.stack(places), row_bytes)
            num_frames += len(to) * choice.places.num_places
            for at, stream, w in masked:
                slots.is_pad[key][at] = stream.is_pad_WT[w]
                if stream.has_zero_W[w]:
                    slots.zero(key, at, stream.is_zero_WT[w])
        self._builder.stats.count(frames=num_frames, frames_copied=num_frames, pool_rows=len(pairs))


def _write_keys(job: Job, source: SourceRows, b: int, block: Block) -> None:
    """Write what `SourceRows.write_keys` does, from what was planned with the block."""
    slots: BatchSlots = job.slots
    plan: BlockPlan | None = block.plan
    assert plan is not None
    keys, w = plan.keys, int(job.window_id_B[b]) - block.first_window_id
    slots.is_first[b] = keys.is_first_WT[w]
    slots.is_last[b] = keys.is_last_WT[w]
    slots.is_terminal[b] = keys.is_terminal_WT[w]
    slots.step_index[b] = keys.step_index_WT[w]
    slots.timestamp_ns[b] = keys.timestamp_ns_WT[w]
    slots.episode_index[b] = job.episode_B[b]
    slots.window_id[b] = job.window_id_B[b]
    slots.epoch[b] = job.refs.epoch_B[b]
    slots.source[b] = source.name
    if slots.row_is_pad is not None:
        slots.row_is_pad[b] = job.refs.row_is_pad_B[b]
    for key in source.absent:
        slots.set_missing(key, b)
