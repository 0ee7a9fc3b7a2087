"""What runs in a worker process: the ordinary pipeline over a part of each batch's rows, written to shared memory.

Started by `worker_process` as a program of its own, not forked and not by re-importing the user's script. Loads no
torch. It ends when the loader's process ends, however that ends, even while a transform holds the interpreter.
"""

from __future__ import annotations

import faulthandler
import fcntl
import logging
import os
import select
import signal
import socket
import sys
import threading
import time
from functools import partial
from typing import Any, NoReturn

from trajload.collate.slots import BatchSlots
from trajload.errors import StageFailedError, TrajloadError
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.engine import Engine
from trajload.pipeline.interpreter import InterpreterWatch
from trajload.pipeline.job import Job
from trajload.pipeline.quarantine import Quarantine
from trajload.pipeline.shared_batch import arena_of, map_file
from trajload.pipeline.wire import Channel, pack_error, unpickled_file
from trajload.sampling.assign import rank_rows
from trajload.types import NDArray
from trajload.world import World

__all__ = ["STACK_SIGNAL", "main", "part_of"]

STACK_SIGNAL = signal.SIGUSR1
"""Makes a worker write the stacks of all its threads to its trace file."""
_ORPHAN_POLL_S = 0.5


def main(control_fd: int, setup_fd: int, life_fd: int, trace_fd: int, number: int, num_workers: int) -> NoReturn:
    """Serve the loader at the other end of `control_fd` until it ends."""
    _die_with_parent(life_fd)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the loader's to handle
    trace = os.fdopen(trace_fd, "wb", buffering=0)
    faulthandler.enable(trace)
    faulthandler.register(STACK_SIGNAL, trace, all_threads=True)
    # Windows found bad are told to the loader, which logs them once.
    logging.getLogger("trajload").addHandler(logging.NullHandler())
    logging.getLogger("trajload").propagate = False
    channel = Channel(socket.socket(fileno=control_fd))
    try:
        engine = unpickled_file(setup_fd)
        os.close(setup_fd)
        worker = _Worker(channel, engine, number, num_workers)
        channel.send(("ready",))
        worker.serve()
    except EOFError:
        _leave(0)
    except BaseException as err:
        try:
            channel.send(("failed", pack_error(err)))
        finally:
            _leave(1)


