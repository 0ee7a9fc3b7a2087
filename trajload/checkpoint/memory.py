"""How much memory this process may still take, and whether a copy of the training state fits into it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from trajload.checkpoint.settings import Mode
from trajload.machine import free_memory

if TYPE_CHECKING:
    from trajload.checkpoint.staging import Staging

__all__ = ["Copies", "fits"]

_log = logging.getLogger("trajload")

_SHARE = 0.8
"""Of free memory that a copy of the state may take: the rest is for what training allocates meanwhile."""


def fits(needed: int, free: int | None) -> bool:
    """Whether so many bytes may be allocated; True where it is not known how many are free."""
    return free is None or needed <= _SHARE * free


class Copies:
    """Decides whether a save is made from a copy, in the background, and keeps the memory of copies from one to the next."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode
        self._staging: Staging | None = None
        self._has_said = False

    @property
    def staging(self) -> Staging:
        """Where copies are made."""
        if self._staging is None:
            from trajload.checkpoint.staging import Staging

            self._staging = Staging()
        return self._staging

    def are_made(self, num_bytes: Callable[[], int]) -> bool:
        """Whether to copy a state of so many bytes: as the mode says; in mode 'auto' if it fits into free memory."""
        if self._mode != "auto":
            return self._mode == "async"
        free = free_memory()
        needed = num_bytes() - self.staging.kept_bytes  # what the save before has left is used again
        if fits(needed, free):
            return True
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "training waits for its saves: a copy of the state takes %d bytes, and %s are free. Pass mode='async' to insist.",
                needed,
                free,
            )
        return False
