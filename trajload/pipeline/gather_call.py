"""One call of the gather: what a source's rows consist of, the rows of some batches, and the kernel over both."""

# Shapes: G rows to write, K batches, B rows of each, N rows of all, S streams, M columns of `META`, X keys or offsets, T steps

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from trajload.align.rows import stepwise_rows
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.config import StreamChoice
from trajload.pipeline.gather_kernel import BAD, UNREADY, gather_batches
from trajload.pipeline.gather_table import Gathered, GatherTable, Memory, row_bytes
from trajload.pipeline.job import Job
from trajload.pipeline.source_rows import SourceRows
from trajload.types import BoolArray, Int64Array, NDArray

__all__ = ["GatheredRows", "SourceGather", "gather_rows", "source_gather"]

_KEYS = (
    *("is_first", "is_last", "is_terminal", "step_index", "timestamp_ns"),
    *("episode_index", "window_id", "epoch", "row_is_pad"),
)
_ENDS = ("", "_is_pad", "_is_missing")


@dataclass(frozen=True, slots=True, eq=False)
class SourceGather:
    """One source's part: what is gathered of its rows, and where it stands."""

    source: SourceRows
    table: GatherTable
    rest: tuple[StreamChoice, ...]
    """Streams that are left to row units."""
    absent: tuple[str, ...]
    """Keys of streams that the source lacks and the kernel cannot blank: text, ragged, with ages."""
    meta_SM: Int64Array
    offset_X: Int64Array
    window_4: Int64Array
    """First offset, dilation and steps of the window, and whether padding is zeros."""
    place_S3: Int64Array
    """Of values, `is_pad` and `is_missing` of each gathered stream, among the keys of a batch."""
    place_9: Int64Array
    """Of `_KEYS`; -1 where batches have no such key."""
    gathered: Gathered
    mapped_bytes: int
    """Of one window, of streams that are mapped. Those of others are counted when they are read."""
    window_bytes: int
    written: frozenset[str]
    """Keys of a batch of which all is written."""


def source_gather(builder: BatchBuilder, source: SourceRows, gathered: Gathered) -> SourceGather:
    """Return the part of one source in the gather of a loader."""
    taken = gathered.choices
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
    table = GatherTable(source.dataset, gathered, len(absent), window.dilation, source.fetch)
    place_of = {key: place for place, key in enumerate(builder.slot_plan(builder.num_rows).shapes)}
    meta_SM = np.array(meta, dtype=np.int64).reshape(len(meta), 4)
    taken_keys = {choice.key for choice in taken}
    return SourceGather(
        source=source,
        table=table,
        rest=tuple(choice for choice in source.choices if choice.key not in taken_keys),
        absent=tuple(key for key in lacking if key not in absent),
        meta_SM=meta_SM,
        offset_X=np.concatenate([*offsets, np.zeros(1, np.int64)]).astype(np.int64),
        window_4=np.array(
            [window.first_offset, window.dilation, window.num_steps, window.pad == "zero"], dtype=np.int64
        ),
        place_S3=np.array([[place_of[f"{key}{end}"] for end in _ENDS] for key in keys], dtype=np.int64).reshape(-1, 3),
        place_9=np.array([place_of.get(key, -1) for key in _KEYS], dtype=np.int64),
        gathered=gathered,
        mapped_bytes=sum(row_bytes(c) * c.places.num_places for c in taken if table.is_mapped(c)),
        window_bytes=int((meta_SM[:, 0] * meta_SM[:, 1]).sum()),
        written=frozenset((*_KEYS, *(f"{key}{end}" for key in keys for end in _ENDS))),
    )


def _needs_arrays(builder: BatchBuilder, key: str) -> bool:
    return builder.layout[key].is_ragged or builder.layout[key].has_age


