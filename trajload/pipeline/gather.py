"""One gather a batch: low-dimensional streams and keys of all rows, copied by address in one compiled call.

A window of state is a few kilobytes, which plain planning, reading and decoding take a hundred times longer to reach
than to copy. Here a batch costs a few calls, whatever its number of rows. It equals what `BatchBuilder.build` gives:
where anything is unusual (a row in quarantine, damage, an error of any kind), the gather steps back for the whole batch.
"""

# Shapes: G rows to write, B rows of the batch, S streams, M columns of `META`, K keys, T steps

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajload.align.rows import stepwise_rows
from trajload.decode import DecodeContext
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.gather_kernel import BAD, READY, gather_streams, readiness, write_keys
from trajload.pipeline.gather_table import GatherTable, Memory, choose_gathered, default_resident_bytes, row_bytes
from trajload.pipeline.job import Job
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.units import QueuedUnits, RowUnit, RowUnits, Unit
from trajload.types import Int64Array

__all__ = ["GatherPart", "GatherUnit", "GatherUnits", "make_gather"]

_KEYS = (
    *("is_first", "is_last", "is_terminal", "step_index", "timestamp_ns"),
    *("episode_index", "window_id", "epoch", "row_is_pad"),
)
_UNIT_BYTES = 8 << 20
"""A batch of more is gathered by several threads."""


@dataclass(frozen=True, slots=True, eq=False)
class _SourceGather:
    """One source's part: what is gathered of its rows, and where it stands."""

    source: SourceRows
    table: GatherTable
    rest: tuple[StreamChoice, ...]
    """Streams that are left to row units."""
    absent: tuple[str, ...]
    """Keys of streams that the source lacks and the kernel cannot blank: text, ragged, with ages."""
    keys: tuple[tuple[str, str, str], ...]
    """Of values, `is_pad` and `is_missing` of each gathered stream."""
    meta_SM: Int64Array
    offset_X: Int64Array
    mapped_bytes: int
    """Of one window, of streams that are mapped."""
    window_bytes: int
    is_zero_pad: bool


def _source_gather(builder: BatchBuilder, source: SourceRows, resident_bytes: int) -> tuple[_SourceGather, int]:
    taken, used_bytes = choose_gathered(source.dataset, source.choices, resident_bytes)
    lacking = [choice.key for choice in source.absent]
    absent = [key for key in lacking if key in builder.layout and not _needs_arrays(builder, key)]
    meta: list[tuple[int, int, int, bool]] = []
    offsets: list[Int64Array] = []
    keys: list[str] = []
    for choice in taken:
        steps_T = choice.places.steps_T
        is_run = bool((np.diff(steps_T) == 1).all())
        meta.append((row_bytes(choice), len(steps_T), sum(len(steps) for steps in offsets), is_run))
        offsets.append(steps_T)
        keys.append(choice.key)
    for key in absent:
        layout = builder.layout[key]
        row = math.prod(layout.row_shape) * np.dtype(layout.dtype).itemsize
        meta.append((row, layout.num_places, 0, False))
        keys.append(key)
    window = source.window
    table = GatherTable(source.dataset, taken, len(absent), window.dilation)
    meta_SM = np.array(meta, dtype=np.int64).reshape(len(meta), 4)
    taken_keys = {choice.key for choice in taken}
    return _SourceGather(
        source=source,
        table=table,
        rest=tuple(choice for choice in source.choices if choice.key not in taken_keys),
        absent=tuple(key for key in lacking if key not in absent),
        keys=tuple((key, f"{key}_is_pad", f"{key}_is_missing") for key in keys),
        meta_SM=meta_SM,
        offset_X=np.concatenate([*offsets, np.zeros(1, np.int64)]).astype(np.int64),
        mapped_bytes=sum(row_bytes(c) * c.places.num_places for c in taken if table.is_mapped(c)),
        window_bytes=int((meta_SM[:, 0] * meta_SM[:, 1]).sum()),
        is_zero_pad=window.pad == "zero",
    ), used_bytes


def _needs_arrays(builder: BatchBuilder, key: str) -> bool:
    return builder.layout[key].is_ragged or builder.layout[key].has_age


