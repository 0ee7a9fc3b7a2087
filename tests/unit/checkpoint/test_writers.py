"""Several processes, forks, and kills: one writer, who loses the store with its life."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from in_threads import in_threads

from trajload.checkpoint.cleaning import clean
from trajload.checkpoint.entries import Keep
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointError, TrajloadError, WriterConflictError

HOLD = """
import sys, time
from trajload.checkpoint.store import Store
store = Store(sys.argv[1])
with store.writer():
    generation = store.begin(1)
    generation.part(0).write("half", [b"x" * 1000])
    print(generation.path, flush=True)
    time.sleep(120)
"""


@pytest.fixture
def holder(store: Store) -> Any:
    """A process that writes the store and has a generation half done."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(store.root)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.path = process.stdout.readline().strip()  # type: ignore[attr-defined]
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.multiproc
def test_killed_writer_leaves_the_store_free_and_its_generation_to_the_sweep(
    store: Store, holder: Any, save: Any
) -> None:
    """While it lives it is named; once dead, the next writer needs no repair by hand."""
    with pytest.raises(WriterConflictError, match=rf"written by process {holder.pid} on "), store.writer():
        pass
    with pytest.raises(WriterConflictError):
        store.sweep()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    first = save(store, 5)
    assert (first.seq, first.epoch) == (1, 2)
    assert store.newest() == (first, [])
    assert store.sweep() == [holder.path]
    assert [p.name for p in (store.root / "gen").iterdir()] == [first.generation[4:]]


@pytest.mark.multiproc
def test_forked_child_neither_has_nor_keeps_the_lock(store: Store) -> None:
    """Workers that outlive a killed trainer must not keep the next one out."""
    read, write = os.pipe()
    with store.writer():
        pid = os.fork()
        if pid == 0:
            try:
                store.begin(1)
                os._exit(1)
            except CheckpointError as err:
                os.write(write, err.message.encode())
                signal.pause()
            finally:
                os._exit(2)
        os.close(write)
        said = os.read(read, 1000)
        assert b"begin needs the store's writer" in said
    try:
        with Store(store.root).writer():
            pass  # although the child is alive
    finally:
        os.close(read)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_one_store_object_lets_its_threads_in_together(store: Store) -> None:
    """A save in the background and the main thread share the right to write."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            with store.writer():
                generation = store.begin(1)
                store.commit(generation, [generation.part(0).finish()], {})
        except BaseException as err:
            errors.append(err)

    with store.writer():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
    assert errors == []
    with Store(store.root).writer():
        pass


def test_store_made_by_several_at_once_is_one_store(tmp_path: Path) -> None:
    """All see the same identity."""
    barrier = threading.Barrier(8)
    uuids: list[str] = []

    def make(_: int) -> None:
        barrier.wait()
        uuids.append(Store(tmp_path / "deep" / "er" / "s").uuid)

    in_threads(make, range(8))
    assert len(uuids) == 8 and len(set(uuids)) == 1


END = """
import sys, threading, time
from trajload.checkpoint.store import Store
def chunks():
    threading.main_thread().join()  # the script has ended
    yield bytes(9_000_000)
def save():
    store = Store(sys.argv[1])
    with store.writer():
        generation = store.begin(1)
        part = generation.part(0)
        part.write("a", chunks())
        store.commit(generation, [part.finish()], {})
threading.Thread(target=save).start()
"""


@pytest.mark.multiproc
def test_save_in_the_background_finishes_although_the_script_has_ended(store: Store) -> None:
    """Whatever a thread of the save needs, it gets after the main thread's end too."""
    done = subprocess.run([sys.executable, "-c", END, str(store.root)], capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    assert store.newest()[0] is not None


RACE = """
import sys
from trajload.checkpoint.store import Store
from trajload.errors import WriterConflictError
store, won = Store(sys.argv[1]), 0
sys.stdin.read(1)
while won < 20:
    try:
        with store.writer():
            generation = store.begin(won)
            part = generation.part(0)
            part.write("who", [sys.argv[2].encode()])
            commit = store.commit(generation, [part.finish()], {"who": sys.argv[2]})
            print(commit.seq, flush=True)
            won += 1
    except WriterConflictError:
        pass
"""


@pytest.mark.multiproc
def test_two_processes_never_win_the_same_number(store: Store) -> None:
    """Every success that was told is there, under a number of its own."""
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACE, str(store.root), who], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for who in "ab"
    ]
    told = {who: racer.communicate("x", timeout=600)[0].split() for who, racer in zip("ab", racers, strict=True)}
    assert [racer.returncode for racer in racers] == [0, 0]
    numbers = {int(seq): who for who, seqs in told.items() for seq in seqs}
    assert sorted(numbers) == list(range(1, 41))
    assert {c.seq: c.info["who"] for c in store.commits()} == numbers
    assert store.faults == []
    for commit in store.commits():
        assert store.part(commit, 0).read("who").decode() == numbers[commit.seq]


