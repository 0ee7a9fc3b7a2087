"""Which train_steps a DataLoader asks for, pass by pass: what it takes as its sampler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from torch.utils.data.distributed import DistributedSampler

from trajload.checks import check_int
from trajload.errors import ResumeError

if TYPE_CHECKING:
    from trajload.loader import Loader

__all__ = ["StepIterator", "StepSampler", "pass_length"]


class StepSampler(DistributedSampler[int]):
    """Train_steps from a loader's cursor to the end of the pass; then of the next pass, and so on.

    Passes are runs of `steps_per_epoch` train_steps counted from train_step 0: trainers call them epochs. The place is kept
    here, for a DataLoader that is not trajload's; the loader's cursor, where it begins, does not move. Its iterator has
    `state_dict` and `load_state_dict`, as torchdata's StatefulDataLoader looks for.

    A DistributedSampler by name only, so that trainers see that ranks are dealt with: the batch of a train_step is this
    rank's already.

    Args:
        loader: Whose train_steps they are.
        steps_per_epoch: Train_steps of a pass; None for one epoch of windows (rounded down), or all of a finite run.
    """

    def __init__(self, loader: Loader, steps_per_epoch: int | None = None) -> None:
        self._loader = loader
        self.steps_per_epoch = pass_length(loader, steps_per_epoch)
        self._begin = loader.train_step
        state = loader.state_dict()
        self.identity = {name: state[name] for name in ("manifests", "config_digest")}
        """What must be the same where a state of this sampler is loaded."""
        # What DistributedSampler has, for whoever looks.
        self.num_replicas, self.rank = loader.world.world_size, loader.world.rank
        self.num_samples = self.total_size = self.steps_per_epoch
        self.epoch, self.shuffle, self.seed, self.drop_last = 0, False, 0, False

    @property
    def begin(self) -> int:
        """Train_step at which the next iteration begins."""
        return self._begin

    @begin.setter
    def begin(self, train_step: int) -> None:
        self._begin = train_step

    @property
    def pass_steps(self) -> tuple[int, int]:
        """Half-open range of train_steps that the next iteration yields."""
        begin = self.begin
        return begin, self.end_of(begin)

    def end_of(self, train_step: int) -> int:
        """Return where the pass of `train_step` ends, or the run."""
        stop = (train_step // self.steps_per_epoch + 1) * self.steps_per_epoch
        last = self._loader.num_train_steps
        return stop if last is None else max(train_step, min(stop, last))

    def __iter__(self) -> Iterator[Any]:
        return StepIterator(self, *self.pass_steps)

    def __len__(self) -> int:
        """Train_steps of a whole pass."""
        return self.steps_per_epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the begin of a pass, unless already inside it: after a resume one is."""
        self.epoch = check_int("epoch", epoch, 0)
        if self.begin // self.steps_per_epoch != self.epoch:
            self.begin = self.epoch * self.steps_per_epoch


class StepIterator(Iterator[Any]):
    """One pass of a sampler. Its state is the next train_step to be asked for."""

    def __init__(self, sampler: StepSampler, train_step: int, stop: int) -> None:
        self._sampler, self._next, self._stop = sampler, train_step, stop

    def __next__(self) -> Any:
        """Return the next train_step."""
        if self._next >= self._stop:
            self._sampler.begin = self._stop
            raise StopIteration
        self._next += 1
        return self._next - 1

    def state_dict(self) -> dict[str, Any]:
        """Return where the pass goes on, and whose it is."""
        return {"train_step": self._next, "stop": self._stop, **self._sampler.identity}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken.

        Raises:
            ResumeError: It is of another dataset or configuration.
        """
        wrong = [name for name, value in self._sampler.identity.items() if state.get(name) != value]
        if wrong:
            raise ResumeError(
                f"the sampler's state does not fit this loader: {', '.join(wrong)} differ. Build the loader as it was saved; "
                "Loader.load_state_dict names each differing argument."
            )
        self._next, self._stop = int(state["train_step"]), int(state["stop"])
        # A pass that was saved at its end is over for torchdata, which then begins the next one without asking this one.
        self._sampler.begin = self._stop if self._next >= self._stop else self._next


def pass_length(loader: Loader, steps_per_epoch: int | None) -> int:
    """Return the train_steps of a pass: as asked for, of the whole run if it is finite, else of one epoch of windows.

    Raises:
        ConfigError: `steps_per_epoch` is no int of at least 1.
    """
    if steps_per_epoch is None:
        if loader.num_train_steps is not None:
            return max(1, loader.num_train_steps)
        return max(1, loader.num_windows // loader.global_batch_size)
    return check_int("steps_per_epoch", steps_per_epoch, 1, 2**62)
