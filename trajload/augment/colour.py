"""What pixels look like: brightness, contrast, saturation and hue, and blur. In integers, so that machines agree."""

# Shapes: T steps, C channels, H height, W width, K taps

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trajload.arguments import explains_calls
from trajload.augment.base import StepLayout, StreamTransform, check_probability, check_range
from trajload.augment.contract import WindowDict
from trajload.errors import ConfigError
from trajload.spec import StreamSpec
from trajload.types import Modality, NDArray

__all__ = ["COLOUR_BITS", "ColorJitter", "GaussianBlur", "blur_weights", "colour_matrix"]

COLOUR_BITS = 14
LUMA = (0.299, 0.587, 0.114)
_YIQ = ((0.299, 0.587, 0.114), (0.5959, -0.2746, -0.3213), (0.2115, -0.5227, 0.3112))
_MAX_GAIN = 64.0
_MAX_SIGMA = 32.0

_Matrix = list[list[float]]


class _ColourTransform(StreamTransform):
    """Takes colour pictures and leaves their shape as it is."""

    takes_name = "colour"

    @classmethod
    def takes(cls, spec: StreamSpec) -> bool:
        return spec.is_picture and spec.modality is Modality.RGB

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        self.check_colour(name, shape, dtype)
        return shape, dtype


@explains_calls
@dataclass(frozen=True)
class ColorJitter(_ColourTransform):
    """Change brightness, contrast, saturation and hue, the same for all frames and cameras of a window.

    Applied in this order, as one linear map per pixel that is rounded and clipped once: brightness times a factor;
    contrast mixes with the frame's mean grey; saturation mixes with the pixel's grey; hue turns the colour plane of YIQ,
    which keeps grey and luma. Grey pixels stay grey under all but none of brightness and contrast.

    Args:
        brightness: 0.4 draws the factor from [0.6, 1.4]; (0.8, 1.1) gives the range itself.
        contrast: Likewise.
        saturation: Likewise.
        hue: 0.1 draws from [-0.1, 0.1] turns of the colour circle; at most 0.5.
        streams: Colour streams; None for all of them.
        per_frame: Draw for each frame by itself.
        per_stream: Draw for each camera by itself.
    """

    brightness: float | tuple[float, float] = 0.0
    contrast: float | tuple[float, float] = 0.0
    saturation: float | tuple[float, float] = 0.0
    hue: float | tuple[float, float] = 0.0
    streams: Sequence[str] | None = None
    per_frame: bool = False
    per_stream: bool = False

    def __post_init__(self) -> None:
        self.set_streams(self.streams)
        gain = 1.0
        for name in ("brightness", "contrast", "saturation"):
            value = getattr(self, name)
            if isinstance(value, (int, float)) and value >= 0:
                value = (max(0.0, 1.0 - value), 1.0 + value)
            pair = check_range(self.label, name, value, 0.0, _MAX_GAIN)
            gain *= max(1.0, pair[1])
            object.__setattr__(self, name, pair)
        turn = (-self.hue, self.hue) if isinstance(self.hue, (int, float)) else self.hue
        object.__setattr__(self, "hue", check_range(self.label, "hue", turn, -0.5, 0.5))
        if gain > _MAX_GAIN:
            raise ConfigError(f"ColorJitter factors multiply to {gain:g}: expected at most {_MAX_GAIN:g}.")

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        drawn = self.uniforms(window, generator, 4, per_frame=self.per_frame, per_stream=self.per_stream)
        out: dict[str, Any] = {}
        for name, drawn_T4 in drawn.items():
            out[name] = {}
            for i, what in enumerate(("brightness", "contrast", "saturation", "hue")):
                low, high = getattr(self, what)
                out[name][what] = low + drawn_T4[:, i] * (high - low)
        return out

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        from trajload.augment import kernels

        for name in self.names:
            factors = [draws[name][what].tolist() for what in ("brightness", "contrast", "saturation", "hue")]
            matrices = [colour_matrix(*one) for one in zip(*factors, strict=True)]
            frames = window[name] = np.ascontiguousarray(window[name])
            buffer_3W = np.empty((3, frames.shape[3]), dtype=np.uint8)
            for t in range(len(frames)):
                i = t if len(matrices) > 1 else 0
                brightness, contrast = factors[0][i], factors[1][i]
                offset = 0
                if contrast != 1.0:
                    # Of luma with 14 bits: an exact sum, whatever the order of summation.
                    mean = int(kernels.luma_sum(frames[t])) / (frames[t, 0].size << COLOUR_BITS)
                    offset = round((1.0 - contrast) * brightness * mean * (1 << COLOUR_BITS))
                kernels.mix_colours(frames[t], matrices[i], offset, buffer_3W)
        return window


