"""`Loader.as_dataloader`: the same batches through torch, and a state that counts what was delivered."""

from __future__ import annotations

import json
import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from damaging import flip_in_member
from torch.utils.data import DataLoader

import trajload as tl
from trajload.errors import ConfigError, DecodeError, ShardCorruptError, StageFailedError, TrajloadError
from trajload.interop.dataloader import TrajDataLoader
from trajload.interop.request import Delivery

# From 3.12 on Python warns of forks beside threads; workers build loaders of their own and use none of the parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning")

Make = Callable[..., tl.Loader]

WORKERS = [
    pytest.param(0, id="threads"),
    *(pytest.param(n, id=f"{n}-workers", marks=pytest.mark.multiproc) for n in (1, 2)),
]


@pytest.fixture(params=WORKERS)
def num_workers(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture
def wrap(make_loader: Make) -> Iterator[Callable[..., TrajDataLoader]]:
    """Return a dataloader with passes of 5 train_steps; forked workers, which start fastest."""
    made: list[TrajDataLoader] = []

    def wrapped(num_workers: int, loader: tl.Loader | None = None, **options: Any) -> TrajDataLoader:
        if num_workers:
            options = {"multiprocessing_context": "fork", **options}
        loader = make_loader() if loader is None else loader
        made.append(loader.as_dataloader(**{"num_workers": num_workers, "steps_per_epoch": 5, **options}))
        return made[-1]

    yield wrapped
    for dataloader in made:
        dataloader.close()


def digests(dataloader: TrajDataLoader, most: int = 10**9) -> list[str]:
    out = []
    for batch in dataloader:
        out.append(batch.digest())
        if len(out) == most:
            break
    return out


def test_dataloader_is_one_of_torch(wrap: Callable[..., TrajDataLoader]) -> None:
    """Trainers that look for a DataLoader find one, of whole batches."""
    dataloader = wrap(0)
    assert isinstance(dataloader, DataLoader)
    assert dataloader.batch_size is None
    assert len(dataloader) == 5


def test_passes_are_the_loaders_batches(wrap: Callable[..., TrajDataLoader], num_workers: int, want: list[str]) -> None:
    """Each loop is one pass, and goes on where the last one ended; batches keep their train_step and refs."""
    dataloader = wrap(num_workers)
    assert digests(dataloader) == want[:5]
    second = list(dataloader)
    assert [batch.digest() for batch in second] == want[5:10]
    assert [batch.train_step for batch in second] == list(range(5, 10))
    with dataloader.loader as loader:
        assert second[0].refs == loader.batch_at(5).refs


def test_loop_after_a_break_goes_on_after_the_last_delivered_batch(
    wrap: Callable[..., TrajDataLoader], num_workers: int, want: list[str]
) -> None:
    """Batches that workers had ready are made again, and none is lost; the pass ends where it would have."""
    dataloader = wrap(num_workers)
    assert digests(dataloader, most=2) == want[:2]
    assert dataloader.state_dict()["cursor"] == {"train_step": 2}
    assert digests(dataloader) == want[2:5]
    assert digests(dataloader, most=1) == want[5:6]


@pytest.mark.multiproc
def test_persistent_workers_go_on_after_a_break_and_follow_a_loaded_state(
    wrap: Callable[..., TrajDataLoader], want: list[str]
) -> None:
    """Workers that live on forget what they were asked for and never delivered."""
    dataloader = wrap(2, persistent_workers=True)
    assert digests(dataloader, most=2) == want[:2]
    workers = [worker.pid for worker in dataloader._iterator._workers]
    state = dataloader.state_dict()
    assert digests(dataloader) == want[2:5]
    dataloader.load_state_dict(state)
    assert digests(dataloader) == want[2:5]
    assert [worker.pid for worker in dataloader._iterator._workers] == workers


def test_state_is_the_loaders_own(
    wrap: Callable[..., TrajDataLoader], make_loader: Make, num_workers: int, want: list[str]
) -> None:
    """A state taken in the middle of a pass loads into a plain loader, and a plain loader's state into a dataloader."""
    dataloader = wrap(num_workers)
    digests(dataloader, most=3)
    state = json.loads(json.dumps(dataloader.state_dict()))
    with make_loader() as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).digest() == want[3]
        plain = loader.state_dict()
    other = wrap(num_workers)
    other.load_state_dict(plain)
    assert digests(other) == want[4:5]
    assert digests(other) == want[5:10]


