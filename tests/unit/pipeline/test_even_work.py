"""The work between two batches is even, over the ends of epochs too: decisions of the scheduler counted, no clock read.

Decoders are played in this thread. A piece of work takes as long as it has frames to decode, or rows to copy, in a time
that only this test knows; each is really done, at the end of its time. The consumer takes each batch at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.pipeline import block_plan
from trajload.pipeline.block_pool import State
from trajload.pipeline.block_units import BlockUnits
from trajload.pipeline.block_work import CopyingUnit, DecodingUnit, ReadingUnit
from trajload.rng import key_rng
from trajload.sampling.orders import Interleaved2

COPY = 4.0
"""Copying a batch takes as long as decoding so many frames: about 20 are decoded for each."""
WARM_UP, DEPTH = 40, 4
NUM_EPISODES, NUM_STEPS = 24, 110
COMMON: dict[str, Any] = {"window": tl.Window(num_steps=16), "global_batch_size": 8, "seed": 3, "num_workers": 2}


@pytest.fixture(autouse=True)
def cut_as_large_pictures_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pictures here are small, so that blocks of them would be decoded whole."""
    monkeypatch.setattr(block_plan, "_MIN_PIECE_PIXELS", 0)


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tl.Dataset]:
    """24 videos of 110 frames."""
    folder = tmp_path_factory.mktemp("even") / "videos"
    spec = tl.StreamSpec(name="cam", modality=tl.Modality.RGB, encoding="mp4", shape=(32, 32, 3), dtype="uint8")
    with tl.Writer(folder, streams=[spec], step_rate_hz=10) as writer:
        for episode in range(NUM_EPISODES):
            pictures = key_rng(7, "pictures", episode).integers(0, 256, (NUM_STEPS, 4, 4, 3), dtype=np.uint8)
            writer.add_episode({"cam": pictures.repeat(8, 1).repeat(8, 2)})
    dataset = tl.open(folder)
    yield dataset
    dataset.close()


@dataclass
class Played:
    """What was seen from the outside: when batches were ready, and what was decoded up to then."""

    ready_at: list[float] = field(default_factory=list)
    num_frames: list[int] = field(default_factory=list)
    digests: list[str] = field(default_factory=list)
    pool: dict[str, Any] = field(default_factory=dict)

    def gaps(self) -> np.ndarray:
        return np.diff(self.ready_at)[WARM_UP:]

    def frames(self) -> np.ndarray:
        """Frames handed out for decoding between two batches."""
        return np.diff(self.num_frames)[WARM_UP:]


def play(dataset: tl.Dataset, num_batches: int, *, num_decoders: int = 2, digests: int = 0, **more: Any) -> Played:
    """Deliver batches one after the other, with so many decoders."""
    arguments: dict[str, Any] = {
        "order": tl.Interleaved(block_windows=16, lanes_per_row=2),
        **{"window": tl.Window(num_steps=16), "global_batch_size": 8, "seed": 3, "num_workers": num_decoders},
        **more,
    }
    out = Played()
    with tl.Loader(dataset, **arguments) as loader:
        engine = loader._engine
        builder = engine.builder
        units = BlockUnits(builder, engine.pool, engine.gather, start=0, stop=None, num_decoders=num_decoders)
        context, jobs, busy = builder.new_context(), [], []
        now, num_frames, num_begun = 0.0, 0, 0
        while len(out.ready_at) < num_batches:
            while len(jobs) < DEPTH:
                jobs += units.open_jobs(len(out.ready_at) + len(jobs), 1)
                units.begin(jobs[-1])
                units.look_ahead()
            with units._changed:
                while len(busy) < num_decoders:
                    while (block := units._pool.first_wanted(State.NEW)) is not None:  # as a reader would
                        units._hand_out(block, State.READING).read()
                    unit = units._pick()
                    if unit is None:
                        break
                    took = 0.0
                    if isinstance(unit, DecodingUnit):
                        took = sum(piece.num_decoded for piece in unit.pieces)
                        num_frames += int(took)
                    elif isinstance(unit, CopyingUnit):
                        took = COPY * unit.num_parts / builder.num_rows
                    else:
                        assert isinstance(unit, ReadingUnit)
                    num_begun += 1
                    heapq.heappush(busy, (now + took, num_begun, unit))
            if jobs[0].remaining == 0:
                out.ready_at.append(now)
                out.num_frames.append(num_frames)
                job = jobs.pop(0)
                if len(out.digests) < digests:
                    out.digests.append(builder.finish(job).digest())
                continue
            assert busy, "nobody is at work, and the batch is not ready"
            now, _, unit = heapq.heappop(busy)
            unit.run(context)
            for job in unit.jobs:
                job.remaining -= unit.num_parts
        out.pool = loader.stats()["pool"]
        del unit, job, jobs, busy
        units.stop()
        units.close()
        context.close()
    return out


def test_gaps_are_even_over_several_epochs(videos: tl.Dataset) -> None:
    """Over 3 epochs the longest is below 2.5 times the median, and nothing is decoded again."""
    played = play(videos, 900)
    gaps, frames = played.gaps(), played.frames()
    assert gaps.max() < 2.5 * np.median(gaps)
    assert frames.max() <= 4 * frames.mean()
    assert played.pool["blocks_evicted"] == 0
    assert played.pool["peak_bytes"] <= played.pool["budget_bytes"]


def test_an_order_that_begins_all_lanes_at_once_needs_room_for_it(videos: tl.Dataset) -> None:
    """The measure tells: interleaved/2 stalls where epochs begin in a pool for its lanes, and is smoothed with twice that."""
    order = Interleaved2(block_windows=16, lanes_per_row=2)
    with tl.Loader(videos, order=order, **COMMON) as loader:
        block_bytes = loader.stats()["pool"]["block_bytes"]
    stalled, smooth = (
        play(videos, 330, order=order, pool_bytes=num_blocks * block_bytes).gaps() for num_blocks in (18, 48)
    )
    assert stalled.max() > 4 * np.median(stalled)
    assert smooth.max() < 3 * np.median(smooth)


@pytest.mark.parametrize("num_decoders", [1, 3])
def test_batches_made_so_are_those_of_the_oracle(videos: tl.Dataset, num_decoders: int) -> None:
    """Blocks decoded in pieces, by one or several, are the same to the byte; and what limits work ahead is told."""
    played = play(videos, 60, num_decoders=num_decoders, digests=60)
    with tl.Loader(videos, order=tl.Interleaved(block_windows=16, lanes_per_row=2), **COMMON) as loader:
        assert played.digests == [loader.batch_at(step).digest() for step in range(60)]
        assert loader.stats()["pool"]["ahead_train_steps"] >= 4
        assert "room for" in loader.stats()["pool"]["ahead_why"]
