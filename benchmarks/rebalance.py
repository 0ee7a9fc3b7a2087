"""What measured costs are good for: even shards, a shorter makespan, even ranks. On a dataset of mixed cost.

    python benchmarks/rebalance.py [--data DIR] [--repeats 3]

1. Shards: `profile` and `rebalance` a dataset of two cameras and keyframes 8 or 64 frames apart. What shards cost before and after is
   then measured anew, by worker processes that decode every fourth window of their shards: CPU seconds of each shard.
2. Makespan: two worker processes take half of the shards each; the slower one is what a training run waits for. On the wall where the
   machine is idle, and in CPU seconds, which other work disturbs less.
3. Ranks: four simulated ranks share out the same global batches, evenly and by load weights; every window is decoded under the clock, and
   what falls to each rank is added up, train_step by train_step.
"""

# Shapes: S shards, R ranks

from __future__ import annotations

import argparse
import itertools
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _common import run_case, summary, write_result
from mixed_data import write_mixed

import trajload as tl
from trajload.convert.rebalance import rebalance
from trajload.costs.profile import profile
from trajload.costs.sample import SampledWindow, StreamDecoder
from trajload.decode import DecodeContext
from trajload.pipeline.rows import read_rows
from trajload.sampling.assign import balanced_bounds

NUM_SHARDS = 4
NUM_WORKERS = 2
NUM_RANKS = 4
NUM_STEPS = 16
STRIDE = 4
REPEATS = 5
BATCH = 96
CAMERAS = ("cam_small", "cam_large")


def decode_shard(dataset: tl.Dataset, episodes: range, context: DecodeContext) -> float:
    """Return the CPU seconds of decoding every fourth window of all cameras of some episodes."""
    begin = time.thread_time()
    for episode in episodes:
        for start in range(0, int(dataset.num_steps_E[episode]) - NUM_STEPS + 1, STRIDE):
            for camera in CAMERAS:
                read_rows(dataset, episode, camera, list(range(start, start + NUM_STEPS)), context=context)
    return time.thread_time() - begin


def worker(folder: str, number: int) -> dict[str, Any]:
    """Decode this worker's half of the shards."""
    dataset = tl.open(folder)
    counts = [entry.num_episodes for entry in dataset.manifest.shards]  # type: ignore[attr-defined]
    first = [0, *itertools.accumulate(counts)]
    own = np.array_split(np.arange(len(counts)), NUM_WORKERS)[number].tolist()
    context = DecodeContext()
    for shard in range(len(counts)):  # decoders and kernels, of every kind of episode
        decode_shard(dataset, range(first[shard], first[shard] + 1), context)
    begin = time.monotonic()
    cpu = {str(shard): decode_shard(dataset, range(first[shard], first[shard + 1]), context) for shard in own}
    return {"wall_s": time.monotonic() - begin, "cpu_s": cpu}


def run_workers(folder: Path) -> dict[str, Any]:
    """Run all workers at once, and return CPU seconds by shard and the makespan."""
    import subprocess

    command = [sys.executable, __file__, "--case", "worker", "--data", str(folder)]
    children = [
        subprocess.Popen([*command, "--number", str(n)], stdout=subprocess.PIPE, text=True) for n in range(NUM_WORKERS)
    ]
    out = [json.loads(child.communicate(timeout=600)[0].strip().splitlines()[-1]) for child in children]
    cpu_S = {int(shard): s for result in out for shard, s in result["cpu_s"].items()}
    return {
        "shard_cpu_s": [cpu_S[s] for s in sorted(cpu_S)],
        "makespan_cpu_s": max(sum(result["cpu_s"].values()) for result in out),
        "makespan_wall_s": max(result["wall_s"] for result in out),
    }


def max_over_mean(values: Any) -> float:
    return float(np.max(values) / np.mean(values))


def shards_and_makespan(data: Path, even: Path, repeats: int) -> dict[str, Any]:
    """Measure old and new shards in turn, and take the least of the repeats for each shard."""
    runs: dict[str, list[dict[str, Any]]] = {"before": [], "after": []}
    for _ in range(repeats):
        for name, folder in (("before", data), ("after", even)):
            runs[name].append(run_workers(folder))
    out: dict[str, Any] = {}
    for name, results in runs.items():
        cpu_S = np.min([result["shard_cpu_s"] for result in results], axis=0)
        halves = np.array_split(cpu_S, NUM_WORKERS)
        out[name] = {
            "shard_cpu_s": cpu_S.round(4).tolist(),
            "max_over_mean": max_over_mean(cpu_S),
            "makespan_cpu_s": float(max(half.sum() for half in halves)),
            "makespan_wall_s": summary([result["makespan_wall_s"] for result in results]),
        }
    before, after = out["before"], out["after"]
    out["makespan_falls_to"] = after["makespan_cpu_s"] / before["makespan_cpu_s"]
    out["makespan_ideal"] = sum(before["shard_cpu_s"]) / NUM_WORKERS / before["makespan_cpu_s"]
    out["makespan_wall_falls_to"] = after["makespan_wall_s"]["min"] / before["makespan_wall_s"]["min"]
    return out


