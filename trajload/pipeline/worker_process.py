"""One worker process as the loader sees it: how it is started, spoken to, asked for its stacks, and how it ended."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from trajload.pipeline.shared_batch import anonymous_file
from trajload.pipeline.wire import Channel, FrameReader
from trajload.pipeline.worker_main import STACK_SIGNAL

__all__ = ["WorkerProcess"]

# The path comes by argument, so that whatever the loader's process can import, the worker can, too.
_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from trajload.pipeline.worker_main import main; main(*map(int, sys.argv[2:]))"
)
_STACK_WAIT_S = (2.0, 10.0)
"""For its stacks: from a process that is stopped, or stuck in the kernel; from one that only needs a CPU to write them."""
_END_WAIT_S = 10.0
"""A process closes its files before it has ended, and needs a CPU for both."""
_MAX_STACK_CHARS = 8000


class WorkerProcess:
    """A process that runs `worker_main`. Owned by one thread at a time, but for `send`.

    Args:
        number: Which part of each batch it makes.
        num_workers: How many parts there are.
        setup_fd: Anonymous file that holds the pickled engine.
    """

    def __init__(self, number: int, num_workers: int, setup_fd: int) -> None:
        self.number = number
        own, theirs = socket.socketpair()
        life, self._life = os.pipe()
        self._trace = -1
        try:
            self._trace = anonymous_file("trajload-trace", 0)
            fds = (theirs.fileno(), setup_fd, life, self._trace)
            self._process = subprocess.Popen(
                [
                    _interpreter(),
                    "-c",
                    _PROGRAM,
                    json.dumps([p for p in sys.path if isinstance(p, str)]),
                    *map(str, (*fds, number, num_workers)),
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=fds,
                start_new_session=True,  # Ctrl-C in a terminal reaches the loader alone
            )
        except BaseException:
            own.close()
            os.close(self._life)
            if self._trace >= 0:
                os.close(self._trace)
            raise
        finally:
            theirs.close()
            os.close(life)
        self.pid = self._process.pid
        self.channel = Channel(own)
        self.reader = FrameReader(own)
        self.pidfd = _pidfd(self.pid)
        """Readable once the process has ended; -1 where the system has none. The socket tells, too, but for a process
        whose own children still hold it."""
        self.is_ready = False
        """It has said so."""

    def send(self, message: Any, fds: Sequence[int] = ()) -> None:
        """Send a message; to a process that has ended it is lost, which its end will tell."""
        with suppress(OSError):
            self.channel.send(message, fds)

    @property
    def has_ended(self) -> bool:
        """Whether the process is known to have ended."""
        if self.pidfd < 0:
            return False
        poll = select.poll()
        poll.register(self.pidfd, select.POLLIN)
        return bool(poll.poll(0))

    def stacks(self) -> str:
        """Return the stacks of its threads, as far as they are to be had: also while it holds its interpreter."""
        if not self.is_ready:
            return "(it had not finished starting)"
        before = os.fstat(self._trace).st_size
        try:
            os.kill(self.pid, STACK_SIGNAL)
        except ProcessLookupError:
            return "(it has ended)"
        begin, size, num_level = time.monotonic(), before, 0
        while num_level < 5 and time.monotonic() - begin < _STACK_WAIT_S[0 if _takes_no_signal(self.pid) else 1]:
            time.sleep(0.05)
            now = os.fstat(self._trace).st_size
            num_level = num_level + 1 if now == size > before else 0  # written, and no longer growing
            size = now
        return self._traced(before) or "(none: it does not take signals)"

    def _traced(self, since: int = 0) -> str:
        text = os.pread(self._trace, os.fstat(self._trace).st_size - since, since).decode(errors="replace").strip()
        return text if len(text) <= _MAX_STACK_CHARS else text[:_MAX_STACK_CHARS] + "…"

    def kill(self) -> None:
        """End the process, and wait until it has ended."""
        self._process.kill()
        self._process.wait()

    def describe_end(self) -> str:
        """Return how a process that has ended, or is about to, did so. Before `close`."""
        try:
            code = self._process.wait(_END_WAIT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            return "it closed its connection"
        if code >= 0:
            return f"exit code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if -code == signal.SIGKILL:
            return f"{name}, as the kernel does when memory runs out (see dmesg and the job's memory limit)"
        stacks = self._traced()
        return f"{name}; its stacks:\n{stacks}" if stacks else name

    def close(self) -> None:
        """Kill it if it runs, reap it, and close every descriptor. Idempotent."""
        if self._life < 0:
            return
        self.kill()
        self.channel.close()
        for fd in (self._life, self._trace, self.pidfd):
            if fd >= 0:
                os.close(fd)
        self._life = self._trace = self.pidfd = -1


def _takes_no_signal(pid: int) -> bool:
    """Whether a process is stopped, sleeps where no signal wakes it, or has ended; False where the system does not tell."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stat:
            return stat.read().rpartition(")")[2].split()[0] in "DTtZX"
    except (OSError, IndexError):
        return False


def _interpreter() -> str:
    from multiprocessing.spawn import get_executable  # honours multiprocessing.set_executable of embedding programs

    return os.fsdecode(get_executable() or sys.executable)


def _pidfd(pid: int) -> int:
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return -1
