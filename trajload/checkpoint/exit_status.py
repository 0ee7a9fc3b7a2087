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

_lost: list[tuple[int, str]] = []
_is_ending = False


def fail_at_exit(message: str) -> None:
    """Let this process end with status 120, saying `message`; a process that forks later is not concerned."""
    _lost.append((os.getpid(), message))
    if _is_ending:
        _end()


@atexit.register
def _end() -> None:
    global _is_ending
    _is_ending = True
    told = [message for pid, message in _lost if pid == os.getpid()]
    name = "stdout" if sys.stdout is not None and not sys.stdout.closed else "stderr"
    stream = getattr(sys, name)
    if told and not isinstance(stream, _Unflushed):
        setattr(sys, name, _Unflushed(stream, told[0]))


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
