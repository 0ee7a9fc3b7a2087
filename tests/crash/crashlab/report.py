"""The crash tests in full counts: prints a table and writes benchmarks/results/crash_tests.json.

    scripts/crash-tests [--only kill,model,...] [--seed N] [--json FILE] [--folder FOLDER]

What each row proves is told in docs/how-to/crash-proofs.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from crashlab import cuts, tracer
from crashlab.bypass import bypassing_calls
from crashlab.damage import damage, make_store
from crashlab.faults import ERRORS
from crashlab.modelled import judge_mutant, judge_states, record
from crashlab.mutants import MUTANTS
from crashlab.races import crowd, meet
from crashlab.refusals import num_operations, refuse_everywhere
from crashlab.scenario import MUTANT_SCRIPT, SCRIPT, SHORT_SCRIPT
from crashlab.sweeps import Tally, errno_sweep, kill_sweep, power_cut_sweep, profile, spread

__all__ = ["main"]


@dataclass
class Row:
    """One line of the table."""

    proof: str
    cases: int = 0
    violations: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    seconds: float = 0.0


def _of(proof: str, tally: Tally, **facts: Any) -> Row:
    return Row(proof, tally.total, tally.violations, {"by_call": dict(tally.points), "missed": tally.missed, **facts})


def kills(folder: Path, seed: int) -> list[Row]:
    """A kill before every call that changes files, and before a third of those that open one."""
    if reason := tracer.why_not():
        return [Row("kill -9 at each system call", skipped=reason)]
    counts = profile(folder, SCRIPT)
    points = [*spread(counts, 100_000), *spread(counts, counts["openat"] // 3, ("openat",))]
    tally = kill_sweep(folder, SCRIPT, points)
    return [_of("kill -9 at each system call", tally, slowest_open_s=round(tally.slowest_open_s, 4))]


def power_cuts(folder: Path, seed: int) -> list[Row]:
    """Cuts of the power of a real file system, spread over all calls that change files."""
    rows = []
    for kind in cuts.FILE_SYSTEMS:
        proof = f"power cut, {kind}"
        if reason := tracer.why_not() or cuts.why_not(kind, folder / f"try-{kind}"):
            rows.append(Row(proof, skipped=reason))
            continue
        counts = profile(folder, SCRIPT)
        rows.append(_of(proof, power_cut_sweep(folder, kind, SCRIPT, spread(counts, 120))))
    return rows


def model(folder: Path, seed: int) -> list[Row]:
    """States of the model, and that strace sees exactly the operations that it is built on."""
    recording = record(folder / "recorded", SCRIPT)
    verdict = judge_states(recording, folder / "states", 200, seed=seed, lay_out_every=200)
    facts = {
        "operations": len(recording.ops),
        "laid_out_and_worked_on": verdict.num_laid_out,
        "judging_s": round(verdict.seconds, 1),
    }
    rows = [
        Row("power loss, modelled states", verdict.num_states, [verdict.told()] if verdict.violations else [], facts)
    ]
    if reason := tracer.why_not():
        return [*rows, Row("strace sees what the model knows", skipped=reason)]
    seen, strange = bypassing_calls(folder / "bypass", SCRIPT)
    return [*rows, Row("strace sees what the model knows", seen, strange)]


def mutants(folder: Path, seed: int) -> list[Row]:
    """Broken protocols under the same model; a violation here is a mutant that nobody noticed."""
    missed, facts = [], {}
    for mutant in MUTANTS:
        recording = record(folder / mutant.name / "recorded", MUTANT_SCRIPT, mutant.open_to_write())
        verdict = judge_mutant(mutant, recording, folder / mutant.name / "states")
        facts[mutant.name] = {"states_until_caught": verdict.num_states, "first": verdict.told(1)}
        if not verdict.violations:
            missed.append(f"{mutant.name} was not caught")
    return [Row("broken protocols caught", len(MUTANTS), missed, facts)]


def refusals(folder: Path, seed: int) -> list[Row]:
    """Each operation of the disk refused, once and from then on; and the same by system call."""
    rows = []
    points = range(1, num_operations(folder, SHORT_SCRIPT) + 1)
    for error in ERRORS:
        for lasting in (False, True):
            tally = refuse_everywhere(folder, SHORT_SCRIPT, error, points, lasting=lasting)
            rows.append(_of(f"{error} {'from each operation on' if lasting else 'at each operation'}", tally))
    if reason := tracer.why_not():
        return [*rows, Row("errors at system calls", skipped=reason)]
    counts = profile(folder, SHORT_SCRIPT)
    for error in ERRORS:
        rows.append(
            _of(f"{error} at each system call", errno_sweep(folder, SHORT_SCRIPT, spread(counts, 100_000), error))
        )
    return rows


def damages(folder: Path, seed: int) -> list[Row]:
    """Bits flipped and files cut."""
    make_store(folder / "root")
    found = damage(folder / "root", 1000, 4096, seed)
    wrong = [*(f"not noticed: {what}" for what in found.undetected), *(f"astray: {what}" for what in found.astray)]
    return [
        Row(
            "bit flips and cuts noticed, stepped back",
            found.num_flips + found.num_cuts,
            wrong,
            {"flips": found.num_flips},
        )
    ]


def races(folder: Path, seed: int) -> list[Row]:
    """Two writers, 500 times."""
    meeting, crowding = meet(folder / "meet", 500), crowd(folder / "crowd", 500)
    return [
        Row("two writers without locks, one wins", 500, meeting.violations, {"wins": meeting.wins}),
        Row("two writers with locks take turns", sum(crowding.wins), crowding.violations, {"wins": crowding.wins}),
    ]


PROOFS: dict[str, Callable[[Path, int], list[Row]]] = {
    "kills": kills, "power-cuts": power_cuts, "model": model, "mutants": mutants, "refusals": refusals,
    "damage": damages, "races": races,
}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    """Run the proofs; 1 where anything was violated."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--only", default=",".join(PROOFS), help=f"some of {', '.join(PROOFS)}")
    parser.add_argument("--seed", type=int, default=0, help="of the states and bits that are chosen")
    parser.add_argument("--json", default=None, help="result file; default benchmarks/results/crash_tests.json")
    parser.add_argument(
        "--folder", default=None, help="where stores are made; default /dev/shm, else the folder for temporary files"
    )
    options = parser.parse_args(arguments)
    wanted = options.only.split(",")
    if unknown := set(wanted) - set(PROOFS):
        parser.error(f"--only: got {', '.join(sorted(unknown))}, expected some of {', '.join(PROOFS)}")
    rows: list[Row] = []
    in_memory = options.folder or ("/dev/shm" if Path("/dev/shm").is_dir() else None)
    print(f"{'proof':<44} {'cases':>7} {'violated':>9} {'seconds':>8}")
    for name in wanted:
        folder = Path(tempfile.mkdtemp(prefix=f"crash-{name}-", dir=in_memory))
        start = time.perf_counter()
        try:
            found = PROOFS[name](folder, options.seed)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
        found[0].seconds = round(time.perf_counter() - start, 1)
        for row in found:
            took = f"{row.seconds:8.1f}" if row.seconds else " " * 8
            if row.skipped:
                print(f"{row.proof:<44} NOT PROVED HERE: {row.skipped}")
            else:
                print(f"{row.proof:<44} {row.cases:>7} {len(row.violations):>9} {took}", flush=True)
            for text in row.violations[:5]:
                print(f"    {text}")
        rows += found
    _write(rows, options.seed, options.json)
    return 1 if any(row.violations for row in rows) else 0


def _write(rows: list[Row], seed: int, path: str | None) -> None:
    from _common import write_result

    told = [
        {
            "proof": row.proof,
            "cases": row.cases,
            "violations": len(row.violations),
            "first": row.violations[:5],
            "skipped": row.skipped or None,
            **row.facts,
        }
        for row in rows
    ]
    where = write_result(
        "crash_tests", {"seed": seed, "seconds": sum(row.seconds for row in rows), "proofs": told}, path
    )
    document = json.loads(where.read_text())
    document["command"] = " ".join(["scripts/crash-tests", *sys.argv[1:]])
    where.write_text(json.dumps(document, indent=2) + "\n")
    print(f"written: {where}")


if __name__ == "__main__":
    sys.exit(main())