def colour_matrix(brightness: float, contrast: float, saturation: float, hue: float) -> NDArray:
    """Return the linear map of ColorJitter, int32 (3, 3) with 14 bits; each row sums to brightness times contrast."""
    grey: _Matrix = [[saturation * (i == j) + (1 - saturation) * LUMA[j] for j in range(3)] for i in range(3)]
    angle = 2 * math.pi * hue
    turn: _Matrix = [[1, 0, 0], [0, math.cos(angle), -math.sin(angle)], [0, math.sin(angle), math.cos(angle)]]
    to_yiq: _Matrix = [list(row) for row in _YIQ]
    back: _Matrix = np.linalg.inv(np.array(_YIQ)).tolist()
    # At no turn the two YIQ matrices would leave rounding errors where nothing is to change.
    mixed = grey if hue == 0 else _product(_product(_product(back, turn), to_yiq), grey)
    gain = brightness * contrast
    out = np.array([[round(gain * v * (1 << COLOUR_BITS)) for v in row] for row in mixed], dtype=np.int32)
    # Rounded rows sum to the same, so that grey stays grey.
    for i in range(3):
        out[i, i] += round(gain * (1 << COLOUR_BITS)) - int(out[i].sum())
    return out


def _product(a: _Matrix, b: _Matrix) -> _Matrix:
    return [[sum(a[i][k] * b[k][j] for k in range(3)) for j in range(3)] for i in range(3)]


@explains_calls
@dataclass(frozen=True)
class GaussianBlur(_ColourTransform):
    """Blur with a Gaussian of random width, the same for all frames and cameras of a window.

    Taps reach three standard deviations; beyond the picture its edge repeats.

    Args:
        sigma: Range of the standard deviation in pixels, (from, to), or one number.
        p: Probability that a window (or frame) is blurred at all.
        streams: Colour streams; None for all of them.
        per_frame: Draw for each frame by itself.
        per_stream: Draw for each camera by itself.
    """

    sigma: float | tuple[float, float] = (0.1, 2.0)
    p: float = 1.0
    streams: Sequence[str] | None = None
    per_frame: bool = False
    per_stream: bool = False

    def __post_init__(self) -> None:
        self.set_streams(self.streams)
        object.__setattr__(self, "p", check_probability(self.label, "p", self.p))
        pair = (self.sigma, self.sigma) if isinstance(self.sigma, (int, float)) else self.sigma
        object.__setattr__(self, "sigma", check_range(self.label, "sigma", pair, 0.0, _MAX_SIGMA))

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        low, high = self.sigma  # type: ignore[misc]
        drawn = self.uniforms(window, generator, 2, per_frame=self.per_frame, per_stream=self.per_stream)
        return {
            name: {"sigma": np.where(drawn_T2[:, 0] < self.p, low + drawn_T2[:, 1] * (high - low), 0.0)}
            for name, drawn_T2 in drawn.items()
        }

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        for name in self.names:
            frames, sigma_T = window[name], draws[name]["sigma"].tolist()
            for i, sigma in enumerate(sigma_T):
                part = frames if len(sigma_T) == 1 else frames[i : i + 1]
                if sigma > 0:
                    part[...] = blurred(part, sigma)
        return window


def blur_weights(sigma: float) -> NDArray:
    """Return a Gaussian that reaches three standard deviations: int32 (K,), odd K, summing to exactly 2**14."""
    radius = max(1, math.ceil(3 * sigma))
    bell = [math.exp(-0.5 * (i / sigma) ** 2) for i in range(-radius, radius + 1)]
    fixed = np.array([round(b / sum(bell) * (1 << COLOUR_BITS)) for b in bell], dtype=np.int32)
    fixed[radius] += (1 << COLOUR_BITS) - int(fixed.sum())
    return fixed


def blurred(frames_TCHW: NDArray, sigma: float) -> NDArray:
    """Return frames of bytes blurred, a fresh array."""
    from trajload.augment import kernels

    weight_K = blur_weights(sigma)
    out = np.empty(frames_TCHW.shape, dtype=np.uint8)
    width = frames_TCHW.shape[3]
    row_buffer, sum_buffer = np.empty(width + len(weight_K) - 1, np.int32), np.empty(width, np.int32)
    for t in range(len(frames_TCHW)):
        kernels.blur(np.ascontiguousarray(frames_TCHW[t]), weight_K, row_buffer, sum_buffer, out[t])
    return out
