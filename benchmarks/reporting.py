"""From single runs to figures, and from figures to a Markdown table. No measuring here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Figures = dict[str, float]


def merge_runs(runs: Sequence[Mapping[str, float]]) -> dict[str, Figures]:
    """Return figure → median, min, max over the repeats. All runs have the same figures."""
    return {
        name: {
            "median": statistics.median(run[name] for run in runs),
            "min": min(run[name] for run in runs),
            "max": max(run[name] for run in runs),
        }
        for name in (runs[0] if runs else {})
    }


def add_ratios(rivals: dict[str, dict[str, Any]], baseline: str) -> None:
    """Set `ratio` of each measured rival to the baseline's windows/s, in place; None where the baseline is missing.

    The ratio of medians, and min and max of the ratios of the single repeats: neighbours in time, so that what slows
    the whole machine down for a while slows both.
    """
    base = rivals.get(baseline, {})
    for entry in rivals.values():
        if entry["status"] != "measured":
            continue
        entry["ratio"] = None
        if base.get("status") != "measured":
            continue
        pairs = [
            mine["windows_per_s"] / theirs["windows_per_s"]
            for mine, theirs in zip(entry["runs"], base["runs"], strict=False)
        ]
        entry["ratio"] = {
            "median": entry["figures"]["windows_per_s"]["median"] / base["figures"]["windows_per_s"]["median"],
            "min": min(pairs),
            "max": max(pairs),
        }


def _number(value: float) -> str:
    """Return three or so digits: more would be noise."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _spread(figures: Mapping[str, Figures], name: str, scale: float = 1.0) -> str:
    if name not in figures:
        return "–"
    low, middle, high = (_number(figures[name][key] * scale) for key in ("min", "median", "max"))
    return middle if low == high else f"{middle} ({low}–{high})"


def table_rows(rivals: Mapping[str, Mapping[str, Any]]) -> Iterable[list[str]]:
    """Yield the cells of each rival that was measured, fastest first, limits last."""
    measured = {name: entry for name, entry in rivals.items() if entry["status"] == "measured"}
    order = sorted(
        measured, key=lambda name: (measured[name]["limit"], -measured[name]["figures"]["windows_per_s"]["median"])
    )
    for name in order:
        entry = measured[name]
        figures, check = entry["figures"], entry.get("check") or {}
        episodes = check.get("distinct_episodes_per_batch")
        yield [
            f"*{name}*" if entry["limit"] else name,
            _spread(figures, "windows_per_s"),
            _number(entry["ratio"]["median"]) if entry["ratio"] else "–",
            _spread(figures, "longest_gap_s", 1e3),
            _spread(figures, "median_gap_s", 1e3),
            _spread(figures, "first_batch_from_start_s"),
            _spread(figures, "first_batch_from_import_s"),
            _spread(figures, "pss_bytes", 1e-6),
            _number(entry["stored_bytes"] / 1e6) if entry.get("stored_bytes") else "–",
            _number(episodes) if episodes is not None else "–",
            entry["notes"],
        ]


HEADER = [
    "loader", "windows/s", "× {baseline}", "longest gap, ms", "median gap, ms", "first batch, s", "from import, s",
    "memory, MB", "stored, MB", "episodes a batch", "to know",
]  # fmt: skip


def markdown(result: Mapping[str, Any]) -> str:
    """Return a comparison as Markdown: its setting, the table, and who is missing from it and why."""
    rivals = result["rivals"]
    lines = [f"**{result['workload']}**: {result['setting']}; {result['protocol']}.", ""]
    header = [cell.format(baseline=result["baseline"]) for cell in HEADER]
    lines += ["| " + " | ".join(header) + " |", "|" + "---|" * len(HEADER)]
    lines += ["| " + " | ".join(cells) + " |" for cells in table_rows(rivals)]
    uniform = next((e["check"]["distinct_episodes_uniform"] for e in rivals.values() if e.get("check")), None)
    if uniform is not None:
        lines += ["", f"Windows drawn uniformly come from {_number(uniform)} episodes a batch on average."]
    absent = {name: entry for name, entry in rivals.items() if entry["status"] != "measured"}
    if absent:
        lines += ["", "Not measured:", ""]
        lines += [f"- {name}: {entry['status']}. {entry['reason']}" for name, entry in absent.items()]
    return "\n".join(lines) + "\n"
