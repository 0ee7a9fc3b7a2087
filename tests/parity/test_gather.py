"""The gather of low-dimensional streams: equal to `batch_at`, byte for byte, on every dtype, padding and kind of damage."""

# Shapes: T steps, E episodes

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from damaging import flip

import trajload as tl
from trajload.pipeline.gather import GatherPart
from trajload.pipeline.gather_table import ResidentBudget
from trajload.rng import key_rng
from trajload.spec import StreamSpec
from trajload.types import Modality

COMMON: dict[str, Any] = {"global_batch_size": 7, "seed": 3, "rank": 0, "world_size": 1}
SHAPES = {
    "f4": (17,),
    "f8": (3,),
    "f2": (2, 2),
    "i2": (),
    "i8": (1,),
    "u1": (6, 5, 3),
    "b1": (),
}
DTYPES = {"f4": "float32", "f8": "float64", "f2": "float16", "i2": "int16", "i8": "int64", "u1": "uint8", "b1": "bool"}
SOMETIMES = ("f8", "i2")
"""Streams that every third episode lacks."""


def spec(name: str, **more: Any) -> StreamSpec:
    dtype = DTYPES[name.removesuffix("z")]
    more = {"encoding": "npy", "shape": SHAPES[name.removesuffix("z")], **more}
    return StreamSpec(name=name, modality=Modality.PROPRIOCEPTION, dtype=dtype, **more)


def write(folder: Path, specs: list[StreamSpec], *, rate: Any = 30, num_episodes: int = 13) -> Path:
    """Write ragged episodes of 1 to 25 steps over several shards; without a rate each step has a time of its own."""
    rng = key_rng(1, "gather")
    with tl.Writer(folder, streams=specs, step_rate_hz=rate, shard_bytes=20_000) as writer:
        for e in range(num_episodes):
            num_steps = 1 + (7 * e) % 25
            values: dict[str, Any] = {}
            for s in specs:
                if s.is_text:
                    values[s.name] = f"episode {e}"
                elif e % 3 or s.name not in SOMETIMES:
                    numbers = rng.integers(0, 250, (num_steps, *s.shape))
                    values[s.name] = (numbers / 7 if s.dtype.startswith("float") else numbers % 128).astype(s.dtype)
            times = None if rate else {"step_times_ns": np.cumsum(rng.integers(1, 10**7, num_steps))}
            writer.add_episode(
                values, terminated=[None, True, False][e % 3], start_ns=17 * e if rate else 0, **times or {}
            )
    return folder


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tl.Dataset]:
    found = tl.open(write(tmp_path_factory.mktemp("gather") / "d", [spec(name) for name in SHAPES]))
    yield found
    found.close()


