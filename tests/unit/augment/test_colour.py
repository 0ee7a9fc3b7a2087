"""Colour changes and blur, against formulas in plain NumPy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.augment.colour import blur_weights, colour_matrix
from trajload.errors import ConfigError
from trajload.rng import key_rng
from trajload.types import NDArray

LUMA = np.array([0.299, 0.587, 0.114])


def frames_of(num: int = 4, height: int = 9, width: int = 13) -> NDArray:
    return key_rng(1, "test").integers(0, 256, (num, 3, height, width), dtype=np.uint8)


def window_of(**frames: NDArray) -> dict[str, Any]:
    masks = {f"{k}_is_pad": np.zeros(len(v), bool) for k, v in frames.items()}
    return {**{k: v.copy() for k, v in frames.items()}, **masks, **{f"{k}_is_missing": False for k in frames}}


def jittered(frame_3HW: NDArray, brightness: float, contrast: float, saturation: float, hue: float) -> NDArray:
    """The documented formula in floats: each step on its own, rounding and clipping at the end."""
    x = frame_3HW.astype(np.float64) * brightness
    mean = np.tensordot(LUMA, x, 1).mean()
    x = contrast * x + (1 - contrast) * mean
    x = saturation * x + (1 - saturation) * np.tensordot(LUMA, x, 1)
    yiq = np.array([LUMA, [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
    c, s = math.cos(2 * math.pi * hue), math.sin(2 * math.pi * hue)
    turn = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
    x = np.tensordot(np.linalg.inv(yiq) @ turn @ yiq, x, 1)
    return np.clip(np.floor(x + 0.5), 0, 255)


@pytest.mark.parametrize(
    "ranges",
    [
        {"brightness": 0.5},
        {"contrast": (0.2, 2.0)},
        {"saturation": 0.9},
        {"hue": 0.5},
        {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1},
    ],
    ids=lambda r: "+".join(r),
)
def test_jitter_is_the_formula_to_within_one_level(ranges: dict[str, Any]) -> None:
    """Integers with 14 bits round like floats, but for values on an edge."""
    jitter = tl.ColorJitter(**ranges, streams=["a"])
    frames = frames_of()
    for seed in range(10):
        window = window_of(a=frames)
        draws = jitter.draw(window, key_rng(seed, "test"))["a"]
        factors = [draws[k].item() for k in ("brightness", "contrast", "saturation", "hue")]
        got = jitter(window, key_rng(seed, "test"))["a"]
        expected = np.stack([jittered(frame, *factors) for frame in frames])
        difference = np.abs(got - expected)
        assert difference.max() <= 1
        assert (difference > 0).mean() < 0.01


def test_jitter_is_exact_in_integers() -> None:
    """The kernel is (matrix · rgb + offset + half) >> 14, clipped, whatever the sizes."""
    jitter = tl.ColorJitter(0.9, 0.9, 0.9, 0.4, streams=["a"])
    for size in ((1, 1), (3, 17), (16, 64)):
        frames = frames_of(2, *size)
        window = window_of(a=frames)
        draws = jitter.draw(window, key_rng(3, "test"))["a"]
        b, c, s, h = (draws[k].item() for k in ("brightness", "contrast", "saturation", "hue"))
        matrix = colour_matrix(b, c, s, h).astype(np.int64)
        got = jitter(window, key_rng(3, "test"))["a"]
        for frame, out in zip(frames.astype(np.int64), got, strict=True):
            mean = int(np.tensordot(np.array([4899, 9617, 1868]), frame, 1).sum()) / (frame[0].size << 14)
            offset = round((1 - c) * b * mean * (1 << 14))
            expected = np.clip((np.tensordot(matrix, frame, 1) + offset + (1 << 13)) >> 14, 0, 255)
            assert np.array_equal(out, expected)


def test_jitter_keeps_grey_grey_and_identity_the_same() -> None:
    """Saturation and hue leave grey alone; factors of one change nothing."""
    grey = np.repeat(frames_of()[:, :1], 3, axis=1)
    got = tl.ColorJitter(saturation=1.0, hue=0.5, streams=["a"])(window_of(a=grey), key_rng(2, "test"))["a"]
    assert np.array_equal(got, grey)
    assert np.array_equal(tl.ColorJitter(streams=["a"])(window_of(a=frames_of()), key_rng(2, "test"))["a"], frames_of())
    assert colour_matrix(1.0, 1.0, 1.0, 0.0).tolist() == (np.eye(3, dtype=int) << 14).tolist()


def test_jitter_is_shared_by_frames_and_cameras_unless_asked_otherwise() -> None:
    """One factor; or one per frame; or one per camera."""
    window = window_of(a=frames_of(), b=frames_of())
    shared = tl.ColorJitter(0.5, streams=["a", "b"]).draw(window, key_rng(0, "test"))
    assert shared["a"]["brightness"].shape == (1,)
    assert shared["a"]["brightness"] == shared["b"]["brightness"]
    frames = tl.ColorJitter(0.5, streams=["a", "b"], per_frame=True)
    draws = frames.draw(window, key_rng(0, "test"))
    assert len(set(draws["a"]["brightness"].tolist())) == 4
    got = frames.apply(window_of(a=frames_of(), b=frames_of()), draws)["a"]
    for t, factor in enumerate(draws["a"]["brightness"].tolist()):
        assert np.abs(got[t] - jittered(frames_of()[t], factor, 1, 1, 0)).max() <= 1
    apart = tl.ColorJitter(0.5, streams=["a", "b"], per_stream=True).draw(window, key_rng(0, "test"))
    assert apart["a"]["brightness"] != apart["b"]["brightness"]


def test_jitter_works_on_a_cropped_view() -> None:
    """Frames that are not contiguous give the same bytes."""
    frames = frames_of(2, 20, 20)
    view = window_of(a=frames)
    view["a"] = view["a"][:, :, 3:12, 5:16]
    jitter = tl.ColorJitter(0.5, 0.5, streams=["a"])
    expected = jitter(window_of(a=np.ascontiguousarray(frames[:, :, 3:12, 5:16])), key_rng(0, "test"))["a"]
    assert np.array_equal(jitter(view, key_rng(0, "test"))["a"], expected)


@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.7])
@pytest.mark.parametrize("size", [(1, 1), (2, 5), (9, 13), (30, 40)])
def test_blur_is_the_separable_gaussian_over_repeated_edges(sigma: float, size: tuple[int, int]) -> None:
    """Exactly in integers, and within one level of the sum in floats."""
    frames = frames_of(2, *size)
    weight = blur_weights(sigma).astype(np.int64)
    reach = len(weight) // 2
    assert weight.sum() == 1 << 14
    assert np.array_equal(weight, weight[::-1])
    wide = np.pad(frames.astype(np.int64), ((0, 0), (0, 0), (reach, reach), (reach, reach)), mode="edge")
    columns = sum(w * wide[:, :, k : k + size[0]] for k, w in enumerate(weight))
    both = sum(w * ((columns + 128) >> 8)[..., k : k + size[1]] for k, w in enumerate(weight))
    got = tl.GaussianBlur(sigma, streams=["a"])(window_of(a=frames), key_rng(0, "test"))["a"]
    assert np.array_equal(got, (both + (1 << 19)) >> 20)
    bell = np.exp(-0.5 * (np.arange(-reach, reach + 1) / sigma) ** 2)
    bell /= bell.sum()
    floats = np.einsum("tchkwl,k,l->tchw", _patches(wide, len(bell)), bell, bell)
    assert np.abs(got - floats).max() <= 0.6


def _patches(wide: NDArray, taps: int) -> NDArray:
    view = np.lib.stride_tricks.sliding_window_view(wide, (taps, taps), axis=(2, 3))
    return view.transpose(0, 1, 2, 4, 3, 5).astype(np.float64)


def test_blur_draws_sigma_and_whether() -> None:
    """p of the windows are blurred, sigma stays in its range."""
    blur = tl.GaussianBlur((0.5, 1.5), p=0.3, streams=["a"])
    window = window_of(a=frames_of())
    drawn = np.array([blur.draw(window, key_rng(seed, "test"))["a"]["sigma"].item() for seed in range(400)])
    assert 80 < (drawn > 0).sum() < 160
    assert drawn[drawn > 0].min() >= 0.5 and drawn.max() <= 1.5


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.ColorJitter(brightness=-0.1), r"brightness=-0.1\) is invalid: expected two numbers"),
        (lambda: tl.ColorJitter(contrast=(2.0, 1.0)), r"contrast=\(2.0, 1.0\)\) is invalid: expected 0 <= from <= to"),
        (lambda: tl.ColorJitter(hue=0.6), r"hue=\(-0.6, 0.6\)\) is invalid: expected -0.5 <= from"),
        (lambda: tl.ColorJitter(9.0, 9.0), r"factors multiply to 100: expected at most 64"),
        (lambda: tl.GaussianBlur(-1.0), r"sigma=\(-1.0, -1.0\)\) is invalid"),
        (
            lambda: tl.ColorJitter(0.1, streams=["a"]).out_layout({"a": ((3, 4, 4), np.dtype("f4"))}),
            r"takes colour pictures, uint8 \(3, H, W\): stream 'a' has float32 \(3, 4, 4\)",
        ),
        (
            lambda: tl.GaussianBlur(streams=["d"]).out_layout({"d": ((1, 4, 4), np.dtype("u1"))}),
            r"'d' has uint8 \(1, 4, 4\)",
        ),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    """Each refusal names the argument, what it got and what it expected."""
    with pytest.raises(ConfigError, match=message):
        make()
