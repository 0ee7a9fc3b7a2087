"""Plots as SVG text: bars, waits over time, lanes of a timeline. Colours are CSS classes of the page."""

# Shapes: N spans; columns: stage, begin, seconds, train_step

from __future__ import annotations

import html
from collections.abc import Sequence

from trajload.bench.trace import Lane, thin
from trajload.pipeline.stats_meter import STAGES

__all__ = ["TIMELINE_S", "bars", "lanes_plot", "waits_plot"]

_WIDTH, _LEFT, _RIGHT = 1000.0, 150.0, 230.0
_ROW = 24.0
_MAX_SPANS = 6000
TIMELINE_S = 2.0


def bars(rows: Sequence[tuple[str, float, str, str]], name: str) -> str:
    """Return horizontal bars: (label, value, CSS class, text beside it)."""
    most = max((value for _, value, _, _ in rows), default=0.0) or 1.0
    parts = []
    for i, (label, value, kind, text) in enumerate(rows):
        y, width = i * _ROW, (_WIDTH - _LEFT - _RIGHT) * value / most
        parts.append(
            f'<text x="{_LEFT - 8}" y="{y + 16}" text-anchor="end">{html.escape(label)}</text>'
            f'<rect class="{kind}" x="{_LEFT}" y="{y + 4}" width="{max(width, 1):.1f}" height="16" rx="2"/>'
            f'<text x="{_LEFT + width + 8:.1f}" y="{y + 16}">{html.escape(text)}</text>'
        )
    return f'<svg id="{name}" viewBox="0 0 {_WIDTH:.0f} {len(rows) * _ROW:.0f}" role="img">{"".join(parts)}</svg>'


def waits_plot(asked_s: Sequence[float], wait_ms: Sequence[float]) -> str:
    """Return one line for each batch: how long it was waited for, by the time when it was asked for."""
    height, left = 180.0, 60.0
    most, last = max(wait_ms, default=0.0) or 1.0, max(asked_s, default=0.0) or 1.0
    parts = [_grid(left, height, most, "ms"), _ticks(left, height, last)]
    for at_s, waited in zip(asked_s, wait_ms, strict=True):
        x, size = left + (_WIDTH - left - 10) * at_s / last, (height - 10) * waited / most
        parts.append(
            f'<rect class="decode" x="{x:.1f}" y="{height - size:.1f}" width="2" height="{max(size, 0.5):.1f}">'
            f"<title>{at_s:.2f} s: {waited:.1f} ms</title></rect>"
        )
    return f'<svg id="waits" viewBox="0 0 {_WIDTH:.0f} {height + 24:.0f}" role="img">{"".join(parts)}</svg>'


def lanes_plot(lanes: Sequence[Lane], seconds: float = TIMELINE_S) -> str:
    """Return a row for each thread, with its spans of the first `seconds`."""
    begins = [float(lane.spans_N4[0, 1]) for lane in lanes if len(lane.spans_N4)]
    start = min(begins, default=0.0)
    cut = []
    for lane in lanes:
        spans_N4 = lane.spans_N4
        is_in_N = (spans_N4[:, 1] >= start) & (spans_N4[:, 1] < start + seconds)
        cut.append(Lane(lane.worker, lane.name, lane.role, spans_N4[is_in_N]))
    cut = thin(cut, _MAX_SPANS)
    last = max(
        (float((lane.spans_N4[:, 1] + lane.spans_N4[:, 2]).max()) for lane in cut if len(lane.spans_N4)), default=start
    )
    length = max(min(last - start, seconds), 1e-3)
    scale, height = (_WIDTH - _LEFT - 10) / length, len(cut) * _ROW
    parts = [_ticks(_LEFT, height, length)]
    for i, lane in enumerate(cut):
        label = lane.name if lane.worker is None else f"worker {lane.worker} {lane.name}"
        parts.append(f'<text x="{_LEFT - 8}" y="{i * _ROW + 16}" text-anchor="end">{html.escape(label)}</text>')
        for stage, begin, spent, _ in lane.spans_N4.tolist():
            x = _LEFT + (begin - start) * scale
            width = max(min(spent, start + length - begin) * scale, 0.3)
            name = STAGES[int(stage)]
            # What is done while the consumer waits is drawn inside its wait.
            inset = 4.0 if name != "wait" else 2.0
            parts.append(
                f'<rect class="{name}" x="{x:.2f}" y="{i * _ROW + inset}" width="{width:.2f}" height="{_ROW - 2 * inset}"/>'
            )
    return f'<svg id="timeline" viewBox="0 0 {_WIDTH:.0f} {height + 24:.0f}" role="img">{"".join(parts)}</svg>'


def _grid(left: float, height: float, most: float, unit: str) -> str:
    parts = []
    for share in (0.0, 0.5, 1.0):
        y = height - (height - 10) * share
        parts.append(
            f'<line class="axis" x1="{left}" x2="{_WIDTH - 10}" y1="{y:.1f}" y2="{y:.1f}"/>'
            f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{most * share:.3g} {unit}</text>'
        )
    return "".join(parts)


def _ticks(left: float, height: float, length_s: float) -> str:
    parts = []
    for i in range(5):
        x = left + (_WIDTH - left - 10) * i / 4
        parts.append(
            f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="0" y2="{height}"/>'
            f'<text x="{x:.1f}" y="{height + 16}" text-anchor="{"end" if i == 4 else "start"}">{length_s * i / 4:.3g} s</text>'
        )
    return "".join(parts)
