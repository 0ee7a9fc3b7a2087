"""Damage found while a loader runs: named exactly, or replaced by the policy that the user chose."""

from __future__ import annotations

import copy
import itertools
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from damaging import flip_in_member
from interrupting import interrupt

import trajload as tl

COMMON = {"window": tl.Window(num_steps=8), "global_batch_size": 4, "seed": 5, "rank": 0, "world_size": 1}
STREAM_SUFFIX = {
    "cam_front": ".cam_front.mp4",
    "depth": ".depth.mkv",
    "proprioception": ".proprioception.npy",
    "action": ".action.npy",
    "language": ".language.",
}


def damaged_copy(dataset: Path, out: Path, stream: str, episode: int) -> tuple[Path, str]:
    """Copy `dataset` and flip one bit in the middle of one member; return the copy and the episode's key."""
    shutil.copytree(dataset, out)
    key = tl.open(dataset).episode_key(episode)
    flip_in_member(out, f"{key}{STREAM_SUFFIX[stream]}", last=stream not in ("cam_front", "depth"))
    return out, key


@pytest.mark.parametrize("stream", list(STREAM_SUFFIX))
@pytest.mark.parametrize("num_workers", [0, 2])
def test_flipped_bit_is_an_error_that_names_shard_episode_and_stream(
    demo_dataset: Path, tmp_path: Path, stream: str, num_workers: int
) -> None:
    """No batch with wrong data is delivered: the run stops at the window that holds the flipped bit."""
    damaged, key = damaged_copy(demo_dataset, tmp_path / "copy", stream, episode=1)
    with (
        tl.Loader(damaged, streams=[stream], num_workers=num_workers, num_epochs=1, **COMMON) as loader,
        tl.Loader(demo_dataset, streams=[stream], num_workers=0, num_epochs=1, **COMMON) as whole,
    ):
        with pytest.raises((tl.errors.ShardCorruptError, tl.errors.DecodeError)) as caught:
            for batch in loader:
                assert batch.digest() == whole.batch_at(batch.train_step).digest()
        where = caught.value.at
        assert (where.shard, where.episode, where.stream) == ("shards/000000.tar", key, stream)
        assert where.train_step == loader.train_step, "the cursor stays at the batch that failed"
        with pytest.raises(type(caught.value), match=f"episode={key} stream={stream}"):
            loader.batch_at(loader.train_step)


def test_substitute_replaces_bad_windows_by_the_same_others_on_every_setting(
    demo_dataset: Path, tmp_path: Path
) -> None:
    """The count of rows is kept, the replacement is keyed, listed in the state, and survives a resume."""
    damaged, key = damaged_copy(demo_dataset, tmp_path / "copy", "action", episode=2)

    def digests(num_workers: int, prefetch: int, steps: int = 24) -> tuple[list[str], dict]:
        with tl.Loader(
            damaged, num_workers=num_workers, prefetch=prefetch, on_error="substitute", streams=["action"], **COMMON
        ) as loader:
            got = []
            for batch in itertools.islice(loader, steps):
                assert all(ref.episode_key != key for ref in batch.refs)
                assert [ref.window_id for ref in batch.refs] == batch["window_id"].tolist()
                got.append(batch.digest())
            assert loader.stats()["substituted"] > 0
            return got, loader.state_dict()

    plain, state = digests(0, 1)
    assert digests(2, 3)[0] == plain
    assert state["quarantine"]
    assert all(reason == "ShardCorruptError" for _, _, reason in state["quarantine"])
    with tl.Loader(damaged, num_workers=1, on_error="substitute", streams=["action"], **COMMON) as loader:
        loader.load_state_dict(state)
        assert loader.state_dict()["quarantine"] == state["quarantine"]
        loader.seek(0)
        assert [batch.digest() for batch in itertools.islice(loader, 24)] == plain


def test_substitute_stops_when_nothing_is_readable(demo_dataset: Path, tmp_path: Path) -> None:
    """A dataset whose every window is bad ends the run instead of looping."""
    out = tmp_path / "copy"
    shutil.copytree(demo_dataset, out)
    with tl.Loader(out, num_workers=1, on_error="substitute", streams=["action"], **COMMON) as loader:
        os.truncate(out / "shards" / "000000.tar", 1024)
        with pytest.raises(
            tl.errors.StageFailedError, match=r"no readable window found for row \d+: got 9 failures in a row"
        ):
            next(iter(loader))


