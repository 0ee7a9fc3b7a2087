"""A timeline of every stage, thread and worker process, as chrome://tracing and Perfetto (ui.perfetto.dev) read it.

Events are about 80 bytes each; where there are too many for the size asked for, neighbouring spans of one stage in one
thread are drawn as one, the shortest gaps first.
"""

# Shapes: N spans; columns: stage, begin, seconds, train_step

from __future__ import annotations

import json
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from trajload.loader import Loader
from trajload.pipeline.stats_meter import SPAN_FIELDS, STAGES, Meter
from trajload.storage.atomic import write_atomic
from trajload.types import NDArray, PathLikeStr

__all__ = ["Lane", "lanes_of", "thin", "trace", "write_trace"]

MAX_BYTES = 96_000_000
_EVENT_BYTES = 96
_SHORTEST_GAP_S = 1e-6
_ORDER = {"consumer": 0, "device": 1, "plan": 2, "read": 3, "decode": 4}


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """The spans of one thread, by begin."""

    worker: int | None
    name: str
    role: str
    spans_N4: NDArray


def lanes_of(spans: Iterable[tuple[Meter, array[float]]]) -> list[Lane]:
    """Return the lanes of what a trace kept: the consumer first, then the loader's threads, then worker processes."""
    lanes = []
    for meter, kept in spans:
        spans_N4 = np.array(kept, dtype=np.float64).reshape(-1, SPAN_FIELDS)
        # Of two that begin together the longer one is around the other.
        spans_N4 = spans_N4[np.lexsort((-spans_N4[:, 2], spans_N4[:, 1]))]
        name = meter.name.removeprefix("trajload-")
        lanes.append(Lane(meter.worker, name if meter.role != "consumer" else "consumer", meter.role, spans_N4))
    return sorted(lanes, key=lambda lane: (-1 if lane.worker is None else lane.worker, _ORDER[lane.role], lane.name))


def thin(lanes: Sequence[Lane], max_spans: int) -> list[Lane]:
    """Return lanes of at most `max_spans` spans in all: neighbours of one stage are joined, the shortest gaps first."""
    gap_s, out = _SHORTEST_GAP_S, list(lanes)
    while sum(len(lane.spans_N4) for lane in out) > max_spans:
        out = [Lane(lane.worker, lane.name, lane.role, _joined(lane.spans_N4, gap_s)) for lane in out]
        gap_s *= 2
    return out


def _joined(spans_N4: NDArray, gap_s: float) -> NDArray:
    """Return spans with those of one stage that follow each other within `gap_s` made one."""
    parts = []
    for stage in np.unique(spans_N4[:, 0]):
        mine_N4 = spans_N4[spans_N4[:, 0] == stage]
        end_N = np.maximum.accumulate(mine_N4[:, 1] + mine_N4[:, 2])
        is_first_N = np.ones(len(mine_N4), dtype=np.bool_)
        is_first_N[1:] = mine_N4[1:, 1] - end_N[:-1] > gap_s
        first_M = np.flatnonzero(is_first_N)
        last_M = np.append(first_M[1:], len(mine_N4)) - 1
        joined_M4 = mine_N4[first_M]
        joined_M4[:, 2] = end_N[last_M] - joined_M4[:, 1]
        parts.append(joined_M4)
    out_N4 = np.concatenate(parts) if parts else spans_N4
    return out_N4[np.lexsort((-out_N4[:, 2], out_N4[:, 1]))]


def write_trace(path: PathLikeStr, lanes: Sequence[Lane], *, max_bytes: int = MAX_BYTES) -> int:
    """Write a trace as JSON, whole or not at all, and return its size in bytes, at most `max_bytes`.

    Args:
        path: Of the file.
        lanes: From `lanes_of`.
        max_bytes: What the file may take.
    """
    lanes = thin(lanes, max(max_bytes // _EVENT_BYTES - 4 * len(lanes) - 16, 1))
    start = min((float(lane.spans_N4[0, 1]) for lane in lanes if len(lane.spans_N4)), default=0.0)
    data = b'{"displayTimeUnit":"ms","traceEvents":[\n' + ",\n".join(_events(lanes, start)).encode() + b"\n]}\n"
    write_atomic(path, data)
    return len(data)


def _events(lanes: Sequence[Lane], start: float) -> Iterator[str]:
    processes: set[int] = set()
    for tid, lane in enumerate(lanes, 1):
        pid = 0 if lane.worker is None else lane.worker + 1
        if pid not in processes:
            processes.add(pid)
            name = "loader" if lane.worker is None else f"worker {lane.worker}"
            yield _meta("process_name", pid, 0, {"name": name})
            yield _meta("process_sort_index", pid, 0, {"sort_index": pid})
        yield _meta("thread_name", pid, tid, {"name": lane.name})
        yield _meta("thread_sort_index", pid, tid, {"sort_index": tid})
        for stage, begin, seconds, step in lane.spans_N4.tolist():
            args = f',"args":{{"train_step":{step:.0f}}}' if step >= 0 else ""
            yield (
                f'{{"name":"{STAGES[int(stage)]}","ph":"X","pid":{pid},"tid":{tid},'
                f'"ts":{(begin - start) * 1e6:.1f},"dur":{seconds * 1e6:.1f}{args}}}'
            )


def _meta(name: str, pid: int, tid: int, args: dict[str, object]) -> str:
    value = {"name": name, "ph": "M", "pid": pid, "tid": tid, "args": args}
    return json.dumps(value, separators=(",", ":"))


@contextmanager
def trace(loader: Loader, path: PathLikeStr, *, max_bytes: int = MAX_BYTES) -> Iterator[Path]:
    """Write a trace of what a loader does inside the `with` block.

    Threads of worker processes are seen if the loader is iterated anew inside the block.

    Args:
        loader: Any loader.
        path: Of the file, written when the block is left.
        max_bytes: What the file may take.

    Example:
        >>> with trace(loader, "trace.json"):                             # doctest: +SKIP
        ...     for batch in itertools.islice(loader, 100): train(batch)  # doctest: +SKIP
    """
    recorder = loader.stats_recorder
    recorder.start_trace()
    try:
        yield Path(path)
    finally:
        spans = recorder.stop_trace()
        write_trace(path, lanes_of(spans), max_bytes=max_bytes)
