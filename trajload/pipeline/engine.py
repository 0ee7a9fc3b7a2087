"""What a loader runs on: the parts of the pipeline, made from its arguments and joined."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from trajload.augment.contract import Transform
from trajload.pipeline import config
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.numbering import plan_windows
from trajload.pipeline.prefetch import Prefetcher
from trajload.pipeline.quarantine import Quarantine
from trajload.pipeline.rank_split import LoadWeights, RankSplit, load_table, window_costs
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats import StageStats
from trajload.pipeline.workers import Batches, Workers
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
        load_weights: LoadWeights,
        workers: str = "threads",
        worker_timeout_s: float | None = None,
    ) -> None:
        self.window = config.check_window(window)
        self.streams = config.choose_streams(dataset, streams, window)
        table, order, chosen = plan_windows(dataset, window, self.streams, order, episodes)
        self.sampler = Sampler(
            table, order=order, seed=seed, global_batch_size=global_batch_size, num_epochs=num_epochs, drop_last=drop_last,
        )  # fmt: skip
        self.load_table = load_table(load_weights)
        costs = window_costs(self.load_table, dataset, self.streams)
        self.split = RankSplit(self.sampler, world, None if costs is None else [costs])
        self.quarantine, self.stats = Quarantine(), StageStats()
        chain = config.make_transforms(transforms, self.streams, self.sampler.seed)
        source = SourceRows(dataset, window, self.streams, self.sampler, self.stats, chain)
        self.builder = BatchBuilder(
            [source], self.sampler, self.split.even, on_error, self.quarantine, self.stats, self.split.rows
        )
        decides = {**self.sampler.config_json(), **chosen}
        self.config = config.config_json(self.streams, window, decides, on_error, chain)
        self.manifests: list[tuple[int, str]] = [(0, dataset.digest)]
        self.num_workers = config.check_workers(num_workers)
        self.depth, self.depth_why = config.choose_depth(prefetch, self.num_workers, self.builder.batch_bytes)
        self.workers = Workers(workers, worker_timeout_s)
        self.workers.bind(self)

    def start(self, train_step: int) -> Batches:
        """Return what makes batches from `train_step` on, ahead of the consumer: threads or worker processes."""
        return self.workers.start(self, train_step)

    def start_threads(self, train_step: int) -> Prefetcher:
        """Return threads that make batches from `train_step` on."""
        return Prefetcher(
            self.builder,
            start=train_step,
            stop=self.sampler.num_train_steps,
            depth=self.depth,
            num_decoders=self.num_workers,
        )

    def for_worker(self, num_threads: int) -> Engine:
        """Return what a worker process is sent: this engine with so many decoder threads. `worker_main` takes a part."""
        out = copy.copy(self)
        out.num_workers, out.workers = num_threads, Workers()
        return out

    def close(self) -> None:
        """End worker processes and forget memory that is not in use. Idempotent."""
        self.workers.close()
        self.builder.clear()

    @property
    def cost_table_digest(self) -> str | None:
        """Digest of the load weights, None without."""
        return None if self.load_table is None else self.load_table.digest

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
            **self.workers.figures(),
        }
