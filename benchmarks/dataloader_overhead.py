"""What the DataLoader costs over plain iteration, at 0 workers, where both use the loader's own threads.

    python benchmarks/dataloader_overhead.py       # writes benchmarks/results/dataloader_overhead.json
    python benchmarks/dataloader_overhead.py --dataset my-dataset --json out.json

Runs of plain and wrapped iteration alternate, so that a machine that slows down slows both. The bar: at most 5 % fewer
batches per second. Batches of both are compared before anything is timed.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import tempfile
import time
from pathlib import Path

from _common import write_result

import trajload as tl


def make(dataset: Path, batch: int, num_workers: int) -> tl.Loader:
    return tl.Loader(
        dataset,
        window=tl.Window(num_steps=16),
        global_batch_size=batch,
        seed=7,
        rank=0,
        world_size=1,
        num_workers=num_workers,
    )


def batches_per_s(dataset: Path, batch: int, num_workers: int, steps: int, wrapped: bool) -> float:
    with make(dataset, batch, num_workers) as loader:
        batches = iter(loader.as_dataloader(steps_per_epoch=10**9) if wrapped else loader)
        for _ in itertools.islice(batches, max(2, steps // 10)):
            pass
        start = time.perf_counter()
        for _ in itertools.islice(batches, steps):
            pass
        elapsed_s = time.perf_counter() - start
        batches.close()  # type: ignore[attr-defined]
    return steps / elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--dataset", type=Path, default=None, help="the demo dataset is made if not given")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", help="result file; default benchmarks/results/dataloader_overhead.json")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        dataset = args.dataset
        if dataset is None:
            from trajload.demo import generate

            dataset = generate(Path(folder) / "demo", num_episodes=8, seed=1)
        with make(dataset, args.batch, 1) as loader, make(dataset, args.batch, 1) as other:
            for plain, wrapped in zip(itertools.islice(loader, 3), other.as_dataloader(steps_per_epoch=3), strict=True):
                assert plain.digest() == wrapped.digest()
        runs = []
        for num_workers in (0, os.cpu_count() or 1):
            rates: dict[bool, list[float]] = {False: [], True: []}
            for repeat in range(args.repeats):
                for wrapped in (False, True) if repeat % 2 else (True, False):
                    rates[wrapped].append(batches_per_s(dataset, args.batch, num_workers, args.steps, wrapped))
            plain_rate, wrapped_rate = statistics.median(rates[False]), statistics.median(rates[True])
            runs.append(
                {
                    "loader_threads": num_workers,
                    "plain_batches_per_s": plain_rate,
                    "wrapped_batches_per_s": wrapped_rate,
                    "overhead": 1 - wrapped_rate / plain_rate,
                    "all": {"plain": rates[False], "wrapped": rates[True]},
                }
            )
            print(
                f"threads={num_workers}: plain {plain_rate:.1f}, wrapped {wrapped_rate:.1f} batches/s, overhead {runs[-1]['overhead']:.1%}"
            )
    result = {"batch": args.batch, "steps": args.steps, "runs": runs}
    print(f"-> {write_result('dataloader_overhead', result, args.json)}")


if __name__ == "__main__":
    main()
