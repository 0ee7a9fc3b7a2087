"""Batches made by worker processes are those of `batch_at`, byte for byte, in every order and across resumes."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.pipeline import auto
from trajload.pipeline.interpreter import GilUse

pytestmark = pytest.mark.multiproc

ALONE = {"rank": 0, "world_size": 1}
STREAMS = {
    "cam_front": None,
    "depth": tl.Image(age=True),
    "proprioception": tl.Signal(align="interval", age=True),
    "action": None,
    "language": None,
}
WINDOW = tl.Window(num_steps=5, dilation=2, pad="edge")
CASES: dict[str, dict[str, Any]] = {
    "every kind of stream": {"streams": STREAMS, "global_batch_size": 7, "workers": "processes:3", **ALONE},
    "a part of the ranks, interleaved, few threads": {
        **{"order": "interleaved", "global_batch_size": 9, "workers": "processes:2", "num_workers": 1},
        **{"rank": 1, "world_size": 2, "prefetch": 1},
    },
    "a finite run with transforms, many threads": {
        **{"streams": STREAMS, "global_batch_size": 16, "workers": "processes:2", "num_workers": 4, "num_epochs": 1},
        **{"transforms": "brighten", **ALONE},
    },
    "more processes than rows": {"global_batch_size": 2, "workers": "processes:5", "order": "continuous", **ALONE},
}


@pytest.fixture
def user_transforms(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module of a user, importable by name."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "faults"))
    import user_transforms

    return user_transforms


def make(dataset: tl.Dataset, case: dict[str, Any], module: Any, **more: Any) -> tl.Loader:
    arguments = {"window": WINDOW, "seed": 3, **case, **more}
    if "transforms" in case:
        arguments["transforms"] = [module.brighten, tl.RandomCrop((48, 56)), tl.ActionNoise(0.01)]
    return tl.Loader(dataset, **arguments)


@pytest.mark.parametrize("name", CASES)
def test_batches_of_processes_equal_the_oracle(dataset: tl.Dataset, user_transforms: Any, name: str) -> None:
    """Iterated, after a seek by the same processes, to the end of the run, and continued by threads from the state."""
    case = CASES[name]
    with make(dataset, case, user_transforms) as loader:
        for k, batch in enumerate(itertools.islice(loader, 5)):
            plain = loader.batch_at(k)
            assert (batch.train_step, batch.digest(), batch.refs, list(batch)) == (
                k,
                plain.digest(),
                plain.refs,
                list(plain),
            )
            state = json.loads(json.dumps(loader.state_dict()))
        assert state["pending"]["train_steps"] == [5, 5 + loader.stats()["prefetch"]]
        pids = loader.stats()["worker_pids"]
        far = 10**9 if "num_epochs" not in case else len(loader) - 2
        loader.seek(far)
        got = [batch.digest() for batch in itertools.islice(loader, 3)]
        last = far + len(got)
        assert got == [loader.batch_at(k).digest() for k in range(far, last)]
        assert (last == len(loader)) if "num_epochs" in case else (last == far + 3)
        assert loader.stats()["worker_pids"] == pids, "processes last from run to run"
        expected = loader.batch_at(5).digest()
    with make(dataset, case, user_transforms, workers="threads") as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).digest() == expected


def test_mixtures_are_made_by_processes_too(three_folders: dict[str, Path]) -> None:
    """Sources of a batch differ from row to row; what a row is, is told by its references."""
    mixture = tl.Mixture({"sim": (three_folders["sim"], 0.5), "lab": (three_folders["lab"], 0.5)}, by="windows")
    streams = {"image": tl.Image(size=(16, 16)), "action": None, "wrist": None, "text": None}
    arguments = {"window": tl.Window(num_steps=4), "global_batch_size": 9, "streams": streams, **ALONE}
    with tl.Loader(mixture, workers="processes:2", order="interleaved", **arguments) as loader:
        for batch in itertools.islice(loader, 4):
            plain = loader.batch_at(batch.train_step)
            assert (batch.digest(), batch.refs) == (plain.digest(), plain.refs)


def test_runs_of_one_loader_take_turns(dataset: tl.Dataset) -> None:
    """Two iterators share the cursor, a state can be loaded in the middle, and close is not the end."""
    arguments = {"window": WINDOW, "global_batch_size": 4, "seed": 1, "workers": "processes:2", **ALONE}
    with tl.Loader(dataset, **arguments) as loader:
        first, second = iter(loader), iter(loader)
        assert [next(it).train_step for it in (first, second, second, first)] == [0, 1, 2, 3]
        state = loader.state_dict()
        assert [next(first).train_step for _ in range(3)] == [4, 5, 6]
        loader.load_state_dict(state)
        assert next(first).train_step == 4
        second.close()
        loader.close()
        assert loader.stats()["worker_pids"] == []
        batch = next(iter(loader))
        assert (batch.train_step, batch.digest()) == (5, loader.batch_at(5).digest())


def test_held_batches_keep_their_memory_and_dropped_ones_give_it_back(dataset: tl.Dataset) -> None:
    """A batch, or one view of it, is never written again while it is held; what is dropped is used again."""
    arguments = {"window": WINDOW, "global_batch_size": 4, "seed": 1, "workers": "processes:1", "prefetch": 2}
    with tl.Loader(dataset, **arguments, **ALONE) as loader:
        batches = iter(loader)
        held = [next(batches) for _ in range(45)]  # more than are kept in circulation
        digests = [batch.digest() for batch in held]
        view = next(batches)["action"].numpy()[1:, 2]
        copy = view.copy()
        crew = loader._engine.workers.pool(loader._engine)._crew
        for _ in range(5):
            next(batches)
        num_buffers = crew._buffers.num_allocated
        for _ in range(12):
            next(batches)
        assert crew._buffers.num_allocated == num_buffers, "a steady run allocates nothing"
        assert [batch.digest() for batch in held] == digests
        assert (view == copy).all()
    assert [batch.digest() for batch in held] == digests, "batches outlive the loader"


def test_windows_found_bad_by_workers_are_in_the_state(tmp_path: Path, demo_dataset: Path) -> None:
    """`substitute` gives the same batches and the same list as without processes, and the list goes along on resume."""
    import shutil

    folder = shutil.copytree(demo_dataset, tmp_path / "damaged")
    shard = max(folder.rglob("*.tar"), key=lambda p: p.stat().st_size)
    middle = shard.stat().st_size // 2
    with shard.open("r+b") as file:
        file.seek(middle)
        file.write(bytes(4000))
    arguments = {"window": tl.Window(num_steps=3), "global_batch_size": 8, "seed": 2, "on_error": "substitute", **ALONE}
    with tl.Loader(folder, num_workers=0, **arguments) as loader:
        expected = [batch.digest() for batch in itertools.islice(loader, 6)]
        state = loader.state_dict()
    assert state["quarantine"], "the damage is seen"
    with tl.Loader(folder, workers="processes:2", **arguments) as loader:
        batches = iter(loader)
        assert [next(batches).digest() for _ in range(6)] == expected
        # Of batches that are in the works there may be more.
        assert [row for row in loader.state_dict()["quarantine"] if row[1] < 6] == state["quarantine"]
        assert loader.stats()["substituted"] > 0
        loader.load_state_dict(state)
        assert next(batches).train_step == 6


# ---- how they are started ----


def run_script(folder: Path, text: str, *args: object) -> subprocess.CompletedProcess[str]:
    script = folder / "script.py"
    script.write_text(textwrap.dedent(text))
    repo = Path(tl.__file__).parents[1]
    return subprocess.run(
        [sys.executable, script, *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        env={"PYTHONPATH": str(repo), "PATH": "/usr/bin:/bin"},
    )


def test_script_without_a_main_guard_works_from_a_thread_and_may_end_without_close(
    tmp_path: Path, demo_dataset: Path
) -> None:
    """The script is not run again by workers, they do not end with the thread that started them, nor outlive the script."""
    done = run_script(
        tmp_path,
        """
        import sys, threading, itertools
        import trajload as tl
        print("once")
        loader = tl.Loader(sys.argv[1], window=tl.Window(num_steps=4), global_batch_size=4, workers="processes:2", rank=0, world_size=1)
        batches = iter(loader)
        thread = threading.Thread(target=next, args=(batches,))
        thread.start()
        thread.join()
        print([next(batches).train_step for _ in range(6)], loader.stats()["worker_respawns"])
        print(*loader.stats()["worker_pids"])
        """,
        demo_dataset,
    )
    assert (done.returncode, done.stderr) == (0, "")
    once, steps, pids = done.stdout.splitlines()
    assert (once, steps) == ("once", "[1, 2, 3, 4, 5, 6] 0")
    assert not [pid for pid in pids.split() if Path(f"/proc/{pid}").exists()]


def test_transform_of_the_script_itself_is_refused_with_advice(tmp_path: Path, demo_dataset: Path) -> None:
    """What a worker could not import is named when the loader is built, not when a worker fails."""
    done = run_script(
        tmp_path,
        """
        import sys
        import trajload as tl
        def mine(window, generator):
            return window
        arguments = dict(window=tl.Window(num_steps=4), global_batch_size=4, rank=0, world_size=1, transforms=[mine])
        try:
            tl.Loader(sys.argv[1], workers="processes:2", **arguments)
        except tl.errors.ConfigError as err:
            print(err)
        print(tl.Loader(sys.argv[1], workers="auto", num_workers=2, **arguments).stats()["workers_why"])
        """,
        demo_dataset,
    )
    assert done.returncode == 0, done.stderr
    refusal, why = done.stdout.splitlines()
    assert refusal.startswith("'mine' is defined in the script that was started") and "Move it to a module" in refusal
    assert why.startswith("auto: ")


def test_what_cannot_be_sent_is_refused_with_advice(dataset: tl.Dataset, user_transforms: Any) -> None:
    """Python cannot pickle a lock; the message says what to do."""
    transform = user_transforms.Locked()
    with pytest.raises(tl.errors.ConfigError, match="define transforms in a module, or use workers='threads'"):
        tl.Loader(dataset, window=WINDOW, global_batch_size=4, workers="processes:2", transforms=[transform], **ALONE)


def test_what_is_sent_is_small(dataset: tl.Dataset) -> None:
    """Below 64 KiB, since a worker opens the dataset itself."""
    with tl.Loader(dataset, window=WINDOW, global_batch_size=4, workers="processes:2", **ALONE) as loader:
        next(iter(loader))
        assert len(loader._engine.workers._setup) < 1 << 16


# ---- auto ----


def test_auto_changes_over_without_a_gap(dataset: tl.Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads go on until the processes are there; the stream is the same, and stats tell what was chosen and why."""
    monkeypatch.setattr(auto, "_MEASURE_S", 0.0)
    monkeypatch.setattr(auto, "_MEASURE_BATCHES", 1)
    monkeypatch.setattr(auto, "verdict", lambda *_: ("processes:2", "auto: because"))
    with tl.Loader(
        dataset, window=WINDOW, global_batch_size=4, streams=["action"], workers="auto", num_workers=2, **ALONE
    ) as loader:
        assert loader.stats()["workers_why"] == "auto: not yet measured"
        num_after = 0
        for k, batch in enumerate(loader):
            assert (batch.train_step, batch.digest()) == (k, loader.batch_at(k).digest())
            num_after += isinstance(loader._prefetcher, auto.AutoRun) and loader._prefetcher._threads is None
            if num_after == 5:
                break
        assert (loader.stats()["workers"], loader.stats()["workers_why"]) == ("processes:2", "auto: because")


