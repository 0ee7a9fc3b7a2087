"""Rows of video decoded a few at a time: equal to `batch_at`, byte for byte, whatever else the rows hold or lack."""

from __future__ import annotations

import itertools
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from damaging import flip_in_member

import trajload as tl
from trajload.decode.libav_video import LoopSetup
from trajload.pipeline.read_times import ReadTimes
from trajload.pipeline.source_rows import SourceRows

COMMON: dict[str, Any] = {"global_batch_size": 12, "seed": 3, "rank": 0, "world_size": 1}
CAMERAS = ("cam_front", "cam_side")
WINDOWS = {
    "inside": tl.Window(num_steps=4),
    "dilated": tl.Window(num_steps=3, dilation=5),
    "edge": tl.Window(num_steps=20, pad="edge"),
    "zero": tl.Window(num_steps=20, history=10, pad="zero"),
    "deltas": tl.Window(num_steps=2, delta_indices={"cam_front": [-7, 0, 1], "cam_side": [3]}, pad="edge"),
    "seconds": tl.Window(delta_timestamps={"cam_front": [-0.2, 0.0], "cam_side": [0.0, 0.1]}, pad="zero"),
}
STREAMS: dict[str, Any] = {
    "one": ["cam_front"],
    "cameras": list(CAMERAS),
    "clocked": ["cam_front", "depth"],
    "resized": {"cam_front": tl.Image(size=(24, 40)), "cam_side": tl.Image(size=(20, 20)), "action": None},
    "all": None,
}


@pytest.fixture(autouse=True)
def quick_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes count as quickly read from the first one on: slow ones are read row by row."""
    begin = ReadTimes.__init__

    def begin_quick(times: ReadTimes) -> None:
        begin(times)
        times.are_quick = True

    monkeypatch.setattr(ReadTimes, "__init__", begin_quick)
    monkeypatch.setattr(ReadTimes, "note", lambda times, seconds: None)


@pytest.fixture()
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many windows each compiled call was given."""
    out: list[int] = []
    decode_all = LoopSetup.decode_all

    def counted(setup: LoopSetup, plans: Any, *rest: Any) -> Any:
        out.append(len(plans))
        return decode_all(setup, plans, *rest)

    monkeypatch.setattr(LoopSetup, "decode_all", counted)
    return out


def expected(source: Any, num_batches: int, **kwargs: Any) -> list[str]:
    with tl.Loader(source, **{**COMMON, "num_workers": 0, **kwargs}) as oracle:
        return [oracle.batch_at(k).digest() for k in range(num_batches)]


def iterated(source: Any, num_batches: int, **kwargs: Any) -> list[str]:
    with tl.Loader(source, **{**COMMON, **kwargs}) as loader:
        return [batch.digest() for batch in itertools.islice(loader, num_batches)]


@pytest.mark.parametrize(
    ("window", "streams"),
    [
        (w, s) for w in WINDOWS for s in STREAMS if s not in ("one", "clocked") or w not in ("deltas", "seconds")
    ],  # which name both cameras
)
def test_rows_decoded_together_equal_batch_at(
    demo_dataset: Path, window: str, streams: str, together: list[int]
) -> None:
    """Colour and depth, native and resized, with padding, steps of their own, text and clocked streams beside them."""
    kwargs: dict[str, Any] = {"window": WINDOWS[window], "streams": STREAMS[streams]}
    want = expected(demo_dataset, 3, **kwargs)
    assert not together, "the oracle does without"
    for num_workers in (0, 2):
        del together[:]
        assert iterated(demo_dataset, 3, num_workers=num_workers, **kwargs) == want
        assert max(together) > 1