@pytest.fixture()
def budget(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets what loaders may keep in memory: bytes of streams that cannot be mapped, and of those that can."""

    def set_to(num_bytes: int, copied_bytes: int = 0) -> None:
        found = ResidentBudget(num_bytes, copied_bytes)
        monkeypatch.setattr(ResidentBudget, "of_machine", classmethod(lambda cls, num_parts=1: found))

    return set_to


def expected(source: Any, num_batches: int, start: int = 0, **kwargs: Any) -> list[str]:
    with tl.Loader(source, **{**COMMON, "num_workers": 0, **kwargs}) as oracle:
        return [oracle.batch_at(k).digest() for k in range(start, start + num_batches)]


def iterated(source: Any, num_batches: int, start: int = 0, **kwargs: Any) -> list[str]:
    with tl.Loader(source, **{**COMMON, **kwargs}) as loader:
        loader.seek(start)
        return [batch.digest() for batch in itertools.islice(loader, num_batches)]


WINDOWS = {
    "inside": tl.Window(num_steps=5),
    "dilated": tl.Window(num_steps=4, dilation=3, stride=2),
    "edge": tl.Window(num_steps=9, pad="edge"),
    "zero": tl.Window(num_steps=9, pad="zero"),
    "dilated-edge": tl.Window(num_steps=6, dilation=4, pad="edge"),
    "dilated-zero": tl.Window(num_steps=6, dilation=4, pad="zero"),
    "history": tl.Window(num_steps=6, history=4, dilation=2, pad="zero"),
    "history-edge": tl.Window(num_steps=12, history=9, pad="edge", stride=3),
    "deltas": tl.Window(delta_indices={"f4": range(-30, 10), "i2": [-3, 0, 40], "u1": [-2, -1, 0]}, pad="edge"),
    "deltas-zero": tl.Window(num_steps=2, delta_indices={"f4": range(20, 24), "b1": [-40, -39]}, pad="zero"),
    "seconds": tl.Window(delta_timestamps={"f4": [-0.1, 0, 1 / 30], "f8": [0.5]}, pad="edge"),
}  # fmt: skip


@pytest.mark.parametrize("window", WINDOWS)
def test_gathered_batches_equal_batch_at(dataset: tl.Dataset, window: str, no_rows: Any, budget: Any) -> None:
    """Every dtype, missing streams, ragged episodes, kept and mapped: the same bytes, and no row is decoded on its own."""
    want = expected(dataset, 12, window=WINDOWS[window])
    no_rows()
    for copied_bytes in (0, 10**6):
        budget(10**9, copied_bytes)
        for num_workers in (0, 2):
            assert iterated(dataset, 12, window=WINDOWS[window], num_workers=num_workers) == want


@pytest.mark.parametrize("rate", [Fraction(30_000, 1001), 29.97, 50, 7, None], ids=str)
def test_step_times_of_every_clock_are_exact(tmp_path: Path, rate: Any) -> None:
    """Whole rates, fractions, rates made from floats, and steps with times of their own."""
    folder = write(tmp_path / "d", [spec("f4")], rate=rate)
    for window in (tl.Window(num_steps=9, pad="edge", dilation=2), tl.Window(num_steps=7, history=5, pad="zero")):
        assert iterated(folder, 9, window=window, num_workers=1) == expected(folder, 9, window=window)


def test_other_streams_join_gathered_ones(tmp_path: Path) -> None:
    """Text and clocked streams of the same batch are written by rows, beside the gather."""
    specs = [
        spec("f4"),
        spec("i2"),
        StreamSpec(name="task", modality=Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
    ]
    folder = write(tmp_path / "d", specs)
    window = tl.Window(num_steps=9, pad="edge")
    for num_workers in (0, 3):
        assert iterated(folder, 9, window=window, num_workers=num_workers) == expected(folder, 9, window=window)
    with tl.Loader(folder, window=window, num_workers=0, **COMMON) as loader:
        part = loader._engine.gather
        assert part is not None
        assert not part.is_whole
        assert [choice.key for choice in part.rest(0)] == ["task"]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_demo_dataset_with_every_modality(demo_dataset: Path, num_workers: int) -> None:
    """Video, depth, clocked and text streams beside gathered ones."""
    window = tl.Window(num_steps=5, dilation=2, pad="edge")
    assert iterated(demo_dataset, 4, window=window, num_workers=num_workers) == expected(demo_dataset, 4, window=window)


def test_compressed_streams_are_kept_within_the_budget(tmp_path: Path, budget: Any) -> None:
    """Within the budget they are decoded once; beyond it they stay on the row path. Values are the same."""
    folder = write(tmp_path / "d", [spec("f4"), spec("f4z", encoding="npy.zst"), spec("u1z", encoding="npy.zst")])
    window = tl.Window(num_steps=6, pad="edge")
    want = expected(folder, 9, window=window)
    for num_bytes, left in ((0, ["f4z", "u1z"]), (20_000, ["u1z"]), (10**9, [])):
        budget(num_bytes)
        with tl.Loader(folder, window=window, num_workers=2, **COMMON) as loader:
            part = loader._engine.gather
            assert part is not None
            assert [choice.key for choice in part.rest(0)] == left
            assert [batch.digest() for batch in itertools.islice(loader, 9)] == want
            resident_bytes = part.figures()["resident_bytes"]
            assert resident_bytes <= num_bytes
            assert (resident_bytes > 0) == (len(left) < 2)


@pytest.mark.parametrize("folder", ["lerobot_v2/g1_unitree_inspire_av1", "lerobot_v3/made_by_lerobot", "lerobot_v3/reachy2_apple_storage_novideo"])  # fmt: skip
def test_real_lerobot_tables(real_data: Path, tmp_path: Path, folder: str) -> None:
    """Columns of parquet, kept decoded, with the task string beside them."""
    dataset = tl.open(real_data / folder, cache_dir=tmp_path, missing="skip")
    names = [name for name, s in dataset.streams.items() if not s.is_picture]
    for window in (tl.Window(num_steps=8, pad="edge", stride=5), tl.Window(num_steps=4, dilation=3)):
        want = expected(dataset, 5, window=window, streams=names)
        for num_workers in (0, 2):
            assert iterated(dataset, 5, window=window, streams=names, num_workers=num_workers) == want
    with tl.Loader(dataset, window=tl.Window(num_steps=2), streams=names, num_workers=0, **COMMON) as loader:
        part = loader._engine.gather
        assert part is not None
        assert all(choice.spec.is_text for choice in part.rest(0))
    dataset.close()


@pytest.mark.parametrize("world_size", [2, 3])
def test_ranks_finite_runs_and_epoch_ends(dataset: tl.Dataset, world_size: int) -> None:
    """Each rank's rows up to the padded end of a run of three epochs, from a seek in the middle too."""
    kwargs: dict[str, Any] = {
        "window": tl.Window(num_steps=4, stride=3, pad="edge"),
        "num_epochs": 3,
        "world_size": world_size,
    }
    for rank in range(world_size):
        with tl.Loader(dataset, num_workers=0, **{**COMMON, **kwargs, "rank": rank}) as oracle:
            num_steps = len(oracle)
            want = [oracle.batch_at(k) for k in range(num_steps)]
        assert bool(want[-1]["row_is_pad"].any()) or rank < world_size - 1
        got = iterated(dataset, num_steps + 1, num_workers=1, rank=rank, **kwargs)
        assert got == [batch.digest() for batch in want]
        assert iterated(dataset, 99, num_steps - 2, num_workers=0, rank=rank, **kwargs) == got[-2:]


@pytest.mark.parametrize("order", ["sequential", "interleaved", "continuous", "shuffled"])
def test_windows_computed_ahead_are_those_of_each_step(dataset: tl.Dataset, order: str) -> None:
    """`refs_ahead` gives what `refs` gives, across epochs and up to the end."""
    with tl.Loader(
        dataset, window=tl.Window(num_steps=3), order=order, num_epochs=4, num_workers=0, **COMMON
    ) as loader:
        sampler = loader._engine.sampler
        for rows in (slice(0, 7), slice(2, 5)):
            for first in range(0, len(loader), 5):
                ahead = sampler.refs_ahead(first, 5, rows)
                assert len(ahead) == min(5, len(loader) - first)
                for refs in ahead:
                    alone = sampler.refs(refs.train_step, rows)
                    for name in (
                        "position_B",
                        "epoch_B",
                        "window_id_B",
                        "episode_B",
                        "start_B",
                        "row_is_pad_B",
                        "source_B",
                    ):
                        np.testing.assert_array_equal(getattr(refs, name), getattr(alone, name))
                        assert getattr(refs, name).dtype == getattr(alone, name).dtype


def flip_last(folder: Path, dataset: tl.Dataset, episode: int, stream: str) -> None:
    """Flip a bit in the last byte of an array."""
    track: Any = dataset.track(episode, stream)
    flip(folder / track.file, track.offset + track.num_rows * track.row_bytes - 1)


@pytest.mark.parametrize(("num_workers", "prefetch"), [(0, 1), (2, 1), (2, 16)], ids=["inline", "alone", "together"])
def test_damaged_array_is_the_error_of_batch_at_or_its_substitute(
    tmp_path: Path, num_workers: int, prefetch: int, caplog: Any
) -> None:
    """The same error, at the same batch; the same substitutes and the same quarantine list."""
    folder = write(tmp_path / "d", [spec("f4"), spec("i8")])
    flip_last(folder, tl.open(folder), 5, "i8")
    window = tl.Window(num_steps=4)
    with tl.Loader(folder, window=window, num_workers=num_workers, prefetch=prefetch, **COMMON) as loader:
        with pytest.raises(tl.errors.ShardCorruptError) as caught:
            for batch in itertools.islice(loader, 40):
                assert batch.digest() == loader.batch_at(batch.train_step).digest()
        with pytest.raises(tl.errors.ShardCorruptError) as plain:
            loader.batch_at(loader.train_step)
    assert (caught.value.message, caught.value.at) == (plain.value.message, plain.value.at)
    caplog.set_level(logging.CRITICAL)
    with tl.Loader(folder, window=window, num_workers=0, on_error="substitute", **COMMON) as oracle:
        want = [oracle.batch_at(k).digest() for k in range(30)]
        quarantine = oracle.state_dict()["quarantine"]
    with tl.Loader(
        folder, window=window, num_workers=num_workers, on_error="substitute", prefetch=prefetch, **COMMON
    ) as loader:
        assert [batch.digest() for batch in itertools.islice(loader, 30)] == want
        assert loader.state_dict()["quarantine"][: len(quarantine)] == quarantine
        assert quarantine


def test_shard_cut_after_opening_is_an_error_not_a_crash(tmp_path: Path) -> None:
    """Arrays beyond the end of a file are told by its size, before anything is copied."""
    folder = write(tmp_path / "d", [spec("f4")])
    with tl.Loader(folder, window=tl.Window(num_steps=4), num_workers=1, **COMMON) as loader:
        for shard in sorted((folder / "shards").glob("*.tar")):
            os.truncate(shard, 1024)
        with pytest.raises(tl.errors.ShardCorruptError, match="truncated"):
            next(iter(loader))


def mapped(folder: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(folder) in line and ".tar" in line]


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_close_lets_go_of_mappings(tmp_path: Path, num_workers: int, budget: Any) -> None:
    """Shards are mapped while a loader iterates and not after; a closed loader goes on, and batches stay valid."""
    budget(0)
    folder = write(tmp_path / "d", [spec("f4")])
    loader = tl.Loader(folder, window=tl.Window(num_steps=4), num_workers=num_workers, **COMMON)
    batch = next(iter(loader))
    assert mapped(folder)
    loader.close()
    assert not mapped(folder)
    assert batch.digest() == loader.batch_at(0).digest()
    assert next(iter(loader)).train_step == 1
    loader.close()
    assert not mapped(folder)


def test_large_batches_are_gathered_by_several_units(
    dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch, no_rows: Any
) -> None:
    """Rows cut into units change no byte, also where keys are padded."""
    monkeypatch.setattr("trajload.pipeline.gather._UNIT_BYTES", 1000)
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=9, pad="zero"), "num_epochs": 1}
    with tl.Loader(dataset, num_workers=0, **COMMON, **kwargs) as loader:
        part = loader._engine.gather
        assert isinstance(part, GatherPart)
        assert len(part.splits(7)) == 7
        want = [loader.batch_at(k).digest() for k in range(len(loader))]
    no_rows()
    for num_workers in (0, 3):
        assert iterated(dataset, 99, num_workers=num_workers, **kwargs) == want