def test_loop_follows_a_cursor_that_is_moved(
    wrap: Callable[..., TrajDataLoader], num_workers: int, want: list[str]
) -> None:
    """seek and load_state_dict in the middle of a loop: it goes on from there to the end of that pass."""
    dataloader = wrap(num_workers)
    state = dataloader.state_dict()
    got = []
    for batch in dataloader:
        got.append(batch.train_step)
        if got == [0, 1]:
            dataloader.loader.seek(8)
        if got == [0, 1, 8, 9]:
            dataloader.load_state_dict(state)
        if len(got) == 7:
            dataloader.loader.seek(2)  # the train_step it is at: nothing changes
        assert batch.digest() == want[batch.train_step]
        del batch
    assert got == [0, 1, 8, 9, 0, 1, 2, 2, 3, 4]


def test_set_epoch_names_a_pass_and_leaves_a_cursor_inside_it(
    wrap: Callable[..., TrajDataLoader], num_workers: int, want: list[str]
) -> None:
    """After a resume trainers name the pass that is under way."""
    dataloader = wrap(num_workers)
    dataloader.set_epoch(2)
    assert digests(dataloader, most=1) == want[10:11]
    dataloader.set_epoch(2)
    assert digests(dataloader, most=2) == want[11:13]
    dataloader.sampler.set_epoch(0)
    assert digests(dataloader) == want[:5]
    with pytest.raises(ConfigError, match=r"epoch=-1 is invalid: expected an int of at least 0"):
        dataloader.set_epoch(-1)


def test_finite_run_ends(wrap: Callable[..., TrajDataLoader], make_loader: Make, num_workers: int) -> None:
    """A pass of a finite run is the run, and once it is over nothing comes."""
    dataloader = wrap(num_workers, make_loader(num_epochs=1, episodes=[0], streams=["action"]), steps_per_epoch=None)
    got = [batch.train_step for batch in dataloader]
    assert got == list(range(len(dataloader))) == list(range(len(dataloader.loader)))
    assert list(dataloader) == []


@pytest.mark.multiproc
@pytest.mark.parametrize("context", ["spawn", "forkserver"])
def test_other_start_methods_give_the_same_batches(
    wrap: Callable[..., TrajDataLoader], want: list[str], context: str
) -> None:
    """Workers that share nothing with this process; spawn is what is taken if nothing is said."""
    dataloader = wrap(1, multiprocessing_context=None if context == "spawn" else context)
    assert dataloader.multiprocessing_context.get_start_method() == context
    assert digests(dataloader, most=2) == want[:2]


@pytest.mark.multiproc
def test_nothing_is_drawn_from_torchs_generator(wrap: Callable[..., TrajDataLoader]) -> None:
    """How often a loop is begun does not change what a model draws; the guard of all tests checks the other generators."""
    before = torch.get_rng_state()
    dataloader = wrap(1)
    for _ in range(2):
        digests(dataloader, most=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_transform_is_applied_to_batches(wrap: Callable[..., TrajDataLoader], num_workers: int) -> None:
    """What comes out may be anything; a batch whose transform fails was not delivered."""
    calls: list[int] = []

    def transform(batch: tl.Batch) -> tuple[int, torch.Tensor]:
        calls.append(batch.train_step)
        if len(calls) == 2:
            raise ArithmeticError("no")
        return batch.train_step, batch["action"].float()

    dataloader = wrap(num_workers, transform=transform)
    with pytest.raises(ArithmeticError, match="no"):
        list(dataloader)
    assert dataloader.state_dict()["cursor"] == {"train_step": 1}
    assert dataloader.loader.seen.ranges == [(0, 1)]
    assert [train_step for train_step, _ in dataloader] == [1, 2, 3, 4]
    assert dataloader.loader.seen.ranges == [(0, 5)]


@pytest.mark.parametrize("option", ["batch_size", "shuffle", "sampler", "collate_fn", "generator"])
def test_what_the_loader_decides_is_refused(make_loader: Make, option: str) -> None:
    """Two places that decide the order would be one too many."""
    with (
        make_loader() as loader,
        pytest.raises(ConfigError, match=rf"{option} cannot be given here: the loader decides it"),
    ):
        loader.as_dataloader(**{option: None})


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "5"])
def test_bad_pass_length_is_refused(make_loader: Make, steps: Any) -> None:
    """Before anything runs."""
    with make_loader() as loader, pytest.raises(ConfigError, match=r"^steps_per_epoch=.* is invalid"):
        loader.as_dataloader(steps_per_epoch=steps)


