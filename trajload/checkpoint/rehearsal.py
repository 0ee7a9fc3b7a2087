"""What retention and sweeping would remove: the same code on a store whose files do not go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

__all__ = ["rehearsing"]

_CHANGES = ("remove", "prune", "settle", "publish")


class _Untouched:
    """A medium that is read as it is, and changed in no way."""

    def __init__(self, medium: Any) -> None:
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return (lambda *args, **options: None) if name in _CHANGES else getattr(self._medium, name)


@contextlib.contextmanager
def rehearsing(store: Any) -> Iterator[None]:
    """Inside, `retain` and `sweep` of this store return what they would remove, and remove nothing. Hold the writer lock outside."""
    plain = store._medium
    store._medium = _Untouched(plain)
    try:
        yield
    finally:
        store._medium = plain
