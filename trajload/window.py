"""Which steps are a training example: `Window`, as a user declares it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from trajload.arguments import explains_calls
from trajload.checks import check_choice
from trajload.deltas import NO_DELTAS, Deltas, delta_indices, delta_timestamps, seconds_to_ns
from trajload.errors import ConfigError
from trajload.reprs import short_repr

__all__ = ["Pad", "Window"]

Pad = Literal["none", "edge", "zero"]


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Which steps are a training example: some around an *anchor* step, for all streams alike or for each its own.

    A window takes the steps `anchor + dilation * [-history, num_steps - history)`. A stream named in `delta_indices`
    takes `anchor + delta` instead, and has its own length; one named in `delta_timestamps` what stands `delta` seconds
    from the anchor.

    With `pad="none"` a window lies whole inside its episode, with all its streams: the first one as early as it can,
    then every `stride` steps. Episodes too short for one give none. With `pad="edge"` or `"zero"` every `stride`-th
    step, from step 0 on, is an anchor; steps outside the episode repeat the nearest row or are zero, and
    `<stream>_is_pad` is True there.
    """

    num_steps: int = 1
    stride: int = 1
    dilation: int = 1
    pad: Pad = "none"
    history: int = 0
    """How many of the `num_steps` stand before the anchor. 0: the window starts at its anchor."""
    delta_indices: Mapping[str, Iterable[int]] = NO_DELTAS
    """stream → steps from the anchor, strictly rising: `range(0, 50)` for an action chunk, `[-2, -1, 0]` for history."""
    delta_timestamps: Mapping[str, Iterable[float]] = NO_DELTAS
    """stream → seconds from the anchor, strictly rising. For a stepwise stream they must fall on the step clock."""
    delta_tolerance_s: float = 1e-4
    """How far seconds in `delta_timestamps` may lie beside the step clock, and a time beyond the episode's ends."""

    def __post_init__(self) -> None:
        for name in ("num_steps", "stride", "dilation", "history"):
            value = getattr(self, name)
            least = 0 if name == "history" else 1
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
                raise ConfigError(f"Window({name}={value!r}) is invalid: expected an int of at least {least}.")
            if value >= 2**31:
                raise ConfigError(f"Window({name}={value!r}) is too large: expected less than {2**31}.")
            object.__setattr__(self, name, int(value))
        if self.history >= self.num_steps:
            raise ConfigError(
                f"Window(history={self.history}) is invalid: expected less than num_steps={self.num_steps}, which counts "
                "the anchor and the history."
            )
        check_choice("Window(pad)", self.pad, get_args(Pad))
        object.__setattr__(self, "delta_indices", delta_indices(self.delta_indices))
        object.__setattr__(self, "delta_timestamps", delta_timestamps(self.delta_timestamps))
        for name in self.delta_indices:
            if name in self.delta_timestamps:
                raise ConfigError(f"stream {name!r} is in delta_indices and in delta_timestamps: expected one of them.")
        if seconds_to_ns("Window(delta_tolerance_s)", self.delta_tolerance_s) < 0:
            raise ConfigError(
                f"Window(delta_tolerance_s={self.delta_tolerance_s!r}) is invalid: expected seconds >= 0."
            )
        object.__setattr__(self, "delta_tolerance_s", float(self.delta_tolerance_s))

    __repr__ = short_repr

    @property
    def span(self) -> int:
        """Steps from the first to the last step of a window, both counted; streams with deltas left aside."""
        return (self.num_steps - 1) * self.dilation + 1

    @property
    def first_offset(self) -> int:
        """Steps from the anchor to the window's first step, 0 or negative."""
        return -self.history * self.dilation

    @property
    def own_streams(self) -> tuple[str, ...]:
        """Streams with steps of their own."""
        return (*self.delta_indices, *self.delta_timestamps)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `Window(**obj)` reads. Plain windows have four keys, others what they use."""
        out: dict[str, Any] = {
            "num_steps": self.num_steps,
            "stride": self.stride,
            "dilation": self.dilation,
            "pad": self.pad,
        }
        if self.history:
            out["history"] = self.history
        for name in ("delta_indices", "delta_timestamps"):
            deltas: Deltas = getattr(self, name)
            if deltas:
                out[name] = deltas.to_json()
        if self.delta_timestamps and self.delta_tolerance_s != 1e-4:
            out["delta_tolerance_s"] = self.delta_tolerance_s
        return out
