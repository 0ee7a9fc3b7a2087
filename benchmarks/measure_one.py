"""One step of a comparison in a process of its own; `compare.py` starts it, people need not.

    python benchmarks/measure_one.py ACTION --rival NAME --workload NAME --data DIR --out FILE

Actions: `prepare` writes the rival's data format, `check` compares its batches with the truth, `measure` takes the time,
`consume` takes it with a consumer that is busy for a while with each batch, `memory` watches trajload's memory. The result is a JSON object in FILE: rivals print what they like.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WARM_UP_BATCHES = 8
CHECK_BATCHES = 24
CLOSE_PATIENCE_S = 10.0


def prepare(args: argparse.Namespace) -> dict[str, Any]:
    from rivals.table import RIVALS
    from workloads.formats import make_format, num_bytes
    from workloads.spec import WORKLOADS

    path = make_format(RIVALS[args.rival].format, WORKLOADS[args.workload], args.data)
    return {"stored_bytes": num_bytes(path)}


def check(args: argparse.Namespace) -> dict[str, Any]:
    from rivals.table import RIVALS
    from workloads.truth import Truth

    rival, request = RIVALS[args.rival], make_request(args)
    module = rival.load()
    if not hasattr(module, "batches"):
        return {}
    truth = Truth(request.workload, request.data)
    batches = module.batches(request, **rival.variant)
    for _ in range(args.check_batches):
        truth.check(next(batches))
    close(batches)
    return truth.report()


def measure(args: argparse.Namespace) -> dict[str, Any]:
    from _common import tree_memory_bytes
    from rivals.table import RIVALS

    rival, request = RIVALS[args.rival], make_request(args)
    module = rival.load()
    imported = time.monotonic()
    if hasattr(module, "measure"):
        return module.measure(request)
    batches = module.batches(request, **rival.variant)
    figures = time_batches(batches, args.seconds, request.workload.batch)
    memory = tree_memory_bytes()  # before closing: with all workers and what they hold
    close(batches)
    first = figures.pop("first_batch_at")
    return {
        **figures,
        "first_batch_from_start_s": first - args.started,
        "first_batch_from_import_s": first - imported,
        "pss_bytes": memory,
    }


def time_batches(
    batches: Any, seconds: float, batch_size: int, clock: Callable[[], float] = time.monotonic
) -> dict[str, float]:
    """Take the time of batches over `seconds`, after a warm-up of 8 batches and at least a fifth of that time.

    The warm-up uses up what a loader had ready before anyone asked.
    """
    first = last = begin = 0.0
    count, gaps = 0, []
    while True:
        batch = next(batches)
        now = clock()
        first = first or now
        count += 1
        if not begin:
            if count >= WARM_UP_BATCHES and now - first >= seconds / 5:
                # What the imports left behind is collected once in every process with torch, which stops all threads
                # for a tenth of a second at some moment: not in the measured time, whoever is measured.
                gc.collect()
                begin = now = clock()
        else:
            gaps.append(now - last)
            if now - begin >= seconds:
                break
        last = now
        del batch  # what a consumer is done with, it lets go
    gaps.sort()
    return {
        "windows_per_s": len(gaps) * batch_size / (now - begin),
        "longest_gap_s": gaps[-1],
        "median_gap_s": gaps[len(gaps) // 2],
        "batches": len(gaps),
        "first_batch_at": first,
    }


def consume(args: argparse.Namespace) -> dict[str, Any]:
    """How long a consumer waits that takes `args.period` seconds a batch and leaves the CPU alone, as a GPU does.

    The first half of the time it takes batches as fast as they come: what could be supplied.
    """
    from rivals.table import RIVALS

    rival, request = RIVALS[args.rival], make_request(args)
    batches = rival.load().batches(request, **rival.variant)
    supply = time_batches(batches, args.seconds / 2, request.workload.batch)["windows_per_s"]
    waits = list(_waits(batches, args.period, args.seconds / 2))
    close(batches)
    busy = args.period * len(waits)
    return {
        "supply_windows_per_s": supply,
        "needed_windows_per_s": request.workload.batch / args.period,
        "wait_share": sum(waits) / (sum(waits) + busy),
        "longest_wait_s": max(waits),
        "batches": len(waits),
    }


def _waits(batches: Any, period: float, seconds: float) -> Iterator[float]:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        asked = time.monotonic()
        batch = next(batches)
        yield time.monotonic() - asked
        time.sleep(period)
        del batch


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """How trajload's memory grows over the loader that stands ready, beside what its settings promise.

    Sampled between batches. What is promised: the batches ahead, the one in hand, the one that a `for` loop still holds
    while it asks for the next, and the block pool. Decoders and compiled code come on top, whatever the settings.
    """
    from _common import tree_memory_bytes
    from rivals.by_trajload import make_loader
    from rivals.table import RIVALS

    loader = make_loader(make_request(args), **RIVALS[args.rival].variant)
    ready = tree_memory_bytes()
    peak, end = ready, time.monotonic() + args.seconds
    for i, _ in enumerate(loader):
        if i % 8 == 7:
            peak = max(peak, tree_memory_bytes())
            if time.monotonic() >= end:
                break
    stats = loader.stats()
    loader.close()
    promised = stats["batch_bytes"] * (stats["prefetch"] + 2) + stats["pool"]["budget_bytes"]
    return {
        "ready_pss_bytes": ready,
        "peak_pss_bytes": peak,
        "grown_bytes": peak - ready,
        "promised_bytes": promised,
        "pool_peak_by_budget": stats["pool"]["peak_bytes"] / max(stats["pool"]["budget_bytes"], 1),
    }


def close(batches: Any) -> None:
    """Let a loader end its workers; some never do, so only for so long."""
    thread = threading.Thread(target=batches.close, daemon=True)
    thread.start()
    thread.join(CLOSE_PATIENCE_S)


def make_request(args: argparse.Namespace) -> Any:
    from rivals.request import Request
    from workloads.spec import WORKLOADS

    return Request(
        workload=WORKLOADS[args.workload],
        data=args.data,
        seconds=args.seconds,
        workers=args.workers,
        # '{n}' in a text stands for the number of workers: workers="processes:{n}"
        loader={
            name: value.replace("{n}", str(args.workers)) if isinstance(value, str) else value
            for name, value in json.loads(args.loader).items()
        },
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    actions = {"prepare": prepare, "check": check, "measure": measure, "consume": consume, "memory": memory}
    parser.add_argument("action", choices=actions)
    parser.add_argument("--rival", required=True)
    parser.add_argument("--workload", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--check-batches", type=int, default=CHECK_BATCHES)
    parser.add_argument("--period", type=float, default=0.05, help="seconds the consumer is busy with a batch")
    parser.add_argument("--loader", default="{}", help="JSON: further arguments for trajload.Loader")
    parser.add_argument("--started", type=float, default=time.monotonic(), help="monotonic time of the process's start")
    args = parser.parse_args()
    try:
        result = actions[args.action](args)
    except BaseException as err:  # whatever a rival raises is a result
        traceback.print_exc()
        result = {"error": f"{type(err).__name__}: {str(err).strip()[:400]}"}
    args.out.write_text(json.dumps(result))
    # Rivals' threads and workers may be busy with batches nobody wants; the runner ends what is left of them.
    os._exit(0)


if __name__ == "__main__":
    main()
