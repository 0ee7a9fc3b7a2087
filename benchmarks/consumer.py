"""What a training job feels: waiting, a second core, and memory against what the settings promise.

    python benchmarks/consumer.py wait video240                        # a consumer that is busy 50 ms with each batch
    python benchmarks/consumer.py wait video240 --rivals trajload,torchcodec --period 0.1
    python benchmarks/consumer.py scaling video240                     # the same on 1 core and on 2
    python benchmarks/consumer.py scaling video240 --loader workers=processes:{n}
    python benchmarks/consumer.py memory video240 --loader pool_bytes=500000000

Each measurement is a process of its own, and they take turns. Results: benchmarks/results/consumer_<what>_<workload>.json.
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping
from typing import Any

from _common import write_result
from compare import PREPARE_S, START_S, add_arguments, say
from processes import run_child
from reporting import merge_runs
from workloads.spec import WORKLOADS

OURS = "trajload,trajload-interleaved"
POOL_BYTES = 100_000_000
"""Small enough that every loader of these workloads fills four times as much."""
Runs = dict[str, list[dict[str, Any]]]


def child(
    args: argparse.Namespace, action: str, rival: str, workers: int, cores: set[int] | None, **more: Any
) -> dict[str, Any]:
    return run_child(
        "measure_one.py", action, "--rival", rival, "--workload", args.workload, "--data", str(args.data),
        "--seconds", str(args.seconds), "--workers", str(workers), "--loader", json.dumps(dict(args.loader) | more),
        "--period", str(args.period), timeout=PREPARE_S if action == "prepare" else START_S + 3 * args.seconds, cores=cores,
    )  # fmt: skip


def in_turns(
    args: argparse.Namespace,
    action: str,
    cases: Mapping[str, tuple[str, int, set[int] | None]],
    more: Mapping[str, Mapping[str, Any]] | None = None,
) -> Runs:
    """Return case → its runs: repeat 1 of every case, then repeat 2, and so on. A case that fails keeps its error."""
    for rival in dict.fromkeys(rival for rival, _, _ in cases.values()):
        answer = child(args, "prepare", rival, args.workers, None)
        if "error" in answer:
            raise SystemExit(f"{rival}: no data: {answer['error']}")
    runs: Runs = {name: [] for name in cases}
    for repeat in range(args.repeats):
        for name, (rival, workers, cores) in cases.items():
            answer = child(args, action, rival, workers, cores, **(more or {}).get(name, {}))
            runs[name].append(answer)
            say(f"repeat {repeat + 1}, {name}: {answer}")
    return runs


def summarise(runs: Runs) -> dict[str, Any]:
    """Return case → figures over its repeats, or the error of the first that failed."""
    out: dict[str, Any] = {}
    for name, answers in runs.items():
        errors = [answer["error"] for answer in answers if "error" in answer]
        out[name] = {"error": errors[0]} if errors else merge_runs(answers)
    return out


def wait(args: argparse.Namespace) -> dict[str, Any]:
    """Share of the time that the consumer waits. Only fair where `supply` exceeds `needed`."""
    cases = {rival: (rival, args.workers, None) for rival in args.rivals.split(",")}
    return {"period_s": args.period, "cases": summarise(in_turns(args, "consume", cases))}


def scaling(args: argparse.Namespace) -> dict[str, Any]:
    """Windows/s with one core and one worker, and with two of each."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit(f"got {len(cores)} core, expected at least 2.")
    cases = {
        f"{rival}, {n} core{'s' * (n > 1)}": (rival, n, set(cores[:n]))
        for rival in args.rivals.split(",")
        for n in (1, 2)
    }
    figures = summarise(in_turns(args, "measure", cases))
    ratios = {}
    for rival in args.rivals.split(","):
        one, two = figures[f"{rival}, 1 core"], figures[f"{rival}, 2 cores"]
        if "error" not in one and "error" not in two:
            ratios[rival] = two["windows_per_s"]["median"] / one["windows_per_s"]["median"]
    return {"cases": figures, "ratios": ratios}


def memory(args: argparse.Namespace) -> dict[str, Any]:
    """Growth of the process tree's PSS beside the bytes that prefetch depth and pool may take.

    At default settings and with small and large budgets: between those two, whatever is there anyway drops out, and
    `ratios` says how much the memory grew for each byte that the settings promised.
    """
    unknown = [rival for rival in args.rivals.split(",") if not rival.startswith("trajload")]
    if unknown:
        raise SystemExit(f"memory is measured for trajload only, got {', '.join(unknown)}: others state no budget.")
    settings: dict[str, dict[str, Any]] = {"default": {}, "small": {"prefetch": 1}, "large": {"prefetch": 8}}
    pools = {"small": POOL_BYTES, "large": 4 * POOL_BYTES}
    cases, more = {}, {}
    for rival in args.rivals.split(","):
        for size, setting in settings.items():
            name = f"{rival}, {size}"
            cases[name] = (rival, args.workers, None)
            shared = "interleaved" in rival and size in pools
            more[name] = setting | ({"pool_bytes": pools[size]} if shared else {})
    figures = summarise(in_turns(args, "memory", cases, more))
    ratios = {}
    for rival in args.rivals.split(","):
        small, large = figures[f"{rival}, small"], figures[f"{rival}, large"]
        if "error" not in small and "error" not in large:
            grown, promised = (large[key]["median"] - small[key]["median"] for key in ("grown_bytes", "promised_bytes"))
            ratios[rival] = grown / promised
    return {"settings": more, "cases": figures, "ratios": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    actions = {"wait": wait, "scaling": scaling, "memory": memory}
    parser.add_argument("what", choices=actions)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rivals", default=OURS)
    parser.add_argument("--period", type=float, default=0.05, help="seconds the consumer is busy with a batch")
    add_arguments(parser)
    args = parser.parse_args()
    result = actions[args.what](args)
    result = {"workload": args.workload, "setting": WORKLOADS[args.workload].setting, **result}
    out = write_result(f"consumer_{args.what}_{args.workload}", result, args.json)
    print(json.dumps({key: result[key] for key in ("cases", "ratios") if key in result}, indent=2))
    say(f"-> {out}")


if __name__ == "__main__":
    main()
