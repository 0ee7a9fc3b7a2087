"""What always-on statistics cost of the CPU time of a batch, and how large a trace is.

    python benchmarks/stats_overhead.py            # writes benchmarks/results/stats_overhead.json

CPU time, not time, and the lowest of many: nearly the same on a machine that is busy with other things. What the stages of 50
batches note is kept and noted again, 200 times; two readings of the clock a note come on top. Running a loader with
statistics and one without in turns shows nothing: they differ by less than two runs of either.
The bars: at most 1 % of a batch of video and of the comparison's batch of state, and a trace of 10,000 batches below 100 MB.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
import timeit
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from _common import write_result
from compare import DEFAULT_DATA
from workloads.formats import make_format
from workloads.spec import WORKLOADS as COMPARED

import trajload as tl
from trajload.bench.trace import trace
from trajload.demo import generate
from trajload.pipeline.stats import StageStats

SIGNALS = ["action", "reward", "puck"]
WORKLOADS: dict[str, dict[str, Any]] = {
    "video, 16 x 64x64": {"streams": ["cam_front"], "window": tl.Window(num_steps=16)},
    "video, 1 x 64x64": {"streams": ["cam_front"], "window": tl.Window(num_steps=1)},
    "three cameras": {"streams": ["cam_front", "cam_side", "depth"], "window": tl.Window(num_steps=16)},
    "interleaved": {"streams": ["cam_front"], "window": tl.Window(num_steps=16), "order": "interleaved"},
    "state, 256 windows": {"streams": SIGNALS, "window": tl.Window(num_steps=32), "global_batch_size": 256},
    "state, 32 windows": {"streams": SIGNALS, "window": tl.Window(num_steps=16)},
}
COMPARED_STATE = {"streams": list(COMPARED["state"].signal_steps), "window": tl.Window(num_steps=32)}
TRACE_BATCHES = 10_000


NOTES = ("add", "gathered", "window_read", "window_decoded", "level", "asked", "delivered")
"""What stages call, but for blocks under the clock, and counts by name, which only blocks of pictures need."""


class Ready:
    """Batches that are there at once."""

    def next(self) -> bool:
        return True


class Notes(StageStats):
    """Keeps what it is told, to be told again."""

    kept: list[tuple[str, tuple[Any, ...]]]

    def __init__(self) -> None:
        super().__init__()
        self.kept = []

    def timed(self, stage: str) -> Any:
        self.kept.append(("timed", (stage,)))
        return nullcontext()

    def next_of(self, batches: Any) -> Any:
        self.kept.append(("next_of", (Ready(),)))
        return batches.next()

    def __getattribute__(self, name: str) -> Any:
        if name not in NOTES:
            return super().__getattribute__(name)
        return lambda *args: self.kept.append((name, args))


def loader_of(dataset: tl.Dataset, arguments: dict[str, Any], num_workers: int, stats: StageStats | None) -> tl.Loader:
    """Return a loader, with `stats` in place of its own."""
    arguments = {"global_batch_size": 32, **arguments}
    loader = tl.Loader(dataset, seed=5, num_workers=num_workers, rank=0, world_size=1, **arguments)
    if stats is not None:
        engine = loader._engine
        engine.stats = engine.builder.stats = stats
        for source in engine.builder.sources:
            source.stats = stats
    return loader


def batch_us(dataset: tl.Dataset, arguments: dict[str, Any], num_workers: int, rounds: int, least_s: float) -> float:
    """Return the CPU time of all threads for a batch, at its lowest over some rounds, in microseconds."""
    with closing(loader_of(dataset, arguments, num_workers, None)) as loader, closing(iter(loader)) as batches:
        spent_s(batches, 20)
        num_batches = max(10, int(least_s / max(spent_s(batches, 20) / 20, 1e-6)))
        return min(spent_s(batches, num_batches) / num_batches for _ in range(rounds)) * 1e6


def spent_s(batches: Any, num_batches: int) -> float:
    """Return the CPU time that all threads of this process spend on so many batches."""
    begin = time.process_time()
    for batch in itertools.islice(batches, num_batches):
        del batch
    return time.process_time() - begin


def notes_us(dataset: tl.Dataset, arguments: dict[str, Any], num_workers: int, num_batches: int) -> tuple[float, float]:
    """Return what the notes of a batch cost, at their lowest, in microseconds, and how many notes there are."""
    notes = Notes()
    with closing(loader_of(dataset, arguments, num_workers, notes)) as loader, closing(iter(loader)) as batches:
        spent_s(batches, 20)
        notes.kept.clear()
        spent_s(batches, num_batches)
        kept = list(notes.kept)
    costs = notes.costs.sums()
    num_laps = sum(name == "window_decoded" for name, _ in kept)
    real = StageStats()
    calls = [(getattr(real, name), args) for name, args in kept]

    def again() -> None:
        for call, args in calls:
            found = call(*args)
            if found is not None and found is not True:  # a timed block
                with found:
                    pass

    def laps() -> None:
        for _ in range(num_laps):
            found = real.costs.laps()
            if found is not None:
                for stream in costs:
                    found.note(0, stream, 0, 16, 16)

    def loop() -> None:
        for call, _ in calls:
            if call is None:
                break

    lowest = [min(timeit.repeat(what, timer=time.process_time, number=1, repeat=200)) for what in (again, laps, loop)]
    return (lowest[0] + lowest[1] - lowest[2]) * 1e6 / num_batches, len(calls) / num_batches


def overhead(
    dataset: tl.Dataset, arguments: dict[str, Any], num_workers: int, rounds: int, least_s: float
) -> dict[str, Any]:
    """Return what a batch costs, and what statistics add to it."""
    whole = batch_us(dataset, arguments, num_workers, rounds, least_s)
    noted, num_notes = notes_us(dataset, arguments, num_workers, 50)
    clock_us = min(timeit.repeat(time.perf_counter, number=10_000, repeat=20)) / 10_000 * 1e6
    clocks = 2 * (num_notes - 1) * clock_us  # next_of, which reads them itself, is noted again with its readings
    return {
        "num_workers": num_workers,
        "batch_us": whole,
        "notes_a_batch": num_notes,
        "notes_us": noted,
        "clocks_us": clocks,
        "percent": 100 * (noted + clocks) / (whole - noted - clocks),
    }


def trace_size(dataset: tl.Dataset) -> dict[str, Any]:
    """Return how large a trace of 10,000 batches is, and how many windows it shows."""
    arguments = {"streams": ["cam_front"], "window": tl.Window(num_steps=2)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        with tl.Loader(dataset, global_batch_size=16, seed=5, rank=0, world_size=1, **arguments) as loader:
            with trace(loader, path):
                for batch in itertools.islice(loader, TRACE_BATCHES):
                    del batch
            windows = loader.stats()["windows"]
        num_events = path.read_bytes().count(b'"ph":"X"')
        return {"batches": TRACE_BATCHES, "windows": windows, "events": num_events, "mb": path.stat().st_size / 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=0.5, help="CPU time of a round")
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help=f"folder of generated data ({DEFAULT_DATA})")
    parser.add_argument("--skip-trace", action="store_true")
    parser.add_argument("--json", help="result file; default benchmarks/results/stats_overhead.json")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = tl.open(generate(Path(folder) / "demo", num_episodes=8, seed=3))
        compared = tl.open(make_format("native", COMPARED["state"], arguments.data))
        batch = {"global_batch_size": COMPARED["state"].batch}
        works = {name: (dataset, more) for name, more in WORKLOADS.items()}
        works["state of compare.py"] = (compared, COMPARED_STATE | batch)
        cases = {
            f"{name}, {f'{workers} threads' if workers else 'no threads'}": overhead(
                data, more, workers, arguments.rounds, arguments.seconds
            )
            for name, (data, more) in works.items()
            for workers in (0, 2)
            if workers or name != "interleaved"
        }
        traced = None if arguments.skip_trace else trace_size(dataset)
        dataset.close()
        compared.close()
    for name, case in cases.items():
        told = f"{case['notes_a_batch']:.0f} notes {case['notes_us']:.1f} us, clocks {case['clocks_us']:.1f} us"
        print(f"{name:32} {case['batch_us']:9.1f} us a batch; {told}: {case['percent']:.2f} %")
    if traced:
        print(f"trace: {traced['mb']:.1f} MB for {traced['batches']} batches, {traced['events']} events")
    print(f"-> {write_result('stats_overhead', {'cases': cases, 'trace': traced}, arguments.json)}")


if __name__ == "__main__":
    main()
