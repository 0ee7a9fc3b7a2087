"""Transforms as a user's module might hold them, for tests of worker processes, which import it by name.

The bad ones go wrong at windows whose first reward is at or above a mark, or once in all processes (a flag file).
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np


def brighten(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Draw once for a window, in place."""
    frames = window["cam_front"]
    np.clip(frames.astype(np.int16) + generator.integers(1, 60), 0, 255, out=frames, casting="unsafe")
    return window


@dataclass(frozen=True)
class Bad:
    """Goes wrong in a way of its own; `once` names a file that is made first, so that it does so one time only."""

    how: str
    once: str | None = None

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        if self.once is not None:
            try:
                Path(self.once).open("x").close()
            except FileExistsError:
                return window
        if self.how == "raise":
            raise ValueError("this window is not to my taste")
        if self.how == "sleep":
            time.sleep(1e6)
        elif self.how == "hold":
            re.match(r"(a+)+$", "a" * 64 + "b")  # backtracks for ages, without letting any other thread run
        elif self.how == "segfault":
            ctypes.string_at(0)
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif self.how == "exit":
            os._exit(7)
        return window


class Locked:
    """Cannot be pickled."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def config_json(self) -> dict[str, Any]:
        return {}

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        return window
