"""What became of the saves of one run: the one in flight, the newest that committed, and how many in a row did not."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from trajload.checkpoint.background import Background
from trajload.checkpoint.saving import Saved
from trajload.checkpoint.stats import Stats
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointError,
    CheckpointMismatchError,
    WriterConflictError,
    described,
)

__all__ = ["Outcomes"]

_log = logging.getLogger("trajload")


class Outcomes:
    """Runs saves, one at a time, here or in the background, and tells the training thread how they went.

    Args:
        max_aborted: So many saves in a row that did not commit are an error; fewer are logged.
    """

    def __init__(self, max_aborted: int) -> None:
        self._max_aborted = max_aborted
        self._background: Background[Saved] = Background("trajload-checkpoint")
        self._aborted_in_a_row = 0
        self.stats = Stats()
        # A script that ends without close() takes no outcome: what went wrong is said on the way out.
        weakref.finalize(self, _say_untaken, self._background)
        self.last: Saved | None = None
        """The newest save that committed, as far as its outcome has been taken."""

    @property
    def is_due(self) -> bool:
        """Whether there is a save whose outcome has not been taken."""
        return self._background.is_due

    @property
    def busy(self) -> bool:
        """Whether a save is being written."""
        return self._background.busy

    def begin(self, save: Callable[[], Saved], *, in_background: bool) -> None:
        """Carry out a save; here, it has committed on return."""
        if in_background:
            self._background.start(save)
        else:
            self._committed(save())

    def take(self) -> None:
        """Wait for the save in flight, if there is one; raises what it raised."""
        saved = self._background.take()
        if saved is not None:
            self._committed(saved)

    def look(self) -> None:
        """Take the outcome of a save that has come to its end, without waiting; see `aborted`."""
        if self.is_due and not self.busy:
            self.settle()

    def settle(self) -> None:
        """Wait for the save in flight; see `aborted` for what happens where it did not commit."""
        try:
            self.take()
        except CheckpointError as err:
            self.aborted(err)

    def _committed(self, saved: Saved) -> None:
        self.last = saved
        self._aborted_in_a_row = 0
        self.stats.add(saved)

    def aborted(self, err: CheckpointError) -> None:
        """Log a save that did not commit; raise where it is one too many, or one that the next save would not cure."""
        if isinstance(err, (WriterConflictError, CheckpointMismatchError)):
            raise err
        self._aborted_in_a_row += 1
        self.stats.aborted += 1
        if self._aborted_in_a_row >= self._max_aborted:
            raise CheckpointAbortedError(
                f"{self._aborted_in_a_row} saves in a row did not commit (max_aborted={self._max_aborted}); the last one: "
                f"{err.message}"
            ) from err
        _log.error("a save did not commit (%d in a row): %s", self._aborted_in_a_row, err)


def _say_untaken(background: Background[Saved]) -> None:
    if (error := background.untaken) is not None:
        _log.error(
            "the last save did not commit, and nobody asked for it (close() would have raised): %s", described(error)
        )
