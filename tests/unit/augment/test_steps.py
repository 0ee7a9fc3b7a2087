"""Lost frames and noisy actions, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.rng import key_rng

T = 8


def window_of(pad: list[int] | None = None) -> dict[str, Any]:
    is_pad_T = np.isin(np.arange(T), pad or [])
    return {
        "a": np.arange(1, T + 1, dtype=np.uint8)[:, None, None, None].repeat(3, 1).repeat(4, 2).repeat(4, 3),
        "b": np.arange(101, T + 101, dtype=np.uint8)[:, None, None, None].repeat(3, 1),
        "action": np.ones((T, 2), np.float32),
        **{f"{name}_is_pad": is_pad_T.copy() for name in ("a", "b", "action")},
        **{f"{name}_is_missing": False for name in ("a", "b", "action")},
    }


def values(window: dict[str, Any], name: str = "a") -> list[int]:
    return window[name][:, 0, 0, 0].tolist()


def test_lost_frame_repeats_the_last_one_kept() -> None:
    """Runs of lost frames all repeat the same one; the first frame is never lost; cameras lose the same steps."""
    drop = tl.FrameDrop(0.5, streams=["a", "b"])
    lost = np.array([True, True, False, True, True, False, False, True])
    got = drop.apply(window_of(), {"a": {"lost": lost}, "b": {"lost": lost}})
    assert values(got) == [1, 1, 3, 3, 3, 6, 7, 7]
    assert not got["a_is_pad"].any()
    draws = drop.draw(window_of(), key_rng(4, "test"))
    assert draws["a"]["lost"].tolist() == draws["b"]["lost"].tolist()
    assert draws["a"]["lost"].tolist() == (key_rng(4, "test").random(T) < 0.5).tolist()
    apart = tl.FrameDrop(0.5, streams=["a", "b"], per_stream=True).draw(window_of(), key_rng(4, "test"))
    assert apart["a"]["lost"].tolist() != apart["b"]["lost"].tolist()


def test_padding_is_neither_lost_nor_repeated() -> None:
    """A lost step after a masked one shows the last real frame."""
    window = window_of(pad=[0, 3, 7])
    got = tl.FrameDrop(1.0, streams=["a"]).apply(window, {"a": {"lost": np.ones(T, bool)}})
    assert values(got) == [1, 2, 2, 4, 2, 2, 2, 8]
    assert got["a_is_pad"].tolist() == window_of(pad=[0, 3, 7])["a_is_pad"].tolist()


def test_masked_frame_is_zero_and_says_so() -> None:
    """mode='mask' tells the model that a frame is not there."""
    lost = np.isin(np.arange(T), [2, 5])
    got = tl.FrameDrop(0.5, "mask", ["a"]).apply(window_of(pad=[5, 7]), {"a": {"lost": lost}})
    assert values(got) == [1, 2, 0, 4, 5, 6, 7, 8], "padding stays what it was"
    assert np.flatnonzero(got["a_is_pad"]).tolist() == [2, 5, 7]


def test_noise_is_the_keyed_normal_draw() -> None:
    """Computed in float64, stored in the stream's dtype, not on padding."""
    noise = tl.ActionNoise([0.5, 0.0], ["action"])
    got = noise(window_of(pad=[6, 7]), key_rng(9, "test"))["action"]
    expected = (1 + key_rng(9, "test").standard_normal((T, 2)) * [0.5, 0.0]).astype(np.float32)
    assert np.array_equal(got[:6], expected[:6])
    assert np.array_equal(got[6:], np.ones((2, 2), np.float32))
    assert got.dtype == np.float32
    offset = tl.ActionNoise(0.5, ["action"], per_frame=False)(window_of(), key_rng(9, "test"))["action"]
    assert np.array_equal(offset, np.broadcast_to(offset[:1], offset.shape))
    assert offset[0, 0] != 1


def test_noise_has_the_asked_deviation() -> None:
    """Over many windows mean and deviation are those of the normal distribution."""
    noise = tl.ActionNoise(0.25, ["action"])
    drawn = np.concatenate([noise(window_of(), key_rng(s, "test"))["action"] - 1 for s in range(500)])
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 0.25) < 0.01


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.FrameDrop(-0.1), r"FrameDrop\(p=-0.1\) is invalid"),
        (
            lambda: tl.FrameDrop(0.1, mode="skip"),
            r"FrameDrop\(mode\)='skip' is unknown: expected one of 'repeat', 'mask'",
        ),
        (lambda: tl.ActionNoise(-1.0), r"std=-1.0\) is invalid: expected finite numbers"),
        (lambda: tl.ActionNoise([float("inf")]), r"std=\[inf\]\) is invalid"),
        (
            lambda: tl.ActionNoise([1, 2, 3], ["x"]).out_layout({"x": ((2,), np.dtype("f4"))}),
            r"std\) has 3 components: stream 'x' has steps of shape \(2,\)",
        ),
        (
            lambda: tl.ActionNoise(1, ["x"]).out_layout({"x": ((2,), np.dtype("i8"))}),
            r"floating dtypes: stream 'x' is int64",
        ),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    """Each refusal names the argument, what it got and what it expected."""
    with pytest.raises(ConfigError, match=message):
        make()
