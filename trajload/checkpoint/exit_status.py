"""A process whose last save was lost does not end with status 0, although nobody was there to be told.

Python has no call for that: what raises in an exit handler is printed, and the status stays. It does promise status 120
where a standard stream cannot be flushed at the end (`sys.exit`, `Py_FinalizeEx`), and that is what is used: every other
exit handler runs, and everything is written, unlike with `os._exit`. See docs/decisions/0116-lost-last-save-is-an-exit-status.md.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import Any

from trajload.errors import CheckpointError

__all__ = ["FAILED_STATUS", "fail_at_exit"]

FAILED_STATUS = 120
"""Python's own, for an error on the way out."""


class _Ending:
    """What was lost in this process, until it ends."""

    def __init__(self) -> None:
        self._lost: list[tuple[int, str]] = []
        self._has_begun = False

    def add(self, message: str) -> None:
        self._lost.append((os.getpid(), message))
        if self._has_begun:
            self.begin()

    def begin(self) -> None:
        """Called when the process ends; exit handlers that find out about a loss may come later."""
        self._has_begun = True
        told = [message for pid, message in self._lost if pid == os.getpid()]
        name = "stdout" if sys.stdout is not None and not sys.stdout.closed else "stderr"
        stream = getattr(sys, name)
        if told and not isinstance(stream, _Unflushed):
            setattr(sys, name, _Unflushed(stream, told[0]))


_ending = _Ending()
atexit.register(_ending.begin)


def fail_at_exit(message: str) -> None:
    """Let this process end with status 120, saying `message`; a process that forks later is not concerned."""
    _ending.add(message)


class _Unflushed:
    """A stream whose last flush, by the interpreter itself, raises; whatever else is done with it, is done."""

    def __init__(self, stream: Any, message: str) -> None:
        self._stream, self._message = stream, message

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __repr__(self) -> str:
        return "the end of this process"

    def flush(self) -> None:
        if self._stream is not None:
            self._stream.flush()
        try:
            sys._getframe(1)
        except ValueError:  # no Python code has called: the interpreter is ending
            raise CheckpointError(self._message) from None
