"""Blocks decoded once: iteration equals `batch_at` to the byte, whatever the pool holds and whoever copies from it."""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline.block_plan import BlockPlan

PICTURES = {"cam_front": tl.Image(size=(24, 24)), "cam_side": None}
COMMON: dict[str, Any] = {
    "global_batch_size": 4,
    "seed": 3,
    "rank": 0,
    "world_size": 1,
    "window": tl.Window(num_steps=5),
    "order": tl.Interleaved(block_windows=8, lanes_per_row=2),
    "streams": PICTURES,
}
NUM_BATCHES = 10


def load(dataset: Any, **more: Any) -> tl.Loader:
    return tl.Loader(dataset, **{**COMMON, **more})


def expected(dataset: Any, steps: Any = range(NUM_BATCHES), **more: Any) -> list[str]:
    """Return what `batch_at` gives."""
    with load(dataset, **{**more, "num_workers": 0}) as loader:
        return [loader.batch_at(k).digest() for k in steps]


def iterated(loader: tl.Loader, num: int | None = NUM_BATCHES) -> list[str]:
    return [batch.digest() for batch in itertools.islice(loader, num)]


def num_uses(loader: tl.Loader) -> tuple[int, int]:
    """Return how many different uses of blocks a finite run has, and how many begin."""
    sampler, keys, begins = loader._engine.sampler, set(), 0
    for k in range(len(loader)):
        refs = sampler.refs(k, loader._engine.builder.rows)
        uses = sampler.block_uses(refs)
        assert uses is not None
        keys |= set(zip(refs.epoch_B.tolist(), uses.lane_B.tolist(), uses.block_B.tolist(), strict=True))
        begins += int(uses.begins_B.sum())
    return len(keys), begins


WINDOWS = {
    "plain": tl.Window(num_steps=5),
    "edge": tl.Window(num_steps=7, stride=2, dilation=2, pad="edge"),
    "zero": tl.Window(num_steps=6, history=4, dilation=2, pad="zero"),
    "far-stride": tl.Window(num_steps=3, stride=6),
    "deltas": tl.Window(num_steps=2, delta_indices={"cam_front": [-9, -1, 0], "action": range(6)}, pad="edge"),
    "seconds": tl.Window(num_steps=3, delta_timestamps={"depth": [-0.2, 0.0, 0.013, 0.1]}, pad="zero"),
}
STREAMS: dict[str, Any] = {
    "all": None,
    "pictures": {**PICTURES, "depth": tl.Image(age=True, align="previous", tolerance_s=0.03)},
    "mixed": {"cam_front": None, "depth": tl.Image(size=(20, 30), tolerance_s=0.01), "language": None, "action": None},
}


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("streams", list(STREAMS))
@pytest.mark.parametrize("window", list(WINDOWS))
def test_iterated_batches_equal_the_oracle(dataset: tl.Dataset, window: str, streams: str, num_workers: int) -> None:
    """Every kind of stream, padding and window: clocked pictures, misses, ages, low-dimensional streams and text too."""
    wanted = STREAMS[streams]
    own = WINDOWS[window].own_streams
    if wanted is not None and not set(own) <= set(wanted):
        wanted = {**wanted, **dict.fromkeys(own)}
    arguments = {"window": WINDOWS[window], "streams": wanted}
    with load(dataset, num_workers=num_workers, **arguments) as loader:
        assert iterated(loader) == expected(dataset, **arguments)
        assert loader.stats()["pool"]["rows"] >= NUM_BATCHES * 4


@pytest.mark.parametrize("num_blocks", [1, 2, 5, 9, 100])
@pytest.mark.parametrize("num_workers", [1, 4])
def test_pool_of_any_size_gives_the_same_batches_within_its_bound(
    dataset: tl.Dataset, num_workers: int, num_blocks: int
) -> None:
    """A pool of one block decodes again and again and never hangs; none takes more than it may."""
    with load(dataset) as loader:
        block_bytes = loader.stats()["pool"]["block_bytes"]
    with load(dataset, num_workers=num_workers, num_epochs=1, pool_bytes=num_blocks * block_bytes) as loader:
        assert iterated(loader, None) == expected(dataset, range(len(loader)), num_epochs=1)
        pool = loader.stats()["pool"]
        assert pool["budget_bytes"] == num_blocks * block_bytes
        assert 0 < pool["peak_bytes"] <= pool["budget_bytes"]
        num_different, num_begins = num_uses(loader)
        if num_blocks == 100:
            assert num_different <= pool["blocks_decoded"] <= num_begins
            assert pool["blocks_decoded_again"] == pool["blocks_evicted"] == 0
        elif num_blocks <= 5:
            assert pool["blocks_decoded_again"] > 0
            assert pool["blocks_evicted"] >= pool["blocks_decoded_again"]


