"""Which rows of the global batch of a train_step this rank loads: even in number, or even in measured cost."""

# Shapes: B rows of a global batch, E episodes, S sources

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

import numpy as np

from trajload.costs.table import CostTable
from trajload.errors import ConfigError
from trajload.pipeline.config import StreamChoice
from trajload.sampling.assign import rank_rows
from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.sampler import Sampler
from trajload.sources.base import Dataset
from trajload.types import Int64Array
from trajload.world import World

__all__ = ["LoadWeights", "RankSplit", "window_costs"]

LoadWeights = CostTable | str | os.PathLike[str] | None
_MEMORY = 64
"""Train_steps whose rows are kept: a batch is asked about when it is opened and again when it is planned ahead."""


class RankSplit:
    """The rows of one rank. Thread-safe. Never changes what the global batch holds.

    Args:
        sampler: Decides the windows of a train_step.
        world: This rank, and how many there are.
        window_ns: Cost of a window of each episode, (E,) for each source; None for ranks of even size. With costs the
            batch of each train_step is cut anew, so that the largest load of a rank is as small as contiguous ranges
            allow. Under an order with lanes (`interleaved`, `continuous`) ranks stay of even size: moving a row to
            another rank would make two ranks decode its block, or tear a row's continuation.
    """

    def __init__(
        self, sampler: Sampler | MixtureSampler, world: World, window_ns: Sequence[Int64Array] | None = None
    ) -> None:
        self.world = world
        self.even = rank_rows(sampler.global_batch_size, world)
        """Without costs."""
        self._sampler = sampler
        self._window_ns = None if window_ns is None or sampler.has_lanes else tuple(window_ns)
        self._known: dict[int, slice] = {}

    @property
    def is_even(self) -> bool:
        """Whether the rows are the same for every train_step."""
        return self._window_ns is None or self.world.world_size == 1

    def rows(self, train_step: int) -> slice:
        """Return this rank's rows of the global batch of `train_step`: contiguous, at least one."""
        if self._window_ns is None or self.is_even:
            return self.even
        found = self._known.get(train_step)
        if found is None:
            refs = self._sampler.refs(train_step)
            cost_B = np.zeros(len(refs), dtype=np.int64)
            for number, window_ns_E in enumerate(self._window_ns):
                is_own_B = refs.source_B == number
                cost_B[is_own_B] = window_ns_E[refs.episode_B[is_own_B]]
            found = rank_rows(len(refs), self.world, cost_B=cost_B)
            # Replaced, not changed, so that no lock is needed: two threads may compute the same rows twice.
            kept = dict(list(self._known.items())[1 - _MEMORY :])
            self._known = {**kept, train_step: found}
        return found


def window_costs(load_weights: LoadWeights, dataset: Dataset, choices: Sequence[StreamChoice]) -> Int64Array | None:
    """Return what a window of each episode costs, (E,), or None without a table.

    Raises:
        ConfigError: No cost table, or one of other data, or one without any of the streams of the batch.
    """
    table = load_table(load_weights)
    if table is None:
        return None
    if table.dataset_digest != dataset.digest:
        raise ConfigError(
            f"load_weights belong to other data: got a table of digest {table.dataset_digest[:12]}…, dataset {dataset.name!r} "
            f"has {dataset.digest[:12]}…. Measure the costs of this version."
        )
    if table.num_episodes != dataset.num_episodes:
        raise ConfigError(
            f"load_weights have {table.num_episodes} episodes: dataset {dataset.name!r} has {dataset.num_episodes}."
        )
    num_rows: Mapping[str, int] = {c.name: c.places.num_places for c in choices}
    if not set(num_rows) & set(table.row_ns):
        raise ConfigError(
            f"load_weights have costs of {', '.join(map(repr, table.row_ns))}, of none of the streams of the batch: "
            f"{', '.join(map(repr, num_rows))}."
        )
    return table.window_ns(num_rows)


def load_table(load_weights: LoadWeights) -> CostTable | None:
    """Return the table, read from a file where a path is given."""
    if load_weights is None or isinstance(load_weights, CostTable):
        return load_weights
    if isinstance(load_weights, (str, os.PathLike)):
        return CostTable.load(load_weights)
    raise ConfigError(f"load_weights={load_weights!r} is unusable: expected a tl.CostTable or the path of one.")
