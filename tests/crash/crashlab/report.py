"""The crash tests in full counts: prints a table and writes benchmarks/results/crash_tests.json.

    scripts/crash-tests [--only kills,model,...] [--seed N] [--json FILE] [--folder FOLDER]

What each row proves is told in docs/how-to/crash-proofs.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path

from crashlab.proofs import PROOFS, Row

__all__ = ["main"]


def _run(name: str, seed: int, in_folder: str | None) -> list[Row]:
    """Carry out one proof, printing its rows as they come."""
    folder = Path(tempfile.mkdtemp(prefix=f"crash-{name}-", dir=in_folder))
    rows = []
    try:
        start = time.perf_counter()
        for row in PROOFS[name](folder, seed):
            row.seconds = round(time.perf_counter() - start, 1)
            if row.skipped:
                print(f"{row.proof:<46} NOT PROVED HERE: {row.skipped}", flush=True)
            else:
                print(f"{row.proof:<46} {row.cases:>7} {len(row.violations):>9} {row.seconds:8.1f}", flush=True)
            for text in row.violations[:5]:
                print(f"    {text}", flush=True)
            rows.append(row)
            start = time.perf_counter()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Run the proofs; 1 where anything was violated."""
    parser = argparse.ArgumentParser(prog="scripts/crash-tests", allow_abbrev=False)
    parser.add_argument("--only", default=",".join(PROOFS), help=f"some of {','.join(PROOFS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the states and bits that are chosen")
    parser.add_argument("--json", default=None, help="result file; default benchmarks/results/crash_tests.json")
    parser.add_argument("--folder", default=None, help="where stores are made; default in memory, if there is /dev/shm")
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # file systems are unmounted on the way out
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PROOFS):
        parser.error(f"--only: got {', '.join(sorted(unknown))}, expected some of {', '.join(PROOFS)}")
    in_folder = options.folder or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    print(f"{'proof':<46} {'cases':>7} {'violated':>9} {'seconds':>8}")
    rows = [row for name in wanted for row in _run(name, options.seed, in_folder)]
    _write(rows, options.seed, options.json)
    return 1 if any(row.violations for row in rows) else 0


def _write(rows: list[Row], seed: int, path: str | None) -> None:
    from _common import write_result

    told = [
        {
            "proof": row.proof,
            "cases": row.cases,
            "violations": len(row.violations),
            "first_violations": row.violations[:5],
            "not_proved_because": row.skipped or None,
            "seconds": row.seconds,
            **row.facts,
        }
        for row in rows
    ]
    where = write_result("crash_tests", {"seed": seed, "proofs": told}, path)
    document = json.loads(where.read_text())
    document["command"] = " ".join(["scripts/crash-tests", *sys.argv[1:]])
    where.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written: {where}")


if __name__ == "__main__":
    sys.exit(main())
