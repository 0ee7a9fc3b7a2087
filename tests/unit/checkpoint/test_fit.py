"""A checkpoint that does not fit changes nothing, and every difference is named."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from damaging import flip
from torch import nn

from trajload.checkpoint.capture import snapshot
from trajload.checkpoint.components import Component
from trajload.checkpoint.restoring import restore
from trajload.checkpoint.store import Store
from trajload.errors import CheckpointCorruptError, CheckpointError, CheckpointMismatchError, ConfigError, ResumeError

pytestmark = [pytest.mark.global_rng, pytest.mark.usefixtures("one_thread")]


def model(width: int = 8, dtype: torch.dtype = torch.float32) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, width), nn.Linear(width, 2)).to(dtype)


def content(state: dict[str, Any]) -> dict[str, bytes]:
    return {planned.name: b"".join(map(bytes, planned.chunks())) for planned in snapshot(state).files()}


def refused(state: dict[str, Any], part: Any, **options: Any) -> str:
    """Return the message of a restore that is refused, after checking that it changed nothing."""
    before = content(state)
    with pytest.raises(CheckpointMismatchError) as caught:
        restore(state, part, **options)
    assert content(state) == before
    assert isinstance(caught.value, ResumeError)
    return str(caught.value)


def test_names_shapes_and_dtypes_are_all_listed(store: Store, kept: Any) -> None:
    """Of every component at once, and the counters beside them stay as they are."""
    part = kept.keep(store, {"model": model(), "counters": {"n": 3}})
    other = nn.Sequential(nn.Linear(4, 9), nn.Linear(9, 2).half(), nn.Linear(2, 2))
    text = refused({"counters": {"n": 7}, "model": other}, part)
    assert "nothing was changed" in text
    assert "model: '0.weight' saved float32 [8, 4], here float32 [9, 4]" in text
    assert "model: '1.bias' saved float32 [2], here float16 [2]" in text
    assert "model: '2.weight' float32 [2, 2] is not in the checkpoint" in text


def test_same_shapes_in_another_dtype_are_not_cast(store: Store, kept: Any) -> None:
    """strict=False accepts names, never a silent cast."""
    part = kept.keep(store, {"model": model()})
    assert "saved float32 [8, 4], here bfloat16 [8, 4]" in refused(
        {"model": model(dtype=torch.bfloat16)}, part, strict=False
    )


def test_names_that_one_side_lacks_can_be_accepted(store: Store, kept: Any) -> None:
    """strict=False loads what both have, and says what it passed over."""
    first, second = model(), nn.Sequential(*model(), nn.Linear(2, 2))
    part = kept.keep(store, {"model": first})
    notes = restore({"model": second}, part, strict=False)
    assert notes == [
        "model: '2.weight' float32 [2, 2] is not in the checkpoint",
        "model: '2.bias' float32 [2] is not in the checkpoint",
    ]
    assert torch.equal(first[0].weight, second[0].weight)


def test_wrapped_modules_are_recognised(store: Store, kept: Any) -> None:
    """What DistributedDataParallel or torch.compile put before names is told as that."""
    part = kept.keep(store, {"model": nn.ModuleDict({"module": model()})})
    assert "all saved names begin with 'module.', which this module's do not" in refused({"model": model()}, part)
    part = kept.keep(store, {"model": model()})
    assert "all names here begin with 'module.'" in refused({"model": nn.ModuleDict({"module": model()})}, part)


def test_extra_state_counts_as_a_name(store: Store, kept: Any) -> None:
    """A module that has come to keep extra state is another module."""

    class Extra(nn.Sequential):
        def get_extra_state(self) -> Any:
            return {"n": 1}

        def set_extra_state(self, state: Any) -> None:
            self.n = state["n"]

    part = kept.keep(store, {"model": model()})
    assert "'_extra_state' (no tensor) is not in the checkpoint" in refused({"model": Extra(*model())}, part)


def test_optimisers_are_compared_by_class_parameters_and_settings(store: Store, kept: Any) -> None:
    """Another optimiser, other parameters, another order of them, other groups: torch alone would take most of it."""
    m = model()

    def adam(params: Any, **settings: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(params, **settings)

    part = kept.keep(store, {"model": m, "optim": adam(m.parameters())})
    fresh = model()
    sgd = {"model": fresh, "optim": torch.optim.SGD(fresh.parameters())}
    assert "optim: saved from a torch.optim.adamw.AdamW, here a torch.optim.sgd.SGD" in refused(sgd, part)
    few = {"model": fresh, "optim": adam(list(fresh.parameters())[:3])}
    assert "parameter group 0 saved with 4 parameters, here 3" in refused(few, part)
    groups = {"model": fresh, "optim": adam([{"params": fresh[0].parameters()}, {"params": fresh[1].parameters()}])}
    assert "saved with 1 parameter groups, here 2" in refused(groups, part)
    swapped = {"model": fresh, "optim": adam([*fresh[1].parameters(), *fresh[0].parameters()])}
    assert "parameter 0 of group 0 saved for 'model.0.weight', here 'model.1.weight'" in refused(swapped, part)
    wide = model(9)
    text = refused({"optim": adam(wide.parameters())}, part)
    assert "optim: parameter 0 of group 0 saved float32 [8, 4], here float32 [9, 4]" in text


def test_schedules_are_compared_by_class(store: Store, kept: Any) -> None:
    """torch would put the fields of one schedule into another."""
    optim = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    part = kept.keep(store, {"schedule": torch.optim.lr_scheduler.StepLR(optim, 2)})
    other = torch.optim.lr_scheduler.ExponentialLR(optim, 0.5)
    assert "schedule: saved from a torch.optim.lr_scheduler.StepLR, here a" in refused({"schedule": other}, part)


def test_trees_are_compared_where_both_have_tensors(store: Store, kept: Any) -> None:
    """Statistics of another size are refused; an empty buffer takes what was saved, keys may come and go."""
    part = kept.keep(store, {"norm": {"mean": torch.ones(3), "history": torch.ones(5, 2), "old": 1}})
    assert "norm: 'mean' saved float32 [3], here float32 [4]" in refused({"norm": {"mean": torch.ones(4)}}, part)
    assert "'std' float32 [3] is not in the checkpoint" in refused({"norm": {"std": torch.ones(3)}}, part)
    assert "norm: saved a dict, here a list" in refused({"norm": [1]}, part)
    live: dict[str, Any] = {"mean": torch.zeros(3), "history": torch.empty(0, 2), "new": 2}
    restore({"norm": live}, part)
    assert sorted(live) == ["history", "mean", "old"] and live["history"].shape == (5, 2)


def test_another_kind_of_component_is_refused(store: Store, kept: Any) -> None:
    """A module is not put into a dict."""
    part = kept.keep(store, {"x": model()})
    assert "x: saved as 'module', here 'tree'" in refused({"x": {}}, part)


def test_a_component_that_the_checkpoint_lacks_is_named(store: Store, kept: Any) -> None:
    """With the names that there are."""
    part = kept.keep(store, {"actor": model(), "critic": model()})
    assert "no component 'model': it holds ['actor', 'critic']" in refused({"model": model()}, part)


class Stubborn:
    """Takes no state that it does not like, after having taken half of it."""

    def __init__(self, value: int) -> None:
        self.value = self.other = value

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "other": self.other}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.other = state["other"]
        if state["value"] < 0:
            raise ValueError("negative")
        self.value = state["value"]


def test_what_was_loaded_before_a_refusal_is_taken_back(store: Store, kept: Any) -> None:
    """An object that refuses its state leaves all others as they were, itself included."""
    seen = {"n": 1}
    part = kept.keep(store, {"a": Component(lambda: 5, print), "b": Stubborn(-1), "c": {"n": 2}, "m": model()})
    live: dict[str, Any] = {
        "c": seen,
        "a": Component(lambda: seen["n"], lambda value: seen.update(n=value)),
        "m": model(),
        "b": Stubborn(3),
    }
    before = content(live)
    with pytest.raises(
        CheckpointError, match=r"component 'b' does not take .*ValueError: negative\nAll components are as"
    ):
        restore(live, part)
    assert content(live) == before


def test_a_check_of_a_component_comes_before_any_change(store: Store, kept: Any) -> None:
    """What `check` raises is one of the differences."""

    def check(saved: Any) -> None:
        raise ValueError(f"saved for {saved} environments")

    part = kept.keep(store, {"envs": Component(lambda: 4, print), "m": model()})
    text = refused({"envs": Component(lambda: 4, print, check), "m": model(3)}, part)
    assert "envs: ValueError: saved for 4 environments" in text and "m: '0.weight' saved" in text


# ---- loaders ----


def test_a_loader_of_other_data_is_refused_and_can_be_allowed(store: Store, kept: Any, tmp_path: Path) -> None:
    """The loader's own words; another version of the dataset goes on only where that is allowed."""
    import trajload as tl
    from trajload.demo import EpisodeLength, generate

    folders = [generate(tmp_path / str(n), num_episodes=2, seed=n, length=EpisodeLength(30, 31)) for n in range(2)]

    def loader(folder: Path, **more: Any) -> Any:
        arguments = {"window": tl.Window(num_steps=4), "global_batch_size": 2, "seed": 1, "streams": ["action"]} | more
        return tl.Loader(folder, **arguments)

    m = model()
    with loader(folders[0]) as first, loader(folders[1]) as second, loader(folders[0], seed=2) as seeded:
        first.seek(5)
        part = kept.keep(store, {"m": m, "loader": first})
        assert part.files["loader.json"].bytes < 4096
        assert "seed: saved 1, here 2" in refused({"m": model(), "loader": seeded}, part)
        assert "another dataset or version" in refused({"m": model(), "loader": second}, part)
        other = model()
        restore({"m": other, "loader": second}, part, allow_data_change=True)
        assert second.train_step == 5 and torch.equal(other[0].weight, m[0].weight)
        with loader(folders[0]) as third, third.as_dataloader() as dataloader:
            restore({"loader": dataloader}, part)
            assert dataloader.state_dict()["cursor"] == {"train_step": 5}