def test_each_use_is_decoded_once_at_default_settings(dataset: tl.Dataset) -> None:
    """Over two epochs; far fewer frames go through the decoder than are delivered."""
    with load(dataset, num_workers=2, num_epochs=2, window=tl.Window(num_steps=16)) as loader:
        num_batches = len(iterated(loader, None))
        pool = loader.stats()["pool"]
        num_different, num_begins = num_uses(loader)
        assert num_different <= pool["blocks_decoded"] <= num_begins
        assert pool["blocks_decoded_again"] == pool["blocks_failed"] == 0
        assert pool["rows"] == num_batches * 4
        assert pool["frames_copied"] == num_batches * 4 * 16 * 2
        assert pool["decoded_per_copied"] < 0.35


@pytest.mark.parametrize(("block_windows", "lanes_per_row"), [(1, 1), (3, 4), (1000, 2), (16, 300)])
def test_blocks_and_lanes_of_any_number_change_no_byte(
    dataset: tl.Dataset, block_windows: int, lanes_per_row: int
) -> None:
    """Blocks of one window, blocks longer than episodes, more lanes than blocks."""
    order = tl.Interleaved(block_windows=block_windows, lanes_per_row=lanes_per_row)
    with load(dataset, order=order, num_workers=2, num_epochs=1) as loader:
        assert iterated(loader, 25) == expected(dataset, range(25), order=order, num_epochs=1)


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_have_pools_of_their_own(dataset: tl.Dataset, world_size: int) -> None:
    """Each rank's iteration equals its own batches, and no rank decodes the blocks of another."""
    decoded = 0
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size, "num_epochs": 1, "drop_last": True}
        with load(dataset, num_workers=1, **ranks) as loader:
            assert iterated(loader, None) == expected(dataset, range(len(loader)), **ranks)
            decoded += loader.stats()["pool"]["blocks_decoded"]
    with load(dataset, num_epochs=1) as loader:
        assert decoded <= num_uses(loader)[1]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("pool_blocks", [1, None])
def test_seek_enters_blocks_in_the_middle(dataset: tl.Dataset, num_workers: int, pool_blocks: int | None) -> None:
    """To and fro, across an epoch's end, while iterating: the batches are those of the train_steps."""
    with load(dataset) as loader:
        num_steps = round(loader.steps_per_epoch)
        bytes_ = pool_blocks and pool_blocks * loader.stats()["pool"]["block_bytes"]
    wanted = [0, 1, 13, 14, num_steps - 2, num_steps - 1, num_steps, num_steps + 1, 5, 10**9, 10**9 + 1]
    got = []
    with load(dataset, num_workers=num_workers, pool_bytes=bytes_) as loader:
        loader.seek(wanted[0])
        for i, batch in enumerate(loader):
            got.append(batch.digest())
            if i + 1 == len(wanted):
                break
            if wanted[i + 1] != wanted[i] + 1:
                loader.seek(wanted[i + 1])
    assert got == expected(dataset, wanted)


