"""Processes that are sent an interrupt, as by Ctrl-C, until they end."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

__all__ = ["interrupt"]

_PATIENCE_S, _MOST = 60.0, 5


def interrupt(process: subprocess.Popen[str], send: Callable[[], None]) -> tuple[str, str, int]:
    """Return what the process wrote to its pipes until it ended, and how many interrupts that took.

    It should take one. One of some hundreds comes to nothing, though: Python drops what a signal raises while an object
    is being freed (it says "Exception ignored"), and a batch is freed at every step.

    Raises:
        AssertionError: It does not end.
    """
    for number in range(1, _MOST + 1):
        send()
        try:
            out, err = process.communicate(timeout=_PATIENCE_S)
        except subprocess.TimeoutExpired:
            continue
        ignored = (err or "").count("Exception ignored")
        assert number == 1 or err is None or ignored == number - 1, f"it took {number} interrupts to end it:\n{err}"
        return out, err, number
    process.kill()
    process.communicate()
    raise AssertionError(f"the process still runs after {_MOST} interrupts")
