"""Offsets from a window's anchor step, as users write them: steps, or seconds that become exact nanoseconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np

from trajload.errors import ConfigError

__all__ = [
    "MAX_SECONDS",
    "NO_DELTAS",
    "Deltas",
    "delta_indices",
    "delta_timestamps",
    "seconds_to_ns",
    "steps_of_ns",
]

MAX_SECONDS = 2**23
"""Below it neighbouring floats are less than a nanosecond apart, so that seconds and nanoseconds convert both ways."""
_MAX_INDEX = 2**31
_SHORTEST_RANGE = 8
_T = TypeVar("_T", int, float)


class Deltas(Mapping[str, tuple[Any, ...]]):
    """stream → strictly rising offsets. Immutable and hashable, by name in rising order."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, tuple[Any, ...]] | None = None) -> None:
        self._items: dict[str, tuple[Any, ...]] = dict(sorted((items or {}).items()))

    def __getitem__(self, stream: str) -> tuple[Any, ...]:
        return self._items[stream]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(tuple(self._items.items()))

    def __reduce__(self) -> tuple[Any, ...]:
        return (Deltas, (dict(self._items),))

    def __repr__(self) -> str:
        return repr({name: _short(values) for name, values in self._items.items()})

    def to_json(self) -> dict[str, Any]:
        """Return what `delta_indices` and `delta_timestamps` read back; long runs of steps as start, stop and step."""
        return {name: _short_json(values) for name, values in self._items.items()}


NO_DELTAS = Deltas()


def delta_indices(value: object) -> Deltas:
    """Return the checked `Window(delta_indices=...)`: stream → strictly rising ints."""
    return _parse("delta_indices", value, _index)


def delta_timestamps(value: object) -> Deltas:
    """Return the checked `Window(delta_timestamps=...)`: stream → strictly rising seconds, whole nanoseconds each.

    The seconds are floats nearest to a whole number of nanoseconds, so equal windows have equal JSON.
    """
    return _parse("delta_timestamps", value, lambda name, x: seconds_to_ns(name, x) / 1_000_000_000)


def seconds_to_ns(name: str, value: Any) -> int:
    """Return seconds as whole nanoseconds, rounded exactly.

    Raises:
        ConfigError: Not a finite number, or one that is not known to the nanosecond: a float of 2**23 s or more, a
            float32 above a hundredth of a second.
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, Fraction, Decimal, np.integer, np.floating)):
        raise ConfigError(f"{name}={value!r} is invalid: expected seconds, a finite number.")
    number: Any = value.item() if isinstance(value, np.generic) else value
    if not math.isfinite(number):
        raise ConfigError(f"{name}={value!r} is invalid: expected seconds, a finite number.")
    # float32 seconds are judged by their own precision: 0.1 in float32 is 1.5 ns beside 0.1
    gap = float(np.spacing(np.abs(value))) if isinstance(value, (float, np.floating)) else 0.0
    if gap > 1e-9 or abs(number) >= MAX_SECONDS:
        why = f"neighbouring values are {gap:.3g} s apart" if gap > 1e-9 else f"expected less than {MAX_SECONDS} s"
        raise ConfigError(
            f"{name}={value!r} s is outside float precision: {why}, nanoseconds are wanted. Give float64 seconds below "
            f"{MAX_SECONDS}, or steps (delta_indices)."
        )
    return round(Fraction(number) * 1_000_000_000)


def steps_of_ns(stream: str, deltas_ns: tuple[int, ...], rate_hz: float | None, tolerance_ns: int) -> tuple[int, ...]:
    """Return the steps that offsets in nanoseconds mean on a step clock of `rate_hz`.

    Raises:
        ConfigError: No rate, an offset farther than `tolerance_ns` from every step, or two offsets on one step.
    """
    if rate_hz is None or not 0 < rate_hz < math.inf:
        raise ConfigError(
            f"delta_timestamps[{stream!r}] cannot become steps: the dataset declares no step rate (got {rate_hz!r}). "
            "Use delta_indices."
        )
    rate = Fraction(rate_hz)
    steps: list[int] = []
    for ns in deltas_ns:
        step = round(ns * rate / 1_000_000_000)
        gap_ns = abs(Fraction(step * 1_000_000_000) / rate - ns)
        if gap_ns > tolerance_ns:
            raise ConfigError(
                f"delta_timestamps[{stream!r}] holds {ns / 1e9!r} s, off the step clock of {rate_hz:.6g} Hz: the nearest step, "
                f"{step}, is at {float(step / rate):.9g} s, {float(gap_ns) / 1e9:.3g} s away; expected at most "
                f"{tolerance_ns / 1e9:.3g} s. Use multiples of {1 / rate_hz:.9g} s, delta_indices, or a larger delta_tolerance_s."
            )
        if steps and step <= steps[-1]:
            raise ConfigError(
                f"delta_timestamps[{stream!r}] puts {ns / 1e9!r} s and the delta before it on the same step {step} of the "
                f"{rate_hz:.6g} Hz step clock. Leave one out, or use a smaller delta_tolerance_s."
            )
        steps.append(step)
    return tuple(steps)


def _parse(field: str, value: object, read: Callable[[str, Any], _T]) -> Deltas:
    if isinstance(value, Deltas) and not value:
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"Window({field}={value!r}) is invalid: expected a dict of stream to a list of offsets.")
    out: dict[str, tuple[Any, ...]] = {}
    for stream, offsets in value.items():
        name = f"{field}[{stream!r}]"
        if not isinstance(stream, str):
            raise ConfigError(f"Window({name}) is invalid: expected a stream's name as the key.")
        if isinstance(offsets, Mapping) and set(offsets) == {"start", "stop", "step"}:
            offsets = range(offsets["start"], offsets["stop"], offsets["step"])
        if isinstance(offsets, (str, bytes)) or not isinstance(offsets, (Iterable, np.ndarray)):
            raise ConfigError(
                f"Window({name}={offsets!r}) is invalid: expected a list of offsets from the anchor step."
            )
        values = tuple(read(name, x) for x in offsets)
        if not values:
            raise ConfigError(f"Window({name}) is empty: expected at least one offset from the anchor step.")
        for before, after in pairwise(values):
            if after <= before:
                raise ConfigError(
                    f"Window({name}) does not rise: {after!r} follows {before!r}. Sort it, without repeats."
                )
        out[stream] = values
    return Deltas(out)


def _index(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or abs(int(value)) >= _MAX_INDEX:
        raise ConfigError(f"Window({name}) holds {value!r}: expected ints of less than 2**31, steps from the anchor.")
    return int(value)


def _run(values: tuple[Any, ...]) -> range | None:
    if len(values) < _SHORTEST_RANGE or not isinstance(values[0], int):
        return None
    run = range(values[0], values[-1] + 1, values[1] - values[0])
    return run if tuple(run) == values else None


def _short(values: tuple[Any, ...]) -> Any:
    return _run(values) or list(values)


def _short_json(values: tuple[Any, ...]) -> Any:
    run = _run(values)
    return list(values) if run is None else {"start": run.start, "stop": run.stop, "step": run.step}
