"""Batches made by worker processes: what owns the processes, watches them, and puts the batches together."""

# Shapes: B rows of a rank's batch

from __future__ import annotations

import os
import select
import threading
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trajload.collate.slots import BatchSlots
from trajload.errors import ConfigError, StageFailedError, described
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.crew import Crew
from trajload.pipeline.interpreter import InterpreterUse
from trajload.pipeline.job import Job
from trajload.pipeline.seat import Step
from trajload.pipeline.wire import unpack_error

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.refs import WindowRef

__all__ = ["ProcessPool", "ProcessRun"]

_TICK_S = 0.25
_JOIN_TIMEOUT_S = 10.0


class ProcessPool:
    """Worker processes of one loader. They start with the first run and last until `close`, from run to run.

    `close` (idempotent; also when dropped or at interpreter exit) kills and reaps them: a worker owns nothing that
    outlives it. Arguments are those of `Crew`.
    """

    def __init__(
        self, builder: BatchBuilder, setup: bytes, num_workers: int, depth: int, timeout_s: float | None
    ) -> None:
        self._crew = Crew(builder, setup, num_workers, depth, timeout_s)
        thread = threading.Thread(target=_watch, args=(self._crew,), name="trajload-watch", daemon=True)
        # Registered before anything starts: an interrupt in between must not leave anything behind.
        self._finalizer = weakref.finalize(self, _shut_down, self._crew, thread)
        thread.start()

    def start(self) -> None:
        """Start the processes ahead of the first run."""
        with self._crew.changed:
            self._crew.start()

    @property
    def is_ready(self) -> bool:
        """Whether every process has started."""
        return all(seat.process is not None and seat.process.is_ready for seat in self._crew.seats)

    @property
    def is_of_another_process(self) -> bool:
        """Whether this is a forked child of the process that owns them."""
        return os.getpid() != self._crew.pid

    def run(self, train_step: int) -> ProcessRun:
        """Return batches from `train_step` on; an earlier run ends."""
        return ProcessRun(self, self._crew, train_step)

    def figures(self) -> dict[str, Any]:
        """Return what `Loader.stats` tells of the processes."""
        crew = self._crew
        return {
            "worker_pids": [None if seat.process is None else seat.process.pid for seat in crew.seats],
            "worker_respawns": crew.num_respawns,
            "worker_hangs": crew.num_hangs,
        }

    def probe_interpreters(self, wanted: bool) -> None:
        """Have the processes note, from the next run on, what stops their interpreter, or no longer."""
        self._crew.is_probing = wanted

    def interpreter_uses(self) -> dict[int, InterpreterUse]:
        """Return what they noted so far, by number of the worker."""
        return dict(self._crew.interpreter_uses)

    def close(self) -> None:
        """End all processes. Idempotent."""
        self._finalizer()


class ProcessRun:
    """Batches of consecutive train_steps; the counterpart of `Prefetcher`."""

    def __init__(self, pool: ProcessPool, crew: Crew, train_step: int) -> None:
        self._pool = pool  # lives as long as its runs
        self._crew, self._next = crew, train_step
        self._stop = crew.builder.sampler.num_train_steps
        self.check_process()
        with crew.changed:
            self._generation = crew.begin(train_step)
            self._finalizer = weakref.finalize(self, _end_dropped, crew, self._generation)
            self._finalizer.atexit = False
            crew.fill(train_step, self._stop)

    def check_process(self) -> None:
        """Raise ConfigError in a forked child. Takes no lock: one may have been held when the process forked."""
        if os.getpid() != self._crew.pid:
            raise ConfigError(
                "a loader that was iterating does not survive a fork: its worker processes are the parent's. "
                "Build the loader in the child, or start the process by spawn."
            )

    def next(self) -> Batch | None:
        """Return the batch of the next train_step, or None at the end of a finite run.

        Raises:
            TrajloadError: The row with the smallest index that failed, with its location; or a worker process that
                died, or hung, again and again.
        """
        crew = self._crew
        if self._stop is not None and self._next >= self._stop:
            return None
        with crew.changed:
            crew.builder.stats.asked(sum(not step.pending for step in crew.steps.values()))
            while True:
                if crew.closing or not crew.is_running or crew.generation != self._generation:
                    raise StageFailedError(
                        "the loader was closed while a batch was awaited. Iterate it again to go on."
                    )
                step = crew.steps[self._next]
                if not step.pending:
                    break
                if crew.failure is not None:
                    raise crew.failure
                crew.changed.wait()
            for number in sorted(step.parts):
                _take_counts(crew, number, step.parts[number])
            if step.errors:
                raise step.errors[min(step.errors)]
            lease = crew.deliver(step)
            self._next += 1
            crew.fill(self._next, self._stop)
        with crew.builder.stats.timed("collate"):
            return _assemble(crew.builder, step, lease)

    def close(self) -> None:
        """End the run; the processes stay. Idempotent."""
        crew = self._crew
        if self._finalizer.detach() is not None and os.getpid() == crew.pid:
            with crew.changed:
                crew.end(self._generation)


