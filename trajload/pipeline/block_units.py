"""Batches cut into blocks to be decoded and rows to be copied from them: the planner behind `order="interleaved"`.

The thread that opens batches looks `horizon` train_steps ahead of them and tells the pool which block each row takes.
Decoders then ask for work: rows of the earliest batch whose blocks are there, or the block that is needed first, and
with time and room to spare the blocks of batches to come. No thread waits inside a piece of work, and the row that is
needed first always finds room, since all that is used later may be evicted for it: so there is no deadlock, however
small the pool.
"""

# Shapes: B rows of this rank's batch

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from trajload.decode import DecodeContext
from trajload.pipeline.ahead import UsesAhead
from trajload.pipeline.block_plan import BlockPiece, plan_block
from trajload.pipeline.block_pool import Block, BlockPool, State
from trajload.pipeline.block_rows import BlockRows
from trajload.pipeline.block_work import CopyingUnit, DecodingUnit, ReadingUnit
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.gather import GatherPart
from trajload.pipeline.job import Job
from trajload.pipeline.pool_budget import MAX_AHEAD_STEPS, PoolBudget
from trajload.pipeline.read_times import ReadTimes
from trajload.pipeline.units import Unit
from trajload.sampling.sampler import BatchRefs

__all__ = ["BlockUnits"]

_MIN_HORIZON, _MAX_HORIZON = MAX_AHEAD_STEPS, 512
_HORIZON_LANES = 16
"""A horizon is so many times as long as a row has lanes: where all lanes begin at once, at the start of an epoch, that work
is then spread so thin that it is hardly felt."""
_MAX_PACE = 2.0
"""Blocks ahead decoded before the rows of a train_step, as a multiple of what a train_step uses up."""
_AHEAD_PER_JOB = 8
"""Train_steps looked ahead for each one opened, so that the first batch does not wait for all of the horizon."""
_PATIENCE = 8
"""Horizons."""


@dataclass(slots=True, eq=False)
class _Steps:
    """A train_step that was looked at: its windows and their blocks."""

    refs: BatchRefs
    blocks: list[Block | None]
    used_up: float
    """Blocks that it uses up: a window of 16 is a sixteenth."""


@dataclass(slots=True, eq=False)
class _Open:
    """A batch whose rows are not all handed out."""

    job: Job
    blocks: list[Block | None]
    is_gathered: bool
    """Whether keys and low-dimensional streams are in place."""
    ready: list[int] = field(default_factory=list)
    """Rows whose block is there, or that need none."""
    num_left: int = 0
    """Rows not handed out."""


