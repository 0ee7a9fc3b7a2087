"""Parts of a pipeline slowed on purpose: stores, codecs, transforms. Worker processes import this module by name.

Nearly all of them sleep, so that they are as slow on a busy machine as on an idle one, and work side by side where the
pipeline lets them.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.refs import ByteRange


class SlowStore:
    """A store that takes its time to answer, as an object store does; reads may overlap."""

    def __init__(self, store: Any, latency_s: float) -> None:
        self.root, self._store, self._latency_s = store.root, store, latency_s

    def read(self, where: ByteRange) -> bytes:
        time.sleep(self._latency_s)
        data: bytes = self._store.read(where)
        return data

    def size(self, file: str) -> int:
        size: int = self._store.size(file)
        return size

    def close(self) -> None:
        self._store.close()


class NarrowStore(SlowStore):
    """A store behind a thin line: so many bytes per second for all readers together."""

    def __init__(self, store: Any, bytes_per_s: float) -> None:
        super().__init__(store, 0.0)
        self._line, self._bytes_per_s = threading.Lock(), bytes_per_s

    def read(self, where: ByteRange) -> bytes:
        with self._line:
            time.sleep(where.size / self._bytes_per_s)
        return super().read(where)


def sleepy(function: Callable[..., Any], seconds: float, times: int | None = None) -> Callable[..., Any]:
    """Return `function` with a sleep before it, or one for each element of argument number `times`."""

    def slow(*args: Any, **kwargs: Any) -> Any:
        time.sleep(seconds * (1 if times is None else len(args[times])))
        return function(*args, **kwargs)

    return slow


@dataclass(frozen=True)
class Sleep:
    """A transform that waits, as one does that asks another process: other threads may work meanwhile."""

    seconds: float

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        time.sleep(self.seconds)
        return window


@dataclass(frozen=True)
class HoldInterpreter:
    """A transform that keeps the interpreter while it works, as old C extensions do: no other thread may run Python."""

    seconds: float

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        ctypes.PyDLL(None).usleep(int(self.seconds * 1e6))
        return window


@dataclass(frozen=True)
class PlainPython:
    """A transform written in plain Python."""

    num_rounds: int

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        total = 0
        for i in range(self.num_rounds):
            total += i & 3
        return window


_kept: list[list[int]] = []


@dataclass(frozen=True)
class Collect:
    """A transform that keeps many small lists, in each process, and has them all looked at now and then."""

    num_kept: int
    num_rounds: int

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        if len(_kept) < self.num_kept:
            _kept.extend([i] for i in range(self.num_kept - len(_kept)))
        for _ in range(self.num_rounds):
            gc.collect()
        return window


_own = threading.local()


@dataclass(frozen=True)
class OneSlowThread:
    """A transform that is slow in the first thread of all processes that meets it: a thread on a bad core, say."""

    seconds: float
    flag: str

    def __call__(self, window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        if getattr(_own, "flag", None) != self.flag:
            _own.flag, _own.is_slow = self.flag, True
            try:
                Path(self.flag).open("x").close()
            except FileExistsError:
                _own.is_slow = False
        # The others wait a little, too: else the slow one might find all work done.
        time.sleep(self.seconds if _own.is_slow else self.seconds / 10)
        return window
