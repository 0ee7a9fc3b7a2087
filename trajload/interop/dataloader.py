"""A real `torch.utils.data.DataLoader` over a loader: for trainers that want one, with a state that counts deliveries."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from trajload.arguments import check_options
from trajload.checks import check_int
from trajload.errors import ArgumentError, ConfigError
from trajload.interop.request import Delivery, Failure, StepRequest
from trajload.interop.samplers import StepSampler
from trajload.interop.steps import TrainSteps
from trajload.interop.worker_ends import join_feeders, tells_of_a_death, worker_error

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.loader import Loader

__all__ = ["TrajDataLoader"]

_JOIN_TIMEOUT_S = 10.0
_OWN = ("num_workers", "steps_per_epoch", "transform")
_OF_TORCH = (
    "pin_memory",
    "prefetch_factor",
    "persistent_workers",
    "multiprocessing_context",
    "timeout",
    "worker_init_fn",
    "pin_memory_device",
)
_DECIDED = (
    "dataset",
    "batch_size",
    "shuffle",
    "sampler",
    "batch_sampler",
    "drop_last",
    "collate_fn",
    "generator",
    "in_order",
)


class TrajDataLoader(DataLoader["Batch"]):
    """Batches of a loader as a DataLoader. Whole batches: order, batch size and ranks are the loader's.

    `for batch in dataloader` yields one pass: the train_steps from the cursor to the next multiple of `len(dataloader)`;
    the next loop goes on with the next pass, or with the rest of this one after a `break`. `state_dict` counts batches
    that were delivered, not those that workers have ahead, and is the loader's own: it loads into a plain loader and
    back, with any number of workers. Where the cursor is moved while a loop runs (`seek`, `load_state_dict`,
    `set_epoch`), the loop goes on from there, to the end of that pass.

    Args:
        loader: What makes the batches. Its cursor is this object's.
        num_workers: 0 uses the loader's own threads, which is the fastest; more are processes of torch, each of which
            makes whole batches in one thread.
        steps_per_epoch: Train_steps of a pass; None for one epoch of windows (rounded down), or all of a finite run.
        transform: Batch → anything, applied to each batch in the calling process just before it is delivered.
        **options: For torch: `pin_memory`, `prefetch_factor`, `persistent_workers`, `multiprocessing_context`, `timeout`,
            `worker_init_fn`. Workers are spawned unless a context is given: libraries with threads seldom survive a fork.

    Raises:
        ConfigError: An option that the loader decides (`batch_size`, `shuffle`, `sampler`, ...), or something in the
            loader's arguments that cannot be sent to a worker.
    """

    _is_accelerate_prepared = True
    """`Accelerator.prepare` then leaves it as it is: it would deal rows out to ranks once more."""
    use_stateful_dataloader = True
    """`Accelerator.save_state` then saves `state_dict`, and `load_state` loads it."""

    def __init__(
        self,
        loader: Loader,
        *,
        num_workers: int = 0,
        steps_per_epoch: int | None = None,
        transform: Callable[[Batch], Any] | None = None,
        **options: Any,
    ) -> None:
        taken = [name for name in _DECIDED if name in options]
        if taken:
            raise ArgumentError(
                f"{', '.join(taken)} cannot be given here: the loader decides it. Set global_batch_size, order and seed of Loader."
            )
        check_options("as_dataloader", options, (*_OWN, *_OF_TORCH))
        num_workers = check_int("num_workers", num_workers, 0)
        if transform is not None and not callable(transform):
            raise ConfigError(f"transform={transform!r} is unusable: expected a function of a batch, or None.")
        if num_workers > 0 and options.get("multiprocessing_context") is None:
            options["multiprocessing_context"] = "spawn"
        self._loader = loader
        self._transform = transform
        self._running: list[Any] = []
        """Iterators of torch whose workers run; an abandoned loop may still hold one."""
        steps, sampler = TrainSteps(loader), CursorSampler(loader, steps_per_epoch)
        if num_workers > 0:
            _check_sendable(steps)
        try:
            super().__init__(
                steps,
                batch_size=None,
                sampler=sampler,
                num_workers=num_workers,
                collate_fn=_same,
                # torch draws the seed of its workers, which nothing here uses, from the global generator if given no other:
                # how often a loop is begun would then change what the model draws.
                generator=torch.Generator(),
                **options,
            )
        except (TypeError, ValueError) as err:
            raise ConfigError(
                f"torch's DataLoader refuses its options: {str(err).rstrip('.')}. Got {options!r}."
            ) from err

    def __repr__(self) -> str:
        return f"<TrajDataLoader of {self._loader!r}: {len(self)} train_steps a pass, num_workers={self.num_workers}>"

    @property
    def loader(self) -> Loader:
        """What makes the batches."""
        return self._loader

    # ---- iteration ----

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        """Yield the batches of the rest of the present pass."""
        return self._by_threads() if self.num_workers == 0 else self._by_processes()

    def _by_threads(self) -> Iterator[Any]:
        loader, batches = self._loader, iter(self._loader)
        pins = self.pin_memory and loader._engine.device is None and torch.accelerator.is_available()
        here, stop = self._steps.pass_steps
        try:
            while here < stop:
                mark = loader.seen.mark
                batch = next(batches, None)
                if batch is None:
                    return
                here = batch.train_step + 1
                try:
                    item = self._transformed(batch.pin_memory() if pins else batch)
                except BaseException:
                    loader.seek(here - 1)  # it was not delivered, so it comes again, and nobody has seen it
                    loader.seen.back_to(mark)
                    raise
                del batch
                yield item
                del item  # what the consumer let go of must not live on here
                if loader.train_step != here:
                    here, stop = self._steps.pass_steps
        finally:
            batches.close()  # type: ignore[attr-defined]

    def _by_processes(self) -> Iterator[Any]:
        loader = self._loader
        while True:
            loader.check_first_step()
            claim = loader.claim()
            here, stop = self._steps.pass_steps
            if here >= stop:
                return
            self._stop_all()
            batches = self._begun(here)
            is_sound = False
            try:
                for train_step in range(here, stop):
                    mark = loader.seen.mark
                    try:
                        item = self._transformed(self._received(batches, train_step))
                        loader.delivered(train_step, claim)
                    except BaseException:
                        # torch's signal handler raises a worker's death, and Python's an interrupt, at any instruction
                        if loader.claimed == claim:
                            loader.seek(train_step)  # counted or not, it was not delivered
                            loader.seen.back_to(mark)
                        raise
                    yield item
                    del item
                    if loader.claimed != claim:
                        break
                is_sound = True
            except GeneratorExit:  # the consumer left the loop
                is_sound = True
                raise
            except RuntimeError as err:
                told = worker_error(batches._workers, err, loader.train_step) if tells_of_a_death(err) else None
                if told is None:
                    raise
                raise told from err
            finally:
                if batches in self._running and not (is_sound and self.persistent_workers):
                    self._stop(batches)
                del batches
            if loader.claimed == claim:
                return

    def _begun(self, train_step: int) -> Any:
        """Return torch's iterator: its workers are started or, where they persist, have said that they begin again."""
        try:
            return super().__iter__()
        except BaseException as err:
            told = None
            for batches in tuple(self._running):  # all others were stopped before
                if isinstance(err, RuntimeError) or (
                    batches is self._iterator and isinstance(err, (OSError, EOFError))
                ):
                    told = worker_error(batches._workers, err, train_step)
                self._stop(batches)
            if told is None:
                raise
            raise told from err

    def _get_iterator(self) -> Any:
        """Return a new iterator of torch, which is known here before it starts the first process: any of them may fail."""
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        batches = _MultiProcessingDataLoaderIter.__new__(_MultiProcessingDataLoaderIter)
        batches._workers, batches._shutdown = [], True  # until it has something to shut down
        self._running.append(batches)
        _MultiProcessingDataLoaderIter.__init__(batches, self)
        return batches

    def _received(self, batches: Any, train_step: int) -> Batch:
        """Return the next batch from the workers, or raise what went wrong, naming the worker."""
        try:
            answer = next(batches)
        except (RuntimeError, OSError, EOFError) as err:
            # The last two: a worker was killed after it sent a batch and before its memory was taken over.
            if (told := worker_error(batches._workers, err, train_step, batches._timeout)) is None:
                raise
            raise told from err
        if isinstance(answer, Failure):
            raise answer.error()
        assert isinstance(answer, Delivery)
        self._loader._engine.quarantine.merge(answer.found_bad)
        device = self._loader._engine.device
        return answer.batch if device is None else answer.batch.to(device, non_blocking=self.pin_memory)

    def _transformed(self, batch: Batch) -> Any:
        return batch if self._transform is None else self._transform(batch)

    def _stop_all(self) -> None:
        """End all workers but those that persist, whose iterator the next loop takes over if none of them has died.

        One may have died while the consumer worked: torch raises that there, and this object does not hear of it.
        """
        for batches in tuple(self._running):
            is_whole = all(worker.is_alive() for worker in batches._workers)
            if batches is not self._iterator or not is_whole:
                self._stop(batches)

    def _stop(self, batches: Any) -> None:
        """End the workers of an iterator now, and not when the last reference to it goes."""
        self._running.remove(batches)
        # torch's signal handler raises where a worker dies, which is either known by now or does not matter any more;
        # and torch misses attributes where it was interrupted before it had all of them, and ends the workers all the same
        with suppress(RuntimeError, AttributeError):
            batches._shutdown_workers()
        for worker in batches._workers:
            worker.join(_JOIN_TIMEOUT_S)
            if worker.is_alive():  # the handler raised before torch had told it to end
                worker.kill()
                worker.join(_JOIN_TIMEOUT_S)
        join_feeders(batches)
        if self._iterator is batches:
            self._iterator = None

    # ---- passes and state ----

    @property
    def _steps(self) -> CursorSampler:
        return self.sampler  # type: ignore[return-value]

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of pass `epoch`, unless the cursor is inside it already: after a resume it is."""
        self._steps.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the loader's state: what continues with the next undelivered batch."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Continue where `state` was taken; see `Loader.load_state_dict`."""
        self._loader.load_state_dict(state, allow=allow)

    def close(self) -> None:
        """Stop workers and the loader's threads, and close files. Idempotent; it may be iterated again afterwards."""
        for batches in tuple(self._running):
            self._stop(batches)
        self._loader.close()

    def __enter__(self) -> TrajDataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    # ---- what trainers look at ----

    @property
    def _auto_collation(self) -> bool:
        return False  # whatever `batch_sampler` says below: an item is a whole batch

    @property
    def batch_sampler(self) -> PassBatches:
        """For `accelerate.skip_first_batches`, which puts one of its own around it."""
        return PassBatches(self)

    @batch_sampler.setter
    def batch_sampler(self, value: Any) -> None:
        assert value is None  # DataLoader.__init__


