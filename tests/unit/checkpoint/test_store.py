"""What is committed comes back, whole and in order; what is not whole does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from damaging import flip

from trajload.checkpoint.entries import PartSummary
from trajload.checkpoint.store import Store
from trajload.errors import (
    CheckpointAbortedError,
    CheckpointCorruptError,
    CheckpointError,
    CheckpointMismatchError,
    CheckpointSpaceError,
    ConfigError,
    MissingDependencyError,
    WriterConflictError,
)


def test_committed_files_come_back(store: Store, save: Any) -> None:
    """Bytes, info, extra and step are what was given."""
    made = save(
        store, 7, {"a.bin": b"abc", "deep/er/b.bin": bytes(3_000_000), "empty": b""}, info={"loss": float("inf")}
    )
    commit, faults = Store(store.root).newest()
    assert (commit, faults) == (made, [])
    assert commit is not None
    part = store.part(commit, 0)
    assert part.read("a.bin") == b"abc"
    assert part.path("deep/er/b.bin").stat().st_size == 3_000_000
    assert part.read("empty", verify=False) == b""
    assert (commit.step, commit.seq, dict(part.extra), commit.info) == (7, 1, {"rank": 0}, {"loss": float("inf")})
    assert commit.bytes == commit.written_bytes == 3_000_003


def test_parts_of_several_ranks_are_told_apart(store: Store) -> None:
    """Each rank writes its own part, joined by path and nonce."""
    other = Store(store.root)
    with store.writer():
        generation = store.begin(3, world=2)
        votes = []
        for rank, of in enumerate((store, other)):
            part = of.join(generation.path, generation.nonce).part(rank)
            part.write("r", [b"%d" % rank])
            votes.append(PartSummary.from_json(part.finish().to_json()))
        commit = store.commit(generation, votes[::-1], {})
    assert [store.part(commit, rank).read("r") for rank in range(2)] == [b"0", b"1"]
    with pytest.raises(ConfigError, match=r"rank is 2: commit 1 has parts of ranks \[0, 2\)"):
        store.part(commit, 2)


def test_newest_is_the_highest_number_and_not_the_highest_step(store: Store, save: Any) -> None:
    """After a rewind the newest is what was saved last; numbers compare as numbers."""
    for step in (999_999, 1_000_000, 5):
        save(store, step)
    assert [c.step for c in store.commits()] == [999_999, 1_000_000, 5]
    commit, _ = store.newest()
    assert commit is not None and commit.step == 5
    below, _ = store.newest(below=commit.seq)
    assert below is not None and below.step == 1_000_000


def test_each_record_names_the_one_before(store: Store, save: Any) -> None:
    """The records form a chain."""
    first, second = save(store, 1), save(store, 2)
    assert (first.parent, second.parent, second.parent_seq) == (None, first.digest, first.seq)


def test_newest_steps_back_over_a_damaged_commit_and_says_so(store: Store, save: Any) -> None:
    """A flipped bit costs one checkpoint, not the run."""
    good, bad = save(store, 1), save(store, 2)
    flip(store.part(bad, 0).path("model.safetensors"), 17)
    commit, faults = store.newest()
    assert commit == good
    assert [fault.seq for fault in faults] == [bad.seq]
    assert "damaged" in faults[0].what
    assert store.newest(verify="sizes")[0] == bad
    with pytest.raises(CheckpointCorruptError, match=r"checkpoint of step 2 \(seq 2\) cannot be used"):
        store.pick(2)
    with pytest.raises(CheckpointCorruptError, match="damaged"):
        store.part(bad, 0).read("model.safetensors")


@pytest.mark.parametrize("file", ["part.json", "model.safetensors"])
def test_commit_with_a_missing_file_is_passed_over(store: Store, save: Any, file: str) -> None:
    """Also without reading bytes."""
    good, bad = save(store, 1), save(store, 2)
    (store.root / bad.generation / "r00000" / file).unlink()
    commit, faults = store.newest(verify="sizes")
    assert commit == good
    assert "missing" in faults[0].what


def test_nothing_saved_is_no_commit_and_no_fault(store: Store) -> None:
    """A fresh store is told from a broken one."""
    assert store.newest() == (None, [])
    with pytest.raises(CheckpointCorruptError, match="it holds none"):
        store.pick()


def test_second_writer_is_refused_and_told_who_writes(store: Store) -> None:
    """One writer at a time, by name; readers are not kept out."""
    other = Store(store.root)
    with store.writer(), store.writer():
        who = r"being written by process \d+ on \S+ since .*, which is this process"
        with pytest.raises(WriterConflictError, match=who), other.writer():
            pass
        assert other.newest() == (None, [])
    with other.writer():
        pass


def test_generation_begun_before_another_commit_is_refused(store: Store, save: Any) -> None:
    """A sequence number has one winner."""
    with store.writer():
        late = store.begin(1)
        vote = late.part(0).finish()
        save(store, 2)
        with pytest.raises(WriterConflictError, match="sequence number 1 is taken"):
            store.commit(late, [vote], {})
    assert [c.step for c in store.commits()] == [2]


def test_part_that_is_not_what_its_rank_voted_for_aborts(store: Store) -> None:
    """The rank that commits looks at every file first."""
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        part.write("a", [b"1234"])
        vote = part.finish()
        (part.folder / "a").write_bytes(b"123")
        with pytest.raises(CheckpointAbortedError, match=r"a' has 3 bytes, expected 4.*Nothing was committed"):
            store.commit(generation, [vote], {})
    assert store.commits() == []


def test_commit_without_every_rank_aborts(store: Store) -> None:
    """Half a checkpoint is none."""
    with store.writer():
        generation = store.begin(1, world=2)
        vote = generation.part(0).finish()
        with pytest.raises(CheckpointAbortedError, match=r"parts are of ranks \[0\], expected one of each of 2"):
            store.commit(generation, [vote], {})


def test_failed_file_ends_its_generation(store: Store) -> None:
    """An error while a file is made cannot be committed over."""

    def chunks() -> Any:
        yield b"x" * 2_000_000
        raise ValueError("the tensor is gone")

    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        with pytest.raises(ValueError, match="the tensor is gone"):
            part.write("a", chunks())
        with pytest.raises(CheckpointAbortedError, match=r"has failed before: file .* was not written \(ValueError\)"):
            part.finish()
        store.abandon(generation)
    assert not (store.root / generation.path).exists()


def test_writing_outside_the_writer_is_refused(store: Store) -> None:
    """Nobody begins or commits without the lock."""
    with pytest.raises(CheckpointError, match="begin needs the store's writer"):
        store.begin(1)


def test_space_is_asked_for_before_anything_is_written(store: Store) -> None:
    """The message says both numbers."""
    with (
        store.writer(),
        pytest.raises(CheckpointSpaceError, match=r"of 4611686018427387903 bytes .* got \d+ bytes free"),
    ):
        store.begin(1, need_bytes=(1 << 62) - 1)
    assert list((store.root / "gen").iterdir()) == []


def test_pick_takes_the_closest_step_and_the_higher_on_a_tie(store: Store, save: Any) -> None:
    """Numbers, not names, decide."""
    made = {step: save(store, step) for step in (100, 200, 1000)}
    again = save(store, 200)
    assert [store.pick(at).step for at in (0, 149, 150, 600, 10**9)] == [100, 100, 200, 1000, 1000]
    assert store.pick(200) == again
    assert store.pick(made[100].digest[:14]) == made[100]
    assert store.pick(made[100].digest.partition(":")[2][:9]) == made[100]
    assert store.pick() == again
    with pytest.raises(ConfigError, match="no checkpoint has a digest that begins with 'sha256:0000ff'"):
        store.pick("sha256:0000ff")
    with pytest.raises(ConfigError, match=r"several checkpoints have|expected a step"):
        store.pick("sha256:")


@pytest.mark.parametrize("name", ["", "part.json", "../a", "/a", "a/../b", "a\0b", 3])
def test_bad_file_name_is_refused(store: Store, name: Any) -> None:
    """Names stay inside the part."""
    with store.writer(), pytest.raises(ConfigError, match="file name"):
        store.begin(1).part(0).write(name, [b""])


def test_opening_without_creating_needs_a_store(tmp_path: Path) -> None:
    """A mistyped path is no empty store."""
    with pytest.raises(CheckpointError, match="no checkpoint store at"):
        Store(tmp_path, create=False)
    assert list(tmp_path.iterdir()) == []


def test_durability_is_tried_and_recorded(store: Store, save: Any) -> None:
    """The commit says what the file system gave."""
    assert store.durability == "file+dir"
    assert save(store, 1).durability == "file+dir"
    assert not [p for p in store.root.iterdir() if p.name.startswith(".")]


def test_absent_digest_package_is_told_and_nothing_is_stepped_back_over(
    store: Store, save: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be checked here is not damaged; listing and new saves work without it."""
    pytest.importorskip("blake3")
    first = save(store, 1)
    monkeypatch.setitem(sys.modules, "blake3", None)
    monkeypatch.setattr("trajload.checkpoint.generation.default_algorithm", lambda: "sha256")
    with pytest.raises(MissingDependencyError, match="digests are blake3"):
        store.newest()
    assert store.commits() == [first]
    assert store.newest(verify="sizes")[0] == first
    second = save(store, 2)
    assert store.newest()[0] == second


def test_newer_format_is_not_stepped_back_over(store: Store, save: Any) -> None:
    """Falling back to an older commit would throw work away without a word."""
    from trajload.checkpoint import record

    save(store, 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record, "VERSION", 2)
        save(store, 2)
    with pytest.raises(
        CheckpointMismatchError, match=r"0000000002.json'.*format version 2, and this trajload reads up to 1"
    ):
        store.newest()
    third = save(store, 3)
    assert store.newest()[0] == third


@pytest.mark.multiproc
@pytest.mark.parametrize("module", ["trajload.checkpoint.store", "trajload.checkpoint"])
def test_store_loads_neither_torch_nor_numpy(module: str) -> None:
    """A process that lists, checks or cleans checkpoints starts in milliseconds."""
    code = f"import sys, {module} as m; m.Store; print([n for n in ('torch', 'numpy') if n in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300).stdout
    assert out.strip() == "[]"
