"""A measurement as one HTML file that needs nothing else: figures, verdict, timeline, waterfall, waits."""

from __future__ import annotations

import html
import json
from collections.abc import Mapping, Sequence
from typing import Any

from trajload.bench.collector import collector_words
from trajload.bench.svg import TIMELINE_S, bars, lanes_plot, waits_plot
from trajload.bench.trace import Lane
from trajload.storage.atomic import write_atomic
from trajload.types import PathLikeStr

__all__ = ["report_html", "write_html"]

_CSS = """
:root{--ink:#1c2733;--soft:#5c6b7a;--line:#d9e0e7;--paper:#fff;--card:#f6f8fa;--accent:#2463c4}
@media(prefers-color-scheme:dark){:root{--ink:#e4eaf0;--soft:#9aa8b5;--line:#36424e;--paper:#171d23;--card:#202830;--accent:#7fb0ff}}
*{box-sizing:border-box}body{margin:0 auto;max-width:72rem;padding:1.5rem;background:var(--paper);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}h1{font-size:1.5rem;margin:0 0 .25rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p.note{color:var(--soft);margin:.25rem 0}.verdict{border-left:4px solid var(--accent);background:var(--card);padding:.75rem 1rem;margin:1rem 0}
.figures{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.6rem}.figure{background:var(--card);padding:.6rem .8rem;border-radius:.4rem}
.figure b{display:block;font-size:1.25rem;font-variant-numeric:tabular-nums}.figure span{color:var(--soft);font-size:.85rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}th,td{text-align:right;padding:.3rem .6rem;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}th{color:var(--soft);font-weight:600}svg{display:block;width:100%;height:auto;color:var(--ink)}
svg text{fill:currentColor;font:11px system-ui,sans-serif}svg .axis{stroke:var(--line)}.scroll{overflow-x:auto}
.plan{fill:#8a63d2}.read{fill:#2f8fd8}.decode{fill:#e07b2e}.augment{fill:#c8468c}.collate{fill:#2f9e63}.transfer{fill:#b59b1a}.wait{fill:#c9d2db}.step{fill:#7d8a97}
@media(prefers-color-scheme:dark){.wait{fill:#48545f}}.key{display:inline-block;margin-right:1rem;color:var(--soft)}.key svg{display:inline;width:.8rem;height:.8rem}
details summary{cursor:pointer;color:var(--soft)}pre{overflow-x:auto;background:var(--card);padding:.75rem;font-size:.8rem}
"""
_STAGES = ("plan", "read", "decode", "augment", "collate", "transfer", "wait")
_MAX_LANES = 24


def write_html(path: PathLikeStr, report: Mapping[str, Any], lanes: Sequence[Lane] = ()) -> None:
    """Write `report_html` to a file, whole or not at all."""
    write_atomic(path, report_html(report, lanes).encode())


def report_html(report: Mapping[str, Any], lanes: Sequence[Lane] = ()) -> str:
    """Return a report as one page: no script, no font, no picture from elsewhere.

    Args:
        report: `BenchReport.to_json`.
        lanes: What the threads did, for the timeline; empty for none.
    """
    name = html.escape(str(report["dataset"]))
    parts = [
        f"<h1>{name}</h1>",
        f'<p class="note">windows of {report["num_steps"]} steps, {report["global_batch_size"]} per batch, order '
        f"{html.escape(report['order'])}, {_workers(report)}, "
        f"{report['num_readers']} reader{'' if report['num_readers'] == 1 else 's'}, prefetch {report['prefetch']}, consumer {report['consumer_ms']:g} ms</p>",
        f'<div class="verdict" id="verdict">{html.escape(report["advice"])}{_more_words(report)}</div>',
        _figures(report),
        _source_table(report),
        _waterfall(report),
        _waits(report),
        _timeline(lanes, report["seconds"]),
        _stage_table(report),
        _thread_table(report),
        _machine(report),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>trajload bench: {name}</title>'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<style>{_CSS}</style></head><body>\n" + "\n".join(part for part in parts if part) + "\n</body></html>\n"
    )