class CursorSampler(StepSampler):
    """A StepSampler whose place is the loader's cursor. It asks for batches in full, see `StepRequest`."""

    @property
    def begin(self) -> int:
        """The cursor."""
        return self._loader.train_step

    @begin.setter
    def begin(self, train_step: int) -> None:
        if train_step != self._loader.train_step:
            self._loader.seek(train_step)

    def __iter__(self) -> Iterator[int]:
        engine = self._loader._engine
        for train_step in range(*self.pass_steps):
            rows = engine.split.rows(train_step)
            own = None if engine.split.is_even else (rows.start, rows.stop)
            yield StepRequest(train_step, engine.quarantine.to_json(), own)


class PassBatches:
    """The train_steps of the pass that the cursor is in, from its begin, each as a list of one.

    So skipping the first n means to go to the n-th of the pass, whether or not a state was loaded before. The cursor
    moves with what is asked for, which is what is delivered only without workers.
    """

    def __init__(self, dataloader: TrajDataLoader) -> None:
        self.sampler = dataloader._steps
        self._num_workers = dataloader.num_workers
        self.batch_size, self.drop_last = 1, False

    def __iter__(self) -> Iterator[list[int]]:
        if self._num_workers > 0:
            raise ConfigError(
                f"batches cannot be skipped for {self._num_workers} workers, which are ahead of what is delivered: load a state "
                "(load_state_dict, Accelerator.load_state), or seek, instead. Or take num_workers=0."
            )
        loader, length = self.sampler._loader, self.sampler.steps_per_epoch
        begin = loader.train_step // length * length
        for train_step in range(begin, self.sampler.end_of(begin)):
            loader.seek(train_step + 1)
            yield [train_step]

    def __len__(self) -> int:
        return self.sampler.steps_per_epoch


def _same(batch: Any) -> Any:
    return batch


def _check_sendable(steps: TrainSteps) -> None:
    """Raise ConfigError where spawning would fail, or fail late, in words about pickling."""
    try:
        pickle.dumps(steps)
    except Exception as err:
        raise ConfigError(
            f"the loader cannot be sent to a worker process: {type(err).__name__}: {err}. Define transforms at the top of a "
            "module, not as lambdas or inside functions; or take num_workers=0, which works in threads."
        ) from err