def test_pass_is_one_epoch_of_windows_unless_said_otherwise(make_loader: Make) -> None:
    """Rounded down to whole batches."""
    with make_loader() as loader:
        assert len(loader.as_dataloader()) == loader.num_windows // 6


class _Locked:
    """A transform with something that stays in its process."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def __call__(self, window: dict[str, Any], generator: Any) -> dict[str, Any]:
        return window

    def config_json(self) -> dict[str, Any]:
        return {}


@pytest.mark.multiproc
def test_what_cannot_be_sent_is_refused_before_workers_start(make_loader: Make) -> None:
    """The message says what to do, in place of an error of pickle from the middle of a loop; threads take it."""
    with make_loader(transforms=[_Locked()], streams=["action"]) as loader:
        with pytest.raises(
            ConfigError, match=r"cannot be sent to a worker process: .*lock.* Define transforms at the top"
        ):
            loader.as_dataloader(num_workers=1)
        assert len(digests(loader.as_dataloader(steps_per_epoch=2))) == 2


# ---- bad data ----


@pytest.fixture
def damaged(demo_dataset: Path, tmp_path: Path) -> Path:
    """The demo dataset with one bit of a video of episode 1 flipped."""
    folder = tmp_path / "damaged"
    shutil.copytree(demo_dataset, folder)
    flip_in_member(folder, f"{tl.open(demo_dataset).episode_key(1)}.cam_front.mp4")
    return folder


def test_error_of_a_worker_keeps_its_class_and_location(
    wrap: Callable[..., TrajDataLoader], make_loader: Make, damaged: Path, num_workers: int
) -> None:
    """As if it had been raised in this process; the loop may be begun again and meets the same error."""
    with make_loader(dataset=damaged, streams=["cam_front"]) as loader:
        with pytest.raises(TrajloadError) as plain:
            for _ in loader:
                pass
        loader.seek(0)
        dataloader = wrap(num_workers, loader, steps_per_epoch=30)
        with pytest.raises(TrajloadError) as caught:
            list(dataloader)
        assert isinstance(caught.value, (DecodeError, ShardCorruptError))
        assert type(caught.value) is type(plain.value)
        assert str(caught.value) == str(plain.value)
        assert caught.value.at.stream == "cam_front" and caught.value.at.train_step == loader.train_step


def test_windows_that_workers_find_bad_reach_the_state(
    wrap: Callable[..., TrajDataLoader], make_loader: Make, damaged: Path, num_workers: int, caplog: Any
) -> None:
    """The same batches and the same list as a plain loader, whoever found them."""
    caplog.set_level(logging.ERROR)
    options = {"dataset": damaged, "streams": ["cam_front"], "on_error": "substitute"}
    with make_loader(**options, num_workers=0) as loader:
        plain = [next(iter(loader)).digest() for _ in range(10)]
        state = loader.state_dict()
    assert state["quarantine"]
    dataloader = wrap(num_workers, make_loader(**options), steps_per_epoch=10)
    assert digests(dataloader) == plain
    # Threads that were quick have found some for batches that nobody took: they stand from later train_steps on.
    found = [row for row in dataloader.state_dict()["quarantine"] if row[1] < len(plain)]
    assert found == state["quarantine"]


@pytest.mark.multiproc
def test_list_of_bad_windows_that_is_loaded_reaches_workers_that_run(
    wrap: Callable[..., TrajDataLoader], make_loader: Make
) -> None:
    """A good window that the state calls bad is replaced, also by workers that made it before the load."""
    dataloader = wrap(1, make_loader(on_error="substitute"), persistent_workers=True)
    batches = list(dataloader)
    state = dataloader.state_dict()
    bad = int(batches[2]["window_id"][3])
    state["cursor"] = {"train_step": 0}
    state["quarantine"] = [[bad, 1, "DecodeError"]]
    dataloader.load_state_dict(state)
    again = list(dataloader)
    assert int(again[2]["window_id"][3]) != bad
    assert dataloader.state_dict()["quarantine"] == state["quarantine"]
    state["quarantine"] = []
    dataloader.load_state_dict(state)
    assert [batch.digest() for batch in dataloader] == [batch.digest() for batch in batches]


@pytest.mark.multiproc
def test_worker_that_takes_too_long_is_an_error(wrap: Callable[..., TrajDataLoader], make_loader: Make) -> None:
    """`timeout` of torch, with what it was that did not come."""
    dataloader = wrap(1, make_loader(transforms=[_slow]), timeout=1)
    with pytest.raises(StageFailedError, match=r"no batch within timeout=1 s while train_step 0 was awaited"):
        list(dataloader)


def _slow(window: dict[str, Any], generator: Any) -> dict[str, Any]:
    import time

    time.sleep(3)
    return window


def test_load_weights_decide_rows_in_workers_too(
    wrap: Callable[..., TrajDataLoader], make_loader: Make, demo_dataset: Path, num_workers: int
) -> None:
    """A worker makes the rows that the cost table gives this rank."""
    dataset = tl.open(demo_dataset)
    costs = tl.CostTable({"action": [1000, 1, 1]}, dataset_digest=dataset.digest)
    loader = make_loader(dataset=dataset, streams=["action"], load_weights=costs, rank=1, world_size=2)
    plain = [loader.batch_at(train_step) for train_step in range(5)]
    assert len({len(batch["window_id"]) for batch in plain}) > 1
    assert digests(wrap(num_workers, loader)) == [batch.digest() for batch in plain]


# ---- memory and checkpoints of torch ----


@pytest.mark.gpu
@pytest.mark.multiproc
def test_pinned_batches_keep_what_they_are(
    wrap: Callable[..., TrajDataLoader], num_workers: int, want: list[str]
) -> None:
    """`pin_memory` of torch: page-locked tensors in a Batch with its train_step and refs."""
    if not torch.accelerator.is_available():
        pytest.skip("needs an accelerator to pin memory for")
    context = {"multiprocessing_context": "spawn"} if num_workers else {}
    for i, batch in enumerate(wrap(num_workers, pin_memory=True, **context)):
        assert isinstance(batch, tl.Batch) and batch["action"].is_pinned()
        assert (batch.digest(), batch.train_step, len(batch.refs)) == (want[i], i, 6)


def test_delivery_pins_the_batch_inside(make_loader: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch's pinning thread calls reaches the batch, and what was found bad goes along."""
    from torch.utils.data._utils.pin_memory import pin_memory

    monkeypatch.setattr(tl.Batch, "pin_memory", lambda batch: batch.copy())
    with make_loader(streams=["action"]) as loader:
        delivery = Delivery(loader.batch_at(3), [[1, 2, "x"]])
    pinned = pin_memory(delivery)
    assert isinstance(pinned, Delivery) and pinned.batch is not delivery.batch
    assert (pinned.batch.digest(), pinned.batch.train_step) == (delivery.batch.digest(), 3)
    assert pinned.found_bad == delivery.found_bad


@pytest.mark.filterwarnings("ignore")  # torch.distributed.checkpoint says that it runs in one process only
def test_distributed_checkpoint_keeps_the_whole_state(make_loader: Make, tmp_path: Path) -> None:
    """Lists that are longer in the checkpoint than in the loader that loads it come back whole; so do empty fields."""
    from torch.distributed import checkpoint

    with make_loader(on_error="substitute") as loader:
        state = loader.state_dict()
        state["cursor"], state["quarantine"] = {"train_step": 7}, [[3, 1, "DecodeError"], [5, 2, "DecodeError"]]
        loader.load_state_dict(state)
        checkpoint.save({"loader": loader}, checkpoint_id=str(tmp_path / "point"))
        saved = loader.state_dict()
    with make_loader(on_error="substitute") as other:
        checkpoint.load({"loader": other}, checkpoint_id=str(tmp_path / "point"))
        assert other.state_dict() == saved
    with make_loader(seed=12) as different, pytest.raises(Exception, match=r"seed: saved 11, here 12"):
        checkpoint.load({"loader": different}, checkpoint_id=str(tmp_path / "point"))
