"""One writer at a time: a lock that dies with its process, and a number that tells later writers from earlier ones."""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from trajload.checkpoint.disk import NO_LOCKS, Disk
from trajload.errors import WriterConflictError

__all__ = ["Lock", "WriterLock"]


class Lock(Protocol):
    """The right to write a store, as one process has it."""

    epoch: int
    """Of this writer; later ones have greater numbers."""
    works: bool
    """Whether another process cannot be writing while this one holds it."""

    @property
    def held(self) -> bool:
        """Whether this process has it."""
        ...

    def acquire(self, known_epoch: Callable[[], int]) -> bool:
        """Take it, or count one up; True where it was not held before."""
        ...

    def release(self) -> None:
        """Count one down."""
        ...

    def newest_epoch(self) -> int:
        """Return the epoch of the last that took it, ours or a later one."""
        ...

    def holder_seen(self) -> str | None:
        """Return who has it, for messages, without taking it or writing anything; None where nobody has."""
        ...


class WriterLock:
    """The exclusive right to change a store, counted so that one process may take it again while it has it.

    Held through `flock`, which a kill releases. A forked child does not have it: children that outlive a killed
    trainer must not keep the next one out, so the descriptor is closed in them.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._fd: int | None = None
        self._depth = 0
        self._pid = os.getpid()
        self._guard = threading.RLock()
        self._registered = False
        self.works = True
        """False where the file system has no locks; then two writers are kept apart by agreement only."""
        self.epoch = 0

    @property
    def held(self) -> bool:
        """Whether this process has the store."""
        return self._depth > 0 and self._pid == os.getpid()

    def acquire(self, known_epoch: Callable[[], int]) -> bool:
        """Take the lock, or count one up; True where it was not held before.

        Args:
            known_epoch: Returns the highest epoch that the store's records tell of; asked once the lock is held.

        Raises:
            WriterConflictError: Another process, or another object of this one, has it; the message says which.
            OSError: The lock file cannot be opened.
        """
        with self._guard:
            self._forget_if_forked()
            if self._depth:
                self._depth += 1
                return False
            fd = self._disk.open_lock(self._path)
            try:
                self._take(fd)
                self.epoch = 1 + max(known_epoch(), self._noted(fd).get("epoch", 0))
                holder = {"pid": os.getpid(), "host": os.uname().nodename, "since": time.time(), "epoch": self.epoch}
                # It informs only, and a full disk must not keep anybody from making room.
                with contextlib.suppress(OSError):
                    self._disk.note(fd, self._path, json.dumps(holder).encode() + b"\n")
            except BaseException:
                os.close(fd)
                raise
            self._fd, self._depth = fd, 1
            self._close_in_children()
            return True

    def _take(self, fd: int) -> None:
        try:
            got = self._disk.flock(fd, self._path)
        except OSError as err:
            if err.errno not in NO_LOCKS:
                raise
            self.works, got = False, True
        if not got:
            raise WriterConflictError(
                f"the store {str(self._path.parent)!r} is being written by {self._holder(fd)}. "
                "End that process, or save to another folder; two runs must not share a store."
            )

    def holder_seen(self) -> str | None:
        """Return who has it, by what the lock's file says; None where nobody has, or whoever had it has let go or died.

        A process elsewhere, or one whose open files may not be seen, counts as having it.
        """
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        try:
            noted, found = self._noted(fd), os.fstat(fd)
        finally:
            os.close(fd)
        if noted and noted["host"] == os.uname().nodename and not _has_open(noted["pid"], found):
            return None
        return _described(noted)

    def _holder(self, fd: int) -> str:
        return _described(self._noted(fd))

    def _noted(self, fd: int) -> dict[str, Any]:
        """Return what the holder wrote, {} where that is torn: it informs only."""
        try:
            noted = json.loads(os.pread(fd, 4096, 0).partition(b"\n")[0])
            return {
                "pid": int(noted["pid"]),
                "host": str(noted["host"]),
                "since": min(max(float(noted["since"]), 0.0), 1e11),
                "epoch": min(max(int(noted["epoch"]), 0), 1 << 62),
            }
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return {}

    def newest_epoch(self) -> int:
        """Return our own epoch: while the file is locked there is no later one."""
        return self.epoch

    def release(self) -> None:
        """Count one down; the last one lets others in."""
        with self._guard:
            if not self.held:
                return
            self._depth -= 1
            if not self._depth and self._fd is not None:
                os.close(self._fd)
                self._fd = None

    def _forget_if_forked(self) -> None:
        if self._pid != os.getpid():
            self._pid, self._fd, self._depth = os.getpid(), None, 0

    def _close_in_children(self) -> None:
        if self._registered:
            return
        self._registered = True
        lock = weakref.ref(self)

        def in_child() -> None:
            mine = lock()
            if mine is not None and mine._fd is not None:
                os.close(mine._fd)
                mine._fd, mine._depth = None, 0
                mine._guard = threading.RLock()

        os.register_at_fork(after_in_child=in_child)


def _described(noted: dict[str, Any]) -> str:
    """Return who a lock's file names."""
    if not noted:
        return "another process, which has not said who it is"
    since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(noted["since"]))
    here = ", which is this process" if noted["pid"] == os.getpid() and noted["host"] == os.uname().nodename else ""
    return f"process {noted['pid']} on {noted['host']} since {since}{here}"


def _has_open(pid: int, file: os.stat_result) -> bool:
    """Return whether a process of this machine lives and has a file open; True where that cannot be seen."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    try:
        names = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return True
    for name in names:
        with contextlib.suppress(OSError):
            if os.path.samestat(os.stat(f"/proc/{pid}/fd/{name}"), file):
                return True
    return False