def _workers(report: Mapping[str, Any]) -> str:
    number, kind = report["num_workers"], html.escape(str(report["workers"]))
    if not number:
        return "no threads"
    where = f" in {kind.partition(':')[2]} processes" if kind.startswith("processes:") else ""
    return f"{number} decoder thread{'' if number == 1 else 's'}{where}"


def _more_words(report: Mapping[str, Any]) -> str:
    words = list(report["notes"])
    if report.get("headspace"):
        words.append(report["headspace"]["words"])
    if report.get("tried"):
        tried = report["tried"]
        change = ", ".join(f"{name}={value!r}" for name, value in tried["change"].items())
        words.append(f"Tried: with {change} it is {tried['gain']:.1f} times as fast.")
    return "".join(f'<p class="note">{html.escape(text)}</p>' for text in words)


def _figures(report: Mapping[str, Any]) -> str:
    gop = report["gop_bytes_per_window"]
    decoded, ready = report["decoded_per_delivered"], report["queue"]["mean_ready"]
    figures = [
        (f"{report['wait_share']:.0%}", "of the time the consumer waits"),
        (f"{report['windows_per_s']:.1f}", "windows/s"),
        (f"{report['frames_per_s']:.0f}", "frames/s delivered"),
        (f"{report['first_batch_s']:.2f} s", "to the first batch"),
        (f"{report['wait_p99_ms']:.1f} ms", "wait, 99th percentile"),
        ("-" if ready is None else f"{ready:.1f}", "batches stood ready, on average"),
        (f"{report['bytes_per_window'] / 1e3:.1f} kB", "read per window"),
        ("-" if gop is None else f"{gop / 1e3:.1f} kB", "in the GOPs it touches"),
        ("-" if decoded is None else f"{decoded:.2f}", "frames decoded per frame delivered"),
        (f"{report['order_score']:.2f}", "order score (1: like a uniform shuffle)"),
        (f"{report['peak_rss_mb']:.0f} MB", "peak memory"),
        (f"{report['read_mb_per_s']:.1f} MB/s", "read"),
        *_cpu_figures(report["cpus"]),
    ]
    cells = "".join(f'<div class="figure"><b>{value}</b><span>{text}</span></div>' for value, text in figures)
    return f'<div class="figures" id="figures">{cells}</div>'


def _cpu_figures(cpus: Mapping[str, Any]) -> list[tuple[str, str]]:
    if cpus["busy"] is None:
        return []
    return [
        (f"{cpus['busy']:.1f}", f"CPUs kept busy, of {cpus['there']:g}"),
        (f"{cpus['waited_for']:.1f}", "CPUs waited for"),
    ]


def _waterfall(report: Mapping[str, Any]) -> str:
    head = '<h2>Waterfall: where a batch\'s time goes</h2><p class="note">Work of each stage per batch, beside the time a batch took. '
    head += "Stages overlap, so bars may add up to more than the batch.</p>"
    per_batch_ms = report["seconds"] * 1e3 / max(report["batches"], 1)
    rows = []
    for stage in _STAGES[:-1]:
        told = report["stages"].get(stage)
        if told and told["count"]:
            spent = told["seconds"] * 1e3 / max(report["batches"], 1)
            rows.append((stage, spent, stage, f"{spent:.1f} ms, threads {told['use']:.0%} busy"))
    rows.append(
        ("wait", report["wait_share"] * per_batch_ms, "wait", f"{report['wait_share'] * per_batch_ms:.1f} ms blocked")
    )
    rows.append(("batch", per_batch_ms, "step", f"{per_batch_ms:.1f} ms from batch to batch"))
    out = head + bars(rows, "waterfall")
    free = report.get("headspace")
    if free:
        runs = [("as it is", free["measured"], "step"), ("decoding free", free["decode_cached"], "decode")]
        runs.append(("reading free too", free["reads_cached"], "read"))
        if free["transforms_off"] is not None:
            runs.append(("transforms off too", free["transforms_off"], "augment"))
        shown = [(label, value, kind, f"{value:.1f} windows/s") for label, value, kind in runs]
        out += "<h2>Headspace: the same loader with work left out</h2>" + bars(shown, "headspace")
    return out


