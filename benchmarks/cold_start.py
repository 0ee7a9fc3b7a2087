"""First batch of a cold process: at train_step 0, and after seek(10**9).

    python benchmarks/cold_start.py                # writes benchmarks/results/cold_start.json

Each figure is a fresh process: import, open, build the loader, (seek,) deliver one batch. The order is computed and
nothing is replayed, so a far train_step costs what the first one does. `seek_ms` times the seek alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

from _common import run_case, summary, write_result
from _data import make_video_dataset

STEPS = {"start": 0, "seek_1e9": 10**9}


def case(name: str, data: Path) -> dict[str, float]:
    begin = time.perf_counter()
    import trajload as tl

    with tl.Loader(
        data / "native", window=tl.Window(num_steps=16), global_batch_size=16, seed=7, num_workers=2
    ) as loader:
        imported = time.perf_counter()
        loader.seek(STEPS[name])
        sought = time.perf_counter()
        batch = next(iter(loader))
        done = time.perf_counter()
    if batch.train_step != STEPS[name]:
        raise SystemExit(f"got train_step {batch.train_step}, expected {STEPS[name]}")
    return {
        "import_and_open_s": imported - begin,
        "seek_ms": (sought - imported) * 1e3,
        "first_batch_s": done - sought,
        "total_s": done - begin,
    }


def import_ms() -> float:
    """Return what `import trajload` alone takes in a fresh interpreter."""
    code = "import time; b = time.perf_counter(); import trajload; print((time.perf_counter() - b) * 1e3)"
    return float(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("/tmp/trajload-bench/h264_240x320"))
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--case")
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.case:
        print(json.dumps(case(args.case, args.data)))
        return
    make_video_dataset(args.data)
    run_case(__file__, "--case", "start", "--data", str(args.data))  # compiles the kernels into their cache
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in STEPS}
    for _ in range(args.repeats):
        for name, results in runs.items():
            results.append(run_case(__file__, "--case", name, "--data", str(args.data)))
    cases = {name: {key: summary([r[key] for r in results]) for key in results[0]} for name, results in runs.items()}
    ratio = cases["seek_1e9"]["total_s"]["median"] / cases["start"]["total_s"]["median"]
    out = write_result(
        "cold_start",
        {
            "setting": "16 windows of 16 steps, 240x320 H.264, 2 workers",
            "import_trajload_ms": summary([import_ms() for _ in range(args.repeats)]),
            "cases": cases,
            "total_ratio": ratio,
        },
        args.json,
    )
    print(
        f"start {cases['start']['total_s']['median']:.2f} s, seek(1e9) {cases['seek_1e9']['total_s']['median']:.2f} s: ratio {ratio:.2f} -> {out}"
    )


if __name__ == "__main__":
    main()
