"""Where a stream's values stand relative to a window's anchor: the window's own steps, or deltas of the stream."""

# Shapes: T places of one stream in a window

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from trajload.align.rows import window_offsets
from trajload.deltas import seconds_to_ns, steps_of_ns
from trajload.errors import ConfigError
from trajload.spec import StreamRequest, StreamSpec, Window
from trajload.types import Int64Array

__all__ = ["Places", "reach", "stream_places"]


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """The T places of one stream: steps from the anchor, or nanoseconds from the anchor's time."""

    steps_T: Int64Array
    """(T,) rising; zeros where `ns_T` counts instead."""
    ns_T: Int64Array | None = None
    """Clocked streams under `delta_timestamps`."""
    tolerance_ns: int = 0
    """How far a time may lie beyond the episode's first or last step and still count as inside."""
    back: int = 1
    """Steps that the interval of each place reaches back under align="interval"."""
    is_own: bool = False
    """Whether these are the window's own steps."""

    @property
    def num_places(self) -> int:
        return len(self.steps_T)


def stream_places(window: Window, spec: StreamSpec, request: StreamRequest, step_rate_hz: float | None) -> Places:
    """Return the places of `spec` in a window.

    A stream without deltas takes the window's steps; text takes the anchor alone.

    Raises:
        ConfigError: Deltas of a text stream, seconds that fall on no step, seconds together with align="interval".
    """
    if spec.is_text:
        if spec.name in window.own_streams:
            raise ConfigError(
                f"stream {spec.name!r} is text, which a window takes at its anchor: leave it out of the window's deltas."
            )
        return Places(np.zeros(1, dtype=np.int64))
    if spec.name in window.delta_indices:
        return Places(np.array(window.delta_indices[spec.name], dtype=np.int64))
    if spec.name not in window.delta_timestamps:
        return Places(window_offsets(window), back=window.dilation, is_own=True)
    deltas_ns = tuple(seconds_to_ns("delta_timestamps", s) for s in window.delta_timestamps[spec.name])
    tolerance_ns = seconds_to_ns("delta_tolerance_s", window.delta_tolerance_s)
    if spec.clock == "stepwise":
        return Places(np.array(steps_of_ns(spec.name, deltas_ns, step_rate_hz, tolerance_ns), dtype=np.int64))
    if request.align == "interval":
        raise ConfigError(
            f"stream {spec.name!r} is asked for with align='interval' and delta_timestamps: an interval begins at a step. "
            "Use delta_indices."
        )
    zeros_T = np.zeros(len(deltas_ns), dtype=np.int64)
    return Places(zeros_T, ns_T=np.array(deltas_ns, dtype=np.int64), tolerance_ns=tolerance_ns)


def reach(window: Window, places: Iterable[Places]) -> tuple[int, int]:
    """Return how many steps a window and all its streams reach from the anchor: (<= 0, >= 0)."""
    low, high = window.first_offset, window.first_offset + window.span - 1
    for place in places:
        low, high = min(low, int(place.steps_T[0])), max(high, int(place.steps_T[-1]))
    return low, high
