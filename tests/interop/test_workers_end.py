"""Workers that are killed, interrupted or too many: nothing hangs, nothing is left, and what is sent to them is small."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from interrupting import interrupt
from left_by_torch import cleared

import trajload as tl
from trajload.errors import ConfigError, SourceError, StageFailedError
from trajload.interop.recipe import LoaderRecipe, _PackedEpisodes
from trajload.interop.steps import TrainSteps
from trajload.rng import key_rng

pytestmark = [
    pytest.mark.alone,
    # From 3.12 on Python warns of forks beside threads; workers build loaders of their own and use none of the parent's.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
    # Torch raises a worker's death from a signal handler, at any instruction: a socket it was just then making to take
    # a tensor over, or one of the ten files it opens to see whether files can still be opened, is left to the
    # collector, which closes it, and says so.
    pytest.mark.filterwarnings("ignore:unclosed (<socket.socket|file <_io.):ResourceWarning"),
    # So is what it was just then pickling to ask for a tensor: bytes that the collector frees before the view of them.
    pytest.mark.filterwarnings(
        "ignore:(?s)Exception ignored in. <_io.BytesIO.*Existing exports of data:pytest.PytestUnraisableExceptionWarning"
    ),
    # Raised where Python drops an object, it goes no further, and torch tells of the death again when it waits.
    pytest.mark.filterwarnings(
        "ignore:(?s)Exception ignored.*DataLoader worker:pytest.PytestUnraisableExceptionWarning"
    ),
]

Make = Callable[..., tl.Loader]

_MOST_SENT_BYTES = 64 << 10

_PROGRAM = """
import sys, time
import trajload as tl

def main():
    with tl.Loader(sys.argv[1], window=tl.Window(num_steps=4), global_batch_size=6, rank=0, world_size=1) as loader:
        with loader.as_dataloader(num_workers=2, steps_per_epoch=1000, multiprocessing_context=sys.argv[2],
                                  persistent_workers=sys.argv[3] == "persistent") as dataloader:
            for batch in dataloader:
                if batch.train_step == 1:
                    print("running", flush=True)
                time.sleep(0.05)

if __name__ == "__main__":
    main()
