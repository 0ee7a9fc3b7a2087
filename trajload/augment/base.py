"""What the provided transforms share: which streams they take, how draws are shared, and checks of arguments."""

# Shapes: T steps, N numbers drawn

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import numpy as np

from trajload.augment.contract import Layout, WindowDict
from trajload.checks import check_bool
from trajload.errors import ConfigError
from trajload.spec import StreamSpec
from trajload.types import NDArray

__all__ = ["StreamTransform", "check_probability", "check_range", "check_size"]

_T = TypeVar("_T", bound="StreamTransform")
StepLayout = tuple[tuple[int, ...], "np.dtype[Any]"]


class StreamTransform:
    """A transform of named streams that first draws and then applies what it drew.

    Subclasses are frozen dataclasses: their fields are their whole state, and what a saved state compares.
    """

    takes_name: ClassVar[str] = "picture"
    """What `takes` accepts, for messages."""

    if TYPE_CHECKING:
        streams: Sequence[str] | None

    # ---- what a subclass gives ----

    @classmethod
    def takes(cls, spec: StreamSpec) -> bool:
        """Return whether `streams=None` stands for this stream, among others: pictures, depth too."""
        return spec.is_picture

    def step_layout(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> StepLayout:
        """Return the layout of one of the streams afterwards; ConfigError where it cannot be taken."""
        raise NotImplementedError

    def draw(self, window: WindowDict, generator: np.random.Generator) -> dict[str, Any]:
        """Return what is random, as arrays and numbers, for each stream."""
        raise NotImplementedError

    def apply(self, window: WindowDict, draws: Mapping[str, Any]) -> WindowDict:
        """Return the window changed as `draws` say. Nothing else decides what comes out."""
        raise NotImplementedError

    # ---- the contract ----

    def __call__(self, window: WindowDict, generator: np.random.Generator) -> WindowDict:
        """Draw and apply."""
        return self.apply(window, self.draw(window, generator))

    def bind(self: _T, specs: Mapping[str, StreamSpec]) -> _T:
        """Return the transform with `streams` resolved against the streams of a batch."""
        if self.streams is None:
            names = tuple(name for name, spec in specs.items() if self.takes(spec))
            if not names:
                raise ConfigError(
                    f"{self.label} finds no {self.takes_name} stream in the batch: it has {_list(specs)}. "
                    "Name the streams, or leave the transform out."
                )
            return replace(self, streams=names)  # type: ignore[type-var]
        self.check_names(self.streams, specs)
        return self

    def out_layout(self, layout: Layout) -> Layout:
        """Return the layout afterwards."""
        out = dict(layout)
        self.check_names(self.names, layout)
        for name in self.names:
            shape, dtype = layout[name]
            out[name] = self.step_layout(name, tuple(shape), np.dtype(dtype))
        return out

    # ---- shared ----

    @property
    def label(self) -> str:
        return type(self).__name__

    @property
    def names(self) -> tuple[str, ...]:
        """The streams; ConfigError as long as they are not known."""
        if self.streams is None:
            raise ConfigError(f"{self.label}(streams=None) is used outside a loader: name the streams it takes.")
        return tuple(self.streams)

    def check_names(self, names: Sequence[str], have: Mapping[str, Any]) -> None:
        """Raise ConfigError where a name is not in the batch."""
        for name in names:
            if name not in have:
                raise ConfigError(
                    f"{self.label} names stream {name!r}, which is not in the batch: it has {_list(have)}."
                )

    def check_picture(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ConfigError where a stream does not hold pictures (C, H, W)."""
        if len(shape) != 3:
            raise ConfigError(f"{self.label} takes pictures (C, H, W): stream {name!r} has steps of shape {shape}.")

    def check_colour(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        """Raise ConfigError where a stream does not hold colour pictures as bytes."""
        if len(shape) != 3 or shape[0] != 3 or dtype != np.uint8:
            raise ConfigError(
                f"{self.label} takes colour pictures, uint8 (3, H, W): stream {name!r} has {dtype} {shape}. "
                "Put it before transforms that change the dtype."
            )

    def uniforms(
        self, window: WindowDict, generator: np.random.Generator, num: int, *, per_frame: bool, per_stream: bool
    ) -> dict[str, NDArray]:
        """Return numbers in [0, 1) for each stream: (1, num), or (T, num) with `per_frame`.

        Shared by all streams unless `per_stream`. The count drawn depends on neither what an episode lacks nor what is
        masked, so that a missing camera does not change what another gets.
        """
        lengths = [len(window[name]) for name in self.names]
        steps = max(lengths) if per_frame else 1
        drawn_STN = generator.random((len(lengths) if per_stream else 1, steps, num))
        return {
            name: drawn_STN[i if per_stream else 0, : lengths[i] if per_frame else 1]
            for i, name in enumerate(self.names)
        }

    def set_streams(self, streams: Any) -> None:
        """Check and keep `streams` as a tuple, and check what else many transforms take (in `__post_init__` of a frozen dataclass)."""
        for name in ("per_frame", "per_stream"):
            if hasattr(self, name):
                check_bool(f"{self.label}({name})", getattr(self, name))
        if streams is None:
            return
        names = tuple(streams) if np.iterable(streams) and not isinstance(streams, str) else ()
        if not names or not all(isinstance(name, str) for name in names):
            raise ConfigError(f"{self.label}(streams={streams!r}) is invalid: expected a list of names, or None.")
        object.__setattr__(self, "streams", names)


def check_size(label: str, size: Any) -> tuple[int, int]:
    """Return (height, width), of one number for a square."""
    pair = (size, size) if isinstance(size, (int, np.integer)) else tuple(size) if np.iterable(size) else ()
    if len(pair) != 2 or any(isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in pair):
        raise ConfigError(f"{label}(size={size!r}) is invalid: expected (height, width), ints of at least 1.")
    return int(pair[0]), int(pair[1])


def check_probability(label: str, name: str, value: Any) -> float:
    """Return a probability as a float."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not 0 <= value <= 1:
        raise ConfigError(f"{label}({name}={value!r}) is invalid: expected a probability, 0 to 1.")
    return float(value)


def check_range(label: str, name: str, value: Any, low: float, high: float) -> tuple[float, float]:
    """Return a range of two floats inside [low, high], the first not above the second."""
    pair = tuple(value) if np.iterable(value) and not isinstance(value, str) else ()
    if len(pair) != 2 or not all(isinstance(v, (int, float, np.number)) for v in pair):
        raise ConfigError(f"{label}({name}={value!r}) is invalid: expected two numbers (from, to).")
    first, last = float(pair[0]), float(pair[1])
    if not low <= first <= last <= high:
        raise ConfigError(f"{label}({name}={value!r}) is invalid: expected {low:g} <= from <= to <= {high:g}.")
    return first, last


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, names)) or "none"
