"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading
from types import TracebackType

__all__ = ["ForkLock"]


class ForkLock:
    """A lock of its own in every process: what another thread held when the process forked stays with the parent.

    A plain lock would be held for ever in the child, whose copy of that thread does not run. Fit for caches only, whose
    content is valid between any two Python operations.
    """

    __slots__ = ("_of_process",)

    def __init__(self) -> None:
        self._of_process = {os.getpid(): threading.Lock()}

    def _lock(self) -> threading.Lock:
        pid = os.getpid()
        # setdefault is one step for the interpreter: two threads of a new child get the same lock.
        return self._of_process.get(pid) or self._of_process.setdefault(pid, threading.Lock())

    def __reduce__(self) -> tuple[type[ForkLock], tuple[()]]:
        return (ForkLock, ())  # an object sent to another process has a free lock of its own there

    def __enter__(self) -> None:
        self._lock().acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock().release()