def darken(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform that writes into what it is given: the pool's copy must not change."""
    window["cam_front"] //= 2
    return window


def test_transforms_work_on_copies(dataset: tl.Dataset) -> None:
    """A transform that writes in place changes its window and no block."""
    transforms = [darken, tl.RandomCrop((20, 20)), tl.RandomFlip()]
    for streams in (PICTURES, {**PICTURES, "action": None, "language": None}):
        arguments = {"transforms": transforms, "streams": streams}
        with load(dataset, num_workers=2, **arguments) as loader:
            assert iterated(loader, 20) == expected(dataset, range(20), **arguments)


def test_transform_that_fails_is_the_error_of_the_oracle(dataset: tl.Dataset) -> None:
    """A fault of the run's code is not a bad block: it goes out, located."""

    def fail(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
        raise ZeroDivisionError("on purpose")

    with load(dataset, num_workers=2, transforms=[fail], on_error="substitute") as loader:
        with pytest.raises(tl.TrajloadError, match="on purpose") as of_iteration:
            next(iter(loader))
        with pytest.raises(tl.TrajloadError) as of_oracle:
            loader.batch_at(0)
        assert str(of_iteration.value) == str(of_oracle.value)


def test_decoding_that_fails_half_way_falls_back_to_single_windows(
    dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever stops a block, its rows come out right, and the block is not tried for each of them."""
    plain, calls = BlockPlan.decode, []

    def fails(first_window_id: int) -> bool:
        return first_window_id // 8 % 2 == 1

    def decode(self: BlockPlan, memory: np.ndarray, context: Any, pieces: Any) -> int:
        if pieces[0] is self.pieces[0]:
            calls.append(self.first_window_id)
            if fails(self.first_window_id):
                memory[: len(memory) // 2] = 77
                raise MemoryError("on purpose")
        return plain(self, memory, context, pieces)

    monkeypatch.setattr(BlockPlan, "decode", decode)
    with load(dataset, num_workers=2, num_epochs=1) as loader:
        assert iterated(loader, None) == expected(dataset, range(len(loader)), num_epochs=1)
        pool = loader.stats()["pool"]
        assert len(calls) <= num_uses(loader)[1]
        assert pool["blocks_failed"] == sum(map(fails, calls)) > 0


def test_pool_below_one_block_is_refused_with_the_number_needed(dataset: tl.Dataset) -> None:
    """Before anything is read, where lengths tell; the number named is enough."""
    with load(dataset) as loader:
        needed = loader.stats()["pool"]["block_bytes"]
    with pytest.raises(
        tl.errors.ConfigError, match=rf"got {needed - 1} bytes, expected at least {needed} for one block"
    ):
        load(dataset, pool_bytes=needed - 1)
    with load(dataset, num_workers=1, pool_bytes=needed) as loader:
        assert iterated(loader, 3) == expected(dataset, range(3))


@pytest.mark.parametrize("value", [-1, True, 1.5, "1GB"])
def test_pool_bytes_of_another_kind_are_refused(dataset: tl.Dataset, value: Any) -> None:
    """The message names the argument and what it got."""
    with pytest.raises(tl.errors.ConfigError, match=rf"pool_bytes={value!r} is invalid: expected an int"):
        load(dataset, pool_bytes=value)


def test_pool_of_zero_bytes_decodes_each_window(dataset: tl.Dataset) -> None:
    """The pool can be turned off; orders without blocks, and streams without pictures, have none."""
    for more in ({"pool_bytes": 0}, {"order": "shuffled"}, {"streams": ["action"]}):
        with load(dataset, num_workers=2, **more) as loader:
            assert iterated(loader, 4) == expected(dataset, range(4), **more)
            pool = loader.stats()["pool"]
            assert (pool["budget_bytes"], pool["blocks_decoded"]) == (0, 0)
            assert pool["budget_why"]


def test_memory_of_the_pool_goes_with_the_iterator(dataset: tl.Dataset) -> None:
    """Nothing holds decoded blocks once the iteration is over, however it ends."""
    loader = load(dataset, num_workers=2)
    iterator = iter(loader)
    next(iterator)
    assert loader._prefetcher is not None
    planner: Any = loader._prefetcher._shared.planner
    assert planner._pool.arena.used_bytes > 0
    assert loader.stats()["pool"]["used_bytes"] > 0
    iterator.close()
    assert loader.stats()["pool"]["used_bytes"] == 0
    assert planner._pool.arena.num_bytes == 0
    assert not planner._pool.blocks
    loader.close()


def test_blocks_are_freed_with_their_last_window(dataset: tl.Dataset) -> None:
    """When the last batch of a run is delivered nothing is left in the pool, rows that fill it up included."""
    with load(dataset, num_workers=2, num_epochs=1, global_batch_size=5) as loader:
        iterator = iter(loader)
        for _ in range(len(loader)):
            next(iterator)
        assert loader._prefetcher is not None
        pool = loader._prefetcher._shared.planner._pool  # type: ignore[attr-defined]
        assert pool.arena.num_bytes > 0
        assert pool.arena.used_bytes == loader.stats()["pool"]["used_bytes"] == 0
        assert not pool.blocks and not pool.wanted and pool.num_read == 0
        iterator.close()


@pytest.mark.parametrize("pool_bytes", [None, 30_000])
def test_sources_of_a_mixture_share_one_pool(three_folders: dict[str, Path], pool_bytes: int | None) -> None:
    """Blocks of several sources, one of them in an order without blocks, across a change of weights that cuts uses off."""
    size = tl.Image(size=(16, 16))
    mixture = tl.Mixture(
        {
            "sim": (three_folders["sim"], {0: 0.6, 6: 0.3}),
            "lab": (three_folders["lab"], {0: 0.2, 6: 0.3}),
            "field": tl.Source(
                three_folders["field"], weight={0: 0.2, 6: 0.4}, order="shuffled", rename={"front": "image", "command": "action"}
            ),
        },
        by="windows",
    )  # fmt: skip
    arguments = {"streams": {"image": size, "wrist": None, "action": None}, "global_batch_size": 10}
    with load(mixture, num_workers=2, pool_bytes=pool_bytes, **arguments) as loader:
        assert iterated(loader, 16) == expected(mixture, range(16), **arguments)
        pool = loader.stats()["pool"]
        assert pool["blocks_decoded"] > 0
        assert (pool["blocks_decoded_again"] > 0) == (pool_bytes is not None)


@pytest.mark.real_data
@pytest.mark.parametrize("name", ["lerobot_v3/made_by_lerobot", "lerobot_v2/g1_unitree_inspire_av1"])
def test_real_lerobot_videos_come_from_blocks(real_data: Path, tmp_path: Path, name: str) -> None:
    """AV1 as LeRobot writes it, resized, with states and actions beside it."""
    dataset = tl.open(real_data / name, cache_dir=tmp_path, missing="skip")
    cameras = {key: tl.Image(size=(48, 64)) for key, spec in dataset.streams.items() if spec.is_picture}
    assert cameras
    arguments = {"streams": {**cameras, "action": None}, "window": tl.Window(num_steps=6, pad="edge")}
    with load(dataset, num_workers=2, **arguments) as loader:
        assert iterated(loader, 6) == expected(dataset, range(6), **arguments)
        assert loader.stats()["pool"]["decoded_per_copied"] > 0
    dataset.close()


def test_number_named_for_a_block_is_enough_for_every_block(dataset: tl.Dataset) -> None:
    """Also where windows are left out, so that those of a block lie apart: before the first batch, and by the batch that meets one."""
    streams = {"cam_front": tl.Image(size=(8, 8)), "depth": tl.Image(size=(8, 8), on_miss="drop", tolerance_s=0.004)}
    window = tl.Window(num_steps=1, delta_indices={"cam_front": [-1, 0, 1]}, pad="edge")
    arguments = {"streams": streams, "window": window, "num_epochs": 1, "num_workers": 1}
    named = []
    with load(dataset, **arguments) as loader:
        as_lengths_tell = loader.stats()["pool"]["block_bytes"]
    for too_small in (1, as_lengths_tell):
        with pytest.raises(tl.errors.ConfigError) as caught, load(dataset, pool_bytes=too_small, **arguments) as loader:
            iterated(loader, None)
        named += re.findall(r"expected at least (\d+) for one block", str(caught.value))
    assert len(set(named)) == 1 < len(named) and int(named[0]) > as_lengths_tell
    with load(dataset, pool_bytes=int(named[0]), **arguments) as loader:
        assert iterated(loader, None) == expected(dataset, range(len(loader)), **arguments)
        pool = loader.stats()["pool"]
        assert pool["peak_bytes"] <= int(named[0]) and pool["blocks_failed"] == 0


def test_times_of_a_stream_count_for_its_blocks(dataset: tl.Dataset) -> None:
    """A second of context around one step is more rows than the window has steps: the pool is made for them, and holds all blocks."""
    window = tl.Window(num_steps=1, delta_timestamps={"depth": [-0.5, 0, 0.5]}, pad="edge")
    arguments = {"streams": {"depth": None}, "window": window, "num_epochs": 1}
    with load(dataset, num_workers=2, **arguments) as loader:
        assert iterated(loader, None) == expected(dataset, range(len(loader)), **arguments)
        pool = loader.stats()["pool"]
        assert pool["block_bytes"] > 8 * 64 * 64 * 2
        assert pool["blocks_failed"] == pool["blocks_decoded_again"] == 0


@pytest.mark.multiproc
def test_pool_that_processes_share_holds_a_block_for_each(dataset: tl.Dataset) -> None:
    """Too little for each is refused with the number that they need together; with it each has a pool."""
    with load(dataset) as loader:
        needed = 2 * loader.stats()["pool"]["block_bytes"]
    with pytest.raises(tl.errors.ConfigError, match=rf"shared by 2 worker processes: .*which are pool_bytes={needed}"):
        load(dataset, pool_bytes=needed - 1, workers="processes:2")
    with load(dataset, pool_bytes=needed, workers="processes:2", num_workers=2) as loader:
        assert iterated(loader, 6) == expected(dataset, range(6))
        assert loader.stats()["pool"]["blocks_decoded"] > 0
