"""Writers of an object store, told apart by a number: who opens it later has a higher one, and the earlier is refused.

No lock is possible there. A writer that has been succeeded finds out before it commits, and what it might have written
meanwhile does not count for readers, since numbers of records never fall.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable

from trajload.checkpoint.medium import Medium
from trajload.checkpoint.record import decode_record, encode_record
from trajload.errors import CheckpointError, WriterConflictError

__all__ = ["EpochLock"]

_NAME = re.compile(r"\d{10,19}")


class EpochLock:
    """The right to write an object store until somebody else takes it.

    Args:
        medium: Where the store is.
        take_over: Take it although the last writer has not said that it is done; a killed one never does. Off, that is
            a WriterConflictError, which is right for whoever only wants to clean up.
    """

    works = False
    """Nobody is kept out, only found out: what others may be using is left alone."""

    def __init__(self, medium: Medium, *, take_over: bool = True) -> None:
        self._medium = medium
        self._take_over = take_over
        self._depth = 0
        self._guard = threading.RLock()
        self.epoch = 0

    @property
    def held(self) -> bool:
        """Whether this object has taken the store; whether somebody has taken it since, `newest_epoch` tells."""
        return self._depth > 0

    def acquire(self, known_epoch: Callable[[], int]) -> bool:
        """Take the next epoch, or count one up; True where it was not held before.

        Raises:
            WriterConflictError: The last writer has not finished, and is not to be taken over.
            OSError: The service refused.
        """
        with self._guard:
            if self._depth:
                self._depth += 1
                return False
            newest = self.newest_epoch()
            if not self._take_over:
                self._refuse_to_take_over()
            epoch = 1 + max(newest, known_epoch())
            while not self._medium.publish(_path(epoch), self._note(epoch, done=False), os.urandom(8).hex()):
                epoch += 1  # another one opened the store at the same moment
            self.epoch, self._depth = epoch, 1
            self._forget_old(epoch)
            return True

    def newest_epoch(self) -> int:
        """Return the highest epoch that anybody took."""
        return max((int(name) for name in self._medium.names("epoch") if _NAME.fullmatch(name)), default=0)

    def release(self) -> None:
        """Count one down; the last one notes that it is done, for those who do not want to take over."""
        with self._guard:
            if not self._depth:
                return
            self._depth -= 1
            if not self._depth:
                with contextlib.suppress(OSError):
                    self._medium.hint(_path(self.epoch), self._note(self.epoch, done=True), "")

    def _note(self, epoch: int, *, done: bool) -> bytes:
        who = {"epoch": epoch, "pid": os.getpid(), "host": os.uname().nodename, "since": time.time(), "done": done}
        return encode_record("epoch", {**who, "nonce": os.urandom(8).hex()})[0]

    def holder_seen(self) -> str | None:
        """Return who took it last and has not said that it is done; None where nobody is known to."""
        newest = self.newest_epoch()
        if not newest:
            return None
        try:
            note, _ = decode_record(self._medium.read(_path(newest)), "epoch")
        except (FileNotFoundError, CheckpointError):
            return None
        if note.get("done"):
            return None
        return f"process {note.get('pid')} on {note.get('host')} (epoch {newest})"

    def _refuse_to_take_over(self) -> None:
        if (holder := self.holder_seen()) is not None:
            raise WriterConflictError(
                f"the store {self._medium.name!r} is being written by {holder}, or that one was killed. "
                "Wait for it, or take the store over if it is dead."
            )

    def _forget_old(self, epoch: int) -> None:
        with contextlib.suppress(OSError):
            for name in self._medium.names("epoch"):
                if _NAME.fullmatch(name) and int(name) < epoch - 1:
                    self._medium.remove(f"epoch/{name}")


def _path(epoch: int) -> str:
    return f"epoch/{epoch:010d}"