def test_shard_truncated_under_a_running_loader_is_named(demo_dataset: Path, tmp_path: Path) -> None:
    """A file that shrinks after opening is damage, not an empty read."""
    out = tmp_path / "copy"
    shutil.copytree(demo_dataset, out)
    with tl.Loader(out, num_workers=1, streams=["cam_front"], **COMMON) as loader:
        os.truncate(out / "shards" / "000000.tar", 4096)
        with pytest.raises(tl.errors.ShardCorruptError, match=r"truncated: got 4096 bytes, expected at least \d+"):
            next(iter(loader))


def test_state_of_another_dataset_is_refused_naming_both(demo_dataset: Path, tmp_path: Path) -> None:
    """Equal settings over other data would go on with other batches."""
    from trajload.demo import EpisodeLength, generate

    other = generate(tmp_path / "other", num_episodes=3, seed=4, length=EpisodeLength(min_steps=60, max_steps=80))
    with tl.Loader(demo_dataset, num_workers=0, **COMMON) as a, tl.Loader(other, num_workers=0, **COMMON) as b:
        with pytest.raises(tl.errors.ResumeError, match=f"saved {a.dataset.digest[:12]}.*here {b.dataset.digest[:12]}"):
            b.load_state_dict(a.state_dict())
        assert b.train_step == 0


def test_state_of_another_window_is_refused_naming_the_field(demo_dataset: Path) -> None:
    """Both values stand in the message."""
    with (
        tl.Loader(demo_dataset, num_workers=0, **COMMON) as a,
        tl.Loader(demo_dataset, num_workers=0, **{**COMMON, "window": tl.Window(num_steps=9)}) as b,
        pytest.raises(tl.errors.ResumeError, match=r"window\.num_steps: saved 8, here 9"),
    ):
        b.load_state_dict(a.state_dict())


def test_damaged_state_is_refused_before_anything_moves(demo_dataset: Path) -> None:
    """A loader that refused a state goes on where it was."""
    with tl.Loader(demo_dataset, **COMMON) as loader:
        state = json.loads(json.dumps(loader.state_dict()))
        loader.seek(7)
        with pytest.raises(tl.errors.ResumeError, match=r"quarantine is \[1\]: expected a list of"):
            loader.load_state_dict({**state, "quarantine": [1]})
        assert loader.train_step == 7
        assert loader.state_dict()["quarantine"] == []


def test_loader_says_why_it_cannot_be_pickled(demo_dataset: Path) -> None:
    """Spawned processes get the dataset instead, which can be."""
    with tl.Loader(demo_dataset, **COMMON) as loader:
        for copy_of in (pickle.dumps, copy.copy):
            with pytest.raises(tl.errors.ConfigError, match=r"a Loader cannot be pickled or copied: it owns threads\."):
                copy_of(loader)
        assert pickle.loads(pickle.dumps(loader.dataset)).digest == loader.dataset.digest


def test_window_longer_than_every_episode_is_refused(demo_dataset: Path) -> None:
    """The longest episode and the window are in the message."""
    longest = int(tl.open(demo_dataset).num_steps_E.max())
    with pytest.raises(tl.errors.WindowError, match=rf"{longest}.*500|500.*{longest}"):
        tl.Loader(demo_dataset, **{**COMMON, "window": tl.Window(num_steps=500)})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"streams": ["cam_back"]}, r"stream 'cam_back' is unknown"),
        ({"streams": []}, r"streams is empty"),
        ({"streams": "action"}, r"streams='action' is a single name"),
        ({"streams": {"action": tl.Image()}}, r"'action'\] asks for an Image"),
        ({"streams": {"cam_front": tl.Signal()}}, r"'cam_front'\] asks for a Signal"),
        ({"num_workers": -1}, r"num_workers=-1"),
        ({"prefetch": 0}, r"prefetch=0"),
        ({"order": "random"}, r"'random'.*'shuffled"),
        ({"rank": 1}, r"rank=1 is invalid"),
        ({"world_size": None}, r"rank=0 and world_size=None"),
        ({"global_batch_size": 0}, r"global_batch_size=0"),
        ({"global_batch_size": 2, "world_size": 3}, r"world_size=3"),
        ({"seed": 1.5}, r"seed must be an int: got 1\.5"),
        ({"on_error": "skip"}, r"on_error='skip'"),
        ({"window": 16}, r"window=16"),
        ({"streams": 5}, r"streams=5 is unusable: expected a list of names"),
        ({"rank": "a", "world_size": "b"}, r"rank='a' is invalid: expected an int\."),
        ({"rank": 0, "world_size": 1.5}, r"world_size=1\.5 is invalid: expected an int\."),
    ],
)
def test_bad_argument_is_refused_with_its_value(demo_dataset: Path, changes: dict, message: str) -> None:
    """Every argument is checked when the loader is built."""
    with pytest.raises(tl.errors.ConfigError, match=message):
        tl.Loader(demo_dataset, **{**COMMON, **changes})


