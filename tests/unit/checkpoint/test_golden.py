"""Stores that earlier releases wrote are read for ever; a format that changes gets a new version and a new folder here."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from by_path import load
from safetensors.torch import load_file

import trajload as tl
from trajload.checkpoint.store import Store

pytestmark = pytest.mark.global_rng  # layers of torch are initialised from its global generator

GOLDEN = Path(__file__).parent / "golden"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the store of version 1, which a writer may open."""
    return shutil.copytree(GOLDEN / "store-1", tmp_path / "store")


def test_store_of_version_1_is_whole_and_pinned(folder: Path) -> None:
    """Records, references, digests and pins; nothing is passed over."""
    store = Store(folder, create=False)
    assert [(commit.seq, commit.step) for commit in store.commits()] == [(1, 1), (2, 2)] and store.faults == []
    assert all(store.verify(commit) == [] for commit in store.commits())
    assert {name: commit.step for name, commit in store.pins().items()} == {"first": 1}
    assert store.pick().info["metrics"] == {"loss": 0.5} and store.pick().info["run_id"] == "golden"


def test_state_of_version_1_is_resumed_exactly(folder: Path, kept: Any) -> None:
    """Every kind of component, every kind of value, and the streams."""
    golden: ModuleType = load(GOLDEN / "make_store.py")
    state, streams = golden.training()
    expected = golden.values()
    state["values"].clear()
    with torch.no_grad():
        for parameter in state["model"].parameters():
            parameter.fill_(9.0)
    noise = streams.state_dict()["own"]["noise"]
    streams.registered()[0].random(7)
    with tl.Checkpointer(folder, state, rng=streams) as ckpt:
        assert ckpt.resume(strict=False).step == 2
        part = ckpt.store.part(ckpt.store.pick(), 0)
        for name, tensor in load_file(part.path("model.safetensors")).items():
            assert torch.equal(state["model"].state_dict()[name], tensor)
    kept.assert_same(state["values"], expected)
    assert state["values"]["torch"][0] is state["values"]["torch"][1], "two places of one tensor"
    assert state["schedule"].last_epoch == 2 and state["optim"].param_groups[0]["lr"] == pytest.approx(1e-4)
    assert {int(entry["step"]) for entry in state["optim"].state.values()} == {2}
    kept.assert_same(streams.state_dict()["own"]["noise"], noise)
    assert isinstance(state["values"]["numpy"][0], np.ndarray) and state["own"].get() == {"at": 5}