def rows_of_ranks(loaders: list[tl.Loader], step: int) -> list[slice]:
    """Return the rows of the global batch that each rank loads."""
    sizes = []
    for loader in loaders:
        loader.seek(step)
        sizes.append(loader.rank_batch_size)
    edges = [0, *itertools.accumulate(sizes)]
    return [slice(a, b) for a, b in itertools.pairwise(edges)]


def ranks(folder: str, costs: str, repeats: int, num_train_steps: int) -> dict[str, Any]:
    """Decode the global batches of some train_steps window by window, and add up what falls to each rank."""
    window = tl.Window(num_steps=NUM_STEPS)
    arguments: dict[str, Any] = {
        "window": window, "global_batch_size": BATCH, "seed": 5, "streams": list(CAMERAS), "num_workers": 0,
    }  # fmt: skip
    splits = {
        name: [tl.Loader(folder, **arguments, rank=rank, world_size=NUM_RANKS, **more) for rank in range(NUM_RANKS)]
        for name, more in (("even", {}), ("weighted", {"load_weights": costs}))
    }
    whole = tl.Loader(folder, **arguments, rank=0, world_size=1)
    dataset = tl.open(folder)
    decoder = StreamDecoder(dataset, dict.fromkeys(CAMERAS, tl.Image()))
    ratios: dict[str, list[float]] = {name: [] for name in (*splits, "best possible")}
    for step in range(num_train_steps):
        refs = whole.batch_at(step).refs
        cost_B = np.full(len(refs), np.inf)
        for _ in range(repeats):
            for b, ref in enumerate(refs):
                rows = np.arange(ref.start, ref.stop, dtype=np.int64)
                ns = 0
                for camera in CAMERAS:
                    if dataset.has_stream(ref.episode_index, camera):
                        ns += decoder.decode_ns(ref.episode_index, camera, SampledWindow(rows, NUM_STEPS, 0))
                cost_B[b] = min(cost_B[b], ns)
        for name, loaders in splits.items():
            loads = [cost_B[rows].sum() for rows in rows_of_ranks(loaders, step)]
            ratios[name].append(max_over_mean(loads))
        # Cut by the very costs that are measured here: what contiguous rows of whole windows allow.
        bounds = balanced_bounds(cost_B.astype(np.int64), NUM_RANKS)
        ratios["best possible"].append(max_over_mean([cost_B[a:b].sum() for a, b in itertools.pairwise(bounds)]))
    decoder.close()
    for loader in itertools.chain([whole], *splits.values()):
        loader.close()
    return {
        "global_batch_size": BATCH,
        "num_ranks": NUM_RANKS,
        "num_train_steps": num_train_steps,
        **{
            name: {"max_over_mean": float(np.mean(found)), "p90": float(np.quantile(found, 0.9)), "worst": max(found)}
            for name, found in ratios.items()
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=["worker", "ranks"])
    parser.add_argument("--number", type=int, default=0)
    parser.add_argument("--costs", default="")
    parser.add_argument("--data", default=os.path.join(tempfile.gettempdir(), "trajload-bench", "mixed"))
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--train-steps", type=int, default=24)
    parser.add_argument("--out")
    options = parser.parse_args()
    if options.case == "worker":
        print(json.dumps(worker(options.data, options.number)))
        return
    if options.case == "ranks":
        print(json.dumps(ranks(options.data, options.costs, options.repeats, options.train_steps)))
        return
    data = Path(options.data)
    if not (data / "manifest.json").exists():
        shutil.rmtree(data, ignore_errors=True)
        write_mixed(data)
    window = tl.Window(num_steps=NUM_STEPS)
    found = profile(tl.open(data), window=window, windows_per_episode=6, repeats=REPEATS)
    costs = data.with_name(data.name + "-costs.json")
    found.table.save(costs)
    even = data.with_name(data.name + "-even")
    shutil.rmtree(even, ignore_errors=True)
    report = rebalance(data, even, num_shards=NUM_SHARDS, costs=costs, window=window)
    result = {
        "profile": {"seconds": found.report.seconds, "kinds": found.report.kinds, "backend": found.report.backend},
        "rebalance": {"predicted": report.predicted, "measured": report.measured, "seconds": report.seconds},
        "workers": shards_and_makespan(data, even, options.repeats),
        "ranks": run_case(
            __file__, "--case", "ranks", "--data", str(data), "--costs", str(costs), "--repeats", str(options.repeats),
            "--train-steps", str(options.train_steps),
        ),
    }  # fmt: skip
    print(write_result("rebalance", result, options.out))
    print(json.dumps({key: result[key] for key in ("rebalance", "workers", "ranks")}, indent=1))


if __name__ == "__main__":
    main()
