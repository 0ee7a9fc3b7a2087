"""A real `torch.utils.data.DataLoader` over a loader: for trainers that want one, with a state that counts deliveries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data import DataLoader

from trajload.errors import ConfigError
from trajload.interop.steps import StepSampler, TrainSteps

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.loader import Loader

__all__ = ["TrajDataLoader"]

_DECIDED = ("dataset", "batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "collate_fn", "generator")


class TrajDataLoader(DataLoader["Batch"]):
    """Batches of a loader as a DataLoader. Whole batches: order, batch size and ranks are the loader's.

    `for batch in dataloader` yields one pass of `len(dataloader)` train_steps from the cursor on; the next loop goes on
    with the next pass. `state_dict` counts batches that were delivered, not those that workers have ahead, and is the
    loader's own: it loads into a plain loader and back, with any number of workers.

    Args:
        loader: What makes the batches. Its cursor is this object's: use one of the two at a time.
        num_workers: 0 uses the loader's own threads, which is the fastest; more are processes of torch.
        steps_per_epoch: Train_steps of a pass; None for one epoch of windows (rounded down), or all of a finite run.
        transform: Batch → anything, applied to each batch in the calling process just before it is delivered.
        **options: For torch: `pin_memory`, `prefetch_factor`, `persistent_workers`, `multiprocessing_context`, `timeout`,
            `worker_init_fn`. Workers are spawned unless a context is given: threads do not survive a fork.

    Raises:
        ConfigError: An option that the loader decides (`batch_size`, `shuffle`, `sampler`, ...).
    """

    def __init__(
        self,
        loader: Loader,
        *,
        num_workers: int = 0,
        steps_per_epoch: int | None = None,
        transform: Callable[[Batch], Any] | None = None,
        **options: Any,
    ) -> None:
        taken = sorted(set(options) & set(_DECIDED))
        if taken:
            raise ConfigError(
                f"{', '.join(taken)} cannot be given here: the loader decides it. Set global_batch_size, order and seed of Loader."
            )
        if num_workers > 0:
            options.setdefault("multiprocessing_context", "spawn")
        self._loader = loader
        self._transform = transform
        super().__init__(
            TrainSteps(loader),
            batch_size=None,
            sampler=StepSampler(loader, steps_per_epoch),
            num_workers=num_workers,
            collate_fn=_same,
            **options,
        )

    @property
    def loader(self) -> Loader:
        """What makes the batches."""
        return self._loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the rest of the present pass."""
        here, stop = self.sampler.pass_steps  # type: ignore[union-attr]
        batches: Iterator[Batch] = iter(self._loader) if self.num_workers == 0 else super().__iter__()
        loader, transform = self._loader, self._transform
        try:
            for train_step in range(here, stop):
                batch = next(batches)
                if batch.train_step != train_step or (self.num_workers == 0 and loader.train_step != train_step + 1):
                    raise ConfigError(
                        f"the cursor was moved while the dataloader was iterated: got train_step {batch.train_step}, expected "
                        f"{train_step}. Begin a new loop after seek, load_state_dict or set_epoch."
                    )
                if self.num_workers > 0:
                    if self.pin_memory is False and loader.train_step != train_step:
                        raise ConfigError("moved")
                    loader.advance(train_step + 1)
                yield batch if transform is None else transform(batch)
                del batch
        finally:
            if self.num_workers == 0:
                batches.close()  # type: ignore[attr-defined]

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of pass `epoch`, unless the cursor is inside it already: after a resume it is."""
        self.sampler.set_epoch(epoch)  # type: ignore[union-attr]

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state: what continues with the next undelivered batch."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Continue where `state` was taken; see `Loader.load_state_dict`."""
        self._loader.load_state_dict(state, allow=allow)


def _same(batch: Any) -> Any:
    return batch
