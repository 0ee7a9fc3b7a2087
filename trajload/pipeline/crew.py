"""Worker processes of a loader and their work: handed out in order, taken back, given again when a process dies.

Each makes a contiguous part of the rows of every batch. Which windows those are is a function of the train_step, so
what is sent is (train_step, memory), never a list of work, and a replacement continues with exactly the same windows.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from typing import Any

from trajload.errors import Locus, StageFailedError, TrajloadError
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.interpreter import InterpreterUse
from trajload.pipeline.seat import Seat, Step, once_more
from trajload.pipeline.shared_batch import SharedBuffer, SharedPool, anonymous_file, arena_of
from trajload.pipeline.wire import unpack_error
from trajload.pipeline.worker_process import WorkerProcess

__all__ = ["Crew"]

MAX_DEATHS = 3
"""Of a worker at one train_step, before the run stops: what kills a process each time will do so again."""
MAX_HANGS = 2
MAX_START_DEATHS = 10
"""Before a worker has said that it is ready: by a signal, which comes from elsewhere."""
MIN_START_S = 120.0
"""A worker may take so long to start, however small the limit for its work."""
_SPARE_BATCHES = 2
_LEASED_BATCHES = 32
_MAX_SENT = 64
"""Train_steps handed to a worker at once: what is sent must fit into the socket's buffer, read or not."""

_log = logging.getLogger("trajload")


