"""How fast a loader delivers, what its consumer waits for, and which stage holds it up."""

# Shapes: B windows

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trajload.errors import ConfigError
from trajload.loader import Loader
from trajload.sources.base import Dataset
from trajload.spec import Window

__all__ = ["BenchReport", "measure", "name_bottleneck"]

NUM_SLICES = 3
_FED_SHARE = 0.05
"""A consumer that waits for less than this share of the time is fed: the loader is not what holds it up."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchReport:
    """One measurement of one loader in one process."""

    dataset: str
    order: str
    num_workers: int
    prefetch: int
    global_batch_size: int
    num_steps: int
    seconds: float
    """Time measured, after the warm-up."""
    batches: int
    first_batch_s: float
    """From the first call of next() to the first batch: opening files and decoders, compiling kernels, the work itself."""
    windows_per_s: float
    """Median of the slices that the time is cut into."""
    windows_per_s_min: float
    windows_per_s_max: float
    frames_per_s: float
    """Frames delivered, all cameras together."""
    read_mb_per_s: float
    wait_share: float
    """Share of the time that the consumer was blocked in next()."""
    longest_wait_s: float
    distinct_episodes_per_batch: float
    """Speed bought with little mixing shows here."""
    distinct_episodes_uniform: float
    """What drawing windows uniformly would give on average."""
    rss_mb: float
    peak_rss_mb: float
    busy: dict[str, float]
    """Per stage: busy seconds, divided by the threads it has and the time measured. 1 = never idle."""
    bottleneck: str
    """'read', 'decode', 'collate', 'plan' or 'consumer'."""
    advice: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def measure(
    loader: Loader,
    *,
    seconds: float = 10.0,
    warmup_batches: int = 3,
    step_s: float = 0.0,
    progress: Callable[[int, int], None] | None = None,
) -> BenchReport:
    """Iterate `loader` for some seconds and return what was seen.

    Args:
        loader: A loader that has not been iterated yet, without `num_epochs` or long enough. Left open.
        seconds: Time measured, cut into three slices whose median is reported.
        warmup_batches: Batches not measured, at least 1, so that compiling and cold files do not count.
        step_s: Time that the consumer spends on each batch (asleep), in place of a training step.
        progress: Called with (tenths of seconds gone, tenths in all).

    Raises:
        ConfigError: The run is over before the time is.
    """
    if not seconds > 0 or warmup_batches < 1 or step_s < 0:
        raise ConfigError(
            f"seconds={seconds!r}, warmup_batches={warmup_batches!r}, step_s={step_s!r}: expected > 0, >= 1 and >= 0."
        )
    _, window = _parts(loader)
    batches: Any = iter(loader)  # a generator: closing it stops the threads
    begin = time.perf_counter()
    _take(batches)
    first_batch_s = time.perf_counter() - begin
    for _ in range(warmup_batches - 1):
        _take(batches)
    loader.reset_stats()
    waits, rates, episodes = [], [], []
    start = time.perf_counter()
    for i in range(NUM_SLICES):
        slice_start, stop, windows = time.perf_counter(), start + seconds * (i + 1) / NUM_SLICES, 0
        while time.perf_counter() < stop or windows == 0:
            asked = time.perf_counter()
            batch = _take(batches)
            waits.append(time.perf_counter() - asked)
            windows += len(batch["window_id"])
            episodes.append(len(set(batch["episode_index"].tolist())))
            del batch
            if step_s:
                time.sleep(step_s)
            if progress is not None:
                progress(min(round((time.perf_counter() - start) * 10), round(seconds * 10)), round(seconds * 10))
        rates.append(windows / (time.perf_counter() - slice_start))
    elapsed = time.perf_counter() - start
    stats = loader.stats()
    batches.close()
    decoders = max(1, stats["num_workers"])
    threads = {"plan": 1, "read": 1, "decode": decoders, "augment": decoders, "collate": 1}
    busy = {stage: stats["seconds"][stage] / (threads[stage] * elapsed) for stage in threads}
    wait_share = sum(waits) / elapsed
    bottleneck, advice = name_bottleneck(busy, wait_share, num_workers=stats["num_workers"])
    rss, peak = _memory_mb()
    return BenchReport(
        dataset=loader.dataset.name,
        order=loader.order,
        num_workers=stats["num_workers"],
        prefetch=stats["prefetch"],
        global_batch_size=loader.global_batch_size,
        num_steps=window.num_steps,
        seconds=elapsed,
        batches=len(waits),
        first_batch_s=first_batch_s,
        windows_per_s=statistics.median(rates),
        windows_per_s_min=min(rates),
        windows_per_s_max=max(rates),
        frames_per_s=statistics.median(rates) * _frames_per_window(loader),
        read_mb_per_s=stats["bytes_read"] / 1e6 / elapsed,
        wait_share=wait_share,
        longest_wait_s=max(waits),
        distinct_episodes_per_batch=statistics.fmean(episodes),
        distinct_episodes_uniform=_uniform_distinct(loader),
        rss_mb=rss,
        peak_rss_mb=peak,
        busy=busy,
        bottleneck=bottleneck,
        advice=advice,
    )


def name_bottleneck(busy: dict[str, float], wait_share: float, *, num_workers: int) -> tuple[str, str]:
    """Return the stage that limits the speed, and what helps.

    Args:
        busy: Per stage, the share of the time its threads were busy.
        wait_share: Share of the time that the consumer waited.
        num_workers: Decoder threads.
    """
    if wait_share < _FED_SHARE:
        return "consumer", "The loader keeps up: a faster loader would change nothing."
    stage = max(busy, key=lambda name: busy[name])
    advice = {
        "read": "Storage or network is slow: move the data closer, or raise prefetch so that reads overlap.",
        "decode": "Decoding is the limit: "
        + ("use num_workers > 0, " if num_workers == 0 else "give it more cores, ")
        + "a smaller picture or fewer cameras; 'trajload doctor' tells whether long GOPs make it decode frames in vain.",
        "augment": "Transforms are the limit: give them more cores, crop before all else, or augment on the accelerator.",
        "collate": "Putting batches together is the limit: ask for fewer streams.",
        "plan": "Finding rows is the limit: many clocked streams or tiny windows; take longer windows.",
    }
    return stage, advice[stage]


def _take(batches: Any) -> Any:
    batch = next(batches, None)
    if batch is None:
        raise ConfigError("the run ended before the measurement: use num_epochs=None, or measure for less time.")
    return batch


def _parts(loader: Loader) -> tuple[Dataset, Window]:
    if not isinstance(loader.dataset, Dataset) or loader.window is None:
        raise ConfigError("a loader of a mixture cannot be measured as one: measure each of its sources.")
    return loader.dataset, loader.window


def _frames_per_window(loader: Loader) -> int:
    return _parts(loader)[1].num_steps * sum(choice.spec.is_picture for choice in loader.streams)


def _uniform_distinct(loader: Loader) -> float:
    """Return the expected number of distinct episodes among B windows drawn uniformly from an epoch."""
    dataset, window = _parts(loader)
    steps_E = np.asarray(dataset.num_steps_E)
    if window.pad == "none":
        num_E = np.maximum((steps_E - window.span) // window.stride + 1, 0)
    else:
        num_E = (steps_E + window.stride - 1) // window.stride
    share_E = num_E / num_E.sum()
    return float((1 - (1 - share_E) ** loader.rank_batch_size).sum())


def _memory_mb() -> tuple[float, float]:
    """Return resident memory now and at its peak; zeros where the system does not tell."""
    status = Path("/proc/self/status")
    if not status.is_file():
        return 0.0, 0.0
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines() if ":" in line)
    return tuple(int(fields.get(key, "0 kB").split()[0]) / 1024 for key in ("VmRSS", "VmHWM"))  # type: ignore[return-value]
