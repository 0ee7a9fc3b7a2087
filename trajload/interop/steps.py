"""A loader as a map-style dataset: `steps[train_step]` is the batch of that train_step, in whatever process asks.

What torch sends to its workers is then a number, and what it gets back a batch: order, ranks and resume stay where they
are computed, in the train_step.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from torch.utils.data import Dataset, Sampler

from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.loader import Loader

__all__ = ["LoaderRecipe", "StepSampler", "TrainSteps", "check_steps_per_epoch", "pass_length"]


class LoaderRecipe:
    """How to build the same loader in another process: its arguments, the rank written out. Picklable.

    The other loader works in the thread that asks: processes and read-ahead are its caller's business.
    """

    def __init__(self, loader: Loader) -> None:
        world = {"rank": loader.world.rank, "world_size": loader.world.world_size}
        self._arguments = {**loader.arguments, **world, "num_workers": 0}
        self.num_train_steps = loader.num_train_steps

    def build(self) -> Loader:
        """Return a new loader at train_step 0."""
        from trajload.loader import Loader

        return Loader(**self._arguments)


class TrainSteps(Dataset["Batch"]):
    """The batches of a loader by train_step. Picklable: another process builds a loader of its own when first asked.

    Args:
        loader: Whose batches they are. Not used for building here: its cursor and threads stay untouched.
    """

    def __init__(self, loader: Loader) -> None:
        self._recipe = LoaderRecipe(loader)
        self._loader: Loader | None = None

    def __getitem__(self, train_step: int) -> Batch:
        """Return this rank's batch of `train_step`, made in the calling process."""
        if self._loader is None:
            self._loader = self._recipe.build()
        return self._loader.batch_at(operator.index(train_step))

    def __len__(self) -> int:
        """Train_steps of the whole run; TypeError without `num_epochs`."""
        if self._recipe.num_train_steps is None:
            raise TypeError("a run without num_epochs has no length; see Loader.steps_per_epoch.")
        return self._recipe.num_train_steps

    def __getstate__(self) -> dict[str, Any]:
        return {"_recipe": self._recipe, "_loader": None}


class StepSampler(Sampler[int]):
    """Yields train_steps from the cursor to the end of the pass. What DataLoader takes as its sampler.

    Passes are runs of `steps_per_epoch` train_steps, counted from train_step 0: trainers call them epochs. Asking for the
    next pass goes on where the last one ended; `set_epoch` names a pass, and does nothing while the cursor is inside it.
    """

    def __init__(self, loader: Loader, steps_per_epoch: int | None) -> None:
        self._loader = loader
        self.steps_per_epoch = pass_length(loader, steps_per_epoch)

    @property
    def pass_steps(self) -> tuple[int, int]:
        """Half-open range of train_steps that the next iteration yields."""
        here = self._loader.train_step
        stop = (here // self.steps_per_epoch + 1) * self.steps_per_epoch
        last = self._loader.num_train_steps
        return here, stop if last is None else max(here, min(stop, last))

    def __iter__(self) -> Iterator[int]:
        return iter(range(*self.pass_steps))

    def __len__(self) -> int:
        """Train_steps of a whole pass."""
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of a pass, unless the cursor is inside it already (or at its end, before the next)."""
        if isinstance(epoch, bool) or operator.index(epoch) < 0:
            raise ConfigError(f"epoch={epoch!r} is invalid: expected an int of at least 0.")
        if self._loader.train_step // self.steps_per_epoch != epoch:
            self._loader.seek(epoch * self.steps_per_epoch)


def pass_length(loader: Loader, steps_per_epoch: int | None) -> int:
    """Return the train_steps of a pass: as asked for, of the whole run if it is finite, else of one epoch of windows."""
    if steps_per_epoch is not None:
        return check_steps_per_epoch(steps_per_epoch)
    if loader.num_train_steps is not None:
        return loader.num_train_steps
    return max(1, loader.num_windows // loader.global_batch_size)


def check_steps_per_epoch(steps_per_epoch: int) -> int:
    """Return `steps_per_epoch` if it is an int of at least 1, else raise ConfigError."""
    try:
        number = operator.index(steps_per_epoch)
    except TypeError:
        number = 0
    if isinstance(steps_per_epoch, bool) or number < 1:
        raise ConfigError(f"steps_per_epoch={steps_per_epoch!r} is invalid: expected an int of at least 1.")
    return number
