"""What planning costs: numbering windows, seeking to a far train_step, planning a batch. No data are read.

    python benchmarks/planning.py                  # writes benchmarks/results/planning.json

Each case runs in a process of its own. "cold" is the first request of an epoch in a fresh Sampler, with the pass over
the episodes that `interleaved` needs once an epoch; machine code is compiled before, on a small table. "warm" is any
later request. The bars: train_step 10**9 on 10**8 windows in under 50 ms (cold and warm), a batch of 1024 planned in
at most 2 ms (warm), 10**7 episodes with 10**9 windows numbered in at most 10 s and 1 GB.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from _common import run_case, summary, write_result

ORDERS = ("shuffled", "interleaved", "continuous", "weighted")
FAR = 10**9


def peak_mb() -> float:
    """Return the peak of resident memory of this process, in MB."""
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e6


def lengths_of(num_episodes: int, mean: int) -> np.ndarray:
    """Return steps of episodes, spread by half around `mean`, whose windows of one step sum to about the product."""
    rng = np.random.Generator(np.random.Philox(7))
    return rng.integers(mean // 2, mean + mean // 2 + 1, num_episodes)


def sampler_of(order: str, lengths_E: np.ndarray, batch: int) -> Any:
    """Return a Sampler over windows of 16 steps."""
    from trajload.sampling.orders import Weighted
    from trajload.sampling.sampler import Sampler
    from trajload.sampling.windows import WindowTable
    from trajload.spec import Window

    table = WindowTable(lengths_E + 15, Window(num_steps=16))
    config = Weighted(episode_weights=np.arange(1, len(lengths_E) + 1)) if order == "weighted" else order
    return Sampler(table, order=config, seed=7, global_batch_size=batch)


def timed_ms(call: Callable[[], Any], repeats: int) -> list[float]:
    """Return milliseconds of each of `repeats` calls."""
    out = []
    for _ in range(repeats):
        begin = time.perf_counter()
        call()
        out.append((time.perf_counter() - begin) * 1e3)
    return out


def case_seek(order: str, num_episodes: int, repeats: int) -> dict[str, Any]:
    """Seek on 10**8 windows: 10**8 / num_episodes windows an episode."""
    sampler_of(order, np.array([40, 20, 3]), 32).refs(5)  # compiles
    lengths_E = lengths_of(num_episodes, 10**8 // num_episodes)
    cold = []
    for _ in range(repeats):
        sampler = sampler_of(order, lengths_E, 32)
        cold += timed_ms(lambda s=sampler: s.refs(FAR), 1)
    warm = timed_ms(lambda: sampler.refs(FAR), 20 * repeats)
    return {"num_windows": sampler.num_windows, "cold_ms": cold, "warm_ms": warm}


def case_batch(order: str, num_episodes: int, repeats: int) -> dict[str, Any]:
    """Plan neighbouring batches of 1024 of 10**8 windows."""
    sampler = sampler_of(order, lengths_of(num_episodes, 10**8 // num_episodes), 1024)
    sampler.refs(1000)
    steps = iter(range(1001, 10**6))
    return {"num_windows": sampler.num_windows, "warm_ms": timed_ms(lambda: sampler.refs(next(steps)), 50 * repeats)}


def case_number(num_episodes: int) -> dict[str, Any]:
    """Number 10**9 windows of `num_episodes` episodes, and give one batch of `interleaved`."""
    sampler_of("interleaved", np.array([40, 20, 3]), 32).refs(5)
    lengths_E = lengths_of(num_episodes, 10**9 // num_episodes)
    before_mb = peak_mb()
    begin = time.perf_counter()
    sampler = sampler_of("interleaved", lengths_E, 1024)
    numbered_s, numbered_mb = time.perf_counter() - begin, peak_mb()
    sampler.refs(FAR)
    return {
        "num_windows": sampler.num_windows,
        "numbered_s": numbered_s,
        "first_batch_s": time.perf_counter() - begin,
        "before_mb": before_mb,
        "numbered_mb": numbered_mb,
        "peak_mb": peak_mb(),
    }


def run_one(args: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of one case, run in this process."""
    if args.case == "number":
        return case_number(args.episodes)
    return {"seek": case_seek, "batch": case_batch}[args.case](args.order, args.episodes, args.repeats)


def parser() -> argparse.ArgumentParser:
    """Return what reads the options, of all cases and of one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=("seek", "batch", "number"))
    parser.add_argument("--order", choices=ORDERS, default="interleaved")
    parser.add_argument("--episodes", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--largest", type=int, default=10**7, help="episodes of the case that only numbers windows")
    parser.add_argument("--json", help="result file; default benchmarks/results/planning.json")
    return parser


def main() -> int:
    """Run all cases; 1 where a bar is missed."""
    args = parser().parse_args()
    if args.case:
        print(json.dumps(run_one(args)))
        return 0
    result: dict[str, Any] = {"seek": {}, "batch": {}}
    passed = True
    for order in ORDERS:
        for case in ("seek", "batch"):
            chosen = ["--order", order, "--episodes", str(args.episodes), "--repeats", str(args.repeats)]
            got = run_case(__file__, "--case", case, *chosen)
            figures = {k: summary(v) if isinstance(v, list) else v for k, v in got.items()}
            result[case][order] = figures
            if order == "interleaved":
                bars = {"warm_ms": 2.0} if case == "batch" else {"warm_ms": 50.0, "cold_ms": 50.0}
                passed &= all(figures[k]["median"] <= bar for k, bar in bars.items())
    result["number"] = run_case(__file__, "--case", "number", "--episodes", str(args.largest))
    passed &= result["number"]["numbered_s"] <= 10 and result["number"]["peak_mb"] <= 1000
    result["passed"] = bool(passed)
    out = write_result("planning", result, args.json)
    seek, batch, number = result["seek"]["interleaved"], result["batch"]["interleaved"], result["number"]
    print(
        f"interleaved: train_step {FAR:,} in {seek['cold_ms']['median']:.2f} ms, then {seek['warm_ms']['median']:.2f} ms; a batch of 1024 in "
        f"{batch['warm_ms']['median']:.2f} ms; {number['num_windows']:,} windows numbered in {number['numbered_s']:.1f} s, "
        f"{number['peak_mb']:.0f} MB; {'passed' if passed else 'FAILED'} -> {out}"
    )
    return 0 if passed else 1


if __name__ == "__main__":
    raise SystemExit(main())
