"""What a loader can tell of itself without making a batch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

import numpy as np

from trajload.arguments import explains_calls_as
from trajload.costs.table import CostTable
from trajload.pipeline.engine import Engine
from trajload.pipeline.run_costs import run_costs
from trajload.pipeline.seen import Seen
from trajload.pipeline.stats import StageStats
from trajload.sampling.drawn import num_drawn, order_digest
from trajload.sampling.mixture_sources import Mixture
from trajload.sources.base import Dataset
from trajload.world import World

__all__ = ["LoaderFacts"]


def tags_of(provenance: Mapping[str, Any]) -> list[str]:
    """Return the consent tags of a dataset's provenance; it is free JSON, so a single one may stand for itself."""
    tags = provenance.get("consent_tags")
    several = tags if isinstance(tags, (list, tuple, set, frozenset)) else [] if tags is None else [tags]
    return sorted({str(tag) for tag in several})


@explains_calls_as("Loader")
class LoaderFacts:
    """Base of `Loader`: sizes, order, cursor. Everything is read from its parts; nothing is kept here."""

    dataset: Dataset | Mixture
    world: World
    _engine: Engine
    _train_step: int
    _generation: int

    @property
    def train_step(self) -> int:
        """The cursor: train_step of the next batch to be delivered."""
        return self._train_step

    @property
    def claimed(self) -> int:
        """Of the latest claim."""
        return self._generation

    def stats(self) -> dict[str, Any]:
        """Return where the time went: per stage and thread, consumer wait, queue, counts, prefetch depth and its reason."""
        return {**self._engine.figures(self._train_step), "train_step": self._train_step}

    def reset_stats(self) -> None:
        """Start counting from zero."""
        self._engine.stats.reset()

    def costs(self) -> CostTable | dict[str, CostTable]:
        """Return what decoding cost in this run so far, by episode and stream; of a mixture a table for each source.

        From a sample of the windows, in CPU time of the threads that decoded them. Episodes that were not decoded yet get what
        their kind costs. For `load_weights`, and for `trajload rebalance --costs`.

        Raises:
            ConfigError: Nothing was decoded yet.
        """
        tables = run_costs(self._engine)
        return tables if isinstance(self.dataset, Mixture) else next(iter(tables.values()))

    def order_digest(self, train_step: int) -> str:
        """Return a digest of the windows around a cursor: equal wherever the order is the same. See `trajload.sampling.drawn`."""
        return order_digest(self._engine.sampler, train_step)

    @property
    def seen(self) -> Seen:
        """Train_steps that iteration has delivered in this process; batches of `batch_at` are not among them."""
        return self._engine.seen

    def consent(self) -> dict[str, dict[str, Any]]:
        """Return licence (None where unknown) and consent tags of each source, as its dataset tells them."""
        told = {source.name: source.dataset.provenance() for source in self._engine.builder.sources}
        return {
            name: {
                "licence": None if provenance.get("licence") is None else str(provenance["licence"]),
                "consent_tags": tags_of(provenance),
            }
            for name, provenance in told.items()
        }

    def exposure(self, ranges: Iterable[tuple[int, int]]) -> dict[str, dict[str, Any]]:
        """Return what train_steps of `ranges` hold, source by source: windows, epochs (windows over those of one), steps, and
        licence and consent tags where the dataset tells them. Its cost does not grow with the number of train_steps."""
        sampler, sources = self._engine.sampler, self._engine.builder.sources
        found: dict[str, dict[str, Any]] = {}
        consent = self.consent()
        totals = [
            sum(column) for column in zip([0] * len(sources), *(num_drawn(sampler, *r) for r in ranges), strict=True)
        ]
        for source, windows in zip(sources, totals, strict=True):
            found[source.name] = {
                "windows": windows,
                "epochs": round(windows / source.sampler.num_windows, 4),
                "steps": windows * source.window.num_steps,
                **consent[source.name],
            }
        return found

    def episodes_in(self, ranges: Iterable[tuple[int, int]]) -> dict[str, dict[str, int]]:
        """Return {source: {episode key: windows}} of train_steps; goes through the order, batch by batch."""
        sources = self._engine.builder.sources
        count_of = [np.zeros(source.dataset.num_episodes, dtype=np.int64) for source in sources]
        for begin, stop in ranges:
            for step in range(begin, stop):
                refs = self._engine.sampler.refs(step)
                for number, counts in enumerate(count_of):
                    real_B = (refs.source_B == number) & ~refs.row_is_pad_B
                    counts += np.bincount(refs.episode_B[real_B], minlength=len(counts))
        return {
            source.name: {source.dataset.episode_key(int(e)): int(counts[e]) for e in np.flatnonzero(counts)}
            for source, counts in zip(sources, count_of, strict=True)
        }

    @property
    def stats_recorder(self) -> StageStats:
        """What the stages write and `stats` reads: for traces, and for cost tables."""
        return self._engine.stats

    @property
    def global_batch_size(self) -> int:
        """Windows of a train_step over all ranks."""
        return self._engine.sampler.global_batch_size

    @property
    def rank_batch_size(self) -> int:
        """Windows of this rank in the batch at the cursor; the same in every batch, but for `load_weights`."""
        rows = self._engine.split.rows(self._train_step)
        return rows.stop - rows.start

    @property
    def order(self) -> str:
        """Resolved order with its version, such as 'shuffled/1'."""
        return self._engine.sampler.order

    @property
    def num_windows(self) -> int:
        """Windows of one epoch."""
        return self._engine.sampler.num_windows

    @property
    def num_train_steps(self) -> int | None:
        """Train_steps of the whole run; None without `num_epochs`."""
        return self._engine.sampler.num_train_steps

    @property
    def steps_per_epoch(self) -> float:
        """Train_steps of one epoch; not whole where batches run across epoch ends."""
        return self.num_windows / self.global_batch_size

    def __len__(self) -> int:
        """Train_steps of the whole run; TypeError without `num_epochs`."""
        if self.num_train_steps is None:
            raise TypeError(
                "a loader without num_epochs has no length; see steps_per_epoch. For a torch DataLoader of its batches, call "
                "as_dataloader()."
            )
        return self.num_train_steps

    def __getitem__(self, item: object) -> NoReturn:
        raise TypeError(
            f"a loader is not indexed: loader[{item!r}]. batch_at(train_step) makes one batch; for a torch DataLoader of its batches, "
            "call as_dataloader()."
        )

    def __repr__(self) -> str:
        return (
            f"<Loader {self.dataset.name!r}: {self.num_windows} windows, global_batch_size={self.global_batch_size}, "
            f"order={self.order!r}, rank {self.world.rank} of {self.world.world_size}, train_step={self._train_step}>"
        )