def make_gather(builder: BatchBuilder, resident_bytes: int | None = None) -> GatherPart | None:
    """Return the gather of a loader, or None where it cannot be used. Where all streams are left to the rows, it writes keys.

    Args:
        builder: Whose batches are gathered.
        resident_bytes: Budget of streams that must be kept decoded; None decides.
    """
    # Transforms take a window on its way: it is decoded beside the batch, not into it.
    if any(source.transforms is not None for source in builder.sources):
        return None
    budget = default_resident_bytes() if resident_bytes is None else resident_bytes
    parts = []
    for source in builder.sources:
        part, used_bytes = _source_gather(builder, source, budget)
        budget -= used_bytes
        parts.append(part)
    return GatherPart(builder, parts)


class GatherPart:
    """Writes what can be gathered of a batch. Thread-safe.

    Args:
        builder: Whose batches are gathered.
        parts: One for each source.
    """

    def __init__(self, builder: BatchBuilder, parts: Sequence[_SourceGather]) -> None:
        self._builder = builder
        self._parts = tuple(parts)
        self._window_bytes = max((part.window_bytes for part in parts), default=0)
        self._splits: dict[int, list[Int64Array]] = {}

    @property
    def is_whole(self) -> bool:
        """Whether nothing of a batch is left to others."""
        return not any(part.rest or part.absent for part in self._parts)

    @property
    def resident_bytes(self) -> int:
        """Bytes of decoded rows kept now."""
        return sum(part.table.resident_bytes for part in self._parts)

    def splits(self, num_rows: int) -> list[Int64Array]:
        """Return the rows of each unit of a batch that is worth a thread of its own."""
        found = self._splits.get(num_rows)
        if found is None:
            num_units = max(1, min(num_rows, num_rows * self._window_bytes // _UNIT_BYTES))
            found = self._splits[num_rows] = np.array_split(np.arange(num_rows, dtype=np.int64), num_units)
        return found

    def rest(self, source: int) -> tuple[StreamChoice, ...]:
        """Return the streams of a source that others must write; this writes all else, and the keys."""
        return self._parts[source].rest

    def run_all(self, job: Job) -> bool:
        """Write all rows of a batch and return True, or False where the plain path has to."""
        return self.takes(job) and all(self.run(job, row_G) for row_G in self.splits(job.num_rows))

    def takes(self, job: Job) -> bool:
        """Return whether no row is known to be bad."""
        quarantine = self._builder.quarantine
        if self._builder.on_error == "raise" or not len(quarantine):
            return True
        rows = zip(job.window_id_B.tolist(), job.refs.source_B.tolist(), strict=True)
        return not any(quarantine.holds(window_id, job.train_step, source) for window_id, source in rows)

    def is_ready(self, job: Job) -> bool:
        """Return whether all addresses are known, so that a gather is quick."""
        return all(
            readiness(rows, job.episode_B, part.table.memory.address_SE, part.table.memory.clock_E3) == READY
            for row_G in self.splits(job.num_rows)
            for part, rows in self._groups(job, row_G)
        )

    def run(self, job: Job, row_G: Int64Array) -> bool:
        """Write these rows and return True, or False where the plain path has to.

        After False the rows may be half written: whoever builds them writes all of it.
        """
        begin = time.perf_counter()
        if not self.is_whole:
            job.slots.open()
        num_bytes = 0
        try:
            for part, rows in self._groups(job, row_G):
                if not _gather(part, job, rows):
                    return False
                num_bytes += part.mapped_bytes * len(rows)
        except Exception:
            return False  # the plain path meets it too, and says what and where
        num_windows = len(row_G) if self.is_whole else 0
        self._builder.stats.gathered(time.perf_counter() - begin, num_windows, num_bytes)
        return True

    def _groups(self, job: Job, row_G: Int64Array) -> list[tuple[_SourceGather, Int64Array]]:
        """Return the rows of each source."""
        if len(self._parts) == 1:
            return [(self._parts[0], row_G)]
        source_G = job.refs.source_B[row_G]
        groups = [(part, row_G[source_G == number]) for number, part in enumerate(self._parts)]
        return [(part, rows) for part, rows in groups if len(rows)]

    def clear(self) -> None:
        """Let go of mappings and decoded rows."""
        for part in self._parts:
            part.table.clear()


def _gather(part: _SourceGather, job: Job, row_G: Int64Array) -> bool:
    table, slots, window = part.table, job.slots, part.source.window
    memory: Memory = table.memory
    state = readiness(row_G, job.episode_B, memory.address_SE, memory.clock_E3)
    if state != READY and state != BAD:
        table.fill(memory, job.episode_B[row_G])
        state = readiness(row_G, job.episode_B, memory.address_SE, memory.clock_E3)
    if state != READY or not table.is_unchanged(memory, job.episode_B[row_G]):
        return False
    target_S3 = np.array([[slots.address(key) for key in keys] for keys in part.keys], dtype=np.int64)
    target_K = np.array([slots.address(key) for key in _KEYS], dtype=np.int64)
    gather_streams(
        row_G,
        job.episode_B,
        job.start_B,
        table.num_steps_E,
        memory.address_SE,
        part.meta_SM,
        part.offset_X,
        target_S3.reshape(-1, 3),
        part.is_zero_pad,
    )
    num_irregular = write_keys(
        row_G,
        job.episode_B,
        job.start_B,
        job.window_id_B,
        job.refs.epoch_B,
        job.refs.row_is_pad_B,
        table.num_steps_E,
        table.terminated_E,
        memory.clock_E3,
        window.first_offset,
        window.dilation,
        window.num_steps,
        target_K,
    )
    if num_irregular:
        _write_irregular_times(part, job, row_G, memory)
    if len(row_G) == job.num_rows:
        slots.source[:] = [part.source.name] * job.num_rows
    else:
        for b in row_G.tolist():
            slots.source[b] = part.source.name
    for key in part.absent:
        for b in row_G.tolist():
            slots.set_missing(key, b)
    return True


def _write_irregular_times(part: _SourceGather, job: Job, row_G: Int64Array, memory: Memory) -> None:
    """Write the times of rows whose episode has no uniform clock."""
    row_G = row_G[memory.clock_E3[job.episode_B[row_G], 0] == 0]
    episode_G = job.episode_B[row_G]
    step_GT, _ = stepwise_rows(job.start_B[row_G], part.table.num_steps_E[episode_G], part.source.window)
    time_BT = job.slots.memory("timestamp_ns")
    for b, episode, step_T in zip(row_G.tolist(), episode_G.tolist(), step_GT, strict=True):
        time_BT[b] = part.source.dataset.step_times_ns(episode, step_T)


class GatherUnit:
    """Some rows of a batch that is gathered whole; built plainly, one after the other, where the gather steps back."""

    has_reads = False
    num_parts = 1

    def __init__(self, builder: BatchBuilder, part: GatherPart, job: Job, row_G: Int64Array) -> None:
        self._builder = builder
        self._part = part
        self._row_G = row_G
        self.job = job
        self.row = int(row_G[0])

    def read(self) -> None:
        pass

    def run(self, context: DecodeContext) -> None:
        if not self._part.run(self.job, self._row_G):
            for b in self._row_G.tolist():
                self._builder.build_row(self.job, b, context)


class GatherUnits(QueuedUnits):
    """Gathers what can be gathered, and leaves the rest of each row to a unit of its own."""

    def __init__(self, builder: BatchBuilder, part: GatherPart, num_decoders: int = 1, num_readers: int = 1) -> None:
        super().__init__(builder, num_decoders, num_readers)
        self._part = part
        self._plain = RowUnits(builder)

    def units(self, job: Job) -> Sequence[Unit]:
        part = self._part
        if not part.takes(job):
            return self._plain.units(job)
        splits = part.splits(job.num_rows)
        if part.is_whole and (len(splits) > 1 or not part.is_ready(job)):
            if len(splits) > 1:
                job.slots.open()  # before any thread writes: opening sets masks and numbers back
            return [GatherUnit(self._builder, part, job, row_G) for row_G in splits]
        # Quick enough to be done at once; and where rows go on from here, they find their keys in place.
        if not all(part.run(job, row_G) for row_G in splits):
            return self._plain.units(job)
        if part.is_whole:
            return []
        sources = job.refs.source_B.tolist()
        return [RowUnit(self._builder, job, b, part.rest(source)) for b, source in enumerate(sources)]
