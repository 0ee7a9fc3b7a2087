"""A snapshot is what was, whatever happens afterwards; what it would weigh is known to the byte."""

from __future__ import annotations

import gc
import os
import weakref
from collections import deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from trajload.checkpoint.capture import Snapshot, snapshot
from trajload.checkpoint.components import Component
from trajload.checkpoint.restoring import restore
from trajload.checkpoint.size import SizePlan, bytes_text, plan_size
from trajload.checkpoint.staging import Staging
from trajload.checkpoint.store import Store
from trajload.checkpoint.streams import Streams
from trajload.errors import CheckpointError, ConfigError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


def files(held: Snapshot) -> dict[str, bytes]:
    return {planned.name: b"".join(bytes(chunk) for chunk in planned.chunks()) for planned in held.files()}


class Counter:
    """Gives out its live list, as careless objects do."""

    def __init__(self) -> None:
        self.seen = [1]

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen, "nested": [{"n": self.seen}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def everything() -> dict[str, Any]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    optim = torch.optim.AdamW(model.parameters())
    model(torch.randn(5, 3)).sum().backward()
    optim.step()
    return {
        "model": model,
        "optim": optim,
        "schedule": torch.optim.lr_scheduler.StepLR(optim, 2),
        "counter": Counter(),
        "tree": {"last": deque([1.0]), "array": np.arange(4), "bytes": bytearray(b"x" * 2000), "t": torch.ones(3)},
        "lr": Component(lambda: optim.param_groups[0]["lr"], lambda lr: None),
        "rng": Streams(noise=np.random.Generator(np.random.MT19937(1)), dither=torch.Generator()),
    }


def change_everything(state: dict[str, Any]) -> None:
    """Change every live value there is, in place."""
    with torch.no_grad():
        for tensor in [*state["model"].state_dict().values(), *state["model"].parameters()]:
            tensor.fill_(77)
    for moments in state["optim"].state.values():
        for tensor in moments.values():
            tensor.fill_(77)
    state["optim"].param_groups[0]["lr"] = 77
    state["schedule"].last_epoch = 77
    state["counter"].seen.append(77)
    tree = state["tree"]
    tree["last"].append(77)
    tree["array"][:] = 77
    tree["bytes"][:] = b"y" * 2000
    tree["t"].fill_(77)
    tree["new"] = 1
    state["rng"]._own["noise"].random(1000)
    torch.rand(3, generator=state["rng"]._own["dither"])
    torch.rand(3)
    np.random.rand(3)  # noqa: NPY002


def test_a_snapshot_does_not_change(store: Store, kept: Any) -> None:
    """Whatever is changed right after the call: tensors, moments, counters, lists that were handed out, generators."""
    state = everything()
    held = snapshot(state)
    before = files(held)
    change_everything(state)
    assert files(held) == before
    assert files(snapshot(state)) != before
    restore(state, store.part(kept.write(store, held), 0))
    assert files(snapshot(state)) == before


def test_a_snapshot_holds_no_live_object() -> None:
    """Objects of the training may go while the snapshot waits to be written."""
    state = everything()
    held = snapshot(state)
    model = weakref.ref(state["model"])
    state.clear()
    gc.collect()
    assert model() is None and held.bytes > 0


def test_without_copies_the_files_are_the_same() -> None:
    """A save that is complete before training goes on needs no copy, and writes the same bytes."""
    state = everything()
    held = snapshot(state, copy=False)
    assert (held.is_copy, held.copied_bytes) == (False, 0)
    assert files(held) == files(snapshot(state))


def test_copies_are_made_into_memory_that_is_used_again() -> None:
    """The next snapshot takes the buffers of the last one; memory that finds no use is let go."""
    state, staging = {"model": nn.Linear(64, 64)}, Staging()
    first = snapshot(state, staging=staging)
    places = {tensor.data_ptr() for tensor in first.taken["model"].tensors.values()}
    first.release()
    first.release()
    assert staging.kept_bytes == (64 * 64 + 64) * 4 and first.files() == []
    second = snapshot(state, staging=staging)
    assert {tensor.data_ptr() for tensor in second.taken["model"].tensors.values()} == places
    third = snapshot(state, staging=staging)
    assert not places & {tensor.data_ptr() for tensor in third.taken["model"].tensors.values()}
    second.release()
    snapshot({"model": nn.Linear(2, 2)}, staging=staging).release()
    assert staging.kept_bytes == (2 * 2 + 2) * 4


def test_a_tensor_of_two_components_is_copied_once() -> None:
    """An encoder that actor and critic share costs its bytes once in memory, and stands in both files."""
    encoder = nn.Linear(8, 8)
    state = {"actor": nn.Sequential(encoder, nn.Linear(8, 1)), "critic": nn.Sequential(encoder, nn.Linear(8, 2))}
    held = snapshot(state)
    assert (
        held.copied_bytes == sum(p.numel() for p in {*state["actor"].parameters(), *state["critic"].parameters()}) * 4
    )
    assert all("0.weight" in held.taken[name].layout.names for name in state)


def test_a_failed_snapshot_keeps_no_memory() -> None:
    """Buffers go back when a later component cannot be kept."""
    staging = Staging()
    with pytest.raises(CheckpointError, match=r"odd\.f is a function"):
        snapshot({"model": nn.Linear(4, 4), "odd": {"f": test_a_failed_snapshot_keeps_no_memory}}, staging=staging)
    assert staging.kept_bytes == 20 * 4


class OnlyGives:
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    "state, words",
    [
        ({"n": 3}, r"'n' is a int, which could be saved but not be put back\. .*Component\(get, set\)"),
        ({"n": (1,)}, "'n' is a tuple"),
        ({"n": None}, "'n' is a NoneType"),
        ({"n": OnlyGives()}, r"'n' is a OnlyGives.*load_state_dict\(\)"),
        ({"n": np.random.Generator(np.random.PCG64(1))}, r"rng=Streams\(n=\.\.\.\)"),
        ({"n": nn.Linear}, "'n' is the class Linear"),
        ({"a/b": {}}, "component name 'a/b' is invalid"),
        ({"../up": {}}, "invalid"),
        ({"part": {}}, "invalid"),
        ({3: {}}, "component name 3 is invalid"),
        ({"a": {}, "A": {}}, "'a' and 'A' differ in case only"),
        ([1], "state is a list"),
    ],
    ids=range(12),
)
def test_what_could_not_be_put_back_is_refused_at_once(state: Any, words: str) -> None:
    """Before anything is saved, with what to do instead."""
    with pytest.raises(ConfigError, match=words):
        snapshot(state)


