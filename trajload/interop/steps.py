"""A loader as a map-style dataset: `steps[train_step]` is the batch of that train_step, in whatever process asks.

What torch sends to its workers is then a number, and what it gets back a batch: order, ranks and resume stay where they
are computed, in the train_step. Why: docs/decisions/0100-train-steps-are-what-torch-sends.md
"""

from __future__ import annotations

import multiprocessing.util
import operator
import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from torch.utils.data import Dataset, get_worker_info

from trajload.errors import ConfigError
from trajload.interop.recipe import LoaderRecipe
from trajload.interop.request import StepRequest
from trajload.storage.locks import ForkLock

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.loader import Loader
    from trajload.pipeline.inline import InlineRun
    from trajload.pipeline.quarantine import Quarantine

__all__ = ["TrainSteps"]


class TrainSteps(Dataset[Any]):
    """The batches of a loader by train_step. Picklable: another process builds a loader of its own when first asked.

    Use it with `StepSampler`, and `batch_size=None`: an item is a whole batch.

    Args:
        loader: Whose batches they are. Not used for building: its cursor and threads stay untouched.
    """

    def __init__(self, loader: Loader) -> None:
        self._recipe = LoaderRecipe(loader)
        self._num_train_steps = loader.num_train_steps
        self._loader: Loader | None = None
        self._run: InlineRun | None = None
        self._lock = ForkLock()
        self._of_process = os.getpid()

    def __getitem__(self, train_step: int) -> Any:
        """Return this rank's batch of `train_step`, made in the calling process."""
        if isinstance(train_step, StepRequest):
            return train_step.answer(self)
        return self.make(operator.index(train_step))

    def __getitems__(self, train_steps: list[int]) -> Any:
        """Return the one batch that is asked for. DataLoader calls this where it means to join several items itself."""
        if len(train_steps) != 1:
            raise ConfigError(
                f"{len(train_steps)} train_steps are asked for at once, expected one: each is a whole batch already. Use "
                "DataLoader(TrainSteps(loader), sampler=StepSampler(loader), batch_size=None)."
            )
        return self[train_steps[0]]

    def make(self, train_step: int, rows: slice | None = None) -> Batch:
        """Return the batch of `train_step`: of this rank's rows, or others of the global batch. One thread at a time."""
        with self._lock:
            return self._run_here().at(train_step, rows)

    @property
    def quarantine(self) -> Quarantine:
        """Windows that this process's own loader knows to be bad."""
        with self._lock:
            self._run_here()
        assert self._loader is not None
        return self._loader._engine.quarantine

    def _run_here(self) -> InlineRun:
        """Return what makes batches in this process, of a loader of its own; a forked child does not use its parent's."""
        if self._loader is None or self._run is None or self._of_process != os.getpid():
            self._loader, self._of_process = self._recipe.build(), os.getpid()
            self._run = self._loader._engine.inline()
            if get_worker_info() is not None:
                # Last of all that multiprocessing does at exit: queues that must be emptied are.
                multiprocessing.util.Finalize(None, _leave, exitpriority=-1000)
        return self._run

    def __len__(self) -> int:
        """Train_steps of the whole run; TypeError without `num_epochs`."""
        if self._num_train_steps is None:
            raise TypeError(
                "a run without num_epochs has no length. A DataLoader over it is told what to ask for: "
                "DataLoader(TrainSteps(loader), sampler=StepSampler(loader), batch_size=None), or batch_sampler= of "
                "loader.as_map_dataset() for single rows."
            )
        return self._num_train_steps

    def __iter__(self) -> NoReturn:
        # Without this, Python would iterate by __getitem__ until an IndexError, for ever.
        raise TypeError("TrainSteps is indexed by train_step; iterate the Loader, or a DataLoader with a StepSampler.")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_loader": None, "_run": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = ForkLock()

    def close(self) -> None:
        """Close the loader that was built in this process, if one was. Idempotent."""
        if self._loader is not None and self._of_process == os.getpid():
            if self._run is not None:
                self._run.close()
            self._loader.close()
        self._loader = self._run = None


def _leave() -> None:
    """End a worker process here. Interpreters that end while a queue's thread shares a tensor are aborted by torch."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)