@pytest.mark.parametrize("streams", ["one", "cameras", "clocked"])
def test_plain_rows_are_left_alone(
    demo_dataset: Path, streams: str, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    """Whole windows of video never take the long way, whatever their clock."""
    kwargs: dict[str, Any] = {"window": WINDOWS["inside"], "streams": STREAMS[streams]}
    want = expected(demo_dataset, 4, **kwargs)

    def refuse(*args: Any) -> None:
        raise AssertionError("a row took the long way")

    monkeypatch.setattr(SourceRows, "decode", refuse)
    for num_workers in (0, 1, 3):
        assert iterated(demo_dataset, 4, num_workers=num_workers, **kwargs) == want
    assert together


def test_mixtures_and_ranks(demo_dataset: Path, tmp_path: Path, together: list[int]) -> None:
    """Rows of two sources in one unit, one of them of pictures that are files."""
    from trajload.rng import key_rng

    stills = tmp_path / "stills"
    spec = tl.StreamSpec(
        name="cam_front", modality=tl.Modality.RGB, encoding="jpg", shape=tl.open(demo_dataset).streams["cam_front"].shape, dtype="uint8",
    )  # fmt: skip
    with tl.Writer(stills, streams=[spec], step_rate_hz=10) as writer:
        for episode in range(3):
            writer.add_episode(
                {"cam_front": key_rng(1, "stills", episode).integers(0, 255, (30, *spec.shape), "uint8")}
            )
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=3), "streams": ["cam_front"]}

    def mixture() -> tl.Mixture:
        return tl.Mixture({"video": (demo_dataset, 0.7), "stills": (stills, 0.3)}, by="windows")

    want = expected(mixture(), 4, **kwargs)
    for num_workers in (0, 2):
        assert iterated(mixture(), 4, num_workers=num_workers, **kwargs) == want
    assert max(together) > 1
    want = expected(mixture(), 4, **{**kwargs, "rank": 1, "world_size": 2})
    assert iterated(mixture(), 4, num_workers=2, **{**kwargs, "rank": 1, "world_size": 2}) == want
    assert want != expected(mixture(), 4, **kwargs)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_damage_is_named_and_earlier_batches_are_right(
    demo_dataset: Path, tmp_path: Path, num_workers: int, together: list[int]
) -> None:
    """Of several bad rows that of the smallest number is named, as by `batch_at`."""
    damaged = tmp_path / "copy"
    shutil.copytree(demo_dataset, damaged)
    for episode in (0, 1, 2):
        flip_in_member(damaged, f"{tl.open(demo_dataset).episode_key(episode)}.cam_front.mp4")
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=6), "streams": list(CAMERAS), "num_workers": num_workers}
    with (
        tl.Loader(damaged, **COMMON, **kwargs) as loader,
        tl.Loader(demo_dataset, **COMMON, **{**kwargs, "num_workers": 0}) as whole,
    ):
        with pytest.raises(tl.errors.ShardCorruptError, match="checksum") as found:
            for batch in loader:
                assert batch.digest() == whole.batch_at(batch.train_step).digest()
        assert together
        with pytest.raises(tl.errors.ShardCorruptError) as wanted:
            loader.batch_at(loader.train_step)
    assert (found.value.message, found.value.at) == (wanted.value.message, wanted.value.at)


def test_substitutes_are_the_same(demo_dataset: Path, tmp_path: Path, together: list[int]) -> None:
    """A row that is replaced beside rows that are not."""
    damaged = tmp_path / "copy"
    shutil.copytree(demo_dataset, damaged)
    flip_in_member(damaged, f"{tl.open(demo_dataset).episode_key(1)}.cam_front.mp4")
    flip_in_member(damaged, f"{tl.open(demo_dataset).episode_key(2)}.language", last=True)
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=6), "streams": None, "on_error": "substitute"}
    found: dict[int, list[str]] = {}
    for num_workers in (0, 2):
        found[num_workers] = iterated(damaged, 4, num_workers=num_workers, **kwargs)
    assert max(together) > 1
    with tl.Loader(damaged, **COMMON, num_workers=0, **kwargs) as oracle:
        assert [oracle.batch_at(k).digest() for k in range(4)] == found[0] == found[2]
        assert oracle.stats()["substituted"] > 0


def test_a_file_that_shrinks_is_named(demo_dataset: Path, tmp_path: Path) -> None:
    """Bytes that are not there any more are damage, whoever asks for them."""
    out = tmp_path / "copy"
    shutil.copytree(demo_dataset, out)
    with tl.Loader(
        out, num_workers=1, streams=["cam_front"], window=tl.Window(num_steps=4), **{**COMMON, "global_batch_size": 4}
    ) as loader:
        os.truncate(out / "shards" / "000000.tar", 4096)
        with pytest.raises(tl.errors.ShardCorruptError, match=r"truncated: got 4096 bytes, expected at least \d+"):
            next(iter(loader))


