"""How long it takes to open 100,000 state-only episodes, and how much memory, in a fresh process each time.

    python benchmarks/open_100k.py                 # writes benchmarks/results/open_100k.json

Generates the dataset once (state (N, 8) float32, action (N, 2) float32, reward (N,) float32, 50 steps on average), then
starts `--repeats` processes that each time `open` and the first `track`, and check one value. The bars: under 2 s and
under 300 MB of peak RSS. "cold" evicts the dataset's files from the page cache first (POSIX_FADV_DONTNEED).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import write_result

from trajload.shards.writer import Writer
from trajload.spec import StreamSpec
from trajload.types import Modality

SPECS = [
    StreamSpec(name="state", modality=Modality.PROPRIOCEPTION, encoding="npy", shape=(8,), dtype="float32"),
    StreamSpec(name="action", modality=Modality.ACTION, encoding="npy", shape=(2,), dtype="float32"),
    StreamSpec(name="reward", modality=Modality.REWARD, encoding="npy", shape=(), dtype="float32"),
]

# Runs in a process of its own, so that neither imports nor caches of the generator count.
MEASURE = """
import json, sys, time

def peak_mb():  # VmHWM, since ru_maxrss starts at the parent's size
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

start = time.perf_counter()
from trajload.refs import ByteRange
from trajload.sources.native import open_native
imported = time.perf_counter()
before_mb = peak_mb()
dataset = open_native(sys.argv[1])
opened = time.perf_counter()
track = dataset.track(dataset.num_episodes - 1, "state")
first = time.perf_counter()
data = dataset.store.read(ByteRange(track.file, track.offset, 4))
print(json.dumps({
    "import_s": imported - start,
    "open_s": opened - imported,
    "first_track_s": first - opened,
    "rss_before_open_mb": before_mb,
    "peak_rss_mb": peak_mb(),
    "num_episodes": dataset.num_episodes,
    "num_steps": dataset.num_steps,
    "num_shards": len(dataset.manifest.shards),
    "first_value_hex": data.hex(),
}))
"""


def generate(folder: Path, num_episodes: int) -> float:
    """Write the dataset; return the seconds it took."""
    rng = np.random.Generator(np.random.Philox(100_000))
    state = rng.standard_normal((4096, 8), dtype=np.float32)
    lengths = rng.integers(25, 76, num_episodes)
    starts = rng.integers(0, len(state) - 76, num_episodes)
    begin = time.perf_counter()
    with Writer(folder, streams=SPECS, step_rate_hz=20, provenance={"source": "benchmarks/open_100k.py"}) as writer:
        for i, (start, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            rows = state[start : start + length]
            values = {"state": rows, "action": rows[:, :2], "reward": rows[:, 2]}
            writer.add_episode(values, terminated=bool(i % 2))
            if i % 10_000 == 9_999:
                print(f"  {i + 1} episodes, {time.perf_counter() - begin:.1f} s", file=sys.stderr)
    return time.perf_counter() - begin


def evict(folder: Path) -> None:
    """Drop the dataset's files from the page cache, as far as the system allows."""
    for path in folder.rglob("*"):
        if path.is_file():
            fd = os.open(path, os.O_RDONLY)
            try:
                os.fsync(fd)
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


def measure(folder: Path, repeats: int, *, cold: bool) -> list[dict[str, Any]]:
    """Return one measurement for each of `repeats` fresh processes."""
    runs = []
    for _ in range(repeats):
        if cold:
            evict(folder)
        out = subprocess.run([sys.executable, "-c", MEASURE, str(folder)], capture_output=True, text=True, check=True)
        runs.append(json.loads(out.stdout))
    return runs


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return median and range of each time and size."""
    names = ("import_s", "open_s", "first_track_s", "rss_before_open_mb", "peak_rss_mb")
    values = {name: [run[name] for run in runs] for name in names}
    return {
        name: {"median": round(statistics.median(v), 4), "min": round(min(v), 4), "max": round(max(v), 4)}
        for name, v in values.items()
    }


def main() -> int:
    """Run the benchmark; 1 where a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--folder", type=Path, help="where the dataset is kept (made there if absent); default: temporary"
    )
    parser.add_argument("--json", help="result file; default benchmarks/results/open_100k.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary) / "states"
        seconds = None if (folder / "manifest.json").is_file() else generate(folder, args.episodes)
        warm, cold = measure(folder, args.repeats, cold=False), measure(folder, args.repeats, cold=True)
        num_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    runs = [*warm, *cold]
    equal = len({run["first_value_hex"] for run in runs}) == 1
    worst_open = max(run["open_s"] + run["first_track_s"] for run in runs)
    worst_rss = max(run["peak_rss_mb"] for run in runs)
    result = {
        "num_episodes": runs[0]["num_episodes"],
        "num_steps": runs[0]["num_steps"],
        "num_shards": runs[0]["num_shards"],
        "dataset_mb": round(num_bytes / 1e6, 1),
        "generate_s": None if seconds is None else round(seconds, 1),
        "warm": summary(warm),
        "cold": summary(cold),
        "bars": {"open_and_first_track_s": 2.0, "peak_rss_mb": 300},
        "passed": bool(equal and worst_open < 2.0 and worst_rss < 300),
    }
    out = write_result("open_100k", result, args.json)
    print(
        f"{result['num_episodes']:,} episodes opened in {result['warm']['open_s']['median'] * 1e3:.1f} ms, cold "
        f"{result['cold']['open_s']['median'] * 1e3:.1f} ms, peak {worst_rss:.0f} MB; {'passed' if result['passed'] else 'FAILED'} -> {out}"
    )
    return 0 if result["passed"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