# ---- files ----


def replaced(store: Store, kept: Any, state: dict[str, Any], name: str, change: Any) -> Any:
    """Return a part whose file `name` was written otherwise (None: left out), with digests that fit."""
    with store.writer():
        generation = store.begin(0)
        writer = generation.part(0)
        for planned in snapshot(state).files():
            data = b"".join(map(bytes, planned.chunks()))
            data = change(data) if planned.name == name else data
            if data is not None:
                writer.write(planned.name, [data])
        return store.part(store.commit(generation, [writer.finish()], {}), 0)


def edited(**fields: Any) -> Any:
    return lambda data: json.dumps({**json.loads(data), **fields}).encode()


@pytest.mark.parametrize(
    "name, change, kind, words",
    [
        (
            "m.json",
            edited(version=2),
            CheckpointMismatchError,
            "has format version 2: this trajload reads up to 1. Upgrade",
        ),
        ("m.json", edited(version="1"), CheckpointCorruptError, "format version '1'"),
        ("m.json", edited(format="other"), CheckpointCorruptError, "no component of a checkpoint"),
        ("m.json", edited(tensors=3), CheckpointCorruptError, "holds 4 tensors, m.json tells of 3"),
        ("m.json", edited(tensors=None), CheckpointCorruptError, "how many tensors"),
        ("m.json", lambda data: None, CheckpointCorruptError, "lacks the file 'm.json'"),
        ("m.json", lambda data: b"{", CheckpointCorruptError, "cannot be read as JSON"),
        ("m.safetensors", lambda data: None, CheckpointCorruptError, "lacks the file 'm.safetensors'"),
        ("m.safetensors", lambda data: b"PK\x03\x04" + data, CheckpointMismatchError, "where safetensors was expected"),
        ("m.safetensors", lambda data: data[:-1], CheckpointCorruptError, "not a whole safetensors file"),
    ],
    ids=range(10),
)
def test_files_that_are_not_what_they_should_be(
    store: Store, kept: Any, name: str, change: Any, kind: Any, words: str
) -> None:
    """Newer formats, missing files, pickles: told apart, and nothing is changed."""
    state = {"m": model(), "n": {"x": 1}}
    part = replaced(store, kept, state, name, change)
    live = {"n": {"x": 2}, "m": model()}
    before = content(live)
    with pytest.raises(kind, match=words):
        restore(live, part)
    assert content(live) == before