def test_torn_lock_note_harms_nothing(store: Store, save: Any) -> None:
    """It informs only; the epoch goes on from the records."""
    save(store, 1)
    for content in (b"", b'{"pid": 3', os.urandom(64), b'{"pid":1,"host":"h","since":1e999,"epoch":-7}', b"[" * 4000):
        (store.root / "writer.lock").write_bytes(content)
        other = Store(store.root)
        with other.writer():
            (store.root / "writer.lock").write_bytes(content)
            with pytest.raises(WriterConflictError), store.writer():
                pass
    assert save(Store(store.root), 2).epoch > 1
    assert len(store.commits()) == 2


def test_pipe_in_place_of_a_file_is_not_waited_for(store: Store, save: Any) -> None:
    """Nothing hangs on what is no file."""
    first, second = save(store, 1), save(store, 2)
    for path in (
        store.root / "commits" / "0000000003.json",
        store.root / second.generation / "r00000" / "model.safetensors",
    ):
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    found, faults = store.newest(verify="full")
    assert found == first
    assert any("regular file" in str(fault) for fault in faults)
    (store.root / "writer.lock").unlink()
    os.mkfifo(store.root / "writer.lock")
    try:
        with store.writer():
            pass
    except TrajloadError:
        pass


def test_directory_full_of_other_things_is_left_alone(tmp_path: Path, save: Any) -> None:
    """Other people's files are neither read, counted, nor removed."""
    root = tmp_path / "exp"
    others = [
        "notes.txt",
        "commits/README.md",
        "commits/42.json",
        "commits/0000000042.json.bak",
        "commits/00000000042.json",
        "commits/00000000078.json",
        "commits/step_1000.json",
        "commits/9999999999999999999.json",
        "gen/step_1000/model.pt",
        "gen/0000000001/x",
        "gen/0000000001-s1-zz/x",
        "gen/loose.bin",
        "pins/readme.txt",
        ".cache/x",
        "LATEST.old",
    ]
    for name in others:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(b"not ours")
    (root / "commits" / "0000000077.json").mkdir()
    store = Store(root)
    first = save(store, 1)
    assert first.seq == 78
    commit, faults = store.newest()
    assert (commit, faults) == (first, [])
    with store.writer():
        abandoned = store.begin(2)
    save(store, 3)
    assert Store(root).sweep() == [abandoned.path]
    assert store.retain(Keep(last=1)) == [first]
    assert {name for name in others if not (root / name).exists()} == set()


def test_huge_numbers_compare_as_numbers_and_end_with_an_error(store: Store, save: Any) -> None:
    """A stray file cannot wrap them around."""
    save(store, 1)
    (store.root / "commits" / f"{10**12}.json").write_bytes(b"torn")
    huge = save(store, (1 << 62) - 1)
    assert huge.seq == 10**12 + 1
    assert store.newest()[0] == huge
    assert [c.seq for c in Store(store.root).commits()] == [1, 10**12 + 1]
    (store.root / "commits" / f"{(1 << 62) - 1}.json").write_bytes(b"torn")
    with store.writer(), pytest.raises(CheckpointError, match="has used up its sequence numbers"):
        store.begin(1)


@pytest.mark.parametrize("damage", [b"", b"{}", None], ids=["empty", "foreign", "missing"])
def test_store_with_a_damaged_identity_is_known_by_its_records(store: Store, save: Any, damage: bytes | None) -> None:
    """The file is written anew by the next writer."""
    first = save(store, 1)
    path = store.root / "STORE.json"
    path.unlink()
    if damage is not None:
        path.write_bytes(damage)
    again = Store(store.root, create=False)
    assert again.uuid == store.uuid
    assert again.newest()[0] == first
    assert "STORE.json" in str(again.faults[0])
    save(again, 2)
    assert Store(store.root).uuid == store.uuid
    assert Store(store.root).faults == []


