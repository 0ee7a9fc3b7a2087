"""What every benchmark shares: machine facts, robust figures, result files."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"
PACKAGES = ("trajload", "torch", "numpy", "av", "numba", "torchcodec")


def machine() -> dict[str, Any]:
    """Return CPU, cores, memory and versions: without them a figure means nothing."""
    cpu = next(
        (
            line.split(":", 1)[1].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            versions[name] = None
    return {
        "cpu": cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory_kib / 2**20, 1),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "packages": versions,
    }


def commit() -> str | None:
    """Return the commit that is measured, with "-dirty" where files differ from it; None outside a repository.

    Results themselves do not count: a run writes them.
    """
    here = ["git", "-C", str(Path(__file__).resolve().parents[1])]
    try:
        head = subprocess.run([*here, "rev-parse", "--short=12", "HEAD"], capture_output=True, text=True, check=True)
        changed = subprocess.run(
            [*here, "status", "--porcelain", "--untracked-files=no", "--", ":!benchmarks/results"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("-dirty" if changed.stdout.strip() else "")


def summary(values: Sequence[float]) -> dict[str, float]:
    """Return median, min and max: single runs on shared machines differ by 10 to 20 %."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def cpu_microseconds(work: Callable[[], object], repeats: int, per: int = 1) -> dict[str, float]:
    """Return CPU time of one call (or of one of `per` items): median, min and max over `repeats` rounds of 50 ms or more."""
    work()
    start = time.thread_time()
    work()
    rounds = max(3, int(0.05 / max(time.thread_time() - start, 1e-6)))
    times = []
    for _ in range(repeats):
        start = time.thread_time()
        for _ in range(rounds):
            work()
        times.append((time.thread_time() - start) / rounds / per * 1e6)
    return summary(times)


def run_case(script: str, *args: str, timeout: float = 600) -> dict[str, Any]:
    """Run `script --case ...` in a process of its own and return the JSON object it prints last."""
    done = subprocess.run([sys.executable, script, *args], capture_output=True, text=True, timeout=timeout, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{script} {' '.join(args)} failed with {done.returncode}:\n{done.stderr[-4000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def write_result(name: str, result: dict[str, Any], path: str | None = None) -> Path:
    """Write `result` with the command, the commit and the machine's facts to benchmarks/results/<name>.json (or `path`)."""
    out = Path(path) if path else RESULTS / f"{name}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(
        json.dumps(
            {
                "benchmark": name,
                "command": " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
                "commit": commit(),
                "machine": machine(),
                **result,
            },
            indent=2,
        )
        + "\n"
    )
    return out


def tree_memory_bytes() -> int:
    """Return the proportional set size (PSS) of this process and its children: shared pages counted once."""
    import psutil

    me = psutil.Process()
    total = me.memory_full_info().pss
    for child in me.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # ended since it was listed
            total += child.memory_full_info().pss
    return total
