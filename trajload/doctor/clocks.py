"""Time: step clocks that jump, clocked streams that do not reach all steps or miss stretches."""

# Shapes: T steps of an episode, N rows of a clocked stream

from __future__ import annotations

import numpy as np

from trajload.align.clocks import repair_clock
from trajload.doctor.report import Collector
from trajload.sources.base import Dataset
from trajload.spec import BadClock, StreamSpec
from trajload.types import Int64Array

__all__ = ["look_at_step_clock", "look_at_stream_clock"]

_GAP_PERIODS = 2.5
"""A pause of more periods than this is a gap: one dropped row is 2 periods, jitter comes on top."""
_RATE_TOLERANCE = 0.05
_REPAIRS: tuple[BadClock, ...] = ("sort", "drop")


def look_at_step_clock(dataset: Dataset, episode: int, found: Collector) -> Int64Array:
    """Check the step times (T,) of an episode, and return them."""
    num_steps = int(dataset.num_steps_E[episode])
    key = dataset.episode_key(episode)
    times_T = dataset.step_times_ns(episode, np.arange(num_steps, dtype=np.int64))
    if num_steps < 2:
        return times_T
    delta = np.diff(times_T)
    if (delta <= 0).any():
        step = int(np.flatnonzero(delta <= 0)[0])
        found.add(
            "error",
            "time-not-rising",
            f"step times do not rise: step {step} is at {times_T[step]} ns, step {step + 1} at {times_T[step + 1]} ns.",
            "Alignment would pair wrong rows; sort or repair the timestamps.",
            episode=key,
            steps=(step, step + 2),
        )
        return times_T
    period = 1e9 / dataset.step_rate_hz if dataset.step_rate_hz else float(np.median(delta))
    _look_for_gaps(found, delta, period, "step clock", None, key)
    rate = 1e9 / float(np.median(delta))
    if dataset.step_rate_hz and abs(rate / dataset.step_rate_hz - 1) > _RATE_TOLERANCE:
        found.add(
            "warning",
            "step-rate",
            f"steps come at {rate:.4g} Hz, but the dataset declares {dataset.step_rate_hz:.4g} Hz.",
            "Everything computed from seconds is off by that factor; correct the declared rate.",
            episode=key,
        )
    return times_T


def look_at_stream_clock(
    dataset: Dataset, episode: int, spec: StreamSpec, num_rows: int, times_T: Int64Array, found: Collector
) -> None:
    """Check the timestamps of one clocked stream against the rows it has and the steps (T,) it must serve."""
    key, name = dataset.episode_key(episode), spec.name
    times_N = dataset.stream_times_ns(episode, name)
    if len(times_N) != num_rows:
        found.add(
            "error",
            "timestamps-missing",
            f"stream {name!r} has {len(times_N)} timestamps for {num_rows} rows.",
            "Rows cannot be placed in time; convert the dataset anew from its source.",
            stream=name,
            episode=key,
        )
        return
    if len(times_N) == 0:
        return
    delta = np.diff(times_N)
    if (delta <= 0).any():
        row = int(np.flatnonzero(delta <= 0)[0])
        num_same, num_back = int((delta == 0).sum()), int((delta < 0).sum())
        left = {policy: len(repair_clock(times_N, policy).times_M) for policy in _REPAIRS}
        found.add(
            "error",
            "time-not-rising",
            f"timestamps of stream {name!r} do not rise: row {row} is at {times_N[row]} ns, row {row + 1} at {times_N[row + 1]} ns "
            f"(the same time {num_same} times, a step back {num_back} times).",
            f"The loader refuses such a clock. Repair the timestamps, or ask for tl.Signal(on_bad_clock='sort'), which keeps "
            f"{left['sort']} of {len(times_N)} rows, or 'drop', which keeps {left['drop']}.",
            stream=name,
            episode=key,
        )
        return
    period = 1e9 / spec.rate_hz if spec.rate_hz else float(np.median(delta)) if len(delta) else 0.0
    if period:
        _look_for_gaps(found, delta, period, f"stream {name!r}", name, key)
        _look_at_coverage(found, spec, key, times_N, times_T, 1.5 * period)
    if spec.rate_hz and len(delta):
        rate = 1e9 / float(np.median(delta))
        if abs(rate / spec.rate_hz - 1) > _RATE_TOLERANCE:
            found.add(
                "warning",
                "stream-rate",
                f"stream {name!r} comes at {rate:.4g} Hz, but declares {spec.rate_hz:.4g} Hz.",
                "The default alignment tolerance follows the declared rate; correct it, or pass tolerance_s.",
                stream=name,
                episode=key,
            )


def _look_for_gaps(
    found: Collector, delta: Int64Array, period_ns: float, what: str, stream: str | None, key: str
) -> None:
    gaps = np.flatnonzero(delta > _GAP_PERIODS * period_ns)
    if len(gaps) == 0:
        return
    row = int(gaps[np.argmax(delta[gaps])])
    found.add(
        "warning",
        "time-gap",
        f"{what} pauses {len(gaps)} times; the longest, after row {row}, lasts {delta[row] / 1e9:.3g} s at a period of {period_ns / 1e9:.3g} s.",
        "Steps inside get no row within tolerance and are masked; cut the episode there if it matters.",
        stream=stream,
        episode=key,
        steps=(row, row + 2) if stream is None else None,
    )


def _look_at_coverage(
    found: Collector, spec: StreamSpec, key: str, times_N: Int64Array, times_T: Int64Array, tolerance_ns: float
) -> None:
    is_out_T = (times_T < times_N[0] - tolerance_ns) | (times_T > times_N[-1] + tolerance_ns)
    if not is_out_T.any():
        return
    steps = np.flatnonzero(is_out_T)
    found.add(
        "warning",
        "clock-coverage",
        f"stream {spec.name!r} runs from {times_N[0] / 1e9:.3f} to {times_N[-1] / 1e9:.3f} s, which leaves {len(steps)} of "
        f"{len(times_T)} steps without a row (steps run to {times_T[-1] / 1e9:.3f} s).",
        "These steps are masked (on_miss='mask'). A constant offset points to two clocks that were not synchronised: offset_s.",
        stream=spec.name,
        episode=key,
        steps=(int(steps[0]), int(steps[-1]) + 1),
    )
