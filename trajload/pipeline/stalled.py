"""Threads that stand still while somebody waits for them: how that is noticed, and where they stand."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Iterable

__all__ = ["StallWatch", "stacks_of"]

_LOOK_S = 1.0
_MAX_FRAMES = 12


class StallWatch:
    """Adds up how long a wait goes on without any sign of progress. For one wait of one thread.

    Time counts in steps of a second at most, and only while the waiting thread itself runs: a process that was stopped, or a
    machine that slept, is no reason to call its threads hanging.

    Args:
        timeout_s: So long without a sign is a stall; None: never.
        sign: What stands for the progress made so far; another object stands for more.
    """

    def __init__(self, timeout_s: float | None, sign: object) -> None:
        self._timeout_s, self._sign, self._idle_s = timeout_s, sign, 0.0

    def wait(self, changed: threading.Condition) -> None:
        """Wait for a change, for a while. The condition's lock is held."""
        if self._timeout_s is None:
            changed.wait()
            return
        step_s = min(_LOOK_S, self._timeout_s / 4)
        begin = time.monotonic()
        changed.wait(step_s)
        self._idle_s += min(time.monotonic() - begin, step_s)

    def is_stalled(self, sign: object) -> bool:
        """Return whether nothing was done for too long, as far as `sign` tells."""
        if sign is not self._sign:
            self._sign, self._idle_s = sign, 0.0
        return self._timeout_s is not None and self._idle_s >= self._timeout_s


def stacks_of(threads: Iterable[threading.Thread]) -> str:
    """Return where threads of this process stand right now, the innermost calls last."""
    frames = sys._current_frames()
    out = []
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            lines = traceback.format_stack(frame)[-_MAX_FRAMES:]
            out.append(f"thread {thread.name}:\n{''.join(lines)}")
    return "".join(out)
