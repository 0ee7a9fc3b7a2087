"""Augmented batches are the same bytes whoever makes them: oracle, threads, ranks, a resumed run."""

from __future__ import annotations

import functools
import itertools
import json
from typing import Any

import numpy as np
import pytest

import trajload as tl

NUM_BATCHES = 6
COMMON: dict[str, Any] = {"global_batch_size": 6, "seed": 3, "window": tl.Window(num_steps=5, pad="edge")}
ALONE = {"rank": 0, "world_size": 1}


def brighten(window: dict[str, Any], generator: np.random.Generator, most: int = 60) -> dict[str, Any]:
    """A user's transform: in place, one draw for the window."""
    frames = window["cam_front"]
    np.clip(frames.astype(np.int16) + generator.integers(1, most), 0, 255, out=frames, casting="unsafe")
    return window


def jerk(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """A user's transform that gives new arrays."""
    action = window["action"]
    return {**window, "action": action + generator.standard_normal(action.shape).astype(action.dtype)}


TRANSFORMS = [
    brighten,
    tl.RandomCrop((48, 56)),
    tl.RandomFlip(signs={"action": [-1, 1]}),
    tl.Resize((32, 32)),
    tl.ColorJitter(0.3, 0.3, 0.3, 0.1),
    tl.GaussianBlur(p=0.5, per_frame=True),
    tl.FrameDrop(0.2),
    tl.FrameDrop(0.1, mode="mask", per_stream=True),
    jerk,
    tl.ActionNoise(0.01),
    functools.partial(brighten, most=9),
]


@pytest.fixture(scope="module")
def oracle(dataset: tl.Dataset) -> list[str]:
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=0, **ALONE, **COMMON) as loader:
        return [loader.batch_at(k).digest() for k in range(NUM_BATCHES)]


def test_transforms_change_the_batch(dataset: tl.Dataset, oracle: list[str]) -> None:
    """The digests compared below are those of augmented batches."""
    with tl.Loader(dataset, num_workers=0, **ALONE, **COMMON) as loader:
        assert loader.batch_at(0).digest() != oracle[0]


@pytest.mark.parametrize("num_workers", [0, 1, 4])
def test_iterated_augmented_batches_equal_the_oracle(dataset: tl.Dataset, oracle: list[str], num_workers: int) -> None:
    """Threads and their number change no byte."""
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=num_workers, **ALONE, **COMMON) as loader:
        assert [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES)] == oracle


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_ranks_together_hold_the_augmented_global_batch(dataset: tl.Dataset, world_size: int) -> None:
    """A window is augmented the same on whichever rank it lands."""
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=0, **ALONE, **COMMON) as loader:
        expected = loader.batch_at(4)
    parts = []
    for rank in range(world_size):
        ranks = {"rank": rank, "world_size": world_size}
        with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=1, **ranks, **COMMON) as loader:
            loader.seek(4)
            parts.append(next(iter(loader)))
    for key in ("cam_front", "action", "window_id"):
        joined = [row for part in parts for row in part[key]]
        assert len(joined) == 6
        assert all(a.equal(b) for a, b in zip(joined, expected[key], strict=True)), key


def test_resumed_run_goes_on_with_the_same_augmented_batches(dataset: tl.Dataset, oracle: list[str]) -> None:
    """State saved with a full queue, through JSON, other number of workers."""
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=2, prefetch=3, **ALONE, **COMMON) as loader:
        for _ in itertools.islice(loader, 2):
            state = json.dumps(loader.state_dict())
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=1, **ALONE, **COMMON) as loader:
        loader.load_state_dict(json.loads(state))
        assert [batch.digest() for batch in itertools.islice(loader, NUM_BATCHES - 2)] == oracle[2:]


def test_resume_refuses_a_changed_augmentation(dataset: tl.Dataset) -> None:
    """Arguments and functions are part of the configuration; `allow` lets them change, also from or to none."""
    with tl.Loader(dataset, transforms=TRANSFORMS, num_workers=0, **ALONE, **COMMON) as loader:
        state = loader.state_dict()
    for other in ([*TRANSFORMS[:-1], functools.partial(brighten, most=8)], TRANSFORMS[1:], [*TRANSFORMS, jerk], []):
        with tl.Loader(dataset, transforms=other, num_workers=0, **ALONE, **COMMON) as loader:
            with pytest.raises(tl.errors.ResumeError, match=r"  - transforms.*: saved"):
                loader.load_state_dict(state)
            loader.load_state_dict(state, allow=("transforms",))


def test_refused_resume_names_the_argument_that_differs(dataset: tl.Dataset) -> None:
    """Transform, place in the list, and argument."""
    with tl.Loader(dataset, transforms=[jerk, tl.FrameDrop(0.2)], num_workers=0, **ALONE, **COMMON) as loader:
        state = loader.state_dict()
    with (
        tl.Loader(dataset, transforms=[jerk, tl.FrameDrop(0.3)], num_workers=0, **ALONE, **COMMON) as loader,
        pytest.raises(tl.errors.ResumeError, match=r"- transforms\[1\]\.p: saved 0\.2, here 0\.3\nBuild"),
    ):
        loader.load_state_dict(state)


def test_long_list_of_transforms_leaves_the_state_small(dataset: tl.Dataset) -> None:
    """A long configuration stands in the state as its digest."""
    with tl.Loader(dataset, transforms=[*TRANSFORMS, *TRANSFORMS[4:] * 4], num_workers=0, **ALONE, **COMMON) as loader:
        assert len(json.dumps(loader.state_dict())) < 4096


def test_same_window_is_augmented_otherwise_in_another_epoch(dataset: tl.Dataset) -> None:
    """The epoch is part of the key, and within an epoch windows draw apart."""
    with tl.Loader(dataset, transforms=[jerk], num_workers=0, **ALONE, **COMMON) as loader:
        per_epoch = loader.num_windows
        rows = {}
        raw = {}
        with tl.Loader(dataset, num_workers=0, **ALONE, **COMMON) as plain:
            for k in range(2 * per_epoch // 6 + 1):
                batch, same = loader.batch_at(k), plain.batch_at(k)
                for b, ref in enumerate(batch.refs):
                    rows[ref.window_id, ref.epoch] = batch["action"][b]
                    raw[ref.window_id, ref.epoch] = batch["action"][b] - same["action"][b]
    ids = {w for w, epoch in rows if epoch == 0} & {w for w, epoch in rows if epoch == 1}
    assert len(ids) == per_epoch
    assert not any(rows[w, 0].equal(rows[w, 1]) for w in ids)
    assert len({tuple(value.flatten().tolist()) for value in raw.values()}) == len(raw)
