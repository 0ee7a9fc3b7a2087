"""What the parent asks a worker of its own, and what comes back: a batch with what was found bad, or an error whole."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING, Any

from trajload.errors import TrajloadError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.interop.steps import TrainSteps

__all__ = ["Delivery", "Failure", "StepRequest"]


class StepRequest(int):
    """A train_step, with what else decides the batch: a worker keeps nothing from one request to the next.

    So a state that the parent loads reaches workers that run already, and none of them remembers what it undid.
    """

    quarantine: list[list[Any]]
    rows: tuple[int, int] | None

    def __new__(
        cls, train_step: int, quarantine: list[list[Any]] | None = None, rows: tuple[int, int] | None = None
    ) -> StepRequest:
        """Ask for a batch.

        Args:
            train_step: Whose batch.
            quarantine: Windows known to be bad, as in a state.
            rows: Half-open range of rows, None for those of the loader's rank.
        """
        self = super().__new__(cls, train_step)
        self.quarantine, self.rows = quarantine or [], rows
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return StepRequest, (int(self), self.quarantine, self.rows)

    def answer(self, steps: TrainSteps) -> Delivery | Failure:
        """Make the batch, in the worker."""
        try:
            quarantine = steps.quarantine
            quarantine.load(self.quarantine)
            batch = steps.make(int(self), None if self.rows is None else slice(*self.rows))
        except TrajloadError as err:
            return Failure(err)
        return Delivery(batch, [row for row in quarantine.to_json() if row not in self.quarantine])


class Delivery:
    """A batch, and the windows that were found bad for it."""

    def __init__(self, batch: Batch, found_bad: list[list[Any]]) -> None:
        self.batch, self.found_bad = batch, found_bad

    def pin_memory(self) -> Delivery:
        """Return it with the batch in page-locked memory; torch calls this in its own thread."""
        return Delivery(self.batch.pin_memory(), self.found_bad)


class Failure:
    """An error of trajload with its class and location, which torch's own way out of a worker loses."""

    def __init__(self, error: TrajloadError) -> None:
        self._error = error
        self._traceback = traceback.format_exc()

    def error(self) -> TrajloadError:
        """Return the error, with the worker's traceback as its cause."""
        self._error.__cause__ = _WorkerTraceback(f"\n{self._traceback}")
        return self._error


class _WorkerTraceback(Exception):
    """Shows where in the worker an error came from."""
