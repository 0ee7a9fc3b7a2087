"""Each proof in full counts, as rows of a table; `report` prints them. Tests run the same functions in short."""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from by_path import load
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

__all__ = ["PROOFS", "Row"]

ALL = 1_000_000
"""More points than there are."""

_CHECKPOINT_TESTS = Path(__file__).parents[2] / "checkpoint"
_S3_LAB = Path(__file__).parents[2] / "unit" / "checkpoint" / "s3lab.py"


@dataclass
class Row:
    """One line of the table."""

    proof: str
    cases: int = 0
    violations: list[str] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    skipped: str = ""
    """Why it is not proved here."""
    seconds: float = 0.0


def _of(proof: str, tally: Tally, **facts: Any) -> Row:
    return Row(proof, tally.total, tally.violations, {"by_call": dict(tally.points), "missed": tally.missed, **facts})


def kills(folder: Path, seed: int) -> Iterator[Row]:
    """A kill before every call that changes files, and before a third of those that open one."""
    proof = "kill -9 at each system call"
    if reason := tracer.why_not():
        yield Row(proof, skipped=reason)
        return
    counts = profile(folder, SCRIPT)
    points = [*spread(counts, ALL), *spread(counts, counts["openat"] // 3, ("openat",))]
    tally = kill_sweep(folder, SCRIPT, points)
    yield _of(proof, tally, slowest_open_s=round(tally.slowest_open_s, 4))


def power_cuts(folder: Path, seed: int) -> Iterator[Row]:
    """Cuts of the power of a real file system, spread over all calls that change files."""
    for kind in cuts.FILE_SYSTEMS:
        proof = f"power cut, {kind}"
        if reason := tracer.why_not() or cuts.why_not(kind, folder / f"try-{kind}"):
            yield Row(proof, skipped=reason)
            continue
        counts = profile(folder, SCRIPT)
        yield _of(proof, power_cut_sweep(folder, kind, SCRIPT, spread(counts, 120)))


def model(folder: Path, seed: int) -> Iterator[Row]:
    """States of the model, and that strace sees exactly the operations that it is built on."""
    recording = record(folder / "recorded", SCRIPT)
    verdict = judge_states(recording, folder / "states", 96, seed=seed, lay_out_every=200)
    facts = {"operations": len(recording.ops), "laid_out_and_worked_on": verdict.num_laid_out}
    wrong = [verdict.told()] if verdict.violations else []
    yield Row("power loss, modelled states", verdict.num_states, wrong, facts)
    proof = "strace sees what the model knows"
    if reason := tracer.why_not():
        yield Row(proof, skipped=reason)
        return
    seen, strange = bypassing_calls(folder / "bypass", SCRIPT)
    yield Row(proof, seen, strange)


def mutants(folder: Path, seed: int) -> Iterator[Row]:
    """Broken protocols under the same model; a violation here is a mutant that nobody noticed."""
    missed, facts = [], {}
    for mutant in MUTANTS:
        recording = record(folder / mutant.name / "recorded", MUTANT_SCRIPT, mutant.open_to_write())
        verdict = judge_mutant(mutant, recording, folder / mutant.name / "states")
        facts[mutant.name] = {"states_until_caught": verdict.num_states, "first": verdict.told(1)}
        if not verdict.violations:
            missed.append(f"{mutant.name} was not caught")
    yield Row("broken protocols caught", len(MUTANTS), missed, facts)


def refusals(folder: Path, seed: int) -> Iterator[Row]:
    """Each operation of the disk refused, once and from then on; and the same by system call."""
    points = range(1, num_operations(folder, SHORT_SCRIPT) + 1)
    for error in ERRORS:
        for lasting in (False, True):
            tally = refuse_everywhere(folder, SHORT_SCRIPT, error, points, lasting=lasting)
            yield _of(f"{error} {'from each operation on' if lasting else 'at each operation'}", tally)
    if reason := tracer.why_not():
        yield Row("errors at system calls", skipped=reason)
        return
    counts = profile(folder, SHORT_SCRIPT)
    for error in ERRORS:
        yield _of(f"{error} at each system call", errno_sweep(folder, SHORT_SCRIPT, spread(counts, ALL), error))


def damages(folder: Path, seed: int) -> Iterator[Row]:
    """Bits flipped and files cut."""
    make_store(folder / "root")
    found = damage(folder / "root", 1000, 4096, seed)
    wrong = [*(f"not noticed: {what}" for what in found.undetected), *(f"astray: {what}" for what in found.astray)]
    cases = found.num_flips + found.num_cuts
    yield Row("bit flips and cuts noticed, stepped back", cases, wrong, {"flips": found.num_flips})


def races(folder: Path, seed: int) -> Iterator[Row]:
    """Two writers, 500 times."""
    race = meet(folder / "meet", 500)
    yield Row("two writers without locks, one wins", 500, race.violations, {"wins": race.wins})
    race = crowd(folder / "crowd", 500)
    yield Row("two writers with locks take turns", sum(race.wins), race.violations, {"wins": race.wins})


def object_stores(folder: Path, seed: int) -> Iterator[Row]:
    """An object store: each request going wrong in four ways; races in memory and over HTTP."""
    if importlib.util.find_spec("obstore") is None:
        yield Row("object store", skipped="obstore is not installed")
        return
    from crashlab import objects

    points = range(1, objects.num_requests(SHORT_SCRIPT) + 1)
    for how in objects.HOWS:
        yield _of(f"object store, {how}: each request", objects.request_sweep(SHORT_SCRIPT, how, points))
    memory = objects.memory_store()
    wins, wrong = objects.race_for_names([memory, memory], 500)
    yield Row("two clients, one name, in memory", 500, wrong, {"wins": wins})
    memory = objects.memory_store()
    outcomes, wrong = objects.race_of_writers([memory, memory], 500)
    yield Row("two writers taking over, in memory", outcomes.total(), wrong, dict(outcomes))
    yield from _over_http(seed)


def _over_http(seed: int) -> Iterator[Row]:
    """The races again through a proxy that loses, repeats and refuses the puts of names that are raced for."""
    import pytest
    from crashlab import objects

    s3lab = load(_S3_LAB)
    draw = random.Random(seed)

    def trouble(method: str, path: str) -> str | None:
        is_record = method == "PUT" and "/commits/" in path
        return draw.choice(("lose", "repeat", "refuse", None, None)) if is_record else None

    try:
        with s3lab.moto_server() as port, s3lab.proxy(port) as middle:
            middle.trouble = trouble
            clients = [s3lab.s3(middle.port, "race") for _ in range(2)]
            wins, wrong = objects.race_for_names(clients, 500)
            facts = {"wins": wins, "troubles": dict(Counter(middle.made))}
            yield Row("two clients, one name, over HTTP", 500, wrong, facts)
            clients = [s3lab.s3(middle.port, "takeover") for _ in range(2)]
            outcomes, wrong = objects.race_of_writers(clients, 100)
            yield Row("two writers taking over, over HTTP", outcomes.total(), wrong, dict(outcomes))
    except pytest.skip.Exception as skipped:
        yield Row("object store over HTTP", skipped=str(skipped))


def ranks(folder: Path, seed: int) -> Iterator[Row]:
    """Each of 2 and of 4 ranks killed at each step of the protocol, in both modes; survivors raise, the next job goes on."""
    from trajload.checkpoint.nursery import Nursery

    lab, what_they_do = (load(_CHECKPOINT_TESTS / f"rank_{name}.py", importable=True) for name in ("kills", "jobs"))
    with Nursery() as nursery:
        for world in (2, 4):
            row = Row(f"one of {world} ranks killed while saving")
            for kill in lab.all_kills(world):
                place = folder / "-".join(map(str, kill)).replace(" ", "_")
                place.mkdir()
                row.cases += 1
                jobs = lab.Jobs(nursery, what_they_do, place)
                row.violations += lab.what_is_wrong(jobs, lab.die(jobs, *kill), place / "store", *kill)
            yield row


PROOFS: dict[str, Callable[[Path, int], Iterator[Row]]] = {
    "kills": kills,
    "power-cuts": power_cuts,
    "model": model,
    "mutants": mutants,
    "refusals": refusals,
    "damage": damages,
    "races": races,
    "objects": object_stores,
    "ranks": ranks,
}
