"""A loader as a map-style dataset of single rows, for those who bring their own DataLoader and batch there.

Row `b` of the global batch of a train_step is item `train_step * global_batch_size + b`. Joined by `join_rows`, the rows
that the batch sampler asks for equal `Loader.batch_at` byte for byte.
"""

# Shapes: B rows, K rows of a ragged place

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import torch
from torch.utils.data import Dataset

from trajload.collate.batch import Batch
from trajload.errors import ConfigError
from trajload.interop.samplers import StepIterator, StepSampler
from trajload.interop.steps import TrainSteps

if TYPE_CHECKING:
    from trajload.loader import Loader

__all__ = ["MapParts", "RankRows", "Rows", "join_rows", "map_parts"]


class Rows(Dataset["Batch"]):
    """The rows of a loader's global batches, each a Batch of one. Picklable like `TrainSteps`."""

    def __init__(self, loader: Loader) -> None:
        self._steps = TrainSteps(loader)
        self._global_batch_size = loader.global_batch_size

    def __getitem__(self, item: int) -> Batch:
        """Return row `item % global_batch_size` of train_step `item // global_batch_size`."""
        train_step, b = divmod(operator.index(item), self._global_batch_size)
        return self._steps.make(train_step, slice(b, b + 1))

    def __len__(self) -> int:
        """Rows of the whole run; TypeError without `num_epochs`."""
        return len(self._steps) * self._global_batch_size

    def __iter__(self) -> NoReturn:
        raise TypeError("Rows are indexed; iterate a DataLoader with the batch sampler that came with them.")

    def close(self) -> None:
        """Close the loader that was built in this process, if one was. Idempotent."""
        self._steps.close()


class RankRows(StepSampler):
    """Batch sampler: for each train_step of a pass the items of this rank's rows. Passes and state as `StepSampler`."""

    def __iter__(self) -> Iterator[Any]:
        return _RowIterator(self, *self.pass_steps)


class _RowIterator(StepIterator):
    def __next__(self) -> Any:
        """Return the items of the next train_step."""
        train_step = super().__next__()
        loader = self._sampler._loader
        rows = loader._engine.split.rows(train_step)
        first = train_step * loader.global_batch_size
        return list(range(first + rows.start, first + rows.stop))


class MapParts(NamedTuple):
    """What a DataLoader takes as `dataset`, `batch_sampler` and `collate_fn`."""

    dataset: Rows
    batch_sampler: RankRows
    collate_fn: Any


def map_parts(loader: Loader, steps_per_epoch: int | None = None) -> MapParts:
    """Return the parts for `DataLoader(dataset, batch_sampler=..., collate_fn=...)`; see `Loader.as_map_dataset`."""
    return MapParts(Rows(loader), RankRows(loader, steps_per_epoch), join_rows)


def join_rows(rows: Sequence[Batch]) -> Batch:
    """Return the batch of some rows of one train_step, in their order; ragged streams padded to the longest.

    Raises:
        ConfigError: No row, or rows of several train_steps, whose transforms and replaced windows would not be told apart.
    """
    train_steps = {row.train_step for row in rows}
    if len(train_steps) != 1:
        raise ConfigError(
            f"rows of {len(train_steps)} train_steps cannot be joined, expected those of one: use the batch sampler of as_map_dataset."
        )
    values: dict[str, torch.Tensor | list[Any]] = {}
    for key, first in rows[0].items():
        if isinstance(first, torch.Tensor):
            values[key] = _joined([row[key] for row in rows], is_mask=key.endswith("_interval_is_pad"))  # type: ignore[misc]
        else:
            values[key] = [value for row in rows for value in row[key]]
    return Batch(values, train_step=train_steps.pop(), refs=[ref for row in rows for ref in row.refs])


def _joined(pieces: list[torch.Tensor], is_mask: bool) -> torch.Tensor:
    """Join along rows; where sizes behind differ (ragged streams), pad with zeros, or with True in their mask."""
    shapes = {piece.shape[1:] for piece in pieces}
    if len(shapes) == 1:
        return torch.cat(pieces)
    sizes = [max(each) for each in zip(*shapes, strict=True)]
    out = torch.full((len(pieces), *sizes), int(is_mask), dtype=pieces[0].dtype)
    for b, piece in enumerate(pieces):
        out[b][tuple(slice(size) for size in piece.shape[1:])] = piece[0]
    return out