def test_without_the_compiled_loop_rows_take_the_long_way(
    demo_dataset: Path, monkeypatch: pytest.MonkeyPatch, together: list[int]
) -> None:
    """Where PyAV decodes, and where a decoder fails after it began."""
    from trajload.decode import DecodeContext, libav_loop

    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=4), "streams": list(CAMERAS)}
    want = expected(demo_dataset, 4, **kwargs)
    with monkeypatch.context() as patch:
        patch.setattr(DecodeContext, "libav", lambda context: None)
        assert iterated(demo_dataset, 4, num_workers=2, **kwargs) == want
    assert not together
    decode_all = LoopSetup.decode_all

    def fail(setup: LoopSetup, plans: Any, *rest: Any) -> Any:
        status, num_done = decode_all(setup, plans, *rest)
        return (libav_loop.IS_CORRUPT, num_done - 1) if len(plans) > 2 else (status, num_done)

    monkeypatch.setattr(LoopSetup, "decode_all", fail)
    for num_workers in (0, 2):
        assert iterated(demo_dataset, 4, num_workers=num_workers, **kwargs) == want


@pytest.mark.parametrize("most", [1, 2])
def test_more_kinds_of_video_than_decoders_are_kept(
    demo_dataset: Path, monkeypatch: pytest.MonkeyPatch, together: list[int], most: int
) -> None:
    """A decoder that was closed to make room for that of a later row is opened again, never used."""
    streams = {"cam_front": tl.Image(size=(20, 20)), "cam_side": tl.Image(size=(24, 30)), "depth": None}
    kwargs: dict[str, Any] = {"window": tl.Window(num_steps=3), "streams": streams}
    want = expected(demo_dataset, 4, **kwargs)
    monkeypatch.setattr("trajload.decode.context._MAX_DECODERS", most)
    for num_workers in (0, 2):
        assert iterated(demo_dataset, 4, num_workers=num_workers, **kwargs) == want
    assert together


@pytest.mark.parametrize("every", [1, 8])
def test_counts_are_those_of_rows_one_by_one(demo_dataset: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Windows, pictures, bytes and costs count alike, with and without other streams beside the video."""
    for streams in (["cam_front"], [*CAMERAS, "depth"], ["cam_front", "language"]):
        found = []
        for most in (1, 8):
            monkeypatch.setattr("trajload.pipeline.video_units._MOST_ROWS", most)
            with tl.Loader(
                demo_dataset, window=tl.Window(num_steps=6), streams=streams, num_workers=0, **COMMON
            ) as loader:
                log = loader._engine.stats.costs
                log.every = every
                list(itertools.islice(loader, 6))
                figures = loader.stats()
                counted = {k: figures[k] for k in ("batches", "windows", "frames", "bytes_read", "substituted")}
                costs = {k: (c.rows.tolist(), c.frames.tolist()) for k, c in log.sums().items()}
                assert costs, "some windows are measured"
                found.append((counted, costs if every == 1 else None))
        assert found[0] == found[1]
        assert found[0][0]["windows"] == 6 * COMMON["global_batch_size"]
        assert found[0][0]["frames"] == 6 * COMMON["global_batch_size"] * 6 * len(
            [s for s in streams if s != "language"]
        )


def test_leaving_decoding_out_reads_each_window_once(demo_dataset: Path, together: list[int]) -> None:
    """What `bench --headspace` compares with reads as much as the run itself."""
    found = []
    for leaves_out in (False, True):
        with tl.Loader(
            demo_dataset, window=tl.Window(num_steps=4), streams=list(CAMERAS), num_workers=0, **COMMON
        ) as loader:
            if leaves_out:
                loader._engine.leave_out()
                del together[:]
            list(itertools.islice(loader, 3))
            found.append(loader.stats()["bytes_read"])
    assert found[0] == found[1] > 0
    assert not together