def test_a_pickle_beside_is_told_as_one(store: Store, tmp_path: Path) -> None:
    """A checkpoint that holds model.pt only says that pickles are not loaded."""
    torch.save(model().state_dict(), tmp_path / "m.pt")
    with store.writer():
        generation = store.begin(0)
        writer = generation.part(0)
        writer.write("m.pt", [(tmp_path / "m.pt").read_bytes()])
        part = store.part(store.commit(generation, [writer.finish()], {}), 0)
    with pytest.raises(CheckpointMismatchError, match=r"m\.pt is a zip, as torch\.save writes it"):
        restore({"m": model()}, part)


@pytest.mark.parametrize("name", ["m.safetensors", "m.json"])
def test_a_flipped_bit_is_found_before_anything_is_changed(store: Store, kept: Any, name: str) -> None:
    """Digests are compared unless the caller has just done so."""
    part = kept.keep(store, {"m": model(), "n": {"x": 1}})
    flip(part.path(name), -3)
    live = {"n": {"x": 2}, "m": model()}
    before = content(live)
    with pytest.raises(CheckpointCorruptError, match="is damaged"):
        restore(live, part)
    assert content(live) == before


def test_components_of_several_ranks_are_restored_in_one_call(store: Store, kept: Any) -> None:
    """A reader for each component: weights of one part, counters of another; all or nothing."""
    first, second = kept.keep(store, {"m": model(), "n": {"x": 1}}), kept.keep(store, {"n": {"x": 9}})
    live = {"m": model(), "n": {"x": 0}}
    restore(live, {"m": first, "n": second})
    assert live["n"] == {"x": 9}
    assert "m: '0.weight'" in refused({"n": {"x": 3}, "m": model(5)}, {"m": first, "n": second})


