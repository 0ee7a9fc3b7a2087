"""Windows that cannot be read: how they are replaced, and the list that goes into the state."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from trajload.errors import StageFailedError, TrajloadError
from trajload.rng import key_u64
from trajload.storage.locks import ForkLock

__all__ = ["MAX_ATTEMPTS", "MAX_QUARANTINED", "MAX_QUARANTINED_MIXED", "Quarantine", "substitute_id"]

MAX_ATTEMPTS = 8
"""Substitutes tried for one row before the run stops: eight bad draws in a row mean a bad dataset."""
MAX_QUARANTINED = 64
"""Distinct windows a run may lose before it stops; also keeps the state under 4 KiB."""
MAX_QUARANTINED_MIXED = 24
"""The same for a mixture, whose sources take room in the state, too."""

_log = logging.getLogger("trajload")


def substitute_id(seed: int, position: int, attempt: int, num_windows: int) -> int:
    """Return the window that takes `position` at the given attempt (1, 2, ...), keyed, the same on every machine."""
    return key_u64(seed, "substitute", position, attempt)[0] % num_windows


class Quarantine:
    """Windows found bad: {(source, window_id): (train_step from which it is replaced, reason)}. Thread-safe."""

    def __init__(self, most: int = MAX_QUARANTINED) -> None:
        self.most = most
        """Windows a run may lose before it stops."""
        self._lock = ForkLock()
        self._bad: dict[tuple[int, int], tuple[int, str]] = {}
        self._logged: set[tuple[str, str | None]] = set()

    def holds(self, window_id: int, train_step: int, source: int = 0) -> bool:
        """Return whether `window_id` of a source is replaced at `train_step`."""
        found = self._bad.get((source, window_id))
        return found is not None and found[0] <= train_step

    def add(self, window_id: int, train_step: int, err: TrajloadError, source: int = 0) -> None:
        """Record a bad window; logs once per cause and shard, raises StageFailedError beyond the budget."""
        cause, key = (type(err).__name__, err.at.shard), (source, window_id)
        with self._lock:
            if key not in self._bad and len(self._bad) >= self.most:
                raise StageFailedError(
                    f"more than {self.most} windows cannot be read: the last was window {window_id}. "
                    "Run 'trajload verify' and repair the dataset.",
                    at=err.at,
                ) from err
            before = self._bad.get(key)
            if before is None or train_step < before[0]:
                self._bad[key] = (train_step, type(err).__name__)
            first = cause not in self._logged
            self._logged.add(cause)
        if first:
            _log.warning("window %d is replaced from train_step %d on: %s", window_id, train_step, err)

    def to_json(self) -> list[list[Any]]:
        """Return [[window_id, train_step, reason], ...], sorted; with the source behind, where that is not the first."""
        with self._lock:
            return [
                [w, step, reason, *([source] if source else [])]
                for (source, w), (step, reason) in sorted(self._bad.items())
            ]

    def load(self, rows: Iterable[list[Any]]) -> None:
        """Replace the list by one that `to_json` gave."""
        with self._lock:
            self._bad = {
                (int(source[0]) if source else 0, int(w)): (int(step), str(reason)) for w, step, reason, *source in rows
            }

    def merge(self, rows: Iterable[list[Any]]) -> None:
        """Add what another process found, in rows as `to_json` gives them. Raises StageFailedError beyond the budget."""
        for window_id, train_step, reason, *source in rows:
            key = (int(source[0]) if source else 0, int(window_id))
            with self._lock:
                before = self._bad.get(key)
                if before is None and len(self._bad) >= self.most:
                    raise StageFailedError(
                        f"more than {self.most} windows cannot be read: the last was window {window_id}. "
                        "Run 'trajload verify' and repair the dataset."
                    )
                if before is None or train_step < before[0]:
                    self._bad[key] = (int(train_step), str(reason))

    def __len__(self) -> int:
        return len(self._bad)
