"""The oracle's work done by threads, ahead of the consumer, delivered in order.

One thread opens batches and lets a `UnitPlanner` cut them into units (a row, for instance), readers fetch the bytes of
units, decoders write them into the batch's memory. At most `depth` train_steps are open at once (planned, read, decoded or waiting),
which bounds memory. Threads only overlap the work: they share no state that could change a value.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from trajload.errors import ConfigError, Locus, StageFailedError, TrajloadError, described
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.depth import DepthControl
from trajload.pipeline.job import Job
from trajload.pipeline.stalled import StallWatch, stacks_of
from trajload.pipeline.units import RowUnits, Unit, UnitPlanner

if TYPE_CHECKING:
    from trajload.collate.batch import Batch

__all__ = ["Prefetcher"]

_JOIN_TIMEOUT_S = 60.0
_STALLED_JOIN_TIMEOUT_S = 1.0
"""For threads that are known to hang."""
_INTERRUPTED_JOIN_TIMEOUT_S = 3.0
"""Where somebody pressed Ctrl-C while waiting for a batch, maybe because it did not come."""


class _Shared:
    """What the threads hold: never the Prefetcher itself, so that dropping it stops them."""

    def __init__(
        self,
        builder: BatchBuilder,
        planner: UnitPlanner,
        start: int,
        stop: int | None,
        depth: DepthControl,
    ) -> None:
        self.builder = builder
        self.planner = planner
        self.pid = os.getpid()
        self.next_plan = start
        self.stop_at = stop
        self.depth = depth
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        """The consumer waits here."""
        self.has_room = threading.Condition(self.lock)
        """The planner waits here for room for so many jobs as it opens together."""
        self.open_jobs: deque[Job] = deque()
        self.closing = False
        self.num_ready = 0
        """Batches that are finished and not yet asked for."""
        self.failure: BaseException | None = None
        """Of a reader or decoder thread itself: rows are lost, nothing more can be delivered."""
        self.plan_failure: BaseException | None = None
        """Of the planner: what it opened before is still delivered."""
        self.progress = object()
        """Another one with everything that a thread gets done."""
        self.join_timeout_s = _JOIN_TIMEOUT_S

    @property
    def num_wanted(self) -> int:
        """How many jobs are to be opened now. The lock is held."""
        num = max(1, min(self.planner.num_together, self.depth.value // 2))
        if self.stop_at is not None:
            num = max(0, min(num, self.stop_at - self.next_plan))
        return num if num <= self.depth.value - len(self.open_jobs) else 0

    def fail(self, err: BaseException) -> None:
        with self.changed:
            self.failure = self.failure or err
            self.changed.notify_all()

    def unit_done(self, unit: Unit, err: BaseException | None) -> None:
        if not unit.jobs:
            return
        with self.changed:
            is_made = False
            for job in unit.jobs:
                if err is not None:
                    job.errors.append((unit.row, err))
                job.remaining -= unit.num_parts
                if job.remaining == 0:
                    is_made = True
                    self.num_ready += 1
                    self.depth.made(time.perf_counter() - job.opened_at)
            if is_made:
                self.changed.notify_all()


def _plan_loop(shared: _Shared) -> None:
    try:
        while True:
            with shared.has_room:
                while not shared.closing and not shared.num_wanted:
                    shared.has_room.wait()
                if shared.closing:
                    return
                train_step, most = shared.next_plan, shared.num_wanted
            opened_at = time.perf_counter()
            jobs = shared.planner.open_jobs(train_step, most)
            shared.progress = object()
            with shared.changed:
                for job in jobs:
                    job.opened_at = opened_at
                    if job.remaining == 0:  # done on the way
                        shared.num_ready += 1
                        shared.depth.made(time.perf_counter() - opened_at)
                shared.open_jobs.extend(jobs)
                shared.next_plan = train_step + len(jobs)
                shared.changed.notify_all()
            for job in jobs:
                shared.planner.begin(job)
            del job, jobs
            shared.planner.look_ahead()
    except BaseException as err:
        with shared.changed:
            shared.plan_failure = err
            shared.changed.notify_all()


def _read_loop(shared: _Shared) -> None:
    try:
        while (unit := shared.planner.next_read()) is not None:
            # What cannot be read fails again in the decoder, where the policy for bad windows lives.
            with suppress(Exception):
                unit.read()
            shared.planner.was_read(unit)
            shared.progress = object()
            del unit
    except BaseException as err:
        shared.fail(err)


def _decode_loop(shared: _Shared) -> None:
    context, stats = shared.builder.new_context(), shared.builder.stats
    try:
        while (unit := shared.planner.next_run()) is not None:
            if shared.failure is not None:
                continue
            try:
                if stats.is_tracing and unit.jobs:
                    stats.at_step(unit.jobs[0].train_step)
                unit.run(context)
                shared.unit_done(unit, None)
            except Exception as err:
                shared.unit_done(unit, err)
            del unit
            shared.progress = object()
    except BaseException as err:
        shared.fail(err)
    context.close()


def _join(threads: list[threading.Thread], deadline: float) -> bool:
    """Wait for threads, all of them together until `deadline`; return whether they have ended."""
    # A thread that an interrupt kept from starting has no ident; the finalizer may run inside a thread.
    others = [t for t in threads if t.ident is not None and t is not threading.current_thread()]
    for thread in others:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in others)


def _shut_down(shared: _Shared, threads: dict[str, list[threading.Thread]]) -> None:
    if os.getpid() != shared.pid:
        return  # a forked child: the threads are the parent's, and a lock may have been held when it forked
    with shared.changed:
        shared.closing = True
        shared.changed.notify_all()
        shared.has_room.notify_all()
    shared.planner.stop()
    deadline = time.monotonic() + shared.join_timeout_s
    have_ended = [_join(threads[role], deadline) for role in ("plan", "read", "decode")]
    with shared.lock:
        shared.open_jobs.clear()
    if all(have_ended):  # else one of them may still write what the planner would give back
        shared.planner.close()


class Prefetcher:
    """Batches of consecutive train_steps, made ahead.

    Owns its threads: `close` (idempotent; also when dropped or at interpreter exit) stops and joins them.

    Args:
        builder: Makes the batches.
        start: First train_step.
        stop: Half-open end of a finite run, None without end.
        depth: Train_steps open at once. It is told how long batches take, and may change.
        num_decoders: Decoder threads, at least 1.
        num_readers: Reader threads, at least 1.
        planner: Cuts batches into units; None for one unit a row. Closed with the prefetcher.
        timeout_s: A wait for a batch in which no thread gets anything done for so long ends the run; None: never.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        *,
        start: int,
        stop: int | None,
        depth: DepthControl,
        num_decoders: int,
        num_readers: int = 1,
        planner: UnitPlanner | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._timeout_s = timeout_s
        self._shared = _Shared(builder, planner or RowUnits(builder, num_decoders), start, stop, depth)
        self._next = start
        depth.begin()
        roles: dict[str, tuple[Any, int]] = {
            "plan": (_plan_loop, 1),
            "read": (_read_loop, num_readers),
            "decode": (_decode_loop, num_decoders),
        }
        threads = {
            role: [
                threading.Thread(target=target, args=(self._shared,), name=f"trajload-{role}-{i}", daemon=True)
                for i in range(number)
            ]
            for role, (target, number) in roles.items()
        }
        self._threads = [thread for role in threads.values() for thread in role]
        # Registered before the first start: an interrupt in between must not leave threads behind.
        self._finalizer = weakref.finalize(self, _shut_down, self._shared, threads)
        for role in ("decode", "read", "plan"):
            for thread in threads[role]:
                thread.start()

    @property
    def thread_ids(self) -> list[int]:
        """The system's numbers of its threads."""
        return [thread.native_id for thread in self._threads if thread.native_id is not None]

    def check_process(self) -> None:
        """Raise ConfigError in a forked child. Takes no lock: one may have been held when the process forked."""
        if os.getpid() != self._shared.pid:
            raise ConfigError(
                "a loader that was iterating does not survive a fork: its threads stayed in the parent. "
                "Build the loader in the child, or start the process by spawn."
            )

    def next(self) -> Batch | None:
        """Return the batch of the next train_step, or None at the end of a finite run.

        Raises:
            TrajloadError: The row with the smallest index that failed, with its location.
        """
        job = self.next_job()
        return None if job is None else self._shared.builder.finish(job)

    def next_job(self) -> Job | None:
        """Return the next train_step with every row built but not finished; otherwise as `next`."""
        shared = self._shared
        if shared.stop_at is not None and self._next >= shared.stop_at:
            return None
        asked_at = time.perf_counter()
        with shared.changed:
            shared.builder.stats.asked(shared.num_ready)
            watch = StallWatch(self._timeout_s, shared.progress)
            while not (shared.open_jobs and shared.open_jobs[0].remaining == 0):
                if shared.closing:
                    raise StageFailedError(
                        "the loader was closed while a batch was awaited. Iterate it again to go on."
                    )
                failure = shared.failure or (None if shared.open_jobs else shared.plan_failure)
                if failure is not None:
                    raise _as_trajload(failure) from failure
                if watch.is_stalled(shared.progress):
                    shared.join_timeout_s = _STALLED_JOIN_TIMEOUT_S
                    raise self._stalled()
                try:
                    watch.wait(shared.changed)
                except KeyboardInterrupt:
                    shared.join_timeout_s = _INTERRUPTED_JOIN_TIMEOUT_S
                    raise
            job = shared.open_jobs.popleft()
            shared.num_ready -= 1
            now = time.perf_counter()
            shared.depth.taken(now, now - asked_at)
            if shared.num_wanted:
                shared.has_room.notify_all()
        if job.errors:
            _, err = min(job.errors, key=lambda pair: pair[0])
            raise err
        self._next = job.train_step + 1
        return job

    def _stalled(self) -> StageFailedError:
        names = " + ".join(source.name for source in self._shared.builder.sources)
        return StageFailedError(
            f"the pipeline's threads made no progress for {self._timeout_s} s while a batch was awaited. Raise worker_timeout_s if "
            "a window may take so long; with workers='processes:N' one that hangs is replaced. Where they were:\n"
            f"{stacks_of(self._threads)}",
            at=Locus(dataset=names, train_step=self._next),
        )

    def close(self) -> None:
        """Stop all threads and join them. Idempotent."""
        self._finalizer()


def _as_trajload(err: BaseException) -> TrajloadError:
    if isinstance(err, TrajloadError):
        return type(err)(err.message, at=err.at)  # a fresh one: the original is its cause, with the thread's traceback
    return StageFailedError(
        f"a pipeline thread died of {described(err)}. This is a bug in trajload or in a source; please report it."
    )