def _waits(report: Mapping[str, Any]) -> str:
    series = report["series"]
    text = f"Median {report['wait_median_ms']:.1f} ms, longest {report['longest_wait_ms']:.1f} ms."
    collector = report["collector"]
    if collector["collections"]:
        text += f" Python's garbage collector: {collector_words(collector)}."
    return f'<h2>Waits: how long the consumer was blocked, batch by batch</h2><p class="note">{text}</p>' + waits_plot(
        series["asked_s"], series["wait_ms"]
    )


def _timeline(lanes: Sequence[Lane], seconds: float) -> str:
    if not lanes:
        return ""
    keys = "".join(
        f'<span class="key"><svg viewBox="0 0 10 10"><rect class="{stage}" width="10" height="10"/></svg> {stage}</span>'
        for stage in _STAGES
    )
    more = "" if len(lanes) <= _MAX_LANES else f" {len(lanes) - _MAX_LANES} more threads are not drawn."
    part = f"The first {TIMELINE_S:g} s of the measurement" if seconds > TIMELINE_S else "The whole measurement"
    text = f"{part}; --trace writes every piece of work.{more}"
    head = f'<h2>Timeline: what each thread did</h2><p class="note">{text}</p><p>{keys}</p>'
    return head + lanes_plot(lanes[:_MAX_LANES])


def _stage_table(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{stage}</td><td>{told['count']}</td><td>{_ms(told['median_ms'])}</td><td>{_ms(told['p99_ms'])}</td>"
        f"<td>{told['seconds']:.2f}</td><td>{told['use']:.0%}</td></tr>"
        for stage, told in report["stages"].items()
        if told["count"] and stage != "wait"  # exact above; a histogram's p99 may lie beyond the longest
    )
    return (
        "<h2>Stages</h2><table><thead><tr><th>stage</th><th>pieces of work</th><th>median, ms</th><th>p99, ms</th>"
        f"<th>seconds</th><th>use of its threads</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _source_table(report: Mapping[str, Any]) -> str:
    if not report["sources"]:
        return ""
    rows = "".join(
        f"<tr><td>{html.escape(told['name'])}</td><td>{told['share']:.0%}</td><td>{_share(told['decode_share'])}</td>"
        f"<td>{'-' if told['decode_ms'] is None else format(told['decode_ms'], '.3f')}</td></tr>"
        for told in report["sources"]
    )
    return (
        '<h2>Sources</h2><table id="sources"><thead><tr><th>source</th><th>share of rows</th><th>share of decoding</th>'
        f"<th>CPU time of a step, ms</th></tr></thead><tbody>{rows}</tbody></table>"
    )


def _thread_table(report: Mapping[str, Any]) -> str:
    rows = "".join(
        f"<tr><td>{'' if told['worker'] is None else 'worker {} '.format(told['worker'])}{html.escape(_thread_name(told))}</td>"
        f"<td>{told['use']:.0%}</td><td>{_share(told['cpu'])}</td><td>{_share(told['queued'])}</td></tr>"
        for told in sorted(
            report["threads"], key=lambda told: (-1 if told["worker"] is None else told["worker"], told["name"])
        )
    )
    return (
        "<h2>Threads</h2><table><thead><tr><th>thread</th><th>at work</th><th>on a CPU</th><th>waiting for a CPU</th></tr></thead>"
        f"<tbody>{rows}</tbody></table>"
    )


def _thread_name(told: Mapping[str, Any]) -> str:
    return "consumer" if told["role"] == "consumer" and told["worker"] is None else str(told["name"])


def _machine(report: Mapping[str, Any]) -> str:
    shown = {key: report[key] for key in ("machine", "cpus", "gil_held_share", "collector", "verdict")}
    return f"<h2>Machine</h2><details><summary>details</summary><pre>{html.escape(json.dumps(shown, indent=2, default=str))}</pre></details>"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.0%}"
