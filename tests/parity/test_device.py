"""Batches on a device: copied ahead, the same values, nothing left behind. On the CPU, which takes the same way; and on a GPU."""

from __future__ import annotations

import gc
import itertools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

import trajload as tl
from trajload.errors import ConfigError, StageFailedError

COMMON: dict[str, Any] = {
    **{"window": tl.Window(num_steps=5), "global_batch_size": 6, "seed": 3, "rank": 0, "world_size": 1},
    **{"streams": ["cam_front", "depth", "action", "language"]},
}
HAS_GPU = torch.cuda.is_available()
DEVICES = [
    "cpu",
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="COPIES TO A GPU NOT TESTED: no CUDA device")]),
]  # fmt: skip


CALLS: list[int] = []


def fails_later(window: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Fail at the thirteenth window."""
    if len(CALLS) >= 12:
        raise ValueError("enough")
    CALLS.append(1)
    return window


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("order", ["shuffled", "interleaved"])
def test_batches_are_those_of_the_oracle(demo_dataset: Path, device: str, num_workers: int, order: str) -> None:
    """Many batches ahead of a consumer that holds several: every value, on the device, in order."""
    with tl.Loader(demo_dataset, order=order, device=device, num_workers=num_workers, **COMMON) as loader:
        kept = []
        for k, batch in enumerate(itertools.islice(loader, 25)):
            assert batch.train_step == k
            assert {v.device.type for v in batch.values() if isinstance(v, torch.Tensor)} == {device}
            assert loader.train_step == k + 1
            kept.append((k, batch))
            for step, old in kept[-3:]:
                assert old.to("cpu").digest() == loader.batch_at(step).digest()
        assert loader.batch_at(0)["cam_front"].device.type == "cpu"


@pytest.mark.parametrize("device", DEVICES)
def test_cursor_counts_what_was_delivered_not_what_was_copied(demo_dataset: Path, device: str) -> None:
    """A state taken while the next batch is on the device already continues with that batch."""
    with tl.Loader(demo_dataset, device=device, **COMMON) as loader:
        for _ in itertools.islice(loader, 4):
            state = loader.state_dict()
        assert state["cursor"] == {"train_step": 4}
        loader.load_state_dict(state)
        assert next(iter(loader)).train_step == 4


@pytest.mark.parametrize("device", DEVICES)
def test_finite_run_ends_and_dropping_the_iterator_ends_the_threads(demo_dataset: Path, device: str) -> None:
    """The end comes once, however often one asks; a dropped iterator leaves no thread."""
    with tl.Loader(demo_dataset, device=device, num_epochs=1, **COMMON) as loader:
        assert sum(1 for _ in loader) == len(loader)
        assert list(loader) == []
        loader.seek(0)
        iterator = iter(loader)
        next(iterator)
        del iterator
        gc.collect()
        assert [t.name for t in threading.enumerate() if t.name.startswith("trajload")] == []


def test_error_comes_out_where_the_batch_would(demo_dataset: Path) -> None:
    """A transform that fails: the batches before it are delivered, and its error keeps class and place."""
    CALLS.clear()
    with tl.Loader(demo_dataset, device="cpu", num_workers=1, prefetch=1, transforms=[fails_later], **COMMON) as loader:
        got = []
        with pytest.raises(StageFailedError, match="ValueError: enough") as caught:
            for batch in loader:
                got.append(batch.train_step)
    assert got == [0, 1]
    assert caught.value.at.train_step == 2


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu", "expected 'cuda'"),
        (3.5, "is invalid"),
        pytest.param("cuda", "sees no CUDA device", marks=pytest.mark.skipif(HAS_GPU, reason="there is a GPU here")),
    ],
)
def test_device_that_is_not_there_is_refused(demo_dataset: Path, device: Any, message: str) -> None:
    """At construction, with what to do."""
    with pytest.raises(ConfigError, match=message):
        tl.Loader(demo_dataset, device=device, **COMMON)