def test_a_part_for_every_component_is_needed(store: Store, kept: Any) -> None:
    """A reader that was forgotten is named."""
    with pytest.raises(ConfigError, match=r"reader has no part for component 'n': it has \['m'\]"):
        restore({"m": model(), "n": {}}, {"m": kept.keep(store, {"m": model()})})


def test_a_root_that_cannot_hold_what_was_saved_is_refused(store: Store, kept: Any) -> None:
    """A deque of another length, an array that is read-only: nothing is dropped silently, and what came before is taken back."""
    fixed = np.zeros(2)
    part = kept.keep(store, {"a": {"n": 1}, "last": deque([1, 2, 3], maxlen=3), "fixed": np.ones(2)})
    fixed.flags.writeable = False
    for live in ({"last": deque(maxlen=2)}, {"fixed": fixed}):
        state = {"a": {"n": 5}, **live}
        assert "cannot hold what was saved" in refused(state, part)
        assert state["a"] == {"n": 5}


def test_a_component_with_nothing_to_give_yet_is_loaded(store: Store, kept: Any) -> None:
    """Objects that exist only once their state has come."""
    held: dict[str, Any] = {}
    part = kept.keep(store, {"late": Component(lambda: 5, print)})
    restore({"late": Component(lambda: held["value"], lambda saved: held.update(value=saved))}, part)
    assert held == {"value": 5}
