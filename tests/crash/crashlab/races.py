"""Lets two writers race for every sequence number of a store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from crashlab import racer

from trajload.checkpoint.store import Store

__all__ = ["Race", "crowd", "meet"]

NUM_WRITERS = 2


@dataclass
class Race:
    """How races ended."""

    wins: list[int] = field(default_factory=lambda: [0] * NUM_WRITERS)
    violations: list[str] = field(default_factory=list)


@contextmanager
def _writers(root: Path, how: str, publishing: str, rounds: int) -> Iterator[list[subprocess.Popen[str]]]:
    command = [sys.executable, "-B", racer.__file__, str(root), how, publishing, str(rounds)]
    running = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(NUM_WRITERS)
    ]
    try:
        yield running
    finally:
        for process in running:
            process.kill()
            process.communicate()


def _line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None and process.stderr is not None
    if not (line := process.stdout.readline()):
        raise RuntimeError(f"a writer ended: {process.stderr.read()[-2000:]}")
    return line.strip()


def _go(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def meet(root: Path, rounds: int, publishing: str = "links", *, is_enough: bool = False) -> Race:
    """Let both commit the same sequence number at the same moment, `rounds` times, with no lock to keep them apart.

    With `is_enough` the first violation ends it: how soon two processes meet is up to the machine.
    """
    race = Race()
    Store(root)
    with _writers(root, "meet", publishing, rounds) as writers:
        for number in range(1, rounds + 1):
            for process in writers:
                assert _line(process) == "ready"
            for process in writers:
                _go(process)
            replies = [json.loads(_line(process)) for process in writers]
            winners = [index for index, reply in enumerate(replies) if reply is not None]
            for index in winners:
                race.wins[index] += 1
            if len(winners) != 1:
                race.violations.append(f"round {number}: {len(winners)} writers were told that they won: {replies}")
            newest, _ = Store(root).newest(verify="full")
            if winners and (newest is None or [newest.seq, newest.digest] not in [replies[i] for i in winners]):
                race.violations.append(f"round {number}: the newest is {newest}, the winner was told {replies}")
            if is_enough and race.violations:
                break
            for process in writers:
                _go(process)
    return race


def crowd(root: Path, rounds: int) -> Race:
    """Let both save `rounds` times as fast as they can, kept apart by the lock."""
    race = Race()
    Store(root)
    with _writers(root, "crowd", "links", rounds) as writers:
        told: list[list[tuple[int, str]]] = []
        for index, process in enumerate(writers):
            output, errors = process.communicate(timeout=600)
            if process.returncode:
                race.violations.append(f"writer {index} ended: {errors[-1000:]}")
            told.append([tuple(json.loads(line)) for line in output.splitlines()])
            race.wins[index] = len(told[-1])
    numbers = Counter(seq for replies in told for seq, _ in replies)
    race.violations += [f"sequence number {seq} was given {times} times" for seq, times in numbers.items() if times > 1]
    expected = set(range(1, NUM_WRITERS * rounds + 1))
    if set(numbers) != expected:
        race.violations.append(f"sequence numbers left out or invented: {sorted(set(numbers) ^ expected)[:10]}")
    digests = dict(reply for replies in told for reply in replies)
    for commit in Store(root).commits():
        if digests.get(commit.seq) != commit.digest:
            race.violations.append(
                f"commit {commit.seq} is {commit.digest}, its writer was told {digests.get(commit.seq)}"
            )
    return race
