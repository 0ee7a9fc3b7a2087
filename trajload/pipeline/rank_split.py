"""Which rows of the global batch of a train_step this rank loads: even in number, or even in measured cost."""

# Shapes: B rows of a global batch

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from trajload.costs.table import CostTable
from trajload.errors import ConfigError
from trajload.pipeline.window_costs import WindowCosts
from trajload.sampling.assign import rank_rows
from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.sampler import Sampler
from trajload.world import World

__all__ = ["LoadWeights", "RankSplit", "load_tables", "tables_digest"]

_Table: TypeAlias = "CostTable | str | os.PathLike[str]"
LoadWeights: TypeAlias = "_Table | Mapping[str, _Table] | None"
_MEMORY = 64
"""Train_steps whose rows are kept: a batch is asked about when it is opened and again when it is planned ahead."""


class RankSplit:
    """The rows of one rank. Thread-safe. Never changes what the global batch holds.

    Args:
        sampler: Decides the windows of a train_step.
        world: This rank, and how many there are.
        costs: What windows cost, for each source; None for ranks of even size. With costs the
            batch of each train_step is cut anew, so that the largest load of a rank is as small as contiguous ranges
            allow. Under an order with lanes (`interleaved`, `continuous`) ranks stay of even size: moving a row to
            another rank would make two ranks decode its block, or tear a row's continuation.
    """

    def __init__(
        self, sampler: Sampler | MixtureSampler, world: World, costs: Sequence[WindowCosts] | None = None
    ) -> None:
        self.world = world
        self.even = rank_rows(sampler.global_batch_size, world)
        """Without costs."""
        self._sampler = sampler
        self._costs = None if costs is None or sampler.has_lanes else tuple(costs)
        self._known: dict[int, slice] = {}

    @property
    def is_even(self) -> bool:
        """Whether the rows are the same for every train_step."""
        return self._costs is None or self.world.world_size == 1

    def rows(self, train_step: int) -> slice:
        """Return this rank's rows of the global batch of `train_step`: contiguous, at least one."""
        if self._costs is None or self.is_even:
            return self.even
        found = self._known.get(train_step)
        if found is None:
            refs = self._sampler.refs(train_step)
            cost_B = np.zeros(len(refs), dtype=np.int64)
            for number, costs in enumerate(self._costs):
                is_own_B = refs.source_B == number
                cost_B[is_own_B] = costs.of(refs.episode_B[is_own_B], refs.start_B[is_own_B])
            found = rank_rows(len(refs), self.world, cost_B=cost_B)
            # Replaced, not changed, so that no lock is needed: two threads may compute the same rows twice.
            kept = dict(list(self._known.items())[1 - _MEMORY :])
            self._known = {**kept, train_step: found}
        return found


def load_tables(load_weights: LoadWeights, sources: Sequence[str] | None) -> dict[str, CostTable] | None:
    """Return the table of each source, read from files where paths are given; None without any.

    Args:
        load_weights: A table for one dataset; source → table for a mixture.
        sources: Names of a mixture's sources, None for one dataset, whose table gets the name "".

    Raises:
        ConfigError: No table, one table for a mixture, or tables that are not those of the sources.
    """
    if load_weights is None:
        return None
    if sources is None:
        return {"": _load_table(load_weights)}
    names = ", ".join(map(repr, sources))
    if not isinstance(load_weights, Mapping):
        raise ConfigError(
            f"load_weights={load_weights!r} is one table: expected one for each source of the mixture, {names}."
        )
    if set(load_weights) != set(sources):
        raise ConfigError(
            f"load_weights are of {', '.join(map(repr, load_weights)) or 'nothing'}: expected a table for each of {names}."
        )
    return {name: _load_table(load_weights[name]) for name in sources}


def tables_digest(tables: Mapping[str, CostTable] | None) -> str | None:
    """Return what a state records of the tables: the table's digest, or one of all of a mixture's; None without."""
    if tables is None:
        return None
    if set(tables) == {""}:
        return tables[""].digest
    return hashlib.sha256("".join(f"{name}\0{tables[name].digest}\0" for name in sorted(tables)).encode()).hexdigest()


def _load_table(table: Any) -> CostTable:
    if isinstance(table, CostTable):
        return table
    if isinstance(table, (str, os.PathLike)):
        return CostTable.load(table)
    raise ConfigError(f"load_weights={table!r} is unusable: expected a tl.CostTable or the path of one.")