class Crew:
    """What the consumer and the watching thread of a `ProcessPool` share. Every method is called under `changed`.

    Args:
        builder: Of the loader: which rows a batch has, and where windows found bad are listed.
        setup: The pickled engine.
        num_workers: Processes, at most as many as there are rows.
        depth: Train_steps in the works at once.
        timeout_s: How long a worker may work on its oldest train_step; None for as long as it likes.
    """

    def __init__(
        self, builder: BatchBuilder, setup: bytes, num_workers: int, depth: int, timeout_s: float | None
    ) -> None:
        self.builder, self.depth, self.timeout_s = builder, depth, timeout_s
        self.pid = os.getpid()
        self.changed = threading.Condition()
        self.seats = [Seat(i) for i in range(num_workers)]
        self.steps: dict[int, Step] = {}
        """In the works, by rising train_step."""
        self.generation = 0
        self.is_running = False
        self.closing = False
        self.failure: TrajloadError | None = None
        self.num_respawns = 0
        self.num_hangs = 0
        self.is_probing = False
        """Whether workers note, from the next run on, what stops their interpreter."""
        self.interpreter_uses: dict[int, InterpreterUse] = {}
        """What they noted, by number of the worker."""
        self.to_end: deque[int] = deque()
        """Generations whose run was dropped; the watching thread ends them."""
        self._next_open = 0
        self._buffers = SharedPool(max_free=depth + _SPARE_BATCHES, max_leased=_LEASED_BATCHES)
        self._writers: dict[int, int] = {}
        """Of buffers of ended generations: how many processes may still write them."""
        self._setup_fd = anonymous_file("trajload-setup", 0)
        self._wake = -1
        try:
            os.pwrite(self._setup_fd, setup, 0)
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        except BaseException:
            self.close_files()
            raise

    # ---- for the consumer; under `changed` ----

    def begin(self, train_step: int) -> int:
        """Start a run, and the processes that are not there; return its generation."""
        self.end(self.generation)
        self.generation += 1
        self.failure, self.is_running, self._next_open = None, True, train_step
        for seat in self.seats:
            seat.deaths = seat.hangs = (-1, 0)
            seat.start_deaths, seat.careful_until, seat.has_failed = 0, -1, False
        self.start()
        for seat in self.seats:
            self._tell_begin(seat, train_step)
        self.wake()
        return self.generation

    def start(self) -> None:
        """Start the processes that are not there."""
        for seat in self.seats:
            if seat.process is None:
                self._spawn(seat)
        self.wake()

    def fill(self, next_step: int, stop: int | None) -> None:
        """Open batches until `depth` are in the works, and hand them out."""
        limit = next_step + self.depth if stop is None else min(next_step + self.depth, stop)
        while self._next_open < limit:
            step = self._next_open
            rows = self.builder.rows_at(step)
            arena = arena_of(self.builder, rows.stop - rows.start)
            buffer = self._buffers.take(arena.num_bytes)
            self.steps[step] = Step(step, rows, arena, buffer, {seat.number for seat in self.seats})
            self._next_open += 1
        for seat in self.seats:
            self._hand_out(seat)
        self._forget(self._buffers.discard_spare())

    def deliver(self, step: Step) -> Any:
        """Return the memory of a finished batch to be given away: a view of it anywhere keeps it from being reused."""
        del self.steps[step.train_step]
        return self._buffers.lease(step.buffer)

    def end(self, generation: int) -> None:
        """End a run. Its memory is used again once no process can write it any more."""
        if not self.is_running or generation != self.generation:
            return
        self.is_running = False
        steps, self.steps = self.steps, {}
        for step in steps.values():
            self._writers[step.buffer.number] = 0
        for seat in self.seats:
            mine = [step.buffer for train_step, step in steps.items() if train_step in seat.sent]
            seat.sent.clear()
            if seat.process is not None:
                for buffer in mine:
                    self._writers[buffer.number] += 1
                seat.ending.append((generation, mine))
                seat.since = time.monotonic()
                seat.process.send(("end", generation))
        for step in steps.values():
            self._give_back_unwritten(step.buffer)
        self.wake()
        self.changed.notify_all()

    def wake(self) -> None:
        """Make the watching thread look again."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)

    # ---- processes ----

    def _spawn(self, seat: Seat) -> None:
        try:
            seat.process = WorkerProcess(seat.number, len(self.seats), self._setup_fd)
        except OSError as err:
            raise StageFailedError(
                f"worker process {seat.number} cannot be started: {err}. Use fewer processes, or workers='threads'."
            ) from err
        seat.since = time.monotonic()

    def _tell_begin(self, seat: Seat, train_step: int) -> None:
        assert seat.process is not None
        notes = (self.builder.stats.is_tracing, self.is_probing)
        seat.process.send(("begin", self.generation, train_step, self.builder.quarantine.to_json(), *notes))

    def _hand_out(self, seat: Seat) -> None:
        if seat.process is None or seat.has_failed:
            return
        for train_step, step in self.steps.items():
            if seat.number not in step.pending:
                continue
            if train_step not in seat.sent:
                if len(seat.sent) >= _MAX_SENT:
                    return
                if not seat.sent:
                    seat.since = time.monotonic()
                    self.wake()  # there is work to be watched
                buffer = step.buffer
                fds = () if buffer.number in seat.known else (buffer.fd,)
                seat.process.send(("memory", self.generation, train_step, buffer.number, buffer.num_bytes), fds)
                seat.known.add(buffer.number)
                seat.sent.add(train_step)
            if train_step <= seat.careful_until:
                return

    def _forget(self, buffers: list[int]) -> None:
        for seat in self.seats:
            mine = seat.known.intersection(buffers)
            if mine and seat.process is not None:
                seat.known -= mine
                seat.process.send(("forget", sorted(mine)))

    def _unwritten(self, buffers: list[SharedBuffer]) -> None:
        """One process fewer may write these buffers of an ended run."""
        for buffer in buffers:
            self._writers[buffer.number] -= 1
            self._give_back_unwritten(buffer)

    def _give_back_unwritten(self, buffer: SharedBuffer) -> None:
        if self._writers.get(buffer.number) == 0:
            del self._writers[buffer.number]
            self._buffers.give_back(buffer)

    # ---- for the watching thread; under `changed` ----

    def read(self, seat: Seat) -> None:
        """Take the messages of a process, and notice its end."""
        process = seat.process
        if process is None:
            return
        for message in process.reader.messages():
            seat.since = time.monotonic()
            self._on_message(seat, process, message)
        if process.reader.ended or process.has_ended:
            # What arrived between the last look and the end counts, too.
            for message in process.reader.messages():
                self._on_message(seat, process, message)
            if seat.process is process:
                self._on_end(seat, process)

    def _on_message(self, seat: Seat, process: WorkerProcess, message: tuple[Any, ...]) -> None:
        kind, *rest = message
        if kind == "ready":
            process.is_ready, seat.start_deaths = True, 0
        elif kind == "failed":
            self.fail(unpack_error(rest[0]))
        elif kind == "ended":
            while seat.ending and seat.ending[0][0] <= rest[0]:
                self._unwritten(seat.ending.pop(0)[1])
        elif rest[0] == self.generation and self.is_running:
            self._on_part(seat, kind, rest[1], rest[2:])

    def _on_part(self, seat: Seat, kind: str, train_step: int, rest: list[Any]) -> None:
        step = self.steps[train_step]
        step.pending.discard(seat.number)
        seat.sent.discard(train_step)
        if kind == "done":
            step.parts[seat.number] = rest[0]
        else:
            step.errors[seat.number] = unpack_error(rest[0])
            step.parts[seat.number] = rest[1]
            seat.has_failed = True
        self._hand_out(seat)
        if not step.pending:
            self.changed.notify_all()

    def _on_end(self, seat: Seat, process: WorkerProcess) -> None:
        how = process.describe_end()
        self._leave_seat(seat, process)
        if not self.is_running or self.failure is not None:
            return  # started again by the next run
        oldest = self._oldest(seat)
        step = self._next_open if oldest is None else oldest
        if not process.is_ready:
            seat.start_deaths += 1
            if seat.start_deaths >= MAX_START_DEATHS or how.startswith("exit code"):
                self.fail(
                    StageFailedError(
                        f"worker process {seat.number} (pid {process.pid}) ended while it started{_times(seat.start_deaths)}: {how}. "
                        "Its own words, if any, are on stderr. Use workers='threads' to find out more."
                    )
                )
                return
        else:
            seat.deaths = once_more(seat.deaths, step)
            if seat.deaths[1] >= MAX_DEATHS:
                self.fail(
                    StageFailedError(
                        f"worker process {seat.number} (pid {process.pid}) died {MAX_DEATHS} times in a row: {how}. "
                        "Use workers='threads', or fewer or smaller batches (prefetch) if memory is short.",
                        at=Locus(dataset=" + ".join(s.name for s in self.builder.sources), train_step=step),
                    )
                )
                return
            _log.warning("worker process %d (pid %d) died: %s. Started again.", seat.number, process.pid, how)
        self._replace(seat, step)

    def _leave_seat(self, seat: Seat, process: WorkerProcess) -> None:
        """Nothing of `process` runs any more: what it had is to be done again, what it wrote may be used again."""
        process.close()
        seat.process = None
        seat.careful_until = max(seat.sent, default=seat.careful_until)
        seat.sent.clear()
        seat.known.clear()
        for _, buffers in seat.ending:
            self._unwritten(buffers)
        seat.ending.clear()

    def _replace(self, seat: Seat, train_step: int) -> None:
        try:
            self._spawn(seat)
        except TrajloadError as err:
            self.fail(err)
            return
        self.num_respawns += 1
        if not seat.has_failed:
            self._tell_begin(seat, train_step)
            self._hand_out(seat)

    def _oldest(self, seat: Seat) -> int | None:
        """Return the first train_step that waits for this worker."""
        return next((s for s, step in self.steps.items() if seat.number in step.pending), None)

    def fail(self, err: TrajloadError) -> None:
        """Make the run raise `err`."""
        self.failure = self.failure or err
        self.changed.notify_all()

    # ---- hanging workers ----

    def hanging(self) -> list[tuple[Seat, WorkerProcess]]:
        """Return the workers that have work and showed no sign of progress for `timeout_s`."""
        if self.timeout_s is None or self.failure is not None:
            return []
        now, out = time.monotonic(), []
        for seat in self.seats:
            process = seat.process
            if process is not None and self._is_busy(seat):
                # Loading a program from a slow disk is no hang, however short a batch may take.
                limit_s = self.timeout_s if process.is_ready else max(self.timeout_s, MIN_START_S)
                if now - seat.since > limit_s:
                    out.append((seat, process))
        return out

    def _is_busy(self, seat: Seat) -> bool:
        return bool(seat.ending) or (bool(seat.sent) and not seat.has_failed)

    @property
    def watches_time(self) -> bool:
        """Whether some worker has work, and a limit for it."""
        return self.timeout_s is not None and any(s.process is not None and self._is_busy(s) for s in self.seats)

    def on_hang(self, seat: Seat, process: WorkerProcess, stacks: str) -> None:
        """Kill a hanging worker and start it again; the second time at one train_step stops the run."""
        if seat.process is process:
            self.read(seat)  # what it said while nobody listened: this process may have been stopped, too
        if (seat, process) not in self.hanging():
            return  # it has ended, or gone on
        self.num_hangs += 1
        oldest, is_ending = self._oldest(seat), bool(seat.ending)
        step = self._next_open if oldest is None else oldest
        what = f"worker process {seat.number} (pid {process.pid}) made no progress for {self.timeout_s} s"
        _log.warning("%s: killed. Its stacks:\n%s", what, stacks)
        self._leave_seat(seat, process)
        if not is_ending:  # else it hung in a run that is over
            seat.hangs = once_more(seat.hangs, step)
            if seat.hangs[1] >= MAX_HANGS:
                self.fail(
                    StageFailedError(
                        f"{what}, {MAX_HANGS} times at the same train_step. Raise worker_timeout_s if a batch may take so long. "
                        f"Where it was:\n{stacks}\n",
                        at=Locus(dataset=" + ".join(s.name for s in self.builder.sources), train_step=step),
                    )
                )
        if self.is_running and self.failure is None:
            self._replace(seat, step)

    # ---- end ----

    def close_files(self) -> None:
        """Close everything but processes. Idempotent."""
        self._buffers.close()
        for fd in (self._setup_fd, self._wake):
            if fd >= 0:
                os.close(fd)
        self._setup_fd = self._wake = -1

    @property
    def wake_fd(self) -> int:
        return self._wake


def _times(number: int) -> str:
    return f", {number} times in a row" if number > 1 else ""