def test_store_without_identity_or_readable_record_gets_no_new_one(store: Store, save: Any) -> None:
    """Its records would count as another store's for ever."""
    save(store, 1)
    path = store.root / "commits" / "0000000001.json"
    (store.root / "STORE.json").unlink()
    kept = path.read_bytes()
    path.write_bytes(kept[:-1])
    with pytest.raises(CheckpointError, match=r"has lost STORE.json, and none of its 1 records can be read"):
        Store(store.root)
    path.write_bytes(kept)
    assert Store(store.root).newest()[0] is not None


def test_record_of_another_store_does_not_count(store: Store, save: Any, tmp_path: Path) -> None:
    """A copied file is no commit here."""
    save(store, 1)
    other = Store(tmp_path / "other")
    foreign = save(other, 9)
    (store.root / "commits" / "0000000002.json").write_bytes((other.root / "commits" / "0000000001.json").read_bytes())
    (store.root / "commits" / "0000000003.json").write_bytes((store.root / "commits" / "0000000001.json").read_bytes())
    assert [c.step for c in store.commits()] == [1]
    assert [fault.seq for fault in store.faults] == [2, 3]
    assert foreign.store not in (store.uuid, "")


def test_something_else_in_place_of_a_folder_is_named(tmp_path: Path) -> None:
    """The message says which path."""
    (tmp_path / "f").write_bytes(b"")
    with pytest.raises(TrajloadError, match=r"/f' is no folder"):
        Store(tmp_path / "f")
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "gen").write_bytes(b"")
    with pytest.raises(TrajloadError, match=r"/gen' is no folder"):
        Store(tmp_path / "s")


@pytest.mark.parametrize(
    ("name", "what"),
    [
        *((name, "folder") for name in ("STORE.json", "writer.lock", "pins/.lock")),
        *((name, "loop") for name in ("STORE.json", "writer.lock", "pins/.lock", "gen", "commits", "pins")),
    ],
)
def test_something_else_in_place_of_a_file_is_named_with_the_cure(
    store: Store, save: Any, name: str, what: str
) -> None:
    """Which path of the store it is, and what to do; once it is moved away all checkpoints are there."""
    save(store, 1), save(store, 2)
    store.pin("one", store.commits()[0])
    path, aside = store.root / name, store.root.with_name("aside")
    path.rename(aside)
    path.mkdir() if what == "folder" else path.symlink_to(path.name)
    with pytest.raises(CheckpointError, match=rf"failed at '{re.escape(str(path))}.*move it away"):
        again = Store(store.root)
        with again.writer():
            again.sweep()
    path.rmdir() if what == "folder" else path.unlink()
    aside.rename(path)
    with store.writer():
        assert store.sweep() == []
    assert [commit.step for commit in store.commits()] == [1, 2] and store.newest()[1] == []


@pytest.mark.parametrize("emptied", ["removed", "empty"])
def test_lost_records_are_no_reason_to_remove_what_they_named(
    store: Store, save: Any, tmp_path: Path, emptied: str
) -> None:
    """A repair of the file system takes `commits`: nothing is swept and nothing saved, and with the records all is there again."""
    for step in (1, 2):
        save(store, step)
    (store.root / "commits").rename(tmp_path / "lost+found")
    if emptied == "empty":
        (store.root / "commits").mkdir()
    again = Store(store.root)
    for act in (again.sweep, lambda: save(again, 3), lambda: clean(again, Keep(last=1), dry_run=True)):
        with pytest.raises(
            CheckpointError, match=r"has lost its records: .*'gen' holds '0000000002-.*Bring 'commits' back"
        ):
            act()
    (store.root / "commits").rmdir()
    (tmp_path / "lost+found").rename(store.root / "commits")
    assert [commit.step for commit in store.commits()] == [1, 2] and store.newest()[1] == []


def test_first_save_that_was_killed_is_swept(store: Store, save: Any) -> None:
    """Without any record there is one generation number that nobody misses."""
    with store.writer():
        path = store.begin(1).path
    with Store(store.root).writer():
        pass
    assert Store(store.root).sweep() == [path]