class BlockUnits:
    """A `UnitPlanner`; see the module.

    Args:
        builder: Makes rows the plain way, where a block cannot be used.
        budget: Of the pool.
        gather: Writes keys and low-dimensional streams of a whole batch at once; None where nothing can be gathered.
        start: First train_step.
        stop: Half-open end of a finite run, None without end.
        num_decoders: Decoder threads.
        num_readers: Reader threads.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        budget: PoolBudget,
        gather: GatherPart | None = None,
        *,
        start: int,
        stop: int | None,
        num_decoders: int,
        num_readers: int = 1,
    ) -> None:
        self._builder = builder
        self._uses = UsesAhead(builder)
        self._gather = gather
        self._rows = BlockRows(builder, gather)
        self._is_gathered = False
        self._budget = budget
        self._num_rows = builder.sampler.global_batch_size
        """Positions of a train_step: no rank has more rows."""
        self._horizon = min(max(_MIN_HORIZON, _HORIZON_LANES * budget.lanes_per_row), _MAX_HORIZON)
        self._span = budget.ahead(num_decoders)[0] * self._num_rows
        """Positions over which the work on a block is spread ahead of its first use."""
        self._owed = 0.0
        """Blocks ahead to be decoded before more rows are copied."""
        self._owed_per_row = 0.0
        patience = _PATIENCE * self._horizon * self._num_rows
        self._pool = BlockPool(budget.num_bytes, builder.stats, patience, self._evicted)
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        """There may be work for decoders."""
        self._to_read = threading.Condition(lock)
        """There may be work for readers."""
        self._times = ReadTimes()
        self._is_stopped = False
        self._stop_at = stop
        self._seen: dict[int, _Steps] = {}
        self._next_seen = start
        self._ahead = 0
        self._open: dict[int, _Open] = {}
        self._opened = start * self._num_rows
        """First position beyond the batches that are open."""
        self._chunk = max(1, -(-builder.num_rows // num_decoders))
        self._max_read = max(2 * num_decoders, num_readers, 4)

    # ---- planning: the thread that opens batches ----

    @property
    def num_together(self) -> int:
        return 1

    def open_jobs(self, train_step: int, most: int) -> list[Job]:
        return [self._open_job(train_step)]

    def _open_job(self, train_step: int) -> Job:
        self._look_at(train_step)
        job = self._builder.open_job(train_step, self._seen[train_step].refs)
        job.remaining = job.num_rows
        # At once, so that whoever writes a row finds its keys in place.
        self._is_gathered = self._gather is not None and job.num_rows > 0 and self._gather.run_all(job)
        if not self._is_gathered:
            job.slots.open()
        return job

    def begin(self, job: Job) -> None:
        with self._changed:
            steps = self._seen.pop(job.train_step)
            blocks = steps.blocks
            ready = [b for b, block in enumerate(blocks) if block is None or block.state in (State.READY, State.FAILED)]
            if blocks:
                self._open[job.train_step] = _Open(job, blocks, self._is_gathered, ready, len(blocks))
            self._opened = (job.train_step + 1) * self._num_rows
            if self._ahead >= self._horizon:
                self._find_owed(steps)
            self._to_read.notify()
            self._changed.notify_all()

    def look_ahead(self) -> None:
        self._ahead = min(self._ahead + _AHEAD_PER_JOB, self._horizon)
        last = self._opened // self._num_rows + self._ahead
        if self._stop_at is not None:
            last = min(last, self._stop_at)
        while self._next_seen < last and not self._is_stopped:
            self._look_at(self._next_seen)

    def _find_owed(self, steps: _Steps) -> None:
        """Work out how many blocks are to be decoded before more rows are copied, and how many more with each row.

        Of each block ahead a part is due that grows from 0, `span` before its first use, to 1: as if it were cut into thin
        slices, decoded at equal distances. So many begin at a time as may, what is due grows evenly, and it is done
        half a span early on average. It is tied to rows, not to train_steps, as several of those may be open.
        """
        span, rows = self._span, max(len(steps.blocks), 1)
        per_row = self._num_rows / rows
        last = self._opened + span - per_row * sum(opened.num_left for opened in self._open.values())
        due, num_due = 0.0, 0
        for block in self._pool.coming.values():
            if block.uses:
                use = block.uses[0]
                if use <= last - span:
                    due += block.part_left
                elif use < last:
                    num_due += 1
                    due += (last - use) / span - 1.0 + block.part_left
                elif block.state is not State.NEW:
                    due += block.part_left - 1.0
        self._owed = min(due, _MAX_PACE * steps.used_up)
        self._owed_per_row = num_due * per_row / span

    def _look_at(self, train_step: int) -> None:
        """Note which blocks the rows of a train_step take. Nothing is noted twice."""
        if train_step < self._next_seen:
            return
        with self._builder.stats.timed("plan"):
            refs, rows = self._uses(train_step)
        blocks: list[Block | None] = []
        position = train_step * self._num_rows
        with self._changed:
            num_wanted = len(self._pool.wanted)
            for b, (source, epoch, lane, number, episode, first, size, is_last) in enumerate(rows):
                if number < 0 or not self._rows.pictures[source]:
                    blocks.append(None)
                    continue
                key = (source, epoch, lane, number)
                blocks.append(self._pool.use(key, episode, first, size, position + b, is_last=is_last))
            used_up = sum(1.0 / block.num_windows for block in blocks if block is not None)
            self._seen[train_step] = _Steps(refs, blocks, used_up)
            self._next_seen = train_step + 1
            if len(self._pool.wanted) > num_wanted:
                self._to_read.notify()
                self._changed.notify_all()

    # ---- which work is next ----

    def next_read(self) -> Unit | None:
        with self._changed:
            while not self._is_stopped:
                block = None if self._times.are_quick else self._pool.first_wanted(State.NEW)
                if block is not None and (self._pool.num_read < self._max_read or block.next_use < self._opened):
                    return self._hand_out(block, State.READING)
                self._to_read.wait()
            return None

    def was_read(self, unit: Unit) -> None:
        pass

    def next_run(self) -> Unit | None:
        with self._changed:
            while not self._is_stopped:
                unit = self._pick()
                if unit is not None:
                    return unit
                self._changed.wait()
            return None

    def _pick(self) -> Unit | None:
        """Return what a decoder should do now: what the earliest train_step needs, rows first, and its share of work ahead."""
        rows = self._first_ready()
        block = self._first_wanted()
        if block is not None and (
            rows is None or block.next_use < rows.job.train_step * self._num_rows or self._owed > 0.0
        ):
            unit = self._pick_block(block)
            if unit is not None:
                return unit
            rows = self._first_ready()  # looking for room may have evicted what was ready
        return None if rows is None else self._pick_rows(rows)

    def _first_ready(self) -> _Open | None:
        return next((opened for opened in self._open.values() if opened.ready), None)

    def _first_wanted(self) -> Block | None:
        """Return the block with work left that is used first."""
        pool = self._pool
        found = [*pool.begun, pool.first_wanted(State.NEW), pool.first_wanted(State.READ)]
        return min((block for block in found if block is not None), key=lambda block: block.next_use, default=None)

    def _pick_block(self, block: Block) -> Unit | None:
        is_urgent = block.next_use < self._opened
        if block.state is State.NEW and (is_urgent or self._times.are_quick):
            return self._hand_out(block, State.READING)
        found: Block | None = block
        if block.state is State.NEW:
            found = self._pool.first_wanted(State.READ)  # the reader is on its way to the other
        if found is not None and found.state is State.READ:
            has_room = self._pool.make_room(found, self._opened, is_urgent=is_urgent)
            found = found if has_room else None
        if found is None:
            # What is begun must end, whatever waits for it: the room it takes may be what is missing.
            if not self._pool.begun:
                return None
            found = self._pool.begun[0]
        block = found
        left = block.part_left
        unit = self._hand_out(block, State.DECODING)
        self._owed -= left - block.part_left
        return unit

    def _hand_out(self, block: Block, state: State) -> Unit:
        if block.state is not state:
            self._pool.begin(block, state)
        if state is State.READING:
            return ReadingUnit(self, block)
        self._to_read.notify()  # there may be room for more bytes
        return DecodingUnit(self, block, self._pool.take_pieces(block))

    def _pick_rows(self, opened: _Open) -> Unit:
        rows = opened.ready[: self._chunk]
        del opened.ready[: self._chunk]
        opened.num_left -= len(rows)
        self._owed += self._owed_per_row * len(rows)
        if not opened.num_left:
            del self._open[opened.job.train_step]
        blocks = [opened.blocks[b] for b in rows]
        for block in blocks:
            if block is not None:
                block.pins += 1
        return CopyingUnit(self, opened.job, rows, blocks, opened.is_gathered)

    # ---- the work ----

    def read_block(self, block: Block) -> None:
        """Plan a block and fetch its bytes."""
        try:
            source, devices = self._builder.sources[block.key[0]], self._builder.devices
            with self._builder.stats.timed("plan"):
                block.plan = plan_block(
                    source,
                    self._rows.pictures[block.key[0]],
                    block.episode,
                    block.first_window_id,
                    block.num_windows,
                    is_cut=devices is None or not devices.status.is_available,
                )
            if needed := self._pool.too_large(block):
                block.error = self._budget.too_small(needed) if self._budget.is_asked else None
                state = State.FAILED
            else:
                begin = time.perf_counter()
                block.plan.read()
                self._times.note(time.perf_counter() - begin)
                state = State.READ
        except Exception:
            state = State.FAILED
        self._end(block, state)

    def decode_block(self, block: Block, pieces: list[BlockPiece], context: DecodeContext) -> None:
        """Decode pieces of a block into the memory found for it."""
        plan, has_failed = block.plan, False
        assert plan is not None
        try:
            plan.read()  # again, where it was evicted
            memory = self._pool.arena.memory[block.offset : block.offset + plan.num_bytes]
            with self._builder.stats.timed("decode"):
                num_decoded = plan.decode(memory, context, pieces)
            self._builder.stats.count(frames_decoded=num_decoded)
        except Exception:
            has_failed = True
        with self._changed:
            state = self._pool.pieces_done(block, has_failed=has_failed)
            if state is not None:
                self._end(block, state)

    def _end(self, block: Block, state: State) -> None:
        with self._changed:
            self._pool.end(block, state)
            if state is State.FAILED:
                self._builder.stats.count(blocks_failed=1)
            if state in (State.READY, State.FAILED):
                for opened, b in self._open_rows(block):
                    opened.ready.append(b)
            self._changed.notify_all()

    def _evicted(self, block: Block) -> None:
        for opened, b in self._open_rows(block):
            opened.ready.remove(b)

    def _open_rows(self, block: Block) -> Iterator[tuple[_Open, int]]:
        """Yield the rows of open batches that wait for a block; those handed out have pinned it."""
        for position in block.uses:
            train_step, b = divmod(position, self._num_rows)
            opened = self._open.get(train_step)
            if opened is not None:
                yield opened, b

    def write_rows(
        self, job: Job, rows: list[int], blocks: list[Block | None], is_gathered: bool, context: DecodeContext
    ) -> list[tuple[int, Exception]]:
        """Write rows of a batch whose blocks are there; return what went wrong, by row."""
        try:
            return self._rows.write(job, rows, blocks, self._pool.arena.address, is_gathered, context)
        finally:
            with self._changed:
                for b, block in zip(rows, blocks, strict=True):
                    if block is not None:
                        block.pins -= 1
                        self._pool.used(block, job.train_step * self._num_rows + b)
                self._changed.notify_all()

    # ---- end ----

    def stop(self) -> None:
        with self._changed:
            self._is_stopped = True
            self._to_read.notify_all()
            self._changed.notify_all()

    def close(self) -> None:
        self._seen.clear()
        self._open.clear()
        self._pool.close()
