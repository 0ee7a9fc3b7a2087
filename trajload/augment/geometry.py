"""Where pixels stand: random crops, mirror images, resizing."""

# Shapes: T steps, C channels, H height, W width, D signal size

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.arguments import explains_calls
from trajload.augment.base import StepLayout, StreamTransform, check_probability, check_size
from trajload.augment.contract import Layout, WindowDict
from trajload.decode.resize import PictureFilter, nearest_indices
from trajload.errors import ConfigError
from trajload.types import NDArray

__all__ = ["RandomCrop", "RandomFlip", "Resize"]


@explains_calls
@dataclass(frozen=True)
class RandomCrop(StreamTransform):
    """Cut a rectangle at a random place, the same relative place in all frames and cameras of a window.

    The place is uniform over all whole pixels. With `padding` the picture is first extended on all sides by repeating
    its edges, so that a crop of the stored size is a random shift.

    Args:
        size: (height, width) of the rectangle, or one number for a square.
        streams: Picture streams; None for all of them, depth too.
        padding: Pixels added on each side before.
        per_frame: Draw for each frame by itself.
        per_stream: Draw for each camera by itself.
    """

    size: int | tuple[int, int]
    streams: Sequence[str] | None = None
    padding: int = 0
    per_frame: bool = False
    per_stream: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_size(self.label, self.size))
        self.set_streams(self.streams)
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise ConfigError(f"RandomCrop(padding={self.padding!r}) is invalid: expected an int of at least 0.")

    @property
    def _size(self) -> tuple[int, int]:
        return self.size  # type: ignore[return-value]

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        self.check_picture(name, shape)
        height, width = shape[1] + 2 * self.padding, shape[2] + 2 * self.padding
        if self._size[0] > height or self._size[1] > width:
            raise ConfigError(
                f"RandomCrop(size={self._size}) is larger than the pictures of stream {name!r}: got {height} x {width} "
                "(height x width). Choose a smaller size, add padding, or resize before."
            )
        return (shape[0], *self._size), dtype

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        place = self.uniforms(window, generator, 2, per_frame=self.per_frame, per_stream=self.per_stream)
        out = {}
        for name, place_T2 in place.items():
            room = np.array(window[name].shape[2:]) + 2 * self.padding - self._size + 1
            corner_T2 = np.floor(place_T2 * room).astype(np.int64)
            out[name] = {"top": corner_T2[:, 0], "left": corner_T2[:, 1]}
        return out

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        height, width = self._size
        for name in self.names:
            frames = window[name]
            if self.padding:
                pad = (self.padding, self.padding)
                frames = np.pad(frames, ((0, 0), (0, 0), pad, pad), mode="edge")
            top_T, left_T = draws[name]["top"].tolist(), draws[name]["left"].tolist()
            if len(top_T) == 1:
                window[name] = frames[:, :, top_T[0] : top_T[0] + height, left_T[0] : left_T[0] + width]
                continue
            out = np.empty((*frames.shape[:2], height, width), dtype=frames.dtype)
            for t, (top, left) in enumerate(zip(top_T, left_T, strict=True)):
                out[t] = frames[t, :, top : top + height, left : left + width]
            window[name] = out
        return window


