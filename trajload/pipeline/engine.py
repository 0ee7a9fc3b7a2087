"""What a loader runs on: the parts of the pipeline, made from its arguments and joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from trajload.augment.contract import Transform
from trajload.pipeline import config
from trajload.pipeline.block_units import BlockUnits
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.numbering import plan_windows
from trajload.pipeline.pool_budget import choose_pool, pool_figures
from trajload.pipeline.prefetch import Prefetcher
from trajload.pipeline.quarantine import Quarantine
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats import StageStats
from trajload.sampling.assign import rank_rows
from trajload.sampling.orders import OrderConfig
from trajload.sampling.sampler import Sampler
from trajload.sampling.select import EpisodeChoice
from trajload.sources.base import Dataset
from trajload.spec import StreamRequest, Window
from trajload.world import World

__all__ = ["Engine"]


class Engine:
    """Sampler, builder and threads of one loader. Knows no cursor: it makes the batch of any train_step.

    Arguments are those of `Loader`, which documents them.
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        window: Window,
        streams: Iterable[str] | Mapping[str, StreamRequest | None] | None,
        episodes: EpisodeChoice,
        transforms: Iterable[Transform],
        order: str | OrderConfig,
        seed: int,
        global_batch_size: int,
        num_epochs: int | None,
        drop_last: bool,
        world: World,
        on_error: config.OnError,
        num_workers: int | None,
        prefetch: int | Literal["auto"],
        pool_bytes: int | None,
    ) -> None:
        self.window = config.check_window(window)
        self.streams = config.choose_streams(dataset, streams, window)
        table, order, chosen = plan_windows(dataset, window, self.streams, order, episodes)
        self.sampler = Sampler(
            table, order=order, seed=seed, global_batch_size=global_batch_size, num_epochs=num_epochs, drop_last=drop_last,
        )  # fmt: skip
        self.rows = rank_rows(global_batch_size, world)
        self.quarantine, self.stats = Quarantine(), StageStats()
        chain = config.make_transforms(transforms, self.streams, self.sampler.seed)
        source = SourceRows(dataset, window, self.streams, self.sampler, self.stats, chain)
        self.builder = BatchBuilder([source], self.sampler, self.rows, on_error, self.quarantine, self.stats)
        decides = {**self.sampler.config_json(), **chosen}
        self.config = config.config_json(self.streams, window, decides, on_error, chain)
        self.manifests: list[tuple[int, str]] = [(0, dataset.digest)]
        self.num_workers = config.check_workers(num_workers)
        self.pool = choose_pool(self.builder, pool_bytes, self.num_workers)
        self.depth, self.depth_why = config.choose_depth(prefetch, self.num_workers, self.builder.batch_bytes)

    def start(self, train_step: int) -> Prefetcher:
        """Return threads that make batches from `train_step` on."""
        stop, planner = self.sampler.num_train_steps, None
        if self.pool.num_bytes:
            planner = BlockUnits(self.builder, self.pool, start=train_step, stop=stop, num_decoders=self.num_workers)
        return Prefetcher(
            self.builder,
            start=train_step,
            stop=stop,
            depth=self.depth,
            num_decoders=self.num_workers,
            planner=planner,
        )

    def has(self, train_step: int) -> bool:
        """Return whether the run goes on to `train_step`."""
        stop = self.sampler.num_train_steps
        return stop is None or train_step < stop

    def pending(self, train_step: int, is_running: bool) -> tuple[int, int]:
        """Return the half-open range of train_steps in the works while `train_step` is the next to be delivered.

        It is what the pipeline keeps in the works, not what it happens to have reached: the same on every rank.
        """
        stop = self.sampler.num_train_steps
        ahead = train_step + (self.depth if is_running else 0)
        return train_step, ahead if stop is None else max(train_step, min(ahead, stop))

    def figures(self) -> dict[str, Any]:
        """Return what `Loader.stats` tells of the pipeline."""
        return {
            **self.stats.snapshot(),
            "quarantined": len(self.quarantine),
            "num_workers": self.num_workers,
            **{"prefetch": self.depth, "prefetch_why": self.depth_why},
            "batch_bytes": self.builder.batch_bytes,
            "pool": pool_figures(self.pool, self.stats),
        }
