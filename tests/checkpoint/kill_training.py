"""Kill a training 200 times at random moments and compare all of it with one that was left alone, bit by bit.

usage: scripts/kill-training [--kills 200] [--seed 0]

A quarter of the kills each: saves in the foreground and in the background, one process and two ranks on gloo. After every
step losses, draws, parameters, moments, counters and random states are compared; 200 kills take about seven minutes on two
cores. The tests run a short form of it (test_continues.py).
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from pathlib import Path

from trajload.checkpoint import assert_continues
from trajload.checkpoint.nursery import Nursery


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200, help="in all")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("trainees", Path(__file__).with_name("trainees.py"))
    assert spec is not None and spec.loader is not None
    trainees = importlib.util.module_from_spec(spec)
    sys.modules["trainees"] = trainees
    spec.loader.exec_module(trainees)
    total = compared = 0
    with Nursery() as nursery:
        for number, (mode, ranks) in enumerate((m, r) for m in ("sync", "async") for r in (1, 2)):
            kills = args.kills * (number + 1) // 4 - args.kills * number // 4
            begin = time.monotonic()
            seen = assert_continues(
                trainees.make,
                steps=max(40, 4 * kills),
                every=3,
                kills=kills,
                mode=mode,
                ranks=ranks,
                anywhere=True,
                arguments={"ranks": ranks},
                seed=args.seed,
                nursery=nursery,
            )
            total, compared = total + seen.kills, compared + seen.steps_compared
            print(
                f"{mode}, {ranks} rank{'s' if ranks > 1 else ''}: {seen.kills} kills, {seen.steps_compared} steps of "
                f"{seen.leaves} values each compared, equal; {time.monotonic() - begin:.0f} s",
                flush=True,
            )
    print(f"{total} of {args.kills} kills continued bit-equal, {compared} steps compared")


if __name__ == "__main__":
    main()
