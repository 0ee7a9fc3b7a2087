"""Crops, mirror images and sizes, against plain NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError
from trajload.rng import key_rng

T = 6


def window_of(**shapes: tuple[int, ...]) -> dict[str, Any]:
    """Return a window with random bytes of these step shapes; `action` gets floats."""
    rng = key_rng(0, "test", 1)
    out: dict[str, Any] = {}
    for name, shape in shapes.items():
        if name.startswith("action"):
            out[name] = rng.standard_normal((T, *shape)).astype(np.float32)
        elif name.startswith("depth"):
            out[name] = rng.integers(0, 5000, (T, *shape)).astype(np.uint16)
        else:
            out[name] = rng.integers(0, 256, (T, *shape), dtype=np.uint8)
        out[f"{name}_is_pad"] = np.zeros(T, dtype=bool)
        out[f"{name}_is_missing"] = False
    return out


def copied(window: dict[str, Any]) -> dict[str, Any]:
    return {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in window.items()}


def test_crop_is_the_rectangle_that_was_drawn() -> None:
    """One place for all frames, and the same draw for cameras of other sizes."""
    crop = tl.RandomCrop((5, 7), ["a", "depth", "b"])
    window = window_of(a=(3, 12, 16), depth=(1, 12, 16), b=(3, 9, 20))
    for seed in range(20):
        draws = crop.draw(window, key_rng(seed, "test"))
        u = key_rng(seed, "test").random(2)
        for name, (height, width) in {"a": (12, 16), "depth": (12, 16), "b": (9, 20)}.items():
            top, left = int(u[0] * (height - 4)), int(u[1] * (width - 6))
            assert (draws[name]["top"].tolist(), draws[name]["left"].tolist()) == ([top], [left])
            got = crop(copied(window), key_rng(seed, "test"))[name]
            assert np.array_equal(got, window[name][:, :, top : top + 5, left : left + 7])


def test_crop_reaches_every_place_and_none_beyond() -> None:
    """All (12 - 5 + 1) rows and (16 - 15 + 1) columns turn up."""
    crop = tl.RandomCrop((5, 15), ["a"])
    window = window_of(a=(3, 12, 16))
    drawn = [crop.draw(window, key_rng(seed, "test"))["a"] for seed in range(300)]
    assert {d["top"].item() for d in drawn} == set(range(8))
    assert {d["left"].item() for d in drawn} == {0, 1}


def test_crop_per_frame_and_per_stream_draw_apart() -> None:
    """Each frame, or each camera, has a place of its own when asked for."""
    window = window_of(a=(3, 40, 40), b=(3, 40, 40))
    shared = tl.RandomCrop(4, ["a", "b"]).draw(window, key_rng(1, "test"))
    assert shared["a"]["top"].tolist() == shared["b"]["top"].tolist()
    frames = tl.RandomCrop(4, ["a", "b"], per_frame=True)
    draws = frames.draw(window, key_rng(1, "test"))
    assert len(set(draws["a"]["top"].tolist())) > 1
    assert draws["a"]["top"].tolist() == draws["b"]["top"].tolist(), "frames draw apart, cameras together"
    got = frames.apply(copied(window), draws)["a"]
    for t in range(T):
        top, left = draws["a"]["top"][t], draws["a"]["left"][t]
        assert np.array_equal(got[t], window["a"][t, :, top : top + 4, left : left + 4])
    streams = tl.RandomCrop(4, ["a", "b"], per_stream=True).draw(window, key_rng(1, "test"))
    assert streams["a"]["top"].tolist() != streams["b"]["top"].tolist()


def test_padded_crop_of_the_same_size_is_a_shift_over_repeated_edges() -> None:
    """Like DrQ's random shift."""
    crop = tl.RandomCrop((8, 8), ["a"], padding=2)
    window = window_of(a=(3, 8, 8))
    draws = crop.draw(window, key_rng(5, "test"))
    top, left = draws["a"]["top"].item(), draws["a"]["left"].item()
    wide = np.pad(window["a"], ((0, 0), (0, 0), (2, 2), (2, 2)), mode="edge")
    got = crop.apply(copied(window), draws)["a"]
    assert np.array_equal(got, wide[:, :, top : top + 8, left : left + 8])


def test_flip_mirrors_pictures_and_signs() -> None:
    """Half of the windows are mirrored, all frames and cameras together, and the action's first component with them."""
    flip = tl.RandomFlip(streams=["a", "depth"], signs={"action": [-1, 1]})
    window = window_of(a=(3, 6, 8), depth=(1, 6, 8), action=(2,))
    num = 0
    for seed in range(200):
        is_flipped = key_rng(seed, "test").random() < 0.5
        got = flip(copied(window), key_rng(seed, "test"))
        step = -1 if is_flipped else 1
        assert np.array_equal(got["a"], window["a"][..., ::step])
        assert np.array_equal(got["depth"], window["depth"][..., ::step])
        assert np.array_equal(got["action"], window["action"] * [step, 1])
        num += is_flipped
    assert 70 < num < 130


