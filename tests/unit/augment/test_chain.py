"""What a transform may do, how it is keyed, and what is said of one that does otherwise."""

from __future__ import annotations

import functools
import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.augment.chain import TransformChain
from trajload.augment.contract import config_of, name_of
from trajload.errors import ConfigError, StageFailedError
from trajload.rng import key_rng

T = 4
SPECS = {
    "cam": tl.StreamSpec(name="cam", modality=tl.Modality.RGB, encoding="mp4", shape=(6, 8, 3), dtype="uint8"),
    "action": tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32"),
    "task": tl.StreamSpec(name="task", modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"),
}
LAYOUT = {"cam": ((3, 6, 8), np.dtype("u1")), "action": ((2,), np.dtype("f4"))}

Window = dict[str, Any]


def window_of() -> Window:
    return {
        "cam": np.full((T, 3, 6, 8), 7, np.uint8),
        "action": np.ones((T, 2), np.float32),
        "task": "lift",
        "cam_is_pad": np.array([False, False, False, True]),
        "action_is_pad": np.zeros(T, bool),
        "cam_is_missing": False,
        "action_is_missing": False,
        "task_is_missing": False,
    }


def chain_of(*transforms: Any, seed: int = 5) -> TransformChain:
    return TransformChain(transforms, SPECS, LAYOUT, seed)


def run(transform: Callable[..., Any], **more: Any) -> Window:
    return chain_of(transform).apply(window_of(), epoch=0, window_id=0, **more)


def add(window: Window, generator: np.random.Generator, scale: float = 1.0) -> Window:
    window["action"] += np.float32(scale * generator.random())
    return window


@dataclass(frozen=True)
class Add:
    scale: float

    def __call__(self, window: Window, generator: np.random.Generator) -> Window:
        return add(window, generator, self.scale)


class Opaque:
    def __init__(self, scale: float) -> None:
        self.scale = scale

    def __call__(self, window: Window, generator: np.random.Generator) -> Window:
        return window


class Halve:
    """Changes shape and dtype, and says so."""

    def __call__(self, window: Window, generator: np.random.Generator) -> Window:
        return {**window, "cam": window["cam"][:, :, ::2, ::2].astype(np.float32)}

    def out_layout(self, layout: Any) -> Any:
        (channels, height, width), _ = layout["cam"]
        return {**layout, "cam": ((channels, height // 2, width // 2), np.float32)}

    def config_json(self) -> dict[str, Any]:
        return {}


# ---- keys ----


def test_generator_is_keyed_by_seed_epoch_window_and_place() -> None:
    """The documented key, and nothing else."""
    got = chain_of(add, add, seed=5).apply(window_of(), epoch=3, window_id=17)
    expected = 1.0
    for i in range(2):
        expected = np.float32(expected) + np.float32(key_rng(5, "augment", 3, 17, i).random())
    assert got["action"][0, 0] == expected
    seen = {
        float(chain_of(add, seed=seed).apply(window_of(), epoch=epoch, window_id=window)["action"][0, 0])
        for seed, epoch, window in [(5, 0, 0), (6, 0, 0), (5, 1, 0), (5, 0, 1)]
    }
    assert len(seen) == 4


def test_told_draws_are_those_applied() -> None:
    """What is told makes the same window again; a user's function tells only its key."""
    chain = chain_of(tl.RandomCrop((4, 4)), add)
    draws: list[Any] = []
    told = chain.apply(window_of(), epoch=1, window_id=2, draws=draws)
    plain = chain.apply(window_of(), epoch=1, window_id=2)
    assert np.array_equal(told["cam"], plain["cam"]) and np.array_equal(told["action"], plain["action"])
    assert [d["transform"] for d in draws] == ["RandomCrop", name_of(add)]
    assert draws[0]["key"] == {"seed": 5, "purpose": "augment", "counters": [1, 2, 0]}
    assert set(draws[0]["draws"]["cam"]) == {"top", "left"}
    assert draws[1]["draws"] is None


def test_streams_are_resolved_by_what_they_are() -> None:
    """None stands for all streams of the kind."""
    chain = chain_of(tl.RandomFlip(), tl.ColorJitter(0.1), tl.FrameDrop(0.1), tl.ActionNoise(0.1))
    assert [t.streams for t in chain.transforms] == [("cam",), ("cam",), ("cam",), ("action",)]
    specs = {"action": SPECS["action"]}
    with pytest.raises(ConfigError, match=r"RandomFlip finds no picture stream in the batch: it has 'action'"):
        TransformChain([tl.RandomFlip()], specs, {"action": LAYOUT["action"]}, 0)


# ---- shape and dtype ----


def test_declared_change_of_layout_is_taken() -> None:
    """out_layout decides the batch's memory, and later transforms see it."""
    chain = chain_of(Halve(), tl.RandomCrop(2, ["cam"]))
    assert chain.layouts[1]["cam"] == ((3, 3, 4), np.dtype("f4"))
    assert chain.layout["cam"] == ((3, 2, 2), np.dtype("f4"))
    assert chain.apply(window_of(), epoch=0, window_id=0)["cam"].shape == (T, 3, 2, 2)


def test_tensors_may_be_returned() -> None:
    """A user's transform may work in torch; memory is shared."""
    import torch

    got = run(lambda_free_torch)
    assert isinstance(got["action"], np.ndarray)
    assert torch.from_numpy(got["action"]).tolist() == [[2.0, 2.0]] * T


def lambda_free_torch(window: Window, generator: np.random.Generator) -> Window:
    import torch

    return {**window, "action": torch.from_numpy(window["action"]) * 2}


def crop_undeclared(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "cam": window["cam"][:, :, :2]}


def to_float64(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "action": window["action"].astype(np.float64)}


def drop_key(window: Window, generator: np.random.Generator) -> Window:
    del window["action"]
    return {**window, "extra": 1}


def nothing(window: Window, generator: np.random.Generator) -> None:
    window["action"] += 1


def unpad(window: Window, generator: np.random.Generator) -> Window:
    window["cam_is_pad"][:] = False
    return window


def bad_mask(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "cam_is_pad": np.zeros(T, np.uint8)}


def unmiss(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "task_is_missing": True}


def tokenize(window: Window, generator: np.random.Generator) -> Window:
    return {**window, "task": [1, 2]}


def fail(window: Window, generator: np.random.Generator) -> Window:
    raise ZeroDivisionError("no such thing")


def leave(window: Window, generator: np.random.Generator) -> Window:
    sys.exit(3)


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("not a word")


def mumble(window: Window, generator: np.random.Generator) -> Window:
    raise Mute


def interrupt(window: Window, generator: np.random.Generator) -> Window:
    raise KeyboardInterrupt


def refuse(window: Window, generator: np.random.Generator) -> Window:
    raise ConfigError("not today")


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (
            crop_undeclared,
            r"\(.*:crop_undeclared\) returned stream 'cam' as uint8 \(4, 3, 2, 8\): expected uint8 \(4, 3, 6, 8\), unch",
        ),
        (to_float64, r"stream 'action' as float64 \(4, 2\): expected float32 \(4, 2\), unchanged.*carries out_layout"),
        (drop_key, r"returned other keys: lacks \['action'\], adds \['extra'\]"),
        (nothing, r"returned NoneType: expected the window, a dict"),
        (unpad, r"cleared 'cam_is_pad' at step 3"),
        (bad_mask, r"returned 'cam_is_pad' as uint8 \(4,\): expected bool \(4,\)"),
        (unmiss, r"changed 'task_is_missing' from False"),
        (tokenize, r"returned stream 'task' as list: expected str"),
        (fail, r"^transforms\[0\] \(.*:fail\) failed on a window: ZeroDivisionError: no such thing"),
        (refuse, r"failed on a window: not today"),
        (leave, r":leave\) failed on a window: SystemExit: 3"),
        (mumble, r":mumble\) failed on a window: Mute: \(its message cannot be had: RuntimeError\)"),
    ],
    ids=lambda v: getattr(v, "__name__", ""),
)
def test_breach_of_the_contract_is_named(transform: Any, message: str) -> None:
    """Which transform, which stream, what came and what was expected."""
    with pytest.raises(StageFailedError, match=message):
        run(transform)


def test_first_cause_is_chained() -> None:
    """The user's traceback is not lost."""
    with pytest.raises(StageFailedError) as caught:
        run(fail)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_interrupt_is_the_user_s() -> None:
    """Ctrl-C while a transform runs in the calling thread is no fault of the transform."""
    with pytest.raises(KeyboardInterrupt):
        run(interrupt)


# ---- what is refused before any reading ----


class NewStream(Halve):
    def out_layout(self, layout: Any) -> Any:
        return {**layout, "new": ((1,), np.float32)}


def capture(scale: float) -> Any:
    def inner(window: Window, generator: np.random.Generator) -> Window:
        return add(window, generator, scale)

    return inner


@pytest.mark.parametrize(
    ("transforms", "message"),
    [
        (add, r"transforms=<function add .*> is unusable: expected a list"),
        ([3], r"transforms\[0\]=3 is no transform: expected a callable"),
        ([Halve], r"transforms\[0\]=<class .*> is no transform"),
        ([lambda window, generator: window], r"is a lambda, which a saved state cannot name"),
        ([capture(0.1)], r"captures 'scale', whose values"),
        ([Opaque(0.1)], r"cannot be named in a saved state: got Opaque"),
        ([functools.partial(add, scale=np.ones(2))], r"arguments of transform .*:add' are not JSON-able"),
        ([NewStream()], r"out_layout gives streams \['action', 'cam', 'new'\]: expected .* \['action', 'cam'\]"),
    ],
)
def test_unusable_transform_is_refused(transforms: Any, message: str) -> None:
    """Before any reading, with what to do instead."""
    with pytest.raises(ConfigError, match=message):
        TransformChain(transforms, SPECS, LAYOUT, 0)


def test_script_run_again_by_a_spawned_process_is_the_same_script(tmp_path: Path) -> None:
    """multiprocessing runs it as `__mp_main__` there: its transforms are the same, and so are states and digests."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    started, spawned = (runpy.run_path(str(script), run_name=name) for name in ("__main__", "__mp_main__"))
    for name in ("function", "instance", "of_a_source"):
        assert config_of(spawned[name]) == config_of(started[name])
    assert config_of(started["function"]) == {"name": "__main__:function"}


SCRIPT = """
from dataclasses import dataclass
from trajload.augment.own_streams import own_streams

def function(window, generator):
    return window

@dataclass(frozen=True)
class Add:
    what: int

    def __call__(self, window, generator):
        return window

instance, of_a_source = Add(1), own_streams(function, {"cam": "cam_front"})
"""


def test_configuration_names_what_decides_the_values() -> None:
    """Qualified names and JSON-able arguments."""
    here = name_of(add).split(":")[0]
    assert config_of(add) == {"name": f"{here}:add"}
    assert config_of(functools.partial(add, scale=0.5)) == {
        "name": f"{here}:add",
        "args": [],
        "keywords": {"scale": 0.5},
    }
    assert config_of(Add(0.5)) == {"name": f"{here}:Add", "scale": 0.5}
    config = chain_of(tl.RandomFlip(signs={"action": (1, -1)})).config
    assert config == json.loads(json.dumps(config))
    assert config[0] == {
        "name": "RandomFlip",
        "p": 0.5,
        "streams": ["cam"],
        "signs": {"action": [1, -1]},
        "per_frame": False,
        "per_stream": False,
    }