def _leave(code: int) -> NoReturn:
    # At once: threads may be in the middle of a window, and nothing here outlives the process.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _die_with_parent(life_fd: int) -> None:
    """Arrange for this process to be killed when the last copy of the other end of the pipe `life_fd` closes.

    By the kernel, so that it works while other code holds the interpreter. PR_SET_PDEATHSIG would kill the worker when
    the *thread* that started it ends. The thread here is for systems that lack such signals, and for a pipe that a
    forked child of the loader's process keeps open.
    """
    parent = os.getppid()
    try:
        fcntl.fcntl(life_fd, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(life_fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(life_fd, fcntl.F_SETFL, fcntl.fcntl(life_fd, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK)
    except (OSError, AttributeError):
        pass

    def watch() -> None:
        poll = select.poll()
        poll.register(life_fd, select.POLLIN)
        while not poll.poll(_ORPHAN_POLL_S * 1000) and os.getppid() == parent:
            pass
        os._exit(1)

    threading.Thread(target=watch, name="trajload-life", daemon=True).start()


def part_of(rows: slice, number: int, num_parts: int) -> slice:
    """Return the contiguous part of a rank's rows that worker `number` makes; empty where there are fewer rows."""
    num_rows = rows.stop - rows.start
    if num_rows < num_parts:
        first = min(number, num_rows)
        return slice(rows.start + first, rows.start + min(number + 1, num_rows))
    own = rank_rows(num_rows, World(rank=number, world_size=num_parts))
    return slice(rows.start + own.start, rows.start + own.stop)


class _News(Quarantine):
    """The list of bad windows, which also remembers what is new to the loader."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        self.found: list[tuple[int, int, Any, int]] = []

    def add(self, window_id: int, train_step: int, err: TrajloadError, source: int = 0) -> None:
        super().add(window_id, train_step, err, source)
        news = (window_id, train_step, pack_error(err), source)
        with self._lock:
            self.found.append(news)

    def take(self) -> list[tuple[int, int, Any, int]]:
        """Return what was found since the last call."""
        with self._lock:
            found, self.found = self.found, []
        return found


class _Memory:
    """Where the batches of one run are written; the planner waits here until the loader has sent the memory."""

    def __init__(self, builder: BatchBuilder) -> None:
        self._builder = builder
        self._changed = threading.Condition()
        self._given: dict[int, NDArray] = {}
        self._closed = False

    def give(self, train_step: int, memory: NDArray) -> None:
        with self._changed:
            self._given[train_step] = memory
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._given.clear()
            self._changed.notify_all()

    def slots(self, train_step: int) -> BatchSlots:
        with self._changed:
            while train_step not in self._given and not self._closed:
                self._changed.wait()
            if self._closed:
                raise StageFailedError("the run was ended while memory was awaited.")
            memory = self._given.pop(train_step)
        builder = self._builder
        rows, part = builder.rank_rows_at(train_step), builder.rows_at(train_step)
        own = slice(part.start - rows.start, part.stop - rows.start)
        builder.first_row = own.start
        arrays = arena_of(builder, rows.stop - rows.start).arrays(memory, own)
        # Masks and numbers begin anew: the memory may hold what a killed worker left.
        return builder.slot_plan(own.stop - own.start).over(arrays)


class _Run:
    """Batches from one train_step on, until it is ended."""

    def __init__(self, worker: _Worker, generation: int, train_step: int) -> None:
        self.generation, self._step, self._worker = generation, train_step, worker
        engine = worker.engine
        self.memory = _Memory(engine.builder)
        engine.builder.memory = self.memory.slots
        self._closing = False
        self._prefetcher = engine.start_threads(train_step)
        self._thread = threading.Thread(target=self._send_all, name="trajload-deliver", daemon=True)
        self._thread.start()

    def _send_all(self) -> None:
        channel = self._worker.channel
        try:
            while (job := self._prefetcher.next_job()) is not None:
                if self._closing:
                    return
                channel.send(("done", self.generation, job.train_step, self._worker.told(job)))
                self._step = job.train_step + 1
                del job
        except OSError:
            _leave(0)  # the loader is gone
        except BaseException as err:
            if not self._closing:
                told = self._worker.counted()
                channel.send(("error", self.generation, self._step, pack_error(err), told))

    def end(self) -> None:
        """Stop; when this returns no thread writes the memory of the run."""
        self._closing = True
        self.memory.close()
        self._prefetcher.close()
        self._thread.join()


class _Worker:
    def __init__(self, channel: Channel, engine: Engine, number: int, num_workers: int) -> None:
        self.channel, self.engine, self.number, self.num_workers = channel, engine, number, num_workers
        builder = engine.builder
        engine.take_part(partial(part_of, number=number, num_parts=num_workers), num_workers)
        self.news = _News(engine.quarantine.most)
        engine.quarantine = builder.quarantine = self.news
        engine.stats.reset()
        self._buffers: dict[int, NDArray] = {}
        self._run: _Run | None = None
        self._watch: InterpreterWatch | None = None

    def serve(self) -> NoReturn:
        """Do what the loader says until it is gone."""
        while True:
            message, fds = self.channel.receive()
            kind, *rest = message
            if kind == "begin":
                self._end()
                generation, train_step, quarantine, is_tracing, is_probing = rest
                if is_tracing != self.engine.stats.is_tracing:
                    (self.engine.stats.start_trace if is_tracing else self.engine.stats.stop_trace)()
                self._watch_interpreter(is_probing)
                self.news.load(quarantine)
                self._run = _Run(self, generation, train_step)
            elif kind == "memory":
                generation, train_step, buffer, num_bytes = rest
                if fds:
                    self._buffers[buffer] = map_file(fds[0], num_bytes)
                    os.close(fds[0])
                if self._run is not None and self._run.generation == generation:
                    self._run.memory.give(train_step, self._buffers[buffer])
            elif kind == "forget":
                for buffer in rest[0]:
                    self._buffers.pop(buffer, None)
            elif kind == "end":
                self._end()
                self.channel.send(("ended", rest[0]))

    def _end(self) -> None:
        if self._run is not None:
            self._run.end()
            self._run = None

    def _watch_interpreter(self, wanted: bool) -> None:
        if wanted and self._watch is None:
            self._watch = InterpreterWatch().__enter__()
        elif not wanted and self._watch is not None:
            self._watch.__exit__()
            self._watch = None

    def told(self, job: Job) -> dict[str, Any]:
        """Return what of a finished part does not stand in shared memory."""
        slots = job.slots
        return {
            "text": slots.text,
            "source": slots.source,
            "pieces": slots.pieces,
            "ids": (job.window_id_B, job.episode_B, job.start_B),
            **self.counted(),
        }

    def counted(self) -> dict[str, Any]:
        """Return what was counted and found since the last call."""
        use = None if self._watch is None else self._watch.take()
        counts = {"stats": self.engine.stats.take(), "quarantine": self.news.take()}
        return {**counts, "interpreter": use, "at": time.monotonic()}