def test_flip_of_each_frame_leaves_the_others() -> None:
    """per_frame flips exactly the drawn frames."""
    flip = tl.RandomFlip(0.5, ["a"], per_frame=True)
    window = window_of(a=(3, 6, 8))
    draws = flip.draw(window, key_rng(4, "test"))
    got = flip.apply(copied(window), draws)["a"]
    assert 0 < draws["a"]["flip"].sum() < T
    for t, is_flipped in enumerate(draws["a"]["flip"]):
        assert np.array_equal(got[t], window["a"][t, :, :, :: -1 if is_flipped else 1])


def test_resize_equals_the_decoder_s_and_takes_nearest_depth() -> None:
    """Bytes are area means; depth takes values that were there."""
    resize = tl.Resize((4, 4), ["a", "depth"])
    window = window_of(a=(3, 8, 8), depth=(1, 8, 8))
    got = resize(copied(window), key_rng(0, "test"))
    means = window["a"].reshape(T, 3, 4, 2, 4, 2).astype(int).mean(axis=(3, 5))
    assert np.abs(got["a"] - means).max() <= 0.51
    assert np.array_equal(got["depth"], window["depth"][:, :, 1::2, 1::2])
    same = tl.Resize((8, 8), ["a"])(copied(window), key_rng(0, "test"))
    assert np.array_equal(same["a"], window["a"])


LAYOUT = {
    "a": ((3, 8, 8), np.dtype("u1")),
    "depth": ((1, 8, 6), np.dtype("u2")),
    "action": ((2,), np.dtype("f4")),
    "grip": ((2,), np.dtype("u1")),
}


def test_layouts_are_declared() -> None:
    """Crops and sizes change the shape of their streams only."""
    assert tl.RandomCrop((4, 5), ["a"]).out_layout(LAYOUT) == {**LAYOUT, "a": ((3, 4, 5), np.dtype("u1"))}
    assert tl.Resize(9, ["depth"]).out_layout(LAYOUT) == {**LAYOUT, "depth": ((1, 9, 9), np.dtype("u2"))}
    assert tl.RandomFlip(streams=["a"]).out_layout(LAYOUT) == LAYOUT


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.RandomCrop((0, 4)), r"size=\(0, 4\)\) is invalid: expected \(height, width\)"),
        (lambda: tl.RandomCrop("64"), r"size='64'\) is invalid"),
        (lambda: tl.RandomCrop(4, padding=-1), r"padding=-1\) is invalid"),
        (lambda: tl.RandomCrop(4, streams="a"), r"streams='a'\) is invalid: expected a list"),
        (lambda: tl.RandomCrop((4, 9), ["a"]).out_layout(LAYOUT), r"size=\(4, 9\)\) is larger .* 'a': got 8 x 8"),
        (
            lambda: tl.RandomCrop(4, ["action"]).out_layout(LAYOUT),
            r"takes pictures .* 'action' has steps of shape \(2,\)",
        ),
        (
            lambda: tl.RandomCrop(4, ["b"]).out_layout(LAYOUT),
            r"names stream 'b', which is not in the batch: it has 'a'",
        ),
        (lambda: tl.RandomCrop(4).out_layout(LAYOUT), r"RandomCrop\(streams=None\) is used outside a loader"),
        (lambda: tl.RandomFlip(1.5), r"p=1.5\) is invalid: expected a probability"),
        (lambda: tl.RandomFlip(signs={"action": [2, 1]}), r"stream 'action' is \[2, 1\]: expected \+1 or -1"),
        (lambda: tl.RandomFlip(signs={"action": [1]}, per_frame=True), r"needs one draw for the whole window"),
        (lambda: tl.RandomFlip(streams=["a"], signs={"action": [1]}).out_layout(LAYOUT), r"gives 1 signs to .* \(2,\)"),
        (lambda: tl.RandomFlip(streams=["a"], signs={"grip": [1, -1]}).out_layout(LAYOUT), r"uint8 .* signed dtype"),
        (lambda: tl.Resize((4,)), r"Resize\(size=\(4,\)\) is invalid"),
    ],
)
def test_wrong_arguments_are_named(make: Any, message: str) -> None:
    """Each refusal names the argument, what it got and what it expected."""
    with pytest.raises(ConfigError, match=message):
        make()
