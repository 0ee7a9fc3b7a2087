"""The loader: wires dataset, sampler and pipeline together. The one class most users meet."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NoReturn, cast

from trajload.arguments import explains_calls
from trajload.augment.contract import Transform
from trajload.collate.batch import Batch
from trajload.decode.devices import DecodeMode
from trajload.errors import ConfigError
from trajload.pipeline import config
from trajload.pipeline.engine import Engine
from trajload.pipeline.facts import LoaderFacts
from trajload.pipeline.rank_split import LoadWeights
from trajload.pipeline.ranks import RankCheck
from trajload.pipeline.state import check_state, make_state
from trajload.pipeline.workers import Batches
from trajload.sampling.mixture_sources import Mixture
from trajload.sampling.orders import OrderConfig
from trajload.sampling.sampler import check_train_step
from trajload.sampling.select import EpisodeChoice
from trajload.sources.base import Dataset
from trajload.sources.open import open as open_dataset
from trajload.spec import StreamRequest, Window
from trajload.storage.locks import ForkLock
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    import torch

    from trajload.interop.dataloader import TrajDataLoader
    from trajload.interop.rows import MapParts

__all__ = ["Loader"]


@explains_calls
class Loader(LoaderFacts):
    """Batches of windows in an order that is a pure function of the train_step.

    Iterating starts at the cursor (`train_step`), which moves on with every delivered batch; `state_dict`,
    `load_state_dict` and `seek` read and set it. `batch_at(k)` gives any batch without iterating: it is what
    iteration must and does equal, whatever the number of workers, the prefetch depth or the ranks.

    Args:
        dataset: An opened dataset, a path for `tl.open`, or a `tl.Mixture`. `window`, `order` and `streams` (by batch key) are
            then for those of its sources that have none of their own.
        window: Which steps make an example; None only with a mixture whose sources all have their own.
        global_batch_size: Windows per train_step over all ranks.
        seed: Of the order, -2**63 <= seed < 2**63.
        order: 'shuffled' (uniform over an epoch's windows), 'interleaved' (mixed like it, shared frames close together),
            'continuous' or 'sequential'; or a version ('shuffled/1'), or `tl.Interleaved(...)`, `tl.Weighted(...)`.
        episodes: None for all; numbers, for instance of `tl.split`; or a function of `EpisodeInfo` → bool.
        streams: None for all; names; or name → `tl.Image(...)` / `tl.Signal(...)`.
        rank: Data-parallel rank; None takes it from `device_mesh`, else RANK and WORLD_SIZE of the environment, or 0 of 1.
        world_size: Number of data-parallel ranks. A rank gets a contiguous range of the batch's rows.
        num_workers: Decoder threads. None: one per CPU this process may use (sets and quotas count), 0: everything in the calling thread.
        num_readers: Threads that read bytes ahead (of each process) where reads are slow: more where one takes long to answer.
        workers: 'threads'; 'processes:N', which share out rows and threads; or 'auto', which measures and chooses.
        worker_timeout_s: A worker process that makes no progress for so long is replaced, threads that make none end the run;
            None: wait for ever.
        prefetch: Train_steps in the works at once, or 'auto'.
        num_epochs: None runs without end; else iteration ends after so many epochs.
        drop_last: With `num_epochs`: drop the last batch if it is not full, instead of padding it (`row_is_pad`).
        on_error: 'raise', or 'substitute' a keyed other window for one that cannot be read (listed in the state).
        transforms: Callables (window, generator) -> window, run over each window in this order; what they draw is a
            function of seed, epoch, window and place in the list.
        load_weights: A `tl.CostTable` of the dataset, or its path (source → table for a mixture): ranks then load rows of even
            cost instead of even number, batch by batch. No row changes its window. Not under 'interleaved' and 'continuous'.
        pool_bytes: Memory for pictures that 'interleaved' decodes once and uses for several windows. None: what its
            lanes need, within bounds; 0: every window is decoded by itself.
        decode: Who decodes colour video: 'cpu'; 'cuda', an NVIDIA GPU; 'auto', the faster one if both give the same bytes.
        device: Where iteration delivers tensors: 'cuda' copies each batch ahead from pinned memory. None leaves them here.
        device_mesh: The data-parallel dimension of a torch DeviceMesh, such as `mesh["dp"]`, in place of rank and world_size.
        check_ranks: Whether `check_ranks` runs by itself before the first batch, where torch.distributed is initialised.

    Raises:
        ConfigError: A bad argument or combination.
        WindowError: No episode is long enough for the window.

    Example:
        >>> loader = Loader("my-dataset", window=Window(num_steps=16), global_batch_size=32, seed=7)  # doctest: +SKIP
        >>> for batch in loader:                                                                      # doctest: +SKIP
        ...     train(batch["observation.images.top"], batch["action"])
    """

    def __init__(
        self,
        dataset: Dataset | PathLikeStr | Mixture,
        *,
        window: Window | None,
        global_batch_size: int,
        seed: int = 0,
        order: str | OrderConfig = "shuffled",
        episodes: EpisodeChoice = None,
        streams: Iterable[str] | Mapping[str, StreamRequest | None] | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        num_workers: int | None = None,
        num_readers: int = 1,
        workers: str = "threads",
        worker_timeout_s: float | None = 300.0,
        prefetch: int | Literal["auto"] = "auto",
        num_epochs: int | None = None,
        drop_last: bool = False,
        on_error: config.OnError = "raise",
        transforms: Iterable[Transform] = (),
        load_weights: LoadWeights = None,
        pool_bytes: int | None = None,
        decode: DecodeMode = "cpu",
        device: torch.device | str | None = None,
        device_mesh: Any = None,
        check_ranks: bool = True,
    ) -> None:
        self.world = config.choose_world(rank, world_size, device_mesh)
        self.dataset = dataset if isinstance(dataset, (Dataset, Mixture)) else open_dataset(dataset)
        arguments: dict[str, Any] = {
            **{"window": window, "streams": config.kept(streams), "episodes": config.kept(episodes)},
            **{"transforms": config.kept(transforms)},
            **{"order": order, "seed": seed, "global_batch_size": global_batch_size, "num_epochs": num_epochs},
            **{"drop_last": drop_last, "on_error": on_error, "load_weights": load_weights, "decode": decode},
            **{"num_workers": num_workers, "workers": workers, "worker_timeout_s": worker_timeout_s},
            **{"prefetch": prefetch, "pool_bytes": pool_bytes, "device": device, "num_readers": num_readers},
        }
        self._engine = Engine(self.dataset, world=self.world, **arguments)
        ranks = {"rank": self.world.rank, "world_size": self.world.world_size}
        self.arguments = {"dataset": self.dataset, **ranks, **arguments}
        """What the loader was built from: `Loader(**arguments)` gives the same batches."""
        self._rank_check = RankCheck(self.world, rank is not None, device_mesh, is_on=check_ranks)
        self.window, self.streams = self._engine.window, self._engine.streams
        self._train_step, self._generation, self._prefetcher = 0, 0, cast("Batches | None", None)
        self._plain, self._context = ForkLock(), self._engine.builder.new_context()

    # ---- batches ----

    def batch_at(self, train_step: int, *, rows: slice | None = None) -> Batch:
        """Return this rank's batch of `train_step`, made plainly in the calling thread. Does not move the cursor.

        Args:
            train_step: Whose batch is wanted.
            rows: Other rows of the global batch than this rank's: `slice(0, global_batch_size)` are all of them.

        Raises:
            LoaderExhaustedError: `train_step` lies at or beyond the end of a finite run.
            TrajloadError: A window cannot be read; the message says which and where.
        """
        with self._plain:
            builder = self._engine.builder
            return builder.finish(builder.build(train_step, self._context, rows=rows))

    def draws_at(self, train_step: int) -> list[list[dict[str, Any]]]:
        """Return what each transform drew for each row of this rank's batch of `train_step`; makes the batch again.

        An entry is {"transform", "key", "draws"}; `draws` is None where a transform does not tell.
        """
        with self._plain:
            job = self._engine.builder.build(train_step, self._context, tell_draws=True)
        return [(job.draws or {}).get(b, []) for b in range(job.num_rows)]

    def __iter__(self) -> Iterator[Batch]:
        """Yield batches from the cursor on. Threads stop when the iterator is dropped, broken out of, or fails."""
        self.check_first_step()
        generation = self.claim()
        engine, prefetcher = self._engine, self._prefetcher
        try:
            while True:
                if prefetcher is None:
                    prefetcher = self._prefetcher = engine.start(self._train_step)
                prefetcher.check_process()
                batch = engine.stats.next_of(prefetcher)
                if batch is None:
                    return
                self._train_step = engine.seen.add(batch.train_step)
                yield batch
                del batch  # what the consumer let go of must not live on here
                if generation != self._generation:
                    # seek, load_state_dict or another iterator took over while the consumer had the batch.
                    prefetcher.close()
                    prefetcher, generation = None, self.claim()
        finally:
            if prefetcher is not None:
                prefetcher.close()
                if self._prefetcher is prefetcher:
                    self._prefetcher = None

    def claim(self) -> int:
        """Stop whoever iterates; return a number that is `claimed` until someone else iterates or moves the cursor."""
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None
        self._generation += 1
        return self._generation

    def delivered(self, train_step: int, claimed: int) -> None:
        """Count the batch of `train_step`, which was made elsewhere, as delivered by the holder of a claim."""
        if claimed == self._generation:
            self._engine.stats.delivered()
            self._train_step = self._engine.seen.add(train_step)

    # ---- cursor and state ----

    def seek(self, train_step: int) -> None:
        """Move the cursor: the next batch delivered is that of `train_step`. Costs nothing, whatever the distance."""
        checked = check_train_step(train_step)
        self.claim()
        self._train_step = checked

    def state_dict(self) -> dict[str, Any]:
        """Return the state that continues at exactly the next undelivered batch: JSON-able, under 4 KiB
        (of a mixture with up to eight sources; some 200 bytes more for each further one).

        The same on every rank (but for windows that a rank found bad), and loadable with any number of
        ranks, workers and any prefetch depth.
        """
        here, engine = self._train_step, self._engine
        return make_state(
            config=engine.config,
            manifests=engine.manifests,
            train_step=here,
            pending=engine.pending(here, self._prefetcher is not None),
            quarantine=engine.quarantine.to_json(),
            cost_table_digest=engine.cost_table_digest,
            topology={"world_size": self.world.world_size, **engine.topology},
        )

    def load_state_dict(self, state: Mapping[str, Any], *, allow: Collection[str] = ()) -> None:
        """Continue where `state` was taken.

        Args:
            state: From `state_dict` of a loader with the same dataset and configuration.
            allow: Configuration fields that may differ, for instance ('streams',) to add a camera mid-run.

        Raises:
            ResumeError: The state does not fit; every differing field is named.
        """
        self.seek(check_state(state, config=self._engine.config, manifests=self._engine.manifests, allow=allow))
        self._engine.quarantine.load(state["quarantine"])
        self._rank_check.is_due = True

    def close(self) -> None:
        """Stop all threads and worker processes and close files. Idempotent; the loader may be iterated again afterwards."""
        self.claim()
        with self._plain:
            self._context.close()
            self._context = self._engine.builder.new_context()
        self._engine.close()
        self.dataset.close()

    def __reduce__(self) -> NoReturn:
        raise ConfigError(
            "a Loader cannot be pickled or copied: it owns threads. Build it in the process that iterates it, from the "
            "dataset (which can be pickled) and state_dict()."
        )

    # ---- among ranks, and in torch ----

    def check_ranks(self, group: Any = None, *, timeout_s: float = 300.0) -> None:
        """Compare dataset, configuration, cursor and load weights with the other processes of a torch.distributed group.

        Raises:
            ConfigError: They differ; the message names the ranks and the fields. Or torch.distributed is not initialised.
            StageFailedError: Another process did not come here within `timeout_s`.
        """
        self._rank_check.compare(self.state_dict(), group, timeout_s)

    def check_first_step(self) -> None:
        """Run `check_ranks` if it is due: before the first batch, and before the first one after a loaded state."""
        if self._rank_check.is_due:
            self._rank_check.by_itself(self.state_dict)

    def as_dataloader(
        self,
        *,
        num_workers: int = 0,
        steps_per_epoch: int | None = None,
        transform: Callable[[Batch], Any] | None = None,
        **options: Any,
    ) -> TrajDataLoader:
        """Return a `torch.utils.data.DataLoader` of these batches; see `trajload.interop.dataloader.TrajDataLoader`."""
        from trajload.interop.dataloader import TrajDataLoader

        options |= {"num_workers": num_workers, "steps_per_epoch": steps_per_epoch, "transform": transform}
        return TrajDataLoader(self, **options)

    def as_map_dataset(self, *, steps_per_epoch: int | None = None) -> MapParts:
        """Return (dataset of rows, batch_sampler, collate_fn) for a DataLoader of your own; see `trajload.interop.rows`."""
        from trajload.interop.rows import map_parts

        return map_parts(self, steps_per_epoch)

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
