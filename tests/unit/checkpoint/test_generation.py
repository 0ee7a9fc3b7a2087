"""Writing parts: what is hashed is what is written; other writers' files are taken in; commits move between stores."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from trajload.checkpoint.digests import new_digest
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.generation import Generation, generation_path, parse_generation
from trajload.checkpoint.hashing import hashed
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointAbortedError, CheckpointCorruptError, CheckpointError, ConfigError


def test_chunks_of_any_size_give_the_same_file_and_digest(store: Store) -> None:
    """Small ones gathered, large ones cut, hashed beside the writing or not."""
    data = os.urandom(20_000_003)
    with store.writer():
        part = store.begin(1).part(0)
        entries = [
            part.write("whole", [data]),
            part.write("small", (data[i : i + 999] for i in range(0, len(data), 999))),
            part.write(
                "mixed", [data[:10], data[10:5_000_000], b"", memoryview(data)[5_000_000:5_000_100], data[5_000_100:]]
            ),
        ]
    for entry in entries:
        assert (store.root / entry.path).read_bytes() == data
        assert (entry.bytes, entry.digest) == (len(data), entries[0].digest)


def test_chunk_may_be_overwritten_once_the_next_is_asked_for(store: Store) -> None:
    """A writer with one buffer is safe, also where hashing runs beside."""
    buffer = bytearray(3_000_000)

    def chunks() -> Any:
        for value in range(5):
            buffer[:] = bytes([value]) * len(buffer)
            yield memoryview(buffer)

    with store.writer():
        entry = store.begin(1).part(0).write("a", chunks())
    expected = b"".join(bytes([value]) * 3_000_000 for value in range(5))
    digest = new_digest(entry.digest.partition(":")[0])
    digest.update(expected)
    assert (store.root / entry.path).read_bytes() == expected
    assert entry.digest == digest.text()


def test_views_of_other_item_sizes_and_shapes_are_bytes() -> None:
    """A chunk may be any contiguous buffer."""
    import array

    numbers = array.array("d", range(50_000))
    for view in (memoryview(numbers), memoryview(numbers).cast("B").cast("d", shape=[500, 100])):
        digest = new_digest("sha256")
        assert b"".join(hashed([view], digest)) == numbers.tobytes()
        assert digest.bytes == 400_000


def test_path_of_a_generation_is_read_back_or_refused() -> None:
    """Only canonical names are ours."""
    assert parse_generation(generation_path(42, 7, "ab")) == (42, 7, "ab")
    assert parse_generation(generation_path(10**12, 10**10, "ab")) == (10**12, 10**10, "ab")
    for other in (
        "gen/42-s7-ab",
        "gen/00000000042-s000000007-ab",
        "gen/0000000042-s000000007-a/b",
        "0000000042-s000000007-ab",
    ):
        assert parse_generation(other) is None


def test_joining_what_is_no_generation_is_refused(store: Store) -> None:
    """Path and nonce must fit each other."""
    with store.writer():
        begun = store.begin(1)
    assert isinstance(store.join(begun.path, begun.nonce), Generation)
    for path, nonce in ((begun.path, "zz"), ("gen/../../etc", "etc"), ("commits", "")):
        with pytest.raises(ConfigError, match="is not of a store"):
            store.join(path, nonce)


def test_rank_writes_its_part_once(store: Store) -> None:
    """Two processes of one rank cannot mix their files."""
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        with pytest.raises(CheckpointAbortedError, match=r"r00000' failed: File exists"):
            store.join(generation.path, generation.nonce).part(0)
        part.write("a", [b""])
        with pytest.raises(ConfigError, match="'a' is taken"):
            part.write("a", [b""])
        vote = part.finish()
        with pytest.raises(CheckpointError, match="is finished"):
            part.write("b", [b""])
        with pytest.raises(CheckpointError, match="is finished already"):
            part.finish()
        store.commit(generation, [vote], {})
        with pytest.raises(ConfigError, match="is committed already"):
            store.commit(generation, [vote], {})
        store.abandon(generation)
    assert store.newest()[0] is not None


def test_abandoning_never_touches_what_stands(store: Store, save: Any) -> None:
    """Nor other generations being written."""
    first = save(store, 1)
    with store.writer():
        kept, given_up = store.begin(2), store.begin(3)
        kept.part(0).write("a", [b"a"])
        given_up.part(0).write("a", [b"a"])
        store.abandon(given_up)
        assert (store.root / kept.path / "r00000" / "a").exists()
        assert not (store.root / given_up.path).exists()
        assert store.sweep() == []
    assert store.newest() == (first, [])


@pytest.mark.parametrize("shared", [False, True])
def test_files_of_another_writer_are_taken_in(store: Store, shared: bool) -> None:
    """Hashed, listed and verified like our own; each rank takes its own of a shared folder."""
    with store.writer():
        generation = store.begin(1, world=2)
        votes = []
        for rank in range(2):
            part = generation.part(rank)
            folder = part.make_folder("dcp", shared=shared)
            (folder / f"__{rank}_0.distcp").write_bytes(b"shard %d" % rank * 1000)
            (folder / "deep").mkdir(exist_ok=True)
            (folder / "deep" / f"{rank}.metadata").write_bytes(b"m")
            taken = part.adopt("dcp", shared=shared, only=(lambda name, r=rank: f"{r}" in name) if shared else None)
            assert [entry.name for entry in taken] == [f"dcp/__{rank}_0.distcp", f"dcp/deep/{rank}.metadata"]
            votes.append(part.finish())
        commit = store.commit(generation, votes, {})
    assert store.verify(commit) == []
    path = store.part(commit, 1).path("dcp/__1_0.distcp")
    assert path.parent == store.root / generation.path / ("dcp" if shared else "r00001/dcp")
    path.write_bytes(b"shard 2" * 1000)
    assert [str(fault.path) for fault in store.verify(commit)] == [str(path.relative_to(store.root))]
    assert store.verify(commit, ranks=[0]) == []


def test_link_among_foreign_files_aborts(store: Store, tmp_path: Path) -> None:
    """A checkpoint holds its own bytes."""
    (tmp_path / "elsewhere").write_bytes(b"x")
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        (part.make_folder("dcp") / "link").symlink_to(tmp_path / "elsewhere")
        with pytest.raises(CheckpointAbortedError, match="link' is no regular file"):
            part.adopt("dcp")
        with pytest.raises(CheckpointAbortedError, match="has failed before"):
            part.finish()
        store.abandon(generation)
    assert (tmp_path / "elsewhere").read_bytes() == b"x"
    assert list((store.root / "gen").iterdir()) == []


# ---- other stores ----


def test_promoted_commit_is_whole_and_says_where_it_came_from(store: Store, save: Any, tmp_path: Path) -> None:
    """References become files; doing it again copies nothing."""
    first = save(store, 1, {"encoder": b"frozen" * 10, "head": b"1"})
    with store.writer():
        generation = store.begin(2)
        part = generation.part(0)
        part.refer("encoder", store.part(first, 0).entry("encoder"))
        commit = store.commit(generation, [part.finish({"k": 1})], {"metrics": {"loss": 0.5}})
    archive = Store(tmp_path / "archive")
    there = store.promote(commit, archive)
    assert there.info["promoted_from"] == {"store": store.uuid, "seq": 2, "digest": commit.digest}
    assert (there.info["metrics"], there.step, there.refers) == ({"loss": 0.5}, 2, ())
    assert archive.part(there, 0).read("encoder") == b"frozen" * 10
    assert archive.part(there, 0).extra == {"k": 1}
    assert store.promote(commit, archive) == there
    assert len(archive.commits()) == 1
    with pytest.raises(ConfigError, match="into its own store"):
        store.promote(commit, Store(store.root))


def test_promotion_of_a_damaged_commit_commits_nothing(store: Store, save: Any, tmp_path: Path) -> None:
    """Every byte is checked on the way, also where other parts were copied before."""
    commit = save(store, 1, world=2)
    path = store.part(commit, 1).path("model.safetensors")
    path.write_bytes(path.read_bytes().replace(b"1", b"2", 1))
    archive = Store(tmp_path / "archive")
    with pytest.raises(CheckpointCorruptError, match="damaged"):
        store.promote(commit, archive)
    assert archive.commits() == []
    assert list((archive.root / "gen").iterdir()) == []


def test_commit_damaged_in_the_other_store_is_copied_again(store: Store, save: Any, tmp_path: Path) -> None:
    """The archive heals while the original lives."""
    commit = save(store, 1)
    archive = Store(tmp_path / "archive")
    path = archive.part(store.promote(commit, archive), 0).path("model.safetensors")
    path.write_bytes(b"rot")
    again = store.promote(commit, archive)
    assert (again.seq, archive.verify(again)) == (2, [])
    assert archive.retain(Keep(last=1)) != []