@pytest.mark.gpu
@pytest.mark.skipif(
    not torch.cuda.is_available() and os.environ.get("TRAJLOAD_REQUIRE_GPU") != "1", reason="needs a CUDA device"
)
def test_tensors_of_a_device_are_copied_before_the_call_returns(store: Store, kept: Any) -> None:
    """Into pinned memory, complete whatever the device does next; without copies they are streamed from it."""
    state = {"t": {"x": torch.ones(1000, 1000, device="cuda"), "y": torch.ones(4, 4, device="cuda").T}}
    held, staging = snapshot(state, staging=Staging()), Staging()
    for tensor in state["t"].values():
        tensor.fill_(7)
    assert all(bool((tensor == 1).all()) and tensor.is_pinned() for tensor in held.taken["t"].tensors.values())
    assert files(snapshot(state, copy=False)) == files(snapshot(state, staging=staging))
    restore(state, store.part(kept.write(store, held), 0))
    assert float(state["t"]["x"].sum()) == 1e6 and state["t"]["x"].is_cuda


# ---- sizes ----


def test_sizes_are_foretold_to_the_byte(store: Store, kept: Any) -> None:
    """The plan names the files that are then written, and their sizes."""
    state = everything()
    plan = plan_size(state)
    part = kept.keep(store, state)
    planned = {name: size for component in plan.components for name, size in component.files.items()}
    assert planned == {name: entry.bytes for name, entry in part.files.items()}
    assert plan.bytes == sum(planned.values())
    by_name = {component.name: component for component in plan.components}
    assert by_name["model"].dtypes == {"float32": (3 * 4 + 4 + 4 * 4) * 4, "int64": 8}
    assert by_name["model"].overhead == by_name["model"].bytes - 136
    assert plan.dtypes["uint8"] > 5000
    assert plan.bytes_per_second(10) == plan.bytes / 10
    assert str(plan).splitlines()[0] == f"{bytes_text(plan.bytes)} in {len(planned)} files"


def test_a_model_without_memory_can_be_planned() -> None:
    """On the meta device a model of any size has its sizes; ties are seen there too."""
    with torch.device("meta"):
        model = nn.ModuleDict({"embed": nn.Embedding(10**6, 1000), "head": nn.Linear(1000, 10**6, bias=False)})
    model["head"].weight = model["embed"].weight
    assert plan_size({"model": model.bfloat16()}).dtypes == {"bfloat16": 2 * 10**9}


def test_parameters_are_counted_as_the_handbook_does() -> None:
    """2 + 4 + 8 bytes for each of 10^9 parameters are 14.0e9 B, 13.04 GiB."""
    plan = SizePlan.per_parameter(10**9)
    assert plan.bytes == 14 * 10**9
    assert str(plan).startswith("14.0e9 B = 13.04 GiB")
    assert SizePlan.per_parameter(10, weights=4, master=0, moments=8, ema=4).bytes == 160
    with pytest.raises(ConfigError, match="expected a whole number"):
        SizePlan.per_parameter(-1)
    with pytest.raises(ConfigError, match=r"interval_s is 0"):
        plan_size({}).bytes_per_second(0)
