"""Any history of saves, failures, damage, pins, references and removals: what the store says is true at every moment."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from by_path import load
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trajload.checkpoint.entries import Commit, Keep
from trajload.checkpoint.store import Store

disks = load(Path(__file__).with_name("disks.py"))


class Histories(RuleBasedStateMachine):
    """The model: what each live commit holds, which files were damaged, which names are pinned."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="trajload-histories-"))
        self.store = Store(self.root / "s", disk=disks.WatchedDisk())
        self.content: dict[int, dict[str, bytes]] = {}
        self.live: dict[int, Commit] = {}
        self.damaged: set[str] = set()
        self.pins: dict[str, int] = {}
        self.written = 0

    def teardown(self) -> None:
        shutil.rmtree(self.root)

    def paths(self, commit: Commit) -> set[str]:
        return {entry.path for entry in self.store.part(commit, 0).files.values()}

    def good(self) -> list[Commit]:
        return [commit for _, commit in sorted(self.live.items()) if not self.paths(commit) & self.damaged]

    @rule(step=st.integers(0, 50), refer=st.booleans(), end=st.sampled_from(["commit", "abandon", "forget"]))
    def save(self, step: int, refer: bool, end: str) -> None:
        """A save that commits, is given up, or is forgotten as by a killed process."""
        self.written += 1
        files = {"head": b"head %d" % self.written}
        with self.store.writer():
            generation = self.store.begin(step)
            part = generation.part(0)
            part.write("head", [files["head"]])
            source = self.good()[-1:] if refer else []
            for old in source:
                files["body"] = self.content[old.seq]["body"]
                part.refer("body", self.store.part(old, 0).entry("body"))
            if not source:
                files["body"] = b"body %d" % self.written
                part.write("body", [files["body"]])
            vote = part.finish()
            if end == "commit":
                commit = self.store.commit(generation, [vote], {"metrics": {"loss": step % 7}})
                self.live[commit.seq], self.content[commit.seq] = commit, files
            elif end == "abandon":
                self.store.abandon(generation)
            else:
                self.reopen()

    @rule()
    def reopen(self) -> None:
        """Another process goes on."""
        self.store = Store(self.root / "s", disk=disks.WatchedDisk())

    @precondition(lambda self: self.live)
    @rule(data=st.data())
    def damage(self, data: Any) -> None:
        """A bit of a file flips."""
        commit = data.draw(st.sampled_from([self.live[seq] for seq in sorted(self.live)]))
        path = self.store.part(commit, 0).entry(data.draw(st.sampled_from(["head", "body"]))).path
        if path not in self.damaged:
            where = self.root / "s" / path
            where.write_bytes(bytes([where.read_bytes()[0] ^ 1]) + where.read_bytes()[1:])
            self.damaged.add(path)
            self.reopen()  # what was verified before it is not looked at again by the same object

    @precondition(lambda self: self.live)
    @rule(data=st.data(), name=st.sampled_from(["a", "b"]))
    def pin(self, data: Any, name: str) -> None:
        """A commit gets a name, or loses it."""
        if name in self.pins:
            self.store.unpin(name)
            del self.pins[name]
        else:
            seq = data.draw(st.sampled_from(sorted(self.live)))
            self.store.pin(name, self.live[seq])
            self.pins[name] = seq

    @rule(last=st.integers(1, 3), every=st.sampled_from([0, 10]), best=st.sampled_from([None, "min:loss"]))
    def retain(self, last: int, every: int, best: str | None) -> None:
        """Removal leaves at least the newest good ones, and all that is pinned."""
        good = [commit.seq for commit in self.good()]
        gone = {commit.seq for commit in self.store.retain(Keep(last=last, every=every, best=best))}
        assert not gone & set(good[-last:])
        assert not gone & set(self.pins.values())
        if len(good) < last:
            assert not gone
        for seq in gone:
            del self.live[seq], self.content[seq]

    @rule()
    def sweep(self) -> None:
        """Afterwards the folder holds what live commits use, and nothing else."""
        self.store.sweep()
        files = {str(p.relative_to(self.root / "s")) for p in (self.root / "s" / "gen").rglob("*") if p.is_file()}
        needed = {path for commit in self.live.values() for path in self.paths(commit)}
        needed |= {commit.parts[0].path for commit in self.live.values()}
        own = {file for file in files if any(file.startswith(c.generation + "/") for c in self.live.values())}
        assert needed <= files
        assert files == needed | own

    @invariant()
    def newest_is_the_newest_good_one(self) -> None:
        """And it gives back what was saved."""
        good = self.good()
        found, faults = self.store.newest()
        assert found == (good[-1] if good else None)
        assert {fault.seq for fault in faults} == {seq for seq in self.live if not good or seq > good[-1].seq}
        if found is not None:
            part = self.store.part(found, 0)
            assert {name: part.read(name) for name in part.files} == self.content[found.seq]

    @invariant()
    def commits_and_pins_are_those_that_were_made(self) -> None:
        """Nothing appears, nothing is lost."""
        assert {commit.seq: commit for commit in self.store.commits()} == self.live
        assert {name: commit.seq for name, commit in self.store.pins().items()} == self.pins


Histories.TestCase.settings = settings(
    max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
)
test_any_history_is_told_truly = Histories.TestCase