"""


@pytest.fixture(autouse=True)
def nothing_of_the_killed() -> Iterator[None]:
    """Clear away what torch leaves to nobody where a worker is killed, or its death raised, in the wrong moment."""
    with cleared():
        yield


@pytest.mark.multiproc
@pytest.mark.parametrize("persistent", [False, True], ids=["", "persistent"])
@pytest.mark.parametrize("number", [0, 1])
def test_killed_worker_is_named_and_the_run_goes_on(
    make_loader: Make, want: list[str], number: int, persistent: bool
) -> None:
    """SIGKILL of a worker: an error that says which one and what to do, and a new loop goes on where it stopped."""
    with make_loader().as_dataloader(
        num_workers=2,
        steps_per_epoch=10,
        multiprocessing_context="fork",
        persistent_workers=persistent,
        prefetch_factor=1,
    ) as dataloader:
        got: list[str] = []
        pid = 0
        before = set(psutil.Process().children())
        with pytest.raises((StageFailedError, RuntimeError)) as caught:
            for batch in dataloader:
                got.append(batch.digest())
                if len(got) == 3:
                    workers = sorted(set(psutil.Process().children()) - before, key=lambda child: child.pid)
                    assert len(workers) == 2
                    pid = workers[number].pid
                    os.kill(pid, signal.SIGKILL)
                del batch
        assert f"(pid {pid})" in str(caught.value)
        assert got == want[: len(got)]
        # Raised by torch while a batch was looked at here, that batch counts as delivered.
        begin = dataloader.loader.train_step
        assert begin - len(got) in ((0,) if isinstance(caught.value, StageFailedError) else (0, 1))
        assert [batch.digest() for batch in dataloader] == want[begin:10]


@pytest.mark.multiproc
def test_worker_that_dies_while_it_is_waited_for_is_named(make_loader: Make) -> None:
    """The error is trajload's, with the worker's number, how it ended, and where the cursor stays."""
    with (
        make_loader(transforms=[_die_at_two]).as_dataloader(
            num_workers=1, steps_per_epoch=10, multiprocessing_context="fork"
        ) as dataloader,
        pytest.raises(
            StageFailedError, match=r"worker 0 \(pid \d+\) was killed by signal 9 while train_step \d was awaited"
        ),
    ):
        list(dataloader)


@pytest.mark.multiproc
def test_persistent_worker_that_dies_between_two_loops_is_replaced(make_loader: Make, want: list[str]) -> None:
    """The next loop finds it dead and starts new ones, whoever it was that torch told of the death."""
    with make_loader().as_dataloader(
        num_workers=2, steps_per_epoch=4, multiprocessing_context="fork", persistent_workers=True
    ) as dataloader:
        assert [batch.digest() for batch in dataloader] == want[:4]
        worker = dataloader._iterator._workers[0]
        with contextlib.suppress(RuntimeError):  # torch's, from its signal handler
            worker.kill()
            worker.join(60)
        worker.join(60)
        assert not worker.is_alive()
        assert [batch.digest() for batch in dataloader] == want[4:8]


def _kill(worker: Any) -> None:
    """Kill a worker, and return to whoever called once torch's signal handler is about to raise: in here."""
    os.kill(worker.pid, signal.SIGKILL)
    os.waitid(os.P_PID, worker.pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.multiproc
@pytest.mark.parametrize("moment", ["delivered", "transform"])
def test_batch_that_a_death_kept_from_its_consumer_comes_again(
    make_loader: Make, want: list[str], moment: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises between a batch's arrival and its delivery, counted or not: by trajload's name, and it is not lost."""
    dying: list[Any] = []

    def kill_one() -> None:
        while dying:
            _kill(dying.pop())

    def transform(batch: Any) -> Any:
        if moment == "transform":
            kill_one()
        return batch

    with make_loader().as_dataloader(
        num_workers=2, steps_per_epoch=6, multiprocessing_context="fork", transform=transform
    ) as dataloader:
        loader = dataloader.loader
        delivered = loader.delivered

        def count(train_step: int, claim: int) -> None:
            delivered(train_step, claim)
            if moment == "delivered":
                kill_one()

        monkeypatch.setattr(loader, "delivered", count)
        got = []
        with pytest.raises(
            StageFailedError, match=r"worker 1 \(pid \d+\) was killed by signal 9 while train_step 2 was awaited"
        ):
            for batch in dataloader:
                got.append(batch.digest())
                if len(got) == 2:
                    dying.append(dataloader._running[0]._workers[1])
                del batch
        assert got == want[:2] and loader.train_step == 2 and loader.seen.ranges == [(0, 2)]
        assert [batch.digest() for batch in dataloader] == want[2:6]


@pytest.mark.multiproc
def test_persistent_worker_that_dies_while_a_loop_begins_is_named(
    make_loader: Make, want: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch then waits for the word of each worker; the loop after that has new ones."""
    with make_loader().as_dataloader(
        num_workers=2, steps_per_epoch=3, multiprocessing_context="fork", persistent_workers=True
    ) as dataloader:
        assert [batch.digest() for batch in dataloader] == want[:3]
        with (
            monkeypatch.context() as patch,
            pytest.raises(StageFailedError, match=r"worker 0 \(pid \d+\) was killed by signal 9 while train_step 3"),
        ):
            patch.setattr(type(dataloader._iterator), "_reset", lambda batches, *_: _kill(batches._workers[0]))
            next(iter(dataloader))
        assert [batch.digest() for batch in dataloader] == want[3:6]


@pytest.mark.multiproc
def test_worker_that_dies_while_others_are_started_is_named_and_they_end(
    make_loader: Make, want: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch raises before it has an iterator to give; what it had started ends with the error, and not with its traceback."""
    started: list[Any] = []

    def dies(batches: Any, *_: Any, **__: Any) -> None:
        started.extend(batches._workers)
        _kill(started[1])

    with make_loader().as_dataloader(num_workers=2, steps_per_epoch=3, multiprocessing_context="fork") as dataloader:
        with (
            monkeypatch.context() as patch,
            pytest.raises(StageFailedError, match=r"worker 1 \(pid \d+\) was killed by signal 9 while train_step 0"),
        ):
            patch.setattr("torch.utils.data.dataloader._MultiProcessingDataLoaderIter._reset", dies)
            next(iter(dataloader))
        assert len(started) == 2 and not any(worker.is_alive() for worker in started)
        assert [batch.digest() for batch in dataloader] == want[:3]


@pytest.mark.multiproc
def test_nothing_of_a_loop_that_has_ended_still_works(make_loader: Make) -> None:
    """Nor the threads that fed its workers: a program that ended while one ends would be told of leaked semaphores."""
    with make_loader().as_dataloader(
        num_workers=2, steps_per_epoch=4, multiprocessing_context="fork", prefetch_factor=1
    ) as dataloader:
        feeders = set()
        for _ in range(3):
            for batch in dataloader:
                feeders |= {queue._thread for queue in dataloader._running[0]._index_queues}
                del batch
            assert not any(feeder.is_alive() for feeder in feeders)
        assert len(feeders) == 6


def _die_at_two(window: dict[str, Any], generator: Any) -> dict[str, Any]:
    if generator.random() < 0.2:
        os.kill(os.getpid(), signal.SIGKILL)
    return window


@pytest.mark.multiproc
@pytest.mark.parametrize(
    ("to", "context", "persistent"), [("group", "spawn", ""), ("parent", "spawn", ""), ("parent", "fork", "persistent")]
)
def test_interrupt_leaves_nothing_running(
    demo_dataset: Path, tmp_path: Path, environment: dict[str, str], context: str, persistent: str, to: str
) -> None:
    """Ctrl-C in a terminal reaches parent and workers alike, `kill -INT` the parent alone: all of them end."""
    script = tmp_path / "program.py"
    script.write_text(_PROGRAM)
    child = subprocess.Popen(
        [sys.executable, str(script), str(demo_dataset), context, persistent],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=environment,
    )
    assert child.stdout is not None
    try:
        assert child.stdout.readline() == "running\n"
        workers = psutil.Process(child.pid).children(recursive=True)
        assert len(workers) >= 2
        kill = os.killpg if to == "group" else os.kill
        _, errors, _ = interrupt(child, lambda: kill(child.pid, signal.SIGINT))
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()
    assert "KeyboardInterrupt" in errors
    gone, alive = psutil.wait_procs(workers, timeout=60)
    assert not alive, f"{alive} of {gone + alive} still run"


# ---- what is sent ----


def test_recipe_is_small_whatever_the_number_of_episodes(tmp_path: Path) -> None:
    """A worker is sent a path, a digest, and a bit for each episode where some are chosen."""
    spec = tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", dtype="float32", shape=(1,))
    options: dict[str, Any] = {"window": tl.Window(num_steps=2), "global_batch_size": 4, "rank": 0, "world_size": 1}
    sizes: dict[tuple[int, str], int] = {}
    for num in (10, 1000):
        with tl.Writer(tmp_path / str(num), streams=[spec], step_rate_hz=10) as writer:
            for episode in range(num):
                writer.add_episode({"action": np.full((2, 1), episode, dtype=np.float32)})
        dataset = tl.open(tmp_path / str(num))
        chosen = tl.split(dataset, {"train": 0.9, "val": 0.1}, seed=5)["train"]
        for name, episodes in (("all", None), ("some", chosen), ("a function", lambda info: info.index % 3 > 0)):
            with tl.Loader(dataset, episodes=episodes, **options) as loader:
                sent = pickle.dumps(TrainSteps(loader))
                there = pickle.loads(sent)
                assert there[1].digest() == loader.batch_at(1).digest()
                there.close()
            sizes[num, name] = len(sent)
        dataset.close()
    for name in ("all", "some", "a function"):
        assert sizes[1000, name] - sizes[10, name] <= 1000 // 8 + 64
        assert sizes[10, name] + 100_000 // 8 + 64 <= _MOST_SENT_BYTES // 2


def test_chosen_episodes_are_a_bit_each() -> None:
    """Of 100,000 episodes, half of them at random: 12.5 kB, and the same ones come out."""
    chosen = np.flatnonzero(key_rng(3, "test").random(100_000) < 0.5)
    packed = _PackedEpisodes(np.isin(np.arange(100_000), chosen))
    assert len(pickle.dumps(packed)) < 13_000
    assert packed.unpack() == chosen.tolist()


def test_recipe_of_a_mixture_builds_the_same_mixture(demo_dataset: Path) -> None:
    """Sources, weights, renamed streams and chosen episodes go along."""
    mixture = tl.Mixture(
        {
            "a": tl.Source(demo_dataset, weight=0.7, streams=["action"], episodes=lambda info: info.index > 0),
            "b": tl.Source(demo_dataset, weight={0: 0.3}, streams=["proprioception", "action"], episodes=[0, -1]),
        },
        by="windows",
    )
    options: dict[str, Any] = {"global_batch_size": 8, "rank": 0, "world_size": 1, "seed": 4}
    with tl.Loader(mixture, window=tl.Window(num_steps=3), **options) as loader:
        there = pickle.loads(pickle.dumps(TrainSteps(loader)))
        assert [there[k].digest() for k in range(4)] == [loader.batch_at(k).digest() for k in range(4)]
        there.close()
    mixture.close()


def test_dataset_that_changed_is_refused(demo_dataset: Path, tmp_path: Path) -> None:
    """A worker that starts after the data were replaced says so, and reads none of them."""
    import shutil

    from trajload.demo import EpisodeLength, generate

    folder = tmp_path / "data"
    shutil.copytree(demo_dataset, folder)
    with tl.Loader(folder, window=tl.Window(num_steps=2), global_batch_size=2, rank=0, world_size=1) as loader:
        sent = pickle.dumps(LoaderRecipe(loader))
    shutil.rmtree(folder)
    generate(folder, num_episodes=1, seed=8, length=EpisodeLength(min_steps=20, max_steps=20))
    with pytest.raises(
        SourceError, match=r"has changed since this process was told of it: got digest .* Open it again"
    ):
        pickle.loads(sent).build()


class _Drifts:
    """A transform that comes out of a pickle as another one."""

    def __init__(self, offset: float = 1.0) -> None:
        self.offset = offset

    def __call__(self, window: dict[str, Any], generator: Any) -> dict[str, Any]:
        return {**window, "action": window["action"] + np.float32(self.offset)}

    def config_json(self) -> dict[str, Any]:
        return {"offset": self.offset}

    def __reduce__(self) -> tuple[Any, ...]:
        return _Drifts, (2.0,)


def test_recipe_that_builds_another_loader_is_refused(make_loader: Make) -> None:
    """What a worker builds is compared with what the parent has."""
    with make_loader(streams=["action"], transforms=[_Drifts()]) as loader:
        sent = pickle.dumps(LoaderRecipe(loader))
    with pytest.raises(
        ConfigError, match=r"the loader built in this process is another one: got configuration \w{12}…"
    ):
        pickle.loads(sent).build()


@pytest.mark.multiproc
def test_worker_that_ends_by_itself_is_not_said_to_lack_memory(make_loader: Make) -> None:
    """As where a script without a guarded main part is imported by its own worker: what it printed tells more."""
    with make_loader().as_dataloader(
        num_workers=1, steps_per_epoch=2, multiprocessing_context="fork", worker_init_fn=_end_with_1
    ) as dataloader:
        with pytest.raises(StageFailedError, match=r"worker 0 .* ended with exit code 1 .*__main__") as caught:
            next(iter(dataloader))
        assert "memory" not in str(caught.value)
        assert dataloader.loader.train_step == 0


def _end_with_1(_: int) -> None:
    os._exit(1)
