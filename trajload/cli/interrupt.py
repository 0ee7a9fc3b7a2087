"""What Ctrl-C does to a command that measures, or that writes a dataset."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from trajload.cli.output import note
from trajload.stop import Stop

__all__ = ["EXIT_INTERRUPTED", "stopped_by_ctrl_c", "told_if_interrupted"]

EXIT_INTERRUPTED = 130
"""What shells expect of a program that Ctrl-C ended: 128 + SIGINT."""
_STDERR = 2


@contextmanager
def stopped_by_ctrl_c() -> Iterator[Stop]:
    """Give what Ctrl-C asks to stop; a second Ctrl-C ends the command at once.

    Where SIGINT is ignored (a job in the background), and in threads other than the main one, nothing is changed.
    """
    stop = Stop()

    def ask(signum: int, frame: object) -> None:
        stop.ask()
        # Not by sys.stderr: the handler may run in the middle of a write to it.
        with contextlib.suppress(OSError):
            os.write(_STDERR, b"\nstopping with what was measured; Ctrl-C again ends at once\n")

    before = signal.getsignal(signal.SIGINT)
    is_ours = threading.current_thread() is threading.main_thread() and before is signal.default_int_handler
    if is_ours:
        signal.signal(signal.SIGINT, ask)
    try:
        yield stop
    except KeyboardInterrupt:
        note("stopped: nothing was written" if stop.is_awaited else "stopped before anything was measured")
        raise
    finally:
        if is_ours:
            signal.signal(signal.SIGINT, before)


@contextmanager
def told_if_interrupted(text: str) -> Iterator[None]:
    """Say what Ctrl-C left behind."""
    try:
        yield
    except KeyboardInterrupt:
        note(text)
        raise
