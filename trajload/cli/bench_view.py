"""How `trajload bench` shows what it measured: live while it runs, then as tables."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from trajload.cli.output import say, table

if TYPE_CHECKING:
    from trajload.bench.compare import Line
    from trajload.bench.observe import Live
    from trajload.bench.sweep import Sweep

__all__ = ["live_numbers", "print_comparison", "print_report", "print_sweep"]


@contextmanager
def live_numbers() -> Iterator[Callable[[Live], None] | None]:
    """Give a callback that draws a bar with speed, wait and queue on stderr, or None where stderr is no terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), TextColumn("{task.fields[told]}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("measuring", total=None, told="warming up")

        def update(live: Live) -> None:
            ready = "" if live.num_ready is None else f", {live.num_ready:.1f} batches ready"
            told = f"{live.windows_per_s:.1f} windows/s, consumer waits {live.wait_share:.0%}{ready}"
            is_over = live.done_s >= live.total_s
            progress.update(
                task,
                completed=live.done_s,
                total=live.total_s,
                told=told,
                description="testing the verdict" if is_over else "measuring",
            )

        yield update


def print_report(report: Mapping[str, Any]) -> None:
    """Print a report for people."""
    from trajload.bench.collector import collector_words

    say(
        f"{report['dataset']}: windows of {report['num_steps']} steps, {report['global_batch_size']} per batch, order "
        f"{report['order']}, num_workers={report['num_workers']}, workers={report['workers']!r}, prefetch {report['prefetch']}"
    )
    low, high = report["windows_per_s_min"], report["windows_per_s_max"]
    mixing = f"{report['distinct_episodes_per_batch']:.1f} (uniform: {report['distinct_episodes_uniform']:.1f})"
    gop, decoded = report["gop_bytes_per_window"], report["decoded_per_delivered"]
    queue = report["queue"]
    waits = (
        f"{report['wait_share']:.0%} of the time, median {report['wait_median_ms']:.1f} ms, "
        f"p99 {report['wait_p99_ms']:.1f} ms, longest {report['longest_wait_ms']:.0f} ms"
    )
    rows: list[list[object]] = [
        ["consumer waits", waits],
        ["windows/s", f"{report['windows_per_s']:.1f} ({low:.1f} to {high:.1f})"],
        ["frames/s", f"{report['frames_per_s']:.0f}"],
        ["first batch", f"{report['first_batch_s']:.2f} s"],
        ["read", f"{report['read_mb_per_s']:.1f} MB/s, {report['bytes_per_window'] / 1e3:.1f} kB per window"],
    ]
    if gop is not None:
        rows.append(["GOPs touched", f"{gop / 1e3:.1f} kB per window, {report['gop_frames']:.1f} frames each"])
    if decoded is not None:
        rows.append(["decoded", f"{decoded:.2f} frames for each one delivered"])
    if queue["mean_ready"] is not None:
        rows.append(["queue", f"{queue['mean_ready']:.1f} batches ready, none {queue['empty_share']:.0%} of the time"])
    cpus = report["cpus"]
    if cpus["busy"] is not None:
        rows.append(
            ["CPUs", f"{cpus['there']:g} there, {cpus['busy']:.1f} kept busy, {cpus['waited_for']:.1f} waited for"]
        )
    if report["gil_held_share"] is not None:
        rows.append(["interpreter", f"held {report['gil_held_share']:.0%} of the times that a thread asked for it"])
    if report["collector"]["collections"]:
        rows.append(["garbage collector", collector_words(report["collector"])])
    rows += [
        ["distinct episodes per batch", mixing],
        ["order score", f"{report['order_score']:.2f} (1: like a uniform shuffle)"],
        ["memory", f"{report['rss_mb']:.0f} MB, peak {report['peak_rss_mb']:.0f} MB"],
    ]
    table(["measured", f"over {report['seconds']:.1f} s"], rows)
    if report["sources"]:
        shown = [
            [told["name"], f"{told['share']:.0%}", _share(told["decode_share"]), _milliseconds(told["decode_ms"])]
            for told in report["sources"]
        ]
        table(["source", "share of rows", "share of decoding", "CPU time of a step"], shown)
    stages = [
        [stage, told["count"], f"{told['median_ms']:.2f} ms", f"{told['p99_ms']:.2f} ms", f"{told['use']:.0%}"]
        for stage, told in report["stages"].items()
        if told["count"] and stage != "wait"
    ]
    table(["stage", "pieces", "median", "p99", "use of its threads"], stages)
    say(f"bottleneck: {report['bottleneck']}. {report['advice']}")
    for text in report["notes"]:
        say(text)
    if report["headspace"] is not None:
        say(report["headspace"]["words"])
    if report["tried"] is not None:
        tried = report["tried"]
        change = ", ".join(f"{name}={value!r}" for name, value in tried["change"].items())
        say(f"Tried: with {change} it is {tried['gain']:.2f} times as fast.")


def print_comparison(paths: tuple[str, str], lines: Sequence[Line]) -> None:
    """Print two reports side by side."""
    rows = [
        [line.name, _short(line.a), _short(line.b), "" if line.ratio is None else f"x{line.ratio:.2f}", line.word]
        for line in lines
    ]
    table(["", f"a: {paths[0]}", f"b: {paths[1]}", "b / a", ""], rows)


def print_sweep(found: Sweep, code: str) -> None:
    """Print what was tried, and the best setting as code."""
    rows = []
    for trial in found.trials:
        setting = ", ".join(f"{name}={value!r}" for name, value in trial.change.items())
        if trial.windows_per_s is None:
            rows.append([trial.axis, setting, "-", trial.why_not])
        else:
            again = "" if trial.again is None else f", again {trial.again:.1f}"
            rows.append([trial.axis, setting, f"{trial.windows_per_s:.1f}{again}", f"{trial.wait_share:.0%}"])
    table(["axis", "setting", "windows/s", "consumer waits"], rows)
    if found.stopped:
        say("Stopped early: the best setting is one of those that were faster twice by then.")
    if not found.best:
        say(f"Nothing is faster than what was given ({found.before:.1f} windows/s).")
    else:
        say(
            f"Best: {found.windows_per_s:.1f} windows/s, {found.windows_per_s / found.before:.2f} times what was given."
        )
    say()
    say(code)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"


def _milliseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} ms"


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