@dataclass(frozen=True, slots=True, eq=False)
class GatheredRows:
    """Rows of several batches of one size: row `b` of batch `k` has the number `k * num_rows + b`."""

    jobs: Sequence[Job]
    num_rows: int
    """Of each batch."""
    row_G: Int64Array
    """Which are to be written, rising."""
    episode_N: Int64Array
    start_N: Int64Array
    window_id_N: Int64Array
    epoch_N: Int64Array
    row_is_pad_N: BoolArray
    address_KX: Int64Array
    """Where the memory of each key of each batch begins."""

    @classmethod
    def of(cls, jobs: Sequence[Job], row_G: Int64Array) -> GatheredRows:
        return cls(
            jobs,
            jobs[0].num_rows,
            row_G,
            _joined([job.episode_B for job in jobs]),
            _joined([job.start_B for job in jobs]),
            _joined([job.window_id_B for job in jobs]),
            _joined([job.refs.epoch_B for job in jobs]),
            _joined([job.refs.row_is_pad_B for job in jobs]),
            np.array([job.slots.addresses() for job in jobs], dtype=np.int64),
        )

    def by_source(self, num_sources: int) -> list[Int64Array]:
        """Return the rows to write of each source."""
        if num_sources == 1:
            return [self.row_G]
        source_G = _joined([job.refs.source_B for job in self.jobs])[self.row_G]
        return [self.row_G[source_G == number] for number in range(num_sources)]


def _joined(parts: list[NDArray]) -> NDArray:
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def gather_rows(part: SourceGather, rows: GatheredRows, row_G: Int64Array, *, may_fill: bool) -> bool:
    """Write rows of one source and return True; or False where the plain path has to, or what is not known may not be looked up."""
    table, memory = part.table, part.table.memory
    num_irregular = _gather(part, rows, row_G, memory)
    if num_irregular == UNREADY and may_fill:
        table.fill(memory, rows.episode_N[row_G])
        num_irregular = _gather(part, rows, row_G, memory)
    if num_irregular < 0:
        return False
    if num_irregular:
        _write_irregular_times(part, rows, row_G, memory)
    if len(row_G) == len(rows.episode_N):
        for job in rows.jobs:
            job.slots.source = [part.source.name] * rows.num_rows
    else:
        for n in row_G.tolist():
            rows.jobs[n // rows.num_rows].slots.source[n % rows.num_rows] = part.source.name
    for key in part.absent:
        for n in row_G.tolist():
            rows.jobs[n // rows.num_rows].slots.set_missing(key, n % rows.num_rows)
    return True


def _gather(part: SourceGather, rows: GatheredRows, row_G: Int64Array, memory: Memory) -> int:
    table = part.table
    if memory.files and not table.is_unchanged(memory, rows.episode_N[row_G]):
        return BAD
    return gather_batches(
        row_G,
        rows.num_rows,
        rows.episode_N,
        rows.start_N,
        rows.window_id_N,
        rows.epoch_N,
        rows.row_is_pad_N,
        table.num_steps_E,
        table.terminated_E,
        memory.address_SE,
        memory.clock_E3,
        part.meta_SM,
        part.offset_X,
        part.window_4,
        part.place_S3,
        part.place_9,
        rows.address_KX,
    )


def _write_irregular_times(part: SourceGather, rows: GatheredRows, row_G: Int64Array, memory: Memory) -> None:
    """Write the times of rows whose episode has no uniform clock."""
    row_G = row_G[memory.clock_E3[rows.episode_N[row_G], 0] == 0]
    episode_G = rows.episode_N[row_G]
    step_GT, _ = stepwise_rows(rows.start_N[row_G], part.table.num_steps_E[episode_G], part.source.window)
    time_KBT = [job.slots.memory("timestamp_ns") for job in rows.jobs]
    for n, episode, step_T in zip(row_G.tolist(), episode_G.tolist(), step_GT, strict=True):
        time_KBT[n // rows.num_rows][n % rows.num_rows] = part.source.dataset.step_times_ns(episode, step_T)