def test_loader_that_iterates_does_not_survive_a_fork_silently(demo_dataset: Path) -> None:
    """The child gets an error that says what to do, not a wait without end."""
    code = (
        "import os, sys, trajload as tl\n"
        f"loader = tl.Loader({str(demo_dataset)!r}, window=tl.Window(num_steps=4), global_batch_size=2, num_workers=1)\n"
        "it = iter(loader); next(it)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    try: next(it)\n"
        "    except tl.errors.ConfigError as err: os._exit(7 if 'fork' in str(err) else 8)\n"
        "    os._exit(9)\n"
        "status = os.waitpid(pid, 0)[1]\n"
        "it.close(); sys.exit(os.WEXITSTATUS(status))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=300, check=False).returncode == 7


def test_dataset_is_usable_in_a_child_forked_while_a_thread_reads(demo_dataset: Path) -> None:
    """Reader threads of the parent hold locks when it forks; the child's loader over the same dataset runs."""
    code = (
        "import os, sys, threading, trajload as tl\n"
        f"dataset = tl.open({str(demo_dataset)!r})\n"
        "held, done = threading.Event(), threading.Event()\n"
        "def read():\n"
        "    with dataset._lock, dataset.store._lock: held.set(); done.wait()\n"
        "thread = threading.Thread(target=read); thread.start(); held.wait()\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    loader = tl.Loader(dataset, window=tl.Window(num_steps=4), global_batch_size=2, num_workers=1)\n"
        "    os._exit(7 if next(iter(loader)).train_step == 0 else 8)\n"
        "status = os.waitpid(pid, 0)[1]\n"
        "done.set(); thread.join(); sys.exit(os.WEXITSTATUS(status))\n"
    )
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", code], timeout=300, check=False).returncode == 7


@pytest.mark.multiproc
def test_ctrl_c_ends_the_process_at_once_with_keyboard_interrupt(demo_dataset: Path) -> None:
    """An interrupt while the consumer waits or works leaves no thread that holds the process."""
    code = (
        "import sys, threading, trajload as tl\n"
        f"loader = tl.Loader({str(demo_dataset)!r}, window=tl.Window(num_steps=16), global_batch_size=16, num_workers=2)\n"
        "try:\n"
        "    for batch in loader:\n"
        "        if batch.train_step == 3: print('running', flush=True)\n"
        "except KeyboardInterrupt:\n"
        "    left = [t.name for t in threading.enumerate() if t is not threading.main_thread()]\n"
        "    print('left', left, flush=True)\n"
        "    sys.exit(0 if not left else 3)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    out, err, _ = interrupt(process, lambda: process.send_signal(signal.SIGINT))
    assert process.returncode == 0, out + err


CHANGES = [
    {"num_workers": num_workers, "kind": kind, "is_kept": is_kept}
    for num_workers, kind, is_kept in itertools.product((0, 1), ("cut", "overwritten", "replaced"), (False, True))
]


@pytest.fixture(scope="module")
def outcomes(demo_dataset: Path, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How each process ended whose file changed, and what it said."""
    folder = tmp_path_factory.mktemp("changing")
    for number in range(len(CHANGES)):
        shutil.copytree(demo_dataset, folder / str(number))
    cases = [{"folder": str(folder / str(number)), **case} for number, case in enumerate(CHANGES)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("changing_files.py")), str(demo_dataset), json.dumps(cases)],
        capture_output=True,
        text=True,
        timeout=900,
        env={**os.environ, "PYTHONPATH": str(Path(tl.__file__).parents[1])},
    )
    assert done.returncode == 0, done.stderr
    return [{**found, "stderr": done.stderr} for found in json.loads(done.stdout)]


@pytest.mark.multiproc
@pytest.mark.parametrize("number", range(len(CHANGES)), ids=[str(case) for case in CHANGES])
def test_file_that_changes_after_its_first_batch_ends_neither_the_process_nor_gives_wrong_bytes(
    outcomes: list[dict[str, Any]], number: int
) -> None:
    """Arrays that were mapped and checked are looked at again: memory behind a cut file is a signal, not an error.

    Those that were checked and kept in memory stay right, whatever becomes of the file.
    """
    found = outcomes[number]
    assert found["status"] == 0, found["stderr"]
    is_right = CHANGES[number]["is_kept"] or CHANGES[number]["kind"] == "replaced"
    assert found["said"] == ("right to the end" if is_right else "refused ShardCorruptError")
