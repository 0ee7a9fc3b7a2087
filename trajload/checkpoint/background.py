"""One piece of work at a time in a thread of its own; what it raises comes out in the thread that asks."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from trajload.errors import CheckpointError

__all__ = ["Background"]

T = TypeVar("T")


class Background(Generic[T]):
    """Runs one function at a time.

    The thread is no daemon: an interpreter that ends waits for it, so a save that was begun is finished. Waiting can be
    interrupted (Ctrl-C) and begun anew: it is for an event, since `Thread.join` takes a thread for ended once it was
    interrupted (Python up to 3.12).
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: threading.Thread | None = None
        self._ended = threading.Event()
        self._pid = os.getpid()
        self._result: T | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """Whether work is going on."""
        return self._thread is not None and not self._ended.is_set()

    @property
    def is_due(self) -> bool:
        """Whether work has been started whose outcome nobody has taken."""
        return self._thread is not None

    @property
    def is_own(self) -> bool:
        """Whether this process began it; a fork has none of its threads."""
        return self._pid == os.getpid()

    @property
    def untaken(self) -> BaseException | None:
        """What ended work that raised, until somebody takes it."""
        return self._error

    def start(self, work: Callable[[], T]) -> None:
        """Begin `work`; the outcome of the work before it must have been taken."""
        assert self._thread is None, "one at a time: take() the outcome of the last one first"
        self._result, self._error = None, None
        self._ended.clear()
        thread = threading.Thread(target=self._run, args=(work,), name=self._name)
        thread.start()
        self._thread = thread

    def _run(self, work: Callable[[], T]) -> None:
        try:
            self._result = work()
        except BaseException as err:  # nobody listens here: it is raised where the outcome is taken
            self._error = err
        finally:
            self._ended.set()

    def take(self) -> T | None:
        """Wait for the work and return what it returned, or raise what it raised; None where there is none.

        Raises:
            CheckpointError: This process is a fork of the one that works, and would wait for ever.
        """
        if self._thread is None:
            return None
        if not self.is_own:
            raise CheckpointError(
                f"what process {self._pid} was writing when this one ({os.getpid()}) was forked off cannot be waited for here: wait there."
            )
        self._ended.wait()
        self._thread = None
        result, error = self._result, self._error
        self._result, self._error = None, None
        if error is not None:
            raise error
        return result
