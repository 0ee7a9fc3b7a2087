"""A trace shows every stage, thread and worker in the format that viewers read, and stays as small as was asked."""

from __future__ import annotations

import itertools
import json
from array import array
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trajload.bench.trace import lanes_of, thin, trace, write_trace
from trajload.loader import Loader
from trajload.pipeline.stats_meter import STAGES, Meter
from trajload.spec import Window


def lanes(num_spans: int, gap_s: float = 1e-5) -> Any:
    """Two threads that decode and read in turns."""
    begin_N = np.arange(num_spans) * (1e-4 + gap_s)
    stage_N = np.arange(num_spans) % 2 + 1
    spans_N4 = np.column_stack([stage_N, begin_N, np.full(num_spans, 1e-4), np.full(num_spans, 3.0)])
    kept = array("d", spans_N4.reshape(-1).tobytes())
    return lanes_of([(Meter("trajload-decode-1", 5), kept), (Meter("MainThread", 6), kept)])


def test_lanes_are_in_the_order_of_the_pipeline() -> None:
    """The consumer comes first, under that name."""
    assert [(lane.name, lane.role) for lane in lanes(4)] == [("consumer", "consumer"), ("decode-1", "decode")]


def test_small_trace_keeps_every_span(tmp_path: Path) -> None:
    """Names, threads, microseconds, train_steps."""
    size = write_trace(tmp_path / "trace.json", lanes(10))
    value = json.loads((tmp_path / "trace.json").read_bytes())
    events = [event for event in value["traceEvents"] if event["ph"] == "X"]
    assert len(events) == 20 and size == (tmp_path / "trace.json").stat().st_size
    assert events[1] == {
        "name": "decode", "ph": "X", "pid": 0, "tid": 1, "ts": 110.0, "dur": 100.0, "args": {"train_step": 3},
    }  # fmt: skip
    names = {event["args"]["name"] for event in value["traceEvents"] if event["name"] == "thread_name"}
    assert names == {"consumer", "decode-1"}


def test_large_trace_is_thinned_to_the_size_asked_for(tmp_path: Path) -> None:
    """Neighbours of one stage are drawn as one, and all of the time stays covered."""
    many = lanes(20_000)
    size = write_trace(tmp_path / "trace.json", many, max_bytes=400_000)
    assert size <= 400_000
    events = [e for e in json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"] if e["ph"] == "X"]
    last = 20_000 * 1.1e-4 * 1e6
    for stage in ("read", "decode"):
        mine = [event for event in events if event["name"] == stage and event["tid"] == 1]
        assert 0 < len(mine) < 10_000
        assert sum(event["dur"] for event in mine) >= 10_000 * 1e-4 * 1e6 * 0.999
        assert mine[-1]["ts"] + mine[-1]["dur"] >= 0.99 * last


def test_ten_thousand_batches_of_a_wide_machine_stay_below_100_mb() -> None:
    """Ten thousand batches of 64 windows in 66 threads are 1.9 million spans: thinned to what 96 MB hold."""
    spans_N4 = np.column_stack(
        [np.full(30_000, 2.0), np.arange(30_000) * 1e-3, np.full(30_000, 9e-4), np.zeros(30_000)]
    )
    kept = array("d", spans_N4.reshape(-1).tobytes())
    wide = lanes_of([(Meter(f"trajload-decode-{i}", i), kept) for i in range(64)])
    assert sum(len(lane.spans_N4) for lane in thin(wide, 1_000_000)) <= 1_000_000
    longest = max(len(line) for line in _lines(wide[:1]))
    assert longest <= 96, "what one event takes, by which the number of events is chosen"


def _lines(wide: Any) -> list[str]:
    from trajload.bench.trace import _events

    return list(itertools.islice(_events(wide, 0.0), 4, 1000))


@pytest.mark.multiproc
@pytest.mark.parametrize("workers", ["threads", "processes:2"])
def test_trace_of_a_loader_shows_its_threads_and_processes(demo_dataset: Path, tmp_path: Path, workers: str) -> None:
    """Each window is read and decoded once, by some thread; each batch is waited for once."""
    arguments: dict[str, Any] = {"window": Window(num_steps=2), "streams": ["cam_front"], "global_batch_size": 4}
    with Loader(demo_dataset, num_workers=2, workers=workers, rank=0, world_size=1, **arguments) as loader:
        with trace(loader, tmp_path / "trace.json"):
            for _ in itertools.islice(loader, 8):
                pass
        next(iter(loader))
        assert not loader.stats_recorder.is_tracing
    events = json.loads((tmp_path / "trace.json").read_bytes())["traceEvents"]
    count = Counter((event["name"], event["pid"] > 0) for event in events if event["ph"] == "X")
    in_worker = workers != "threads"
    assert count["wait", False] == 8
    assert count["decode", in_worker] >= 8 * 4 // (1 if not in_worker else 2)
    assert {name for name, _ in count} <= set(STAGES)
    processes = {event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes == ({"loader", "worker 0", "worker 1"} if in_worker else {"loader"})
    if not in_worker:
        steps = {event["args"]["train_step"] for event in events if event["name"] == "decode" and "args" in event}
        assert steps >= set(range(8)), "each piece of work says for which train_step it is"
