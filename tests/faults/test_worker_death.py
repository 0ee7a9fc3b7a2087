"""Worker processes that are killed, crash, hang or raise: same stream or a clear error, and nothing left behind."""

from __future__ import annotations

import itertools
import os
import re
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from interrupting import interrupt

import trajload as tl
from trajload.errors import StageFailedError
from trajload.pipeline.wire import RemoteTraceback

pytestmark = [pytest.mark.multiproc, pytest.mark.alone]

ALONE = {"rank": 0, "world_size": 1}
COMMON: dict[str, Any] = {
    "window": tl.Window(num_steps=3),
    "seed": 5,
    "streams": ["action", "reward", "language"],
    **ALONE,
}
HERE = Path(__file__).parent


@pytest.fixture
def bad(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Transforms that go wrong, from a module that workers can import."""
    monkeypatch.syspath_prepend(str(HERE))
    import user_transforms

    return user_transforms.Bad


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until_gone(pids: list[int]) -> list[int]:
    """Return those that still run after a minute."""
    deadline = time.monotonic() + 60
    while (left := [pid for pid in pids if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


def both_workers(loader: tl.Loader, killed: set[int]) -> list[int]:
    """Return the pids of two workers that live, once those that were killed are replaced."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        pids: list[int] = loader.stats()["worker_pids"]
        if len(pids) == 2 and not killed & set(pids) and all(map(is_alive, pids)):
            return pids
        time.sleep(0.01)
    raise AssertionError(f"killed workers are not replaced: {loader.stats()['worker_pids']}")


def test_twenty_kills_change_no_byte_and_leave_nothing(dataset: tl.Dataset) -> None:
    """Ten times both workers are killed, in the middle of whatever they do; the leak guard looks at what is left."""
    with tl.Loader(dataset, global_batch_size=8, workers="processes:2", num_epochs=1, prefetch=1, **COMMON) as loader:
        # One batch ahead, so that workers make progress between two kills: three deaths at one train_step end a run.
        expected = [loader.batch_at(k).digest() for k in range(len(loader))]
        got = []
        killed: set[int] = set()
        for batch in loader:
            got.append(batch.digest())
            if batch.train_step % 2 == 0 and batch.train_step < 20:
                pids = both_workers(loader, killed)
                for pid in pids:
                    os.kill(pid, signal.SIGKILL)
                killed.update(pids)
        assert got == expected
        assert len(got) > 20
        assert len(killed) == 20
        both_workers(loader, killed)
        deadline = time.monotonic() + 60  # a worker is seen a moment before it is counted
        while loader.stats()["worker_respawns"] != 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert loader.stats()["worker_respawns"] == 20


@pytest.mark.parametrize(
    ("how", "reason"),
    [("kill", "SIGKILL, as the kernel does when memory runs out"), ("segfault", r"SIGSEGV; its stacks:\n.*string_at")],
)
def test_worker_that_dies_at_the_same_step_each_time_stops_the_run(
    dataset: tl.Dataset, bad: Callable[..., Any], how: str, reason: str
) -> None:
    """Three deaths at one train_step are no accident: the error names worker, signal and train_step."""
    with tl.Loader(dataset, global_batch_size=4, workers="processes:1", transforms=[bad(how)], **COMMON) as loader:
        loader.seek(7)
        with pytest.raises(
            StageFailedError, match="(?s)worker process 0 .* died 3 times in a row: " + reason
        ) as caught:
            next(iter(loader))
    assert caught.value.at.train_step == 7


@pytest.mark.parametrize("how", ["sleep", "hold"])
def test_worker_that_hangs_once_is_replaced(
    dataset: tl.Dataset, bad: Callable[..., Any], how: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The stream goes on as if nothing had been, and the log says where it hung, even if it held the interpreter."""
    hung = bad(how, str(tmp_path / "hung"))
    arguments = {"global_batch_size": 4, "transforms": [hung], **COMMON}
    with tl.Loader(dataset, workers="processes:2", worker_timeout_s=6.0, **arguments) as loader:
        got = [batch.digest() for batch in itertools.islice(loader, 5)]
        assert loader.stats()["worker_hangs"] >= 1  # more on a machine that is busy with other things
    with tl.Loader(dataset, num_workers=0, **arguments) as loader:
        assert got == [loader.batch_at(k).digest() for k in range(5)]
    assert "user_transforms.py" in caplog.text
    assert "in __call__" in caplog.text


def test_worker_that_stops_while_idle_is_replaced_when_there_is_work(
    dataset: tl.Dataset, caplog: pytest.LogCaptureFixture
) -> None:
    """Time counts from when work is handed out, also if nobody was watching; a process that takes no signal is killed."""
    arguments = {"global_batch_size": 4, "workers": "processes:1", "worker_timeout_s": 600.0, "prefetch": 1}
    with tl.Loader(dataset, **arguments, **COMMON) as loader:
        batches = iter(loader)
        crew = loader._engine.workers.pool(loader._engine)._crew
        seat = crew.seats[0]
        assert next(batches).train_step == 0
        with crew.changed:
            assert crew.changed.wait_for(lambda: not seat.sent, 120), "it makes what it may make ahead"
            process = seat.process
            os.kill(process.pid, signal.SIGSTOP)
            seat.since -= 1000.0
            assert crew.hanging() == [] and not crew.watches_time, "having nothing to do is no hang"
        assert next(batches).digest() == loader.batch_at(1).digest()  # ready; the next one is handed out
        with crew.changed:
            assert seat.sent and seat.process is process
            assert crew.hanging() == [], "it has not had this work for long"
            seat.since -= 1000.0
            crew.wake()
        for k in (2, 3):
            assert next(batches).digest() == loader.batch_at(k).digest()
        assert loader.stats()["worker_hangs"] == 1
    assert "it does not take signals" in caplog.text


def test_worker_that_hangs_again_stops_the_run_and_tells_where(dataset: tl.Dataset, bad: Callable[..., Any]) -> None:
    """The error holds the stack of the hanging transform."""
    arguments = {"global_batch_size": 2, "workers": "processes:1", "worker_timeout_s": 4.0}
    with tl.Loader(dataset, transforms=[bad("sleep")], **arguments, **COMMON) as loader:
        loader.seek(3)
        with pytest.raises(
            StageFailedError, match=r"(?s)made no progress for 4.0 s, 2 times.*user_transforms.py"
        ) as caught:
            next(iter(loader))
    assert caught.value.at.train_step == 3


def test_worker_that_has_answered_while_nobody_listened_does_not_hang(dataset: tl.Dataset) -> None:
    """A loader's process that was stopped, or got no CPU, reads what has come before it calls a worker hanging."""
    arguments = {"global_batch_size": 4, "workers": "processes:1", "worker_timeout_s": 600.0, "prefetch": 1}
    with tl.Loader(dataset, **arguments, **COMMON) as loader:
        batches = iter(loader)
        next(batches)
        crew = loader._engine.workers.pool(loader._engine)._crew
        seat = crew.seats[0]
        with crew.changed:  # nobody else reads
            process = seat.process
            crew.depth = 2
            crew.fill(1, None)
            answers = select.poll()
            answers.register(process.channel.socket.fileno(), select.POLLIN)
            assert answers.poll(120_000)
            seat.since -= 1000.0
            crew.on_hang(seat, process, "no stacks")
            assert seat.process is process and crew.num_hangs == 0
        assert next(batches).digest() == loader.batch_at(1).digest()


def test_error_of_a_transform_comes_out_with_location_and_traceback(
    dataset: tl.Dataset, bad: Callable[..., Any]
) -> None:
    """Class, message and location are those that threads give; the traceback of the worker is its cause."""
    arguments = {"global_batch_size": 6, "transforms": [bad("raise")], **COMMON}
    seen = []
    for workers in ("threads", "processes:2"):
        with tl.Loader(dataset, workers=workers, **arguments) as loader:
            for _ in range(2):  # the loader may be used again after an error
                loader.seek(2)
                with pytest.raises(StageFailedError) as caught:
                    next(iter(loader))
                seen.append((str(caught.value), caught.value.at))
    assert seen[0] == seen[1] == seen[2] == seen[3]
    assert "ValueError: this window is not to my taste" in seen[0][0]
    assert isinstance(caught.value.__cause__, RemoteTraceback)
    assert "in __call__" in str(caught.value.__cause__)


def test_worker_that_cannot_import_what_it_is_sent_says_so(
    dataset: tl.Dataset, bad: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module that only the loader's process has is an error at once, not a hang."""
    with tl.Loader(dataset, global_batch_size=4, workers="processes:2", transforms=[bad("no")], **COMMON) as loader:
        monkeypatch.setattr(sys, "path", [p for p in sys.path if Path(p) != HERE])
        with pytest.raises(StageFailedError, match="ModuleNotFoundError: No module named 'user_transforms'"):
            next(iter(loader))


def test_dropping_the_loader_ends_its_workers(dataset: tl.Dataset) -> None:
    """Neither close nor the end of the loop is needed."""
    loader = tl.Loader(dataset, global_batch_size=4, workers="processes:2", **COMMON)
    batches = iter(loader)
    batch = next(batches)
    pids = loader.stats()["worker_pids"]
    assert all(map(is_alive, pids))
    del loader, batches
    assert wait_until_gone(pids) == []
    assert batch.train_step == 0


SCRIPT = """
import sys, time
import trajload as tl
import user_transforms
sys.path.append(sys.argv[3])
loader = tl.Loader(
    sys.argv[1], window=tl.Window(num_steps=3), global_batch_size=4, rank=0, world_size=1, streams=["action"],
    workers="processes:2", transforms=[user_transforms.Bad(sys.argv[2])],
)
batches = iter(loader)
pool = loader._engine.workers.pool(loader._engine)
if sys.argv[2] == "none":
    next(batches)
else:
    import threading
    threading.Thread(target=next, args=(batches,), daemon=True).start()
    while not all(loader.stats()["worker_pids"]) or not pool.is_ready:
        time.sleep(0.05)
    time.sleep(1.0)
print(*loader.stats()["worker_pids"], flush=True)
if sys.argv[2] == "none":
    for _ in batches:
        pass
time.sleep(100)
"""


def start_script(folder: Path, dataset: Path, how: str) -> tuple[subprocess.Popen[str], list[int]]:
    """Start a script with two workers and return it with their pids."""
    script = folder / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))
    repo = Path(tl.__file__).parents[1]
    process = subprocess.Popen(
        [sys.executable, script, str(dataset), how, str(HERE)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{repo}:{HERE}", "PATH": "/usr/bin:/bin"},
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    if len(pids) != 2:
        process.kill()
        pytest.fail(process.communicate()[1])
    return process, pids


@pytest.mark.parametrize("how", ["none", "hold"])
def test_killed_loader_leaves_no_process_and_no_memory(tmp_path: Path, demo_dataset: Path, how: str) -> None:
    """Workers end with their loader, also those in a transform that never lets go of the interpreter."""
    before = set(os.listdir("/dev/shm"))
    process, pids = start_script(tmp_path, demo_dataset, how)
    maps = Path(f"/proc/{pids[0]}/maps").read_text()
    assert re.search(r"/memfd:trajload-batch", maps), "batches are in anonymous memory"
    assert "/dev/shm" not in maps
    process.kill()
    process.communicate()
    assert wait_until_gone(pids) == []
    assert not [name for name in set(os.listdir("/dev/shm")) - before if "trajload" in name]


def test_interrupt_ends_loader_and_workers(tmp_path: Path, demo_dataset: Path) -> None:
    """Ctrl-C in the middle of an iteration: one KeyboardInterrupt, no process, no words of workers."""
    process, pids = start_script(tmp_path, demo_dataset, "none")
    _, stderr, number = interrupt(process, lambda: process.send_signal(signal.SIGINT))
    assert process.returncode == -signal.SIGINT
    assert stderr.count("KeyboardInterrupt") == number
    assert wait_until_gone(pids) == []
