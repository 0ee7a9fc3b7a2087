"""What became of the saves of one run: the one in flight, the newest that committed, and how many in a row did not."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable

from trajload.checkpoint.background import Background
from trajload.checkpoint.exit_status import fail_at_exit
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
        self._untold = _Untold()
        weakref.finalize(self, _say_untaken, self._background, self._untold)
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

    def finish(self) -> None:
        """Wait for the save in flight; raise where the newest save did not commit, also one that was only logged so far."""
        self.take()
        error, self._untold.error = self._untold.error, None
        if error is not None:
            raise error

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
        self._aborted_in_a_row, self._untold.error = 0, None
        self.stats.add(saved)

    def aborted(self, err: CheckpointError) -> None:
        """Log a save that did not commit; raise where it is one too many, or one that the next save would not cure."""
        if isinstance(err, (WriterConflictError, CheckpointMismatchError)):
            raise err
        self._aborted_in_a_row += 1
        self.stats.aborted += 1
        if self._aborted_in_a_row >= self._max_aborted:
            self._untold.error = None
            raise CheckpointAbortedError(
                f"{self._aborted_in_a_row} saves in a row did not commit (max_aborted={self._max_aborted}); the last one: "
                f"{err.message}"
            ) from err
        self._untold.error = err.with_traceback(None)  # kept for close(), without the frames that hold the state
        _log.error("a save did not commit (%d in a row): %s", self._aborted_in_a_row, err)


class _Untold:
    """Holds why the newest save did not commit, while that has been logged and not raised."""

    error: CheckpointError | None = None


def _say_untaken(background: Background[Saved], untold: _Untold) -> None:
    """Say what close() would have raised: at error level, and by the status that this process ends with."""
    if not background.is_own:
        return  # a fork: the process that it is of says so
    if (error := background.untaken or untold.error) is not None:
        told = f"the last save did not commit, and nobody asked for it (close() would have raised): {described(error)}"
    elif background.busy:
        told = "the last save was being written when this process ended, and was not waited for (close() would have)"
    else:
        return
    _log.error("%s", told)
    fail_at_exit(told)
