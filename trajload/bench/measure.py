"""How fast a loader delivers, what its consumer waits for, and which stage holds it up."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from trajload.bench.collector import CollectorUse, collector_use
from trajload.bench.gops import touched_bytes
from trajload.bench.headspace import Headspace, fresh_loader, headspace
from trajload.bench.knobs import facts_of
from trajload.bench.loads import cpu_use
from trajload.bench.observe import Live, Observation, observe
from trajload.bench.report import BenchReport
from trajload.bench.sources import order_score, order_words, source_figures, sources_of, uniform_distinct
from trajload.bench.verdict import Verdict, judge
from trajload.costs.machine import machine_facts
from trajload.loader import Loader
from trajload.stop import Stop

__all__ = ["Measured", "measure", "measure_with_details", "try_change"]

_MAX_SERIES = 2000
_OWN_SHARE = 0.2
_MIN_BATCHES = 20


class Measured:
    """A report, and what it was made from."""

    def __init__(self, report: BenchReport, seen: Observation, verdict: Verdict) -> None:
        self.report, self.seen, self.verdict = report, seen, verdict


def measure(
    loader: Loader,
    *,
    seconds: float = 10.0,
    warmup_batches: int = 3,
    step_s: float = 0.0,
    progress: Callable[[Live], None] | None = None,
    headspace_s: float = 0.0,
    try_s: float = 0.0,
) -> BenchReport:
    """Iterate `loader` for some seconds and return what was seen, and what holds it up.

    Args:
        loader: A loader that has not been iterated yet, without `num_epochs` or long enough. Left open.
        seconds: Time measured, cut into three slices whose median is reported.
        warmup_batches: Batches not measured, at least 1, so that compiling and cold files do not count.
        step_s: Time that the consumer spends on each batch (asleep), in place of a training step.
        progress: Told how it stands, about ten times a second.
        headspace_s: Length of each run with work left out that tests the verdict; 0 for none.
        try_s: Length of a run with the advice applied; 0 for none.

    Raises:
        ConfigError: The run is over before the time is.
    """
    return measure_with_details(
        loader,
        seconds=seconds,
        warmup_batches=warmup_batches,
        step_s=step_s,
        progress=progress,
        headspace_s=headspace_s,
        try_s=try_s,
    ).report


def measure_with_details(
    loader: Loader,
    *,
    seconds: float = 10.0,
    warmup_batches: int = 3,
    step_s: float = 0.0,
    progress: Callable[[Live], None] | None = None,
    headspace_s: float = 0.0,
    try_s: float = 0.0,
    trace: bool = False,
    num_batches: int | None = None,
    stop: Stop | None = None,
) -> Measured:
    """Do what `measure` does, and return the raw observation too; `trace` keeps every span in it.

    Args:
        num_batches: Stop after so many batches, whatever the time.
        stop: Ends it early: the measurement after its next batch, runs that test the verdict at once.
        loader, seconds, warmup_batches, step_s, progress, headspace_s, try_s, trace: As there.
    """
    stop = Stop() if stop is None else stop
    seen = observe(
        loader,
        seconds=seconds,
        warmup_batches=warmup_batches,
        step_s=step_s,
        progress=progress,
        trace=trace,
        num_batches=num_batches,
        stop=stop,
    )
    verdict = judge(seen, facts_of(loader, seen.stats))
    rate = statistics.median(seen.rates)
    free: Headspace | None = None
    tried: dict[str, Any] | None = None
    with stop.breaking_off():
        if headspace_s and not stop.wanted:
            free = headspace(loader, verdict, rate, seconds=headspace_s, step_s=step_s)
        if try_s and verdict.change and not stop.wanted:
            tried = try_change(loader, verdict.change, rate, seconds=try_s, step_s=step_s)
    return Measured(_report(loader, seen, verdict, free, tried, stopped=stop.wanted), seen, verdict)


def try_change(
    loader: Loader, change: dict[str, Any], measured: float, *, seconds: float, step_s: float = 0.0
) -> dict[str, Any]:
    """Return what some arguments changed bring: `change`, `windows_per_s`, and `gain` over what was measured without."""
    with fresh_loader(loader, change) as changed:
        rate = statistics.median(observe(changed, seconds=seconds, step_s=step_s).rates)
    return {"change": change, "windows_per_s": rate, "gain": rate / measured if measured else None}


def _report(
    loader: Loader,
    seen: Observation,
    verdict: Verdict,
    free: Headspace | None,
    tried: dict[str, Any] | None,
    *,
    stopped: bool,
) -> BenchReport:
    stats, elapsed = seen.stats, seen.elapsed_s
    waits_ms = np.array(seen.waits_s) * 1e3
    touched = touched_bytes(loader)
    window = sources_of(loader)[0][0].window
    cpus = cpu_use(seen.threads, elapsed)
    uses = [seen.gil, *seen.worker_gil.values()]
    collector = collector_use(seen)
    rate = statistics.median(seen.rates)
    return BenchReport(
        dataset=loader.dataset.name,
        order=order_words(loader),
        sources=source_figures(loader),
        num_workers=stats["num_workers"],
        num_readers=stats["num_readers"],
        workers=stats["workers"],
        prefetch=stats["prefetch"],
        global_batch_size=loader.global_batch_size,
        num_steps=window.num_steps,
        seconds=elapsed,
        batches=len(seen.waits_s),
        stopped=stopped,
        first_batch_s=seen.first_batch_s,
        windows_per_s=rate,
        windows_per_s_min=min(seen.rates),
        windows_per_s_max=max(seen.rates),
        frames_per_s=rate * window.num_steps * _cameras(loader),
        consumer_ms=seen.step_s * 1e3,
        wait_share=seen.wait_share,
        wait_median_ms=float(np.median(waits_ms)),
        wait_p99_ms=float(np.percentile(waits_ms, 99)),
        longest_wait_ms=float(waits_ms.max()),
        stages=_stages(seen),
        threads=_threads(seen),
        queue=stats["queue"],
        read_mb_per_s=stats["bytes_read"] / 1e6 / elapsed,
        bytes_per_window=stats["bytes_read"] / seen.num_windows,
        gop_bytes_per_window=None if touched is None else touched.gop_bytes,
        gop_frames=None if touched is None else touched.gop_frames,
        decoded_per_delivered=stats["frames_decoded"] / stats["frames"] if stats["frames"] else None,
        distinct_episodes_per_batch=statistics.fmean(seen.episodes_per_batch),
        distinct_episodes_uniform=uniform_distinct(loader),
        order_score=order_score(loader),
        rss_mb=seen.rss_mb,
        peak_rss_mb=seen.peak_rss_mb,
        cpus={
            "there": seen.num_cpus,
            "busy": None if cpus is None else cpus[0],
            "waited_for": None if cpus is None else cpus[1],
        },
        gil_held_share=max((share for use in uses if (share := use.held_share) is not None), default=None),
        collector=collector.to_json(),
        bottleneck=verdict.limit,
        advice=verdict.sentence,
        verdict=verdict.to_json(),
        notes=[*_ended(seen, stopped), *_notes(seen, cpus), *_collected(collector, verdict)],
        headspace=None if free is None else {name: getattr(free, name) for name in free.__slots__},
        tried=tried,
        series={"asked_s": _thin(seen.asked_s), "wait_ms": _thin(waits_ms.tolist())},
        machine=machine_facts(),
    )


def _cameras(loader: Loader) -> float:
    """Return how many picture streams a row has, on average over the sources."""
    return sum(share * sum(c.spec.is_picture for c in source.choices) for source, _, share in sources_of(loader))


def _ended(seen: Observation, stopped: bool) -> list[str]:
    if seen.is_stopped:
        return [f"Stopped after {len(seen.waits_s)} batches, in {seen.elapsed_s:.1f} s; the verdict was not tested."]
    return ["Stopped while the verdict was tested: what was not finished is left out."] if stopped else []


def _collected(use: CollectorUse, verdict: Verdict) -> list[str]:
    return [] if use.advice is None or verdict.limit == "collector" else [use.advice]


def _notes(seen: Observation, cpus: tuple[float, float] | None) -> list[str]:
    notes = []
    if cpus is not None and cpus[1] > cpus[0] and cpus[0] < seen.num_cpus / 2:
        notes.append("Other programs take the CPUs: measure again when this machine is idle.")
    if len(seen.waits_s) < _MIN_BATCHES:
        notes.append(f"Only {len(seen.waits_s)} batches were measured: give it more time (--seconds).")
    return notes


def _stages(seen: Observation) -> dict[str, dict[str, Any]]:
    out = {}
    for stage, told in seen.stats["stages"].items():
        # Threads that do a little of it on the way do not count.
        spent = [thread.seconds.get(stage, 0.0) for thread in seen.threads]
        threads = sum(1 for s in spent if s > _OWN_SHARE * max(spent))
        out[stage] = {
            "count": told["count"],
            "seconds": told["seconds"],
            "median_ms": None if told["median_s"] is None else told["median_s"] * 1e3,
            "p99_ms": None if told["p99_s"] is None else told["p99_s"] * 1e3,
            "use": told["seconds"] / (seen.elapsed_s * threads) if threads else 0.0,
        }
    return out


def _threads(seen: Observation) -> list[dict[str, Any]]:
    return [
        {
            "worker": thread.worker,
            "name": thread.name,
            "role": thread.role,
            "use": thread.busy_s / seen.elapsed_s,
            "cpu": None if thread.cpu is None else thread.cpu.ran_s / seen.elapsed_s,
            "queued": None if thread.cpu is None else thread.cpu.queued_s / seen.elapsed_s,
        }
        for thread in seen.threads
    ]


def _thin(values: Sequence[float]) -> list[float]:
    every = -(-len(values) // _MAX_SERIES)
    return [round(value, 6) for value in values[:: max(every, 1)]]
