"""What happens over time: frames that never arrive, noise on actions."""

# Shapes: T steps, D signal size

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from trajload.arguments import explains_calls
from trajload.augment.base import StepLayout, StreamTransform, check_probability
from trajload.augment.contract import WindowDict
from trajload.checks import check_choice
from trajload.errors import ConfigError
from trajload.spec import StreamSpec
from trajload.types import BoolArray, Int64Array, Modality

__all__ = ["ActionNoise", "FrameDrop"]


@explains_calls
@dataclass(frozen=True)
class FrameDrop(StreamTransform):
    """Lose frames, as a busy camera does: a lost frame repeats the one before, or is masked.

    Each step is lost by itself with probability `p`, at the same steps in all cameras of a window. Steps that are
    padding are neither lost nor repeated; with 'repeat' the first real frame is never lost.

    Args:
        p: Probability of losing a frame, 0 to 1.
        mode: 'repeat' delivers the last frame that was not lost; 'mask' delivers zeros and `<stream>_is_pad`.
        streams: Streams; None for all pictures, depth too.
        per_stream: Draw for each camera by itself.
    """

    p: float
    mode: Literal["repeat", "mask"] = "repeat"
    streams: Sequence[str] | None = None
    per_stream: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_probability(self.label, "p", self.p))
        self.set_streams(self.streams)
        check_choice("FrameDrop(mode)", self.mode, ("repeat", "mask"))

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        return shape, dtype

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        drawn = self.uniforms(window, generator, 1, per_frame=True, per_stream=self.per_stream)
        return {name: {"lost": drawn_T1[:, 0] < self.p} for name, drawn_T1 in drawn.items()}

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        for name in self.names:
            is_pad_T = window[f"{name}_is_pad"]
            lost_T = draws[name]["lost"] & ~is_pad_T
            if self.mode == "repeat":
                source_T = _last_kept(lost_T, is_pad_T)
                for t in np.flatnonzero(source_T != np.arange(len(source_T))).tolist():
                    window[name][t] = window[name][source_T[t]]  # what it repeats is kept, so never overwritten
            else:
                window[name][lost_T] = 0
                is_pad_T |= lost_T
        return window


def _last_kept(lost_T: BoolArray, is_pad_T: BoolArray) -> Int64Array:
    """Return for each step the real step whose frame it shows."""
    source_T = np.arange(len(lost_T))
    last = -1
    for t in range(len(lost_T)):
        if is_pad_T[t]:
            continue
        if lost_T[t] and last >= 0:
            source_T[t] = last
        else:
            last = t
    return source_T


@explains_calls
@dataclass(frozen=True)
class ActionNoise(StreamTransform):
    """Add Gaussian noise to actions, drawn for each step and component. Steps that are padding stay as they are.

    Args:
        std: Standard deviation in the action's unit, for all components or one per component.
        streams: Signals of a floating dtype; None for all actions. Each gets noise of its own.
        per_frame: False draws once for the whole window: a constant offset.
    """

    std: float | Sequence[float]
    streams: Sequence[str] | None = None
    per_frame: bool = True

    takes_name = "action"

    def __post_init__(self) -> None:
        self.set_streams(self.streams)
        values = tuple(self.std) if np.iterable(self.std) else (self.std,)
        if not values or not all(
            isinstance(v, (int, float, np.number)) and not isinstance(v, bool) and 0 <= v < float("inf") for v in values
        ):
            raise ConfigError(f"ActionNoise(std={self.std!r}) is invalid: expected finite numbers of at least 0.")
        std = tuple(float(v) for v in values)
        object.__setattr__(self, "std", std if np.iterable(self.std) else std[0])

    @classmethod
    def takes(cls, spec: StreamSpec) -> bool:
        return spec.modality is Modality.ACTION and not spec.is_text

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        if dtype.kind != "f":
            raise ConfigError(
                f"ActionNoise takes floating dtypes: stream {name!r} is {dtype}. Noise would be rounded off."
            )
        if isinstance(self.std, tuple) and shape != (len(self.std),):
            raise ConfigError(
                f"ActionNoise(std) has {len(self.std)} components: stream {name!r} has steps of shape {shape}, expected "
                f"({len(self.std)},)."
            )
        return shape, dtype

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        out = {}
        for name in self.names:
            num_steps, *shape = window[name].shape
            unit = generator.standard_normal((num_steps if self.per_frame else 1, *shape))
            out[name] = {"noise": unit * np.asarray(self.std, dtype=np.float64)}
        return out

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        for name in self.names:
            values = window[name]
            real_T = ~window[f"{name}_is_pad"]
            noise = np.broadcast_to(draws[name]["noise"], values.shape)
            values[real_T] = (values[real_T].astype(np.float64) + noise[real_T]).astype(values.dtype)
        return window
