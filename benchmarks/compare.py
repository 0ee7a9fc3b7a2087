"""Compare loaders on one workload: every measurement in a process of its own, rivals in turns.

    python benchmarks/compare.py video240                                  # all rivals; writes results/compare_video240.json
    python benchmarks/compare.py state --rivals trajload,in-ram --seconds 3 --repeats 1 --json /tmp/try.json
    python benchmarks/compare.py video240 --loader pool_bytes=500000000    # further arguments for trajload.Loader
    python benchmarks/compare.py video240 --print                          # the table of the result file, nothing measured

First each rival's data is written (once) and its batches are compared with the truth; who fails there is not timed.
Then repeat 1 of all, repeat 2 of all, and so on. A rival that is not installed or fails is listed with the reason.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import RESULTS, write_result
from processes import run_child, shared_memory_bytes
from reporting import add_ratios, markdown, merge_runs
from rivals.table import RIVALS, Rival, baseline
from workloads.spec import WORKLOADS, Workload

PREPARE_S, CHECK_S, START_S = 1800.0, 300.0, 240.0
DEFAULT_DATA = Path(tempfile.gettempdir()) / "trajload-bench"


def loader_argument(text: str) -> tuple[str, Any]:
    """Return ('pool_bytes', 5) of 'pool_bytes=5': values as Python literals, else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form key=value")
    try:
        return name, ast.literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add what every script that starts measurements has in common."""
    parser.add_argument("--data", type=Path, default=DEFAULT_DATA, help=f"folder of generated data ({DEFAULT_DATA})")
    parser.add_argument("--seconds", type=float, default=10.0, help="measured time of one run, after the warm-up")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2, help="threads or processes of each loader")
    parser.add_argument("--loader", type=loader_argument, action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--json", help="result file, instead of benchmarks/results/...")
    parser.add_argument("--logs", type=Path, help="folder for what the processes print")


class Runner:
    """Runs the steps of rivals on one workload, and keeps the answers."""

    def __init__(self, workload: Workload, args: argparse.Namespace) -> None:
        self.workload, self.args = workload, args
        self.entries: dict[str, dict[str, Any]] = {}

    def step(self, action: str, rival: Rival, timeout: float) -> dict[str, Any]:
        args = self.args
        if args.logs:
            args.logs.mkdir(parents=True, exist_ok=True)
        before = shared_memory_bytes()
        answer = run_child(
            "measure_one.py", action, "--rival", rival.name, "--workload", self.workload.name, "--data", str(args.data),
            "--seconds", str(args.seconds), "--workers", str(args.workers), "--loader", json.dumps(dict(args.loader)),
            timeout=timeout, log=args.logs / f"{self.workload.name}-{rival.name}-{action}.log" if args.logs else None,
        )  # fmt: skip
        left = shared_memory_bytes() - before
        if left > 1 << 20:
            self.entries[rival.name]["left_shm_bytes"] = max(left, self.entries[rival.name].get("left_shm_bytes", 0))
            say(f"{rival.name} left {left / 1e6:.0f} MB in /dev/shm (or another program took it meanwhile)")
        return answer

    def admit(self, rival: Rival) -> None:
        """Prepare and check a rival; its entry says whether it may be timed."""
        versions = rival.versions()
        entry: dict[str, Any] = {"status": "ready", "limit": rival.limit, "notes": rival.notes, "versions": versions}
        self.entries[rival.name] = entry
        missing = [package for package, version in versions.items() if version is None]
        if self.workload.name in rival.unfit:
            entry |= {"status": "not applicable", "reason": rival.unfit[self.workload.name]}
            return
        if missing:
            entry |= {"status": "not installed", "reason": f"missing: {', '.join(missing)}"}
            return
        for action, timeout in (("prepare", PREPARE_S), ("check", CHECK_S)):
            answer = self.step(action, rival, timeout)
            if "error" in answer:
                entry |= {"status": f"{action} failed", "reason": answer["error"]}
                return
            entry |= answer if action == "prepare" else {"check": answer}

    def time_all(self) -> None:
        """Repeat 1 of all, repeat 2 of all, ...: a slow minute of the machine hits everyone."""
        for entry in self.entries.values():
            entry["runs"] = []
        for repeat in range(self.args.repeats):
            for name, entry in self.entries.items():
                if entry["status"] != "ready":
                    continue
                answer = self.step("measure", RIVALS[name], START_S + 3 * self.args.seconds)
                say(f"repeat {repeat + 1}, {name}: {answer.get('error') or round(answer['windows_per_s'], 1)}")
                if "error" in answer:
                    entry |= {"status": "failed", "reason": answer["error"]}
                else:
                    entry["runs"].append(answer)
        for entry in self.entries.values():
            if entry["status"] == "ready":
                entry |= {"status": "measured", "figures": merge_runs(entry["runs"])}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def compare(workload: Workload, rivals: list[Rival], args: argparse.Namespace) -> dict[str, Any]:
    """Return the result of comparing `rivals` on `workload`."""
    load_before = os.getloadavg()[0]
    runner = Runner(workload, args)
    for rival in rivals:
        runner.admit(rival)
        entry = runner.entries[rival.name]
        say(f"{rival.name}: {entry['status']} {entry.get('reason', '')}")
    runner.time_all()
    add_ratios(runner.entries, baseline(workload))
    return {
        "workload": workload.name,
        "setting": workload.setting,
        "protocol": f"{args.workers} workers, {args.repeats} repeats of {args.seconds:g} s, median (min–max)",
        "baseline": baseline(workload),
        "loader_arguments": dict(args.loader),
        "load_average_before": load_before,
        "rivals": runner.entries,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--rivals", help=f"comma-separated, default all: {','.join(RIVALS)}")
    parser.add_argument("--print", action="store_true", help="print the table of the result file and measure nothing")
    add_arguments(parser)
    args = parser.parse_args()
    name = f"compare_{args.workload}"
    if args.print:
        print(markdown(json.loads(Path(args.json or RESULTS / f"{name}.json").read_text())))
        return
    names = args.rivals.split(",") if args.rivals else list(RIVALS)
    unknown = [rival for rival in names if rival not in RIVALS]
    if unknown:
        parser.error(f"unknown rivals {', '.join(unknown)}: expected some of {', '.join(RIVALS)}")
    result = compare(WORKLOADS[args.workload], [RIVALS[rival] for rival in names], args)
    out = write_result(name, result, args.json)
    print(markdown(result))
    say(f"-> {out}")


if __name__ == "__main__":
    main()
