"""Transforms, windows of each stream and the interleaved order at once: the same bytes whoever makes them."""

# Shapes: T places of one stream

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.rng import key_rng

NUM_BATCHES = 6
SEED = 4
STREAMS = {
    "cam_front": tl.Image(size=(24, 24)),
    "depth": tl.Image(align="previous", age=True, tolerance_s=0.05),
    "proprioception": tl.Signal(align="interval", age=True),
    "action": None,
    "language": None,
}
COMMON: dict[str, Any] = {
    "window": tl.Window(num_steps=2, delta_indices={"action": range(20), "cam_front": [-2, -1, 0]}, pad="edge"),
    "streams": STREAMS,
    "global_batch_size": 5,
    "seed": SEED,
    "order": "interleaved",
    "rank": 0,
    "world_size": 1,
}


def jerk(window: dict[str, Any], generator: np.random.Generator) -> dict[str, Any]:
    """Noise on the whole chunk; the window has neither ages nor ragged streams."""
    assert not [key for key in window if key.startswith("proprioception") or key.endswith("_age_ns")]
    assert [len(window[name]) for name in ("cam_front", "depth", "action")] == [3, 2, 20]
    action = window["action"]
    return {**window, "action": action + generator.standard_normal(action.shape).astype(action.dtype)}


TRANSFORMS = [jerk, tl.RandomCrop((20, 20), streams=["cam_front"]), tl.FrameDrop(0.3, mode="mask", per_stream=True)]


def loader_of(dataset: tl.Dataset, num_workers: int, transforms: Any = TRANSFORMS, **more: Any) -> tl.Loader:
    return tl.Loader(dataset, transforms=transforms, num_workers=num_workers, **{**COMMON, **more})


@pytest.mark.parametrize("num_workers", [0, 2])
def test_iteration_and_resume_equal_the_oracle(dataset: tl.Dataset, num_workers: int) -> None:
    """Workers and a resume with a full queue change no byte of chunks, histories, ages or intervals."""
    with loader_of(dataset, 0) as oracle:
        expected = [oracle.batch_at(k).digest() for k in range(NUM_BATCHES)]
    assert len(set(expected)) == NUM_BATCHES
    with loader_of(dataset, num_workers, prefetch=3) as loader:
        got = []
        for batch in itertools.islice(loader, 2):
            got.append(batch.digest())
            state = json.dumps(loader.state_dict())
    assert len(state) < 4096
    with loader_of(dataset, 2 - num_workers) as resumed:
        resumed.load_state_dict(json.loads(state))
        got += [batch.digest() for batch in itertools.islice(resumed, NUM_BATCHES - 2)]
    assert got == expected


def test_transforms_change_their_streams_and_nothing_else(dataset: tl.Dataset) -> None:
    """A chunk gets the noise of its key; ages, intervals and the window's own keys are those without transforms."""
    changed = {"cam_front", "depth", "action", "cam_front_is_pad", "depth_is_pad", "depth_age_ns"}
    num_rows, num_lost_with_age = 0, 0
    with loader_of(dataset, 0) as loader, loader_of(dataset, 0, ()) as plain:
        for k in range(NUM_BATCHES):
            got, before = loader.batch_at(k), plain.batch_at(k)
            assert list(got) == list(before)
            for key in set(got) - changed:
                same = got[key] == before[key] if isinstance(got[key], list) else got[key].equal(before[key])
                assert same, key
            age, before_age, is_lost = got["depth_age_ns"], before["depth_age_ns"], got["depth_is_pad"]
            assert age.equal(before_age.masked_fill(is_lost, 0))  # what a transform masked has no age
            num_lost_with_age += int((before_age[is_lost] > 0).sum())
            num_rows += int(got["proprioception_count"].sum())
            assert tuple(got["cam_front"].shape) == (5, 3, 3, 20, 20)
            for b, ref in enumerate(got.refs):
                noise = key_rng(SEED, "augment", ref.epoch, ref.window_id, 0).standard_normal((20, 2))
                action = before["action"][b].numpy()
                np.testing.assert_array_equal(got["action"][b].numpy(), action + noise.astype(action.dtype))
    assert num_rows > 100
    assert num_lost_with_age > 0


@pytest.mark.parametrize(
    "transform",
    [
        tl.ActionNoise(0.1, streams=["proprioception"]),
        tl.RandomFlip(signs={"proprioception": [1, 1]}),
    ],
)
def test_transform_that_names_a_ragged_stream_is_refused(dataset: tl.Dataset, transform: Any) -> None:
    """The message names the transform, the stream and why."""
    with pytest.raises(
        tl.errors.ConfigError,
        match=r"transforms\[0\] \(\w+\) names stream 'proprioception', asked for with align='interval'",
    ):
        loader_of(dataset, 0, [transform])


def test_normalizer_leaves_a_ragged_stream_to_the_batch(dataset: tl.Dataset) -> None:
    """As a transform it is refused; on a batch it normalises the rows there are, and padding stays zero."""
    normalizer = tl.Normalizer.from_dataset(dataset, {"proprioception": "mean_std"})
    with pytest.raises(tl.errors.ConfigError, match="names stream 'proprioception', asked for with align='interval'"):
        loader_of(dataset, 0, [normalizer])
    with loader_of(dataset, 0, ()) as loader:
        batch = loader.batch_at(0)
    done = normalizer.normalize(batch)
    is_pad = batch["proprioception_interval_is_pad"]
    assert is_pad.any() and not is_pad.all()
    assert not done["proprioception"][is_pad].any()
    rows = batch["proprioception"][~is_pad]
    assert done["proprioception"][~is_pad].equal(normalizer.normalize(rows, "proprioception"))
