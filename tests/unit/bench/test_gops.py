"""The bytes of touched groups of pictures are those of the packet table."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.bench.gops import touched_bytes

ALONE: dict[str, Any] = {"rank": 0, "world_size": 1, "global_batch_size": 8}


def test_groups_are_whole_and_counted_once(demo_dataset: Path) -> None:
    """By hand: packets of the groups that hold a frame of each window, GOP 10 and windows of 4 steps."""
    dataset = tl.open(demo_dataset)
    with tl.Loader(dataset, window=tl.Window(num_steps=4), streams=["cam_front"], **ALONE) as loader:
        got = touched_bytes(loader)
        size = gops = 0
        for ref in loader.batch_at(0).refs:
            index = dataset.track(ref.episode_index, "cam_front").index  # type: ignore[union-attr]
            wanted = set(np.asarray(index.packet_of_frame_F)[ref.start : ref.stop].tolist())
            starts = [*index.gop_start_G.tolist(), len(index.size_P)]
            for first, last in itertools.pairwise(starts):
                if wanted & set(range(first, last)):
                    gops += 1
                    size += int(np.asarray(index.size_P)[first:last].sum())
    assert got is not None
    assert (got.gop_bytes, got.gops) == (pytest.approx(size / 8), pytest.approx(gops / 8))
    assert 5 <= got.gop_frames <= 10 and got.frames_in_gops >= 10 / 4 * 0.5


def test_signals_have_no_groups(demo_dataset: Path) -> None:
    """Nothing is said of what is no video."""
    with tl.Loader(demo_dataset, window=tl.Window(num_steps=4), streams=["action"], **ALONE) as loader:
        assert touched_bytes(loader) is None
