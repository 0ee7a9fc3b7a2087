"""Starts training processes, watches their logs, and kills them: what `assert_continues` does with its trainees."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from trajload.checkpoint.nursery import Child, Nursery
from trajload.checkpoint.trainee import Spec, run
from trajload.errors import StageFailedError

__all__ = ["Life", "read_log"]

_POLL_S = 0.003


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of a log; one cut short by a kill does not count."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text.split("\n")[:-1]]


class Life:
    """The processes of one start of a training, one for each rank; ended on leaving the context, however that comes.

    Args:
        nursery: Starts them.
        spec: What they are told.
        folder: For their spec and what they write to stderr.
        name: Of the files there.
    """

    def __init__(self, nursery: Nursery, spec: Spec, folder: Path, name: str) -> None:
        self._nursery = nursery
        self.spec = spec
        self._folder, self._name = folder, name
        self._processes: list[Child] = []
        self._offset, self._lines = 0, list[dict[str, Any]]()

    def __enter__(self) -> Life:
        path = self._folder / f"{self._name}.spec.json"
        self.spec.save(path)
        try:
            for rank in range(self.spec.ranks):
                self._processes.append(self._nursery.start(run, str(path), rank, stderr=self._stderr(rank)))
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.kill()

    def _stderr(self, rank: int) -> Path:
        return self._folder / f"{self._name}.stderr.{rank}"

    def kill(self, first: int = 0, between_s: float = 0.0) -> None:
        """Send SIGKILL to rank `first`, and `between_s` later to all others."""
        order = [*self._processes[first:], *self._processes[:first]]
        for i, process in enumerate(order):
            if i == 1:
                time.sleep(between_s)
            process.kill()
        while any(process.poll() is None for process in order):
            time.sleep(_POLL_S)

    def lines(self) -> list[dict[str, Any]]:
        """Return what rank 0 has logged so far, reading only what is new."""
        try:
            with open(self.spec.log, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return self._lines
        end = data.rfind(b"\n") + 1
        self._offset += end
        self._lines += [json.loads(line) for line in data[:end].split(b"\n")[:-1]]
        return self._lines

    def watch(self, until: Callable[[list[dict[str, Any]]], bool], timeout_s: float) -> bool:
        """Wait until the log of rank 0 satisfies `until`; False where all processes have come to their end before.

        Raises:
            StageFailedError: A process failed, or nothing new was logged for `timeout_s`.
        """
        for _ in self._ticks(timeout_s):
            if until(self.lines()):
                return True
            codes = [process.poll() for process in self._processes]
            for rank, code in enumerate(codes):
                if code not in (None, 0):
                    said = self._stderr(rank).read_text(errors="replace")[-4000:]
                    raise StageFailedError(f"rank {rank} of the training failed with exit code {code}:\n{said}")
            if all(code == 0 for code in codes):
                return until(self.lines())
        raise AssertionError("unreachable")

    def _ticks(self, timeout_s: float) -> Iterator[None]:
        known, last = -1, time.monotonic()
        while True:
            yield
            if len(self._lines) != known:
                known, last = len(self._lines), time.monotonic()
            elif time.monotonic() - last > timeout_s:
                said = self._stderr(0).read_text(errors="replace")[-2000:]
                raise StageFailedError(
                    f"the training hangs: nothing new in {self.spec.log!r} for {timeout_s:g} s.\n{said}"
                )
            time.sleep(_POLL_S)
