"""What a loader runs on: the parts of the pipeline, made from its arguments and joined."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from trajload.augment.contract import Transform
from trajload.decode.devices import DecodeMode, video_devices
from trajload.errors import ConfigError
from trajload.pipeline import config as settings
from trajload.pipeline.block_units import BlockUnits
from trajload.pipeline.build import BatchBuilder
from trajload.pipeline.depth import DepthControl, choose_depth
from trajload.pipeline.gather import GatherUnits, make_gather
from trajload.pipeline.gather_table import ResidentBudget
from trajload.pipeline.inline import InlineRun
from trajload.pipeline.mixed import MixedSource, mix
from trajload.pipeline.numbering import plan_windows
from trajload.pipeline.pool_budget import choose_pool, pool_figures
from trajload.pipeline.prefetch import Prefetcher
from trajload.pipeline.quarantine import MAX_QUARANTINED, MAX_QUARANTINED_MIXED, Quarantine
from trajload.pipeline.rank_split import LoadWeights, RankSplit, load_tables, tables_digest
from trajload.pipeline.seen import Seen
from trajload.pipeline.source_rows import SourceRows
from trajload.pipeline.stats import StageStats
from trajload.pipeline.to_device import DeviceAhead, check_device
from trajload.pipeline.units import QueuedUnits, RowUnits
from trajload.pipeline.window_costs import WindowCosts
from trajload.pipeline.workers import Batches, Workers
from trajload.sampling.mixture import MixtureSampler
from trajload.sampling.mixture_sources import Mixture
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

    window: Window | None
    streams: tuple[settings.StreamChoice, ...]
    sampler: Sampler | MixtureSampler
    config: dict[str, Any]
    manifests: list[tuple[int, str]]
    """One for each source."""

    def __init__(
        self,
        dataset: Dataset | Mixture,
        *,
        window: Window | None,
        streams: Iterable[str] | Mapping[str, StreamRequest | None] | None,
        episodes: EpisodeChoice,
        transforms: Iterable[Transform],
        order: str | OrderConfig,
        seed: int,
        global_batch_size: int,
        num_epochs: int | None,
        drop_last: bool,
        world: World,
        on_error: settings.OnError,
        num_workers: int | None,
        prefetch: int | Literal["auto"],
        load_weights: LoadWeights,
        pool_bytes: int | None,
        workers: str = "threads",
        worker_timeout_s: float | None = None,
        decode: DecodeMode = "cpu",
        device: Any = None,
        num_readers: int = 1,
    ) -> None:
        most = MAX_QUARANTINED_MIXED if isinstance(dataset, Mixture) else MAX_QUARANTINED
        self.quarantine, self.stats, self.seen = Quarantine(most), StageStats(), Seen()
        tables = load_tables(load_weights, list(dataset.sources) if isinstance(dataset, Mixture) else None)
        self.cost_table_digest = tables_digest(tables)
        """Of the load weights, None without."""
        costs: list[WindowCosts] | None = None
        if isinstance(dataset, Mixture):
            _check_whole(dataset, episodes, num_epochs)
            mixed = mix(dataset, window=window, streams=streams, order=order, seed=seed, transforms=transforms)
            self.window = window
            sources = self._join(dataset, mixed, global_batch_size, seed, on_error)
            if tables is not None:
                costs = [WindowCosts(tables[s.name], s.dataset, s.choices, s.window) for s in mixed]
        else:
            self.window = settings.check_window(window)
            self.streams = settings.choose_streams(dataset, streams, self.window)
            table, order, chosen = plan_windows(dataset, self.window, self.streams, order, episodes)
            self.sampler = sampler = Sampler(
                table, order=order, seed=seed, global_batch_size=global_batch_size, num_epochs=num_epochs, drop_last=drop_last,
            )  # fmt: skip
            if tables is not None:
                costs = [WindowCosts(tables[""], dataset, self.streams, self.window)]
            chain = settings.make_transforms(transforms, self.streams, sampler.seed)
            sources = [SourceRows(dataset, self.window, self.streams, sampler, self.stats, chain)]
            decides = {**sampler.config_json(), **chosen}
            self.config = settings.config_json(self.streams, self.window, decides, on_error, chain)
            self.manifests = [(0, dataset.digest)]
        self.split = RankSplit(self.sampler, world, costs)
        rows_at = None if self.split.is_even else self.split.rows
        self.builder = BatchBuilder(
            sources, self.sampler, self.split.even, on_error, self.quarantine, self.stats, rows_at
        )
        self.gather = make_gather(self.builder)
        self.num_workers, self.num_readers = settings.check_workers(num_workers), settings.check_readers(num_readers)
        self.device = check_device(device)
        self.builder.pool.pin_memory = self.device is not None and self.device.type == "cuda"
        self.builder.devices = video_devices(decode, num_threads=max(self.num_workers, 1))
        if decode == "cuda":
            # Its pictures may differ from the CPU's by a grey level; those of "auto" do not.
            self.config["decode"] = decode
        self.pool = choose_pool(self.builder, pool_bytes, self.num_workers)
        self._depth = choose_depth(
            prefetch, self.num_workers, self.builder.batch_bytes, has_pool=self.pool.num_bytes > 0
        )
        self._control = DepthControl(self._depth)
        self.start_depth = self._depth.start
        self.workers = Workers(workers, worker_timeout_s)
        self.workers.bind(self)

    def _join(
        self,
        mixture: Mixture,
        mixed: list[MixedSource],
        global_batch_size: int,
        seed: int,
        on_error: settings.OnError,
    ) -> list[SourceRows]:
        """Join the sources of a mixture, and return what makes their rows."""
        sampler = MixtureSampler(
            [source.part for source in mixed],
            by=mixture.by,
            seed=seed,
            global_batch_size=global_batch_size,
            stretch_steps=mixture.stretch_steps,
        )
        self.sampler = sampler
        self.streams = (*mixed[0].choices, *mixed[0].absent)
        decides = sampler.config_json()
        for source in mixed:
            decides["sources"][source.name].update(source.config)
        decides["on_error"] = settings.check_on_error(on_error)
        common = [] if mixed[0].transforms is None else mixed[0].transforms.config[mixed[0].num_own_transforms :]
        self.config = {**decides, **({"transforms": common} if common else {})}
        self.manifests = [(0, source.dataset.digest) for source in mixed]
        return [
            SourceRows(
                source.dataset,
                source.window,
                source.choices,
                own_sampler,
                self.stats,
                source.transforms,
                name=source.name,
                absent=source.absent,
            )
            for source, own_sampler in zip(mixed, sampler.samplers, strict=True)
        ]

    def start(self, train_step: int) -> Batches:
        """Return what makes batches from `train_step` on: threads or worker processes ahead of the consumer, or itself.

        Raises:
            ConfigError: A batch does not fit in memory.
        """
        self.builder.check_memory(self.builder.num_rows)
        if self.num_workers == 0:
            return self.inline(train_step)
        batches = self.workers.start(self, train_step)
        return batches if self.device is None else DeviceAhead(batches, self.device, self.stats)

    def inline(self, train_step: int = 0) -> InlineRun:
        """Return what makes batches in the calling thread."""
        stop = self.sampler.num_train_steps
        return InlineRun(self.builder, self._units(), start=train_step, stop=stop, device=self.device)

    def start_threads(self, train_step: int) -> Prefetcher:
        """Return threads that make batches from `train_step` on."""
        stop, planner = self.sampler.num_train_steps, None
        if self.pool.num_bytes:
            # Rows are so cheap then that writing their keys one by one would be felt.
            planner = BlockUnits(
                self.builder, self.pool, self.gather, start=train_step, stop=stop,
                num_decoders=self.num_workers, num_readers=self.num_readers,
            )  # fmt: skip
        return Prefetcher(
            self.builder,
            start=train_step,
            stop=stop,
            depth=self._control,
            num_decoders=self.num_workers,
            num_readers=self.num_readers,
            planner=planner or self._units(),
            timeout_s=self.workers.timeout_s,
        )

    def _units(self) -> QueuedUnits:
        if self.gather is None:
            return RowUnits(self.builder, self.num_workers, self.num_readers)
        return GatherUnits(self.builder, self.gather, self.num_workers, self.num_readers)

    def for_worker(self, num_threads: int) -> Engine:
        """Return what a worker process is sent: this engine with so many decoder threads. `worker_main` takes a part."""
        out = copy.copy(self)
        out.num_workers, out.workers, out.gather, out.device = num_threads, Workers(), None, None
        return out

    def take_part(self, part: Callable[[slice], slice], num_parts: int) -> None:
        """Build only a part of this rank's rows from now on, with its share of the memory: in a worker process."""
        self.builder.part = part
        self.gather = make_gather(self.builder, ResidentBudget.of_machine(num_parts))
        self.pool = self.pool.share(num_parts)

    def leave_out(self, *, decode: bool = True, reads: bool = False) -> None:
        """Deliver zeros instead of decoding, and with `reads` without reading, to measure what all else costs. Before the first run."""
        self.builder.is_blank = decode or reads
        for source in self.builder.sources:
            source.skips_reads = reads
        self.workers.bind(self)  # which packs what worker processes are sent

    def close(self) -> None:
        """End worker processes, and let go of memory and mappings that are not in use. Idempotent."""
        self.workers.close()
        self.builder.clear()
        if self.gather is not None:
            self.gather.clear()

    @property
    def depth(self) -> int:
        """Train_steps that may be in the works, the same on every rank; how many are is measured where threads make batches."""
        return self._depth.start if self.workers.choice.kind == "processes" else self._depth.most

    @property
    def topology(self) -> dict[str, int]:
        """Threads and read-ahead, as a state tells of them."""
        return {"num_workers": self.num_workers, "prefetch": self.depth}

    def pending(self, train_step: int, is_running: bool) -> tuple[int, int]:
        """Return the half-open range of train_steps that may be in the works while `train_step` is the next to be delivered.

        It is the bound, not what the pipeline happens to have reached: the same on every rank.
        """
        stop = self.sampler.num_train_steps
        ahead = train_step + (self.depth if is_running and self.num_workers > 0 else 0)
        return train_step, ahead if stop is None else max(train_step, min(ahead, stop))

    def figures(self, train_step: int) -> dict[str, Any]:
        """Return what `Loader.stats` tells of the pipeline, and of the sources of a mixture at `train_step`."""
        return {
            **self.stats.snapshot(),
            "quarantined": len(self.quarantine),
            **{"num_workers": self.num_workers, "num_readers": self.num_readers},
            **{"prefetch": self._control.value, "prefetch_why": self._control.why},
            "batch_bytes": self.builder.batch_bytes,
            **self.workers.figures(),
            **({} if self.builder.devices is None else {"decode": self.builder.devices.report()}),
            "pool": pool_figures(self.pool, self.stats, max(self.num_workers, 1)),
            "signals": None if self.gather is None else self.gather.figures(),
            **({"shares": self.sampler.shares(train_step)} if isinstance(self.sampler, MixtureSampler) else {}),
        }


def _check_whole(mixture: Mixture, episodes: EpisodeChoice, num_epochs: int | None) -> None:
    """Refuse what is meant for one dataset."""
    if episodes is not None:
        raise ConfigError(
            "episodes= does not go with a mixture, whose sources number their episodes each: pass "
            "tl.Source(dataset, weight=..., episodes=...)."
        )
    if num_epochs is not None:
        raise ConfigError(
            f"num_epochs={num_epochs!r} does not go with a mixture: its {len(mixture)} sources end their epochs at different "
            "train_steps. Leave it out, and count train_steps: itertools.islice(loader, num_train_steps)."
        )