# ---- putting a batch together ----


def _take_counts(crew: Crew, worker: int, part: dict[str, Any]) -> None:
    builder = crew.builder
    builder.stats.merge_taken(part["stats"], worker)
    if part["interpreter"] is not None:
        crew.interpreter_uses[worker] = crew.interpreter_uses.get(worker, InterpreterUse()) + part["interpreter"]
    for window_id, train_step, packed, source in part["quarantine"]:
        builder.quarantine.add(window_id, train_step, unpack_error(packed), source)


def _assemble(builder: BatchBuilder, step: Step, lease: Any) -> Batch:
    """Return the batch over shared memory, with what came by message."""
    parts = [step.parts[number] for number in sorted(step.parts)]
    text = {name: [value for part in parts for value in part["text"][name]] for name in builder.text}
    arrays = step.arena.arrays(lease)
    slots = builder.slot_plan(step.rows.stop - step.rows.start).over(arrays, is_filled=True)
    slots.text = text
    slots.source = [name for part in parts for name in part["source"]]
    slots.pieces = {name: [piece for part in parts for piece in part["pieces"][name]] for name in slots.pieces}
    window_id_B, episode_B, start_B = (np.concatenate([part["ids"][i] for part in parts]) for i in range(3))
    return slots.finish(
        step.train_step, _refs_later(builder, step.train_step, step.rows, window_id_B, episode_B, start_B)
    )


def _refs_later(
    builder: BatchBuilder, train_step: int, rows: slice, window_id_B: Any, episode_B: Any, start_B: Any
) -> Callable[[], tuple[WindowRef, ...]]:
    """Return what makes the references; it holds none of the batch's memory, which would come back the later."""

    def refs() -> tuple[WindowRef, ...]:
        no_slots = cast(BatchSlots, None)
        job = Job(train_step, builder.sampler.refs(train_step, rows), no_slots, window_id_B, episode_B, start_B, 0)
        return builder.window_refs(job)

    return refs


# ---- the watching thread ----


def _watch(crew: Crew) -> None:
    """Take what workers deliver, and notice those that end or hang."""
    while True:
        poll = select.poll()
        with crew.changed:
            if crew.closing:
                return
            seat_of: dict[int, Any] = {}
            for seat in crew.seats:
                if seat.process is not None:
                    seat_of[seat.process.channel.socket.fileno()] = seat
                    if seat.process.pidfd >= 0:
                        seat_of[seat.process.pidfd] = seat
            timeout_ms = _TICK_S * 1000 if crew.watches_time else None
            wake = crew.wake_fd
        for fd in (*seat_of, wake):
            poll.register(fd, select.POLLIN)
        events = {fd for fd, _ in poll.poll(timeout_ms)}
        try:
            with crew.changed:
                if wake in events:
                    os.eventfd_read(wake)
                while crew.to_end:
                    crew.end(crew.to_end.popleft())
                for seat in {id(seat_of[fd]): seat_of[fd] for fd in events if fd != wake}.values():
                    crew.read(seat)
                hanging = crew.hanging()
            for seat, process in hanging:
                stacks = process.stacks()  # takes a while: not under the lock
                with crew.changed:
                    crew.on_hang(seat, process, stacks)
        except Exception as err:
            with crew.changed:
                failed = StageFailedError(f"watching worker processes failed with {described(err)}")
                failed.__cause__ = err
                crew.fail(failed)


def _end_dropped(crew: Crew, generation: int) -> None:
    # No lock: this may run wherever Python drops an object, the watching thread's own included.
    if os.getpid() == crew.pid:
        crew.to_end.append(generation)
        crew.wake()


def _shut_down(crew: Crew, thread: threading.Thread) -> None:
    if os.getpid() != crew.pid:
        return  # a forked child: the processes are the parent's
    with crew.changed:
        crew.closing = True
        crew.changed.notify_all()
        crew.wake()
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT_S)
    with crew.changed:
        for seat in crew.seats:
            if seat.process is not None:
                seat.process.close()
                seat.process = None
        crew.steps.clear()
        crew.close_files()