FREE, HELD, SHORT = GilUse(100, 2, 0.0), GilUse(100, 90, 0.4), GilUse(2, 2, 0.1)


@pytest.mark.parametrize(
    ("num_cpus", "waited_s", "ran_s", "queued_s", "gil", "expected", "reason"),
    [
        (2, 0.5, 19.0, 0.0, FREE, "threads", "they keep up"),
        (2, 0.5, 11.0, 0.0, HELD, "threads", "they keep up"),
        (2, 9.0, 19.0, 0.0, FREE, "threads", "they run side by side"),
        (2, 9.0, 3.0, 0.0, FREE, "threads", "they wait for data"),
        (2, 9.0, 11.0, 0.0, HELD, "processes:2", "they wait for each other"),
        (2, 9.0, 11.0, 0.0, FREE, "processes:2", "they wait for each other"),  # in pieces too short to be met
        (2, 9.0, 9.0, 10.0, FREE, "threads", "they run side by side"),  # as far as others let them
        (2, 9.0, 4.0, 16.0, HELD, "processes:2", "they wait for each other"),
        (2, 9.0, 2.0, 7.0, FREE, "threads", "they wait for data"),
        (1, 9.0, 4.0, 6.0, HELD, "threads", "they use what there is"),
        (2, 9.0, 1.0, 0.0, HELD, "processes:6", "one that waits keeps the others waiting"),
        (2, 9.0, 1.0, 0.0, SHORT, "threads", "they wait for data"),  # asked too seldom to know
        (1, 9.0, 9.9, 0.0, HELD, "threads", "they use what there is"),
        (1, 9.0, 1.0, 0.0, HELD, "processes:6", "one that waits keeps the others waiting"),
        (1, 9.0, 1.0, 0.0, FREE, "threads", "they wait for data"),
        (6, 9.0, 12.0, 0.0, HELD, "processes:6", "they wait for each other"),
        (2.5, 9.0, 11.0, 0.0, HELD, "processes:2", "they wait for each other"),
    ],
)
def test_verdict_of_auto(
    num_cpus: float, waited_s: float, ran_s: float, queued_s: float, gil: GilUse, expected: str, reason: str
) -> None:
    """Of ten seconds: processes where the consumer waits and the interpreter is what threads wait for, in use or not."""
    name, why = auto.verdict(auto.Measured(10.0, waited_s, ran_s, queued_s, num_cpus, gil), 6)
    assert name == expected
    assert why.endswith(reason)