@explains_calls
@dataclass(frozen=True)
class RandomFlip(StreamTransform):
    """Mirror pictures left to right, and with them the signs of signals that point left or right.

    Args:
        p: Probability, 0 to 1.
        streams: Picture streams; None for all of them, depth too.
        signs: For each signal that must follow, one of +1 and -1 per component: `{"action": [-1, 1, 1]}` mirrors the
            first. Not together with `per_frame` or `per_stream`, where there is no one answer.
        per_frame: Draw for each frame by itself.
        per_stream: Draw for each camera by itself.
    """

    p: float = 0.5
    streams: Sequence[str] | None = None
    signs: Mapping[str, Sequence[int]] | None = None
    per_frame: bool = False
    per_stream: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self.label, "p", self.p))
        self.set_streams(self.streams)
        if self.signs is None:
            return
        if self.per_frame or self.per_stream:
            raise ConfigError(
                "RandomFlip(signs=...) needs one draw for the whole window: got per_frame or per_stream. Leave one out."
            )
        if not isinstance(self.signs, Mapping):
            raise ConfigError(
                f"RandomFlip(signs={self.signs!r}) is invalid: expected a dict of stream to +1 or -1 per component."
            )
        signs = {}
        for name, given in self.signs.items():
            values = tuple(given) if np.iterable(given) else ()
            if not values or any(isinstance(v, bool) or v not in (-1, 1) for v in values):
                raise ConfigError(
                    f"RandomFlip(signs) of stream {name!r} is {given!r}: expected +1 or -1 per component."
                )
            signs[name] = tuple(int(v) for v in values)
        object.__setattr__(self, "signs", signs)

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        self.check_picture(name, shape)
        return shape, dtype

    def out_layout(self, layout: Layout) -> Layout:
        self.check_names(tuple(self.signs or ()), layout)
        for name, values in (self.signs or {}).items():
            shape, dtype = layout[name]
            if tuple(shape) != (len(values),) or np.dtype(dtype).kind not in "if":
                raise ConfigError(
                    f"RandomFlip(signs) gives {len(values)} signs to stream {name!r}: got {np.dtype(dtype)} of shape "
                    f"{tuple(shape)}, expected ({len(values)},) of a signed dtype."
                )
        return super().out_layout(layout)

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        drawn = self.uniforms(window, generator, 1, per_frame=self.per_frame, per_stream=self.per_stream)
        return {name: {"flip": drawn_T1[:, 0] < self.p} for name, drawn_T1 in drawn.items()}

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        for name in self.names:
            flip_T = draws[name]["flip"]
            frames = window[name]
            if len(flip_T) == 1:
                flip_T = np.repeat(flip_T, len(frames))
            for t in np.flatnonzero(flip_T).tolist():
                frames[t] = frames[t, :, :, ::-1].copy()
        if self.signs and bool(draws[self.names[0]]["flip"][0]):
            for name, values in self.signs.items():
                signal_TD = window[name]
                signal_TD *= np.array(values, dtype=signal_TD.dtype)
        return window


@explains_calls
@dataclass(frozen=True)
class Resize(StreamTransform):
    """Resize pictures, as `tl.Image(size=...)` does, at a place of your choice among the transforms.

    Bytes are averaged (down) or mixed linearly (up) in integers; other dtypes, such as depth, take the nearest pixel.
    Without a crop before it, `tl.Image(size=...)` is the cheaper way: it resizes each decoded frame once.

    Args:
        size: (height, width), or one number for a square.
        streams: Picture streams; None for all of them, depth too.
    """

    size: int | tuple[int, int]
    streams: Sequence[str] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check_size(self.label, self.size))
        self.set_streams(self.streams)

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        self.check_picture(name, shape)
        return (shape[0], *self.size), dtype  # type: ignore[misc]

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        return {}

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        for name in self.names:
            window[name] = resized(window[name], *self.size)  # type: ignore[misc]
        return window


def resized(frames_TCHW: NDArray, height: int, width: int) -> NDArray:
    """Return frames of another size, a fresh array: bytes filtered, other dtypes by nearest pixel."""
    old_height, old_width = frames_TCHW.shape[2:]
    if frames_TCHW.dtype != np.uint8:
        rows, columns = nearest_indices(old_height, height), nearest_indices(old_width, width)
        return frames_TCHW[:, :, rows[:, None], columns]
    from trajload.decode import kernels

    filters = PictureFilter.between((old_height, old_width), (height, width))
    out = np.empty((*frames_TCHW.shape[:2], height, width), dtype=np.uint8)
    for t in range(len(frames_TCHW)):
        kernels.resize(np.ascontiguousarray(frames_TCHW[t]), *filters.arrays, out[t])
    return out