def unchanged(window: Any, generator: Any) -> Any:
    return window


def test_transforms_keep_batches_on_the_row_path(dataset: tl.Dataset) -> None:
    """Transforms see windows one by one, so nothing is gathered."""
    with tl.Loader(dataset, window=tl.Window(num_steps=3), transforms=[unchanged], num_workers=0, **COMMON) as loader:
        assert loader._engine.gather is None


def test_budget_is_a_part_of_the_machine() -> None:
    """At most 1 GiB, a quarter of it for what could be mapped, and processes share it."""
    whole, third = ResidentBudget.of_machine(), ResidentBudget.of_machine(3)
    assert 0 < whole.num_bytes <= 1 << 30
    assert 0 < whole.copied_bytes <= whole.num_bytes // 4
    assert (third.num_bytes, third.copied_bytes) == (whole.num_bytes // 3, whole.copied_bytes // 3)


def test_mixtures_are_gathered_source_by_source(tmp_path: Path, no_rows: Any) -> None:
    """Rows of two sources, each with a stream that the other lacks: the same bytes, and no row decoded on its own."""
    first = write(tmp_path / "a", [spec("f4"), spec("i2")])
    second = write(tmp_path / "b", [spec("f4"), spec("u1")], rate=7)
    mixture = tl.Mixture({"a": (tl.open(first), 0.6), "b": (tl.open(second), 0.4)}, by="windows")
    window = tl.Window(num_steps=6, pad="edge")
    want = expected(mixture, 8, window=window)
    no_rows()
    for num_workers in (0, 2):
        assert iterated(mixture, 8, window=window, num_workers=num_workers) == want
    mixture.close()
