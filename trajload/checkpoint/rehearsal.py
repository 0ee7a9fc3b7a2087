"""What retention and sweeping would remove: the same code on a store whose files do not go, and whose lock is not taken.

Nothing is written, so it works beside a training that writes the store, and where the store can only be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator
from typing import Any

from trajload.checkpoint.catalog import highest_seq
from trajload.checkpoint.entries import Fault
from trajload.checkpoint.failures import refusing
from trajload.checkpoint.generation import parse_generation

__all__ = ["rehearsing"]

_CHANGES = ("remove", "prune", "settle", "publish", "hint")


class _Untouched:
    """A medium that is read as it is, and changed in no way."""

    def __init__(self, medium: Any) -> None:
        self._medium = medium

    def __getattr__(self, name: str) -> Any:
        return (lambda *args, **options: None) if name in _CHANGES else getattr(self._medium, name)

    def exclusive(self, path: str) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


class _NotTaken:
    """Stands for a lock that nobody takes."""

    epoch, held = 0, True

    def __init__(self, works: bool) -> None:
        self.works = works

    def acquire(self, known_epoch: Callable[[], int]) -> bool:
        return False

    def release(self) -> None:
        pass


class _Begun(Collection[str]):
    """Generations that somebody may be writing: those begun after the newest record was published."""

    def __init__(self, newest: int) -> None:
        self._newest = newest

    def __contains__(self, path: object) -> bool:
        parsed = parse_generation(str(path))
        return parsed is not None and parsed[0] > self._newest

    def __iter__(self) -> Iterator[str]:
        return iter(())

    def __len__(self) -> int:
        return 0


@contextlib.contextmanager
def rehearsing(store: Any) -> Iterator[list[Fault]]:
    """Inside, `retain` and `sweep` of this store return what they would remove, and remove nothing.

    Yields:
        Who is writing the store, if anybody: then removal itself would be refused, and what that process may be writing at the
        moment is not among what would go.
    """
    medium, lock, begun = store._medium, store._lock, store._begun
    busy: list[Fault] = []
    with refusing(f"looking who writes checkpoint store {store.name!r}"):
        newest, holder = highest_seq(medium), lock.holder_seen()
    if holder is not None:
        doubt = "" if lock.works else " (or was killed)"
        what = f"{holder} writes this store{doubt}: until that ends nothing is removed, and what it is writing now is left out."
        busy.append(Fault(None, "gen", what, "unsure"))
        if lock.works:  # else the age of a generation tells whether it is anybody's
            store._begun = _Begun(newest)
    store._medium, store._lock = _Untouched(medium), _NotTaken(lock.works)
    try:
        yield busy
    finally:
        store._medium, store._lock, store._begun = medium, lock, begun
