"""Memory over 20,000 batches, and what is left after close.

    python benchmarks/rss_flat.py                  # writes benchmarks/results/rss_flat.json

Runs the demo dataset (video, depth, clocked signals, text) with 2 workers and samples the proportional set size (PSS)
of the process tree. Flat means: the median of the last tenth is not above that of the second tenth by more than 5 %.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import threading
from pathlib import Path

from _common import run_case, tree_memory_bytes, write_result


def case(data: Path, num_batches: int) -> dict[str, object]:
    import trajload as tl

    fds = len(os.listdir("/proc/self/fd"))
    loader = tl.Loader(data, window=tl.Window(num_steps=8), global_batch_size=8, seed=7, num_workers=2)
    every = max(1, num_batches // 200)
    samples = []
    for batch in loader:
        if batch.train_step % every == 0:
            samples.append(tree_memory_bytes())
        if batch.train_step == num_batches - 1:
            break
    loader.close()
    tenth = max(1, len(samples) // 10)
    early, late = statistics.median(samples[tenth : 2 * tenth]), statistics.median(samples[-tenth:])
    return {
        "num_batches": num_batches,
        "pss_second_tenth_bytes": early,
        "pss_last_tenth_bytes": late,
        "pss_max_bytes": max(samples),
        "growth": late / early - 1,
        "threads_left": [t.name for t in threading.enumerate() if t is not threading.main_thread()],
        "fds_left": len(os.listdir("/proc/self/fd")) - fds,
        "children_left": len(__import__("psutil").Process().children(recursive=True)),
        "stats": loader.stats(),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--batches", type=int, default=20_000)
    parser.add_argument("--case")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(case(args.data, args.batches)))
        return
    from trajload.demo import generate

    with tempfile.TemporaryDirectory() as folder:
        data = generate(Path(folder) / "demo")
        shm = set(os.listdir("/dev/shm"))
        result = run_case(__file__, "--case", "run", "--data", str(data), "--batches", str(args.batches), timeout=3600)
        result["shm_left"] = sorted(set(os.listdir("/dev/shm")) - shm)
    result["is_flat"] = result["growth"] <= 0.05
    out = write_result(
        "rss_flat",
        {"setting": "8 windows of 8 steps, every stream of the demo dataset, 2 workers", "result": result},
        args.json,
    )
    print(
        f"growth {100 * result['growth']:.2f} % over {args.batches} batches, max {result['pss_max_bytes'] / 2**20:.0f} MiB -> {out}"
    )
    if not result["is_flat"] or result["threads_left"] or result["children_left"] or result["shm_left"]:
        raise SystemExit("memory grows, or something is left")


if __name__ == "__main__":
    main()
