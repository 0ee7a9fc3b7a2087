"""Whatever is passed for whatever argument: it is taken, or refused by an error of ours; never by one from deep inside."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import trajload as tl
from trajload.errors import ConfigError, TrajloadError

WRONG: dict[str, Any] = {
    **{"negative": -1, "zero": 0, "float": 1.5, "whole float": 2.0, "text": "x", "empty text": "", "None": None},
    **{
        "nan": math.nan,
        "inf": math.inf,
        "bool": True,
        "list": [],
        "numbers": [1, 2],
        "dict": {"a": 1},
        "object": object(),
    },
    **{
        "NumPy int": np.int64(2),
        "NumPy float": np.float64(2),
        "bytes": b"x",
        "huge": 10**30,
        "tensor": torch.tensor(2),
    },
    **{"class": int, "set": {1}, "array": np.arange(3), "path": Path("nope"), "function": lambda *_: 1},
}
SPEC: dict[str, Any] = {"name": "a", "modality": "action", "encoding": "npy", "shape": (2,), "dtype": "float32"}
USUAL: dict[str, dict[str, Any]] = {
    **{"StreamSpec": SPEC, "RandomCrop": {"size": (8, 8)}, "Resize": {"size": (8, 8)}, "FrameDrop": {"p": 0.1}},
    **{
        "ActionNoise": {"std": 0.1},
        "GaussianBlur": {"sigma": 1.0},
        "World": {"world_size": 2},
        "Weighted": {"episode_weights": [1.0]},
    },
}
PLAIN = [
    *(
        "ActionNoise",
        "ColorJitter",
        "Continuous",
        "Every",
        "FrameDrop",
        "GaussianBlur",
        "Image",
        "Interleaved",
        "Keep",
        "RandomCrop",
    ),
    *("RandomFlip", "Resize", "Signal", "StreamSpec", "Weighted", "Window", "World"),
]


def raw_errors(call: Callable[..., Any], usual: dict[str, Any]) -> list[str]:
    """Return what comes out as another error than ours, for each argument and wrong value."""
    found = []
    for name in inspect.signature(call).parameters:
        for what, value in WRONG.items():
            try:
                made = call(**{**usual, name: value})
                getattr(made, "close", lambda: None)()
            except TrajloadError:
                continue
            except Exception as err:
                found.append(f"{name}={what}: {type(err).__name__}: {err}")
    return found


@pytest.mark.parametrize("name", PLAIN)
def test_settings_refuse_what_they_cannot_use(name: str) -> None:
    """Each argument with each wrong value."""
    assert raw_errors(getattr(tl, name), USUAL.get(name, {})) == []


def test_a_loader_refuses_what_it_cannot_use(demo_dataset: Path) -> None:
    """Each argument; a number of threads or train_steps that no machine has is not begun."""
    usual = {"dataset": tl.open(demo_dataset), "window": tl.Window(), "global_batch_size": 2, "streams": ["action"]}
    assert raw_errors(tl.Loader, {**usual, "num_workers": 1, "rank": 0, "world_size": 1}) == []


def test_functions_of_a_dataset_refuse_what_they_cannot_use(demo_dataset: Path) -> None:
    """Opening, splitting, mixing, statistics, and what a loader's methods take."""
    dataset = tl.open(demo_dataset)
    found = raw_errors(tl.open, {"path_or_url": demo_dataset}) + raw_errors(
        tl.split, {"dataset": dataset, "parts": {"a": 1.0}}
    )
    found += raw_errors(tl.Mixture, {"sources": {"a": (dataset, 1.0)}})
    found += raw_errors(tl.Normalizer.from_dataset, {"dataset": dataset, "methods": {"action": "mean_std"}})
    with tl.Loader(dataset, window=tl.Window(), global_batch_size=2, streams=["action"], num_workers=0) as loader:
        batch = loader.batch_at(0)
        found += (
            raw_errors(loader.batch_at, {"train_step": 0})
            + raw_errors(loader.seek, {})
            + raw_errors(batch.valid_mask, {})
        )
        found += raw_errors(loader.load_state_dict, {"state": loader.state_dict()})
        found += raw_errors(loader.as_dataloader().set_epoch, {}) + raw_errors(loader.as_map_dataset, {})
    assert found == []


def test_a_writer_refuses_what_it_cannot_use(tmp_path: Path) -> None:
    """What fails at the end, when the manifest is made, would have lost all episodes."""
    folders = iter(range(10**6))

    def write(*, in_writer: bool, **given: Any) -> None:
        usual = {"path": tmp_path / str(next(folders)), "streams": [tl.StreamSpec(**SPEC)], "step_rate_hz": 10}
        values = {"a": np.zeros((3, 2), np.float32)}
        with tl.Writer(**{**usual, **(given if in_writer else {})}) as writer:
            writer.add_episode(**{"values": values, **({} if in_writer else given)})

    found = []
    for call, in_writer in ((tl.Writer, True), (tl.Writer.add_episode, False)):
        for name in [name for name in inspect.signature(call).parameters if name not in ("self", "path")]:
            for what, value in WRONG.items():
                try:
                    write(in_writer=in_writer, **{name: value})
                except TrajloadError:
                    continue
                except Exception as err:
                    found.append(f"{call.__name__}({name}={what}): {type(err).__name__}: {err}")
    assert found == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tl.StreamSpec(**{**SPEC, "shape": (-1,)}), r"shape of stream 'a' is \(-1,\)"),
        (lambda: tl.StreamSpec(**{**SPEC, "dtype": None}), "dtype of stream 'a' is None: expected a NumPy dtype name"),
        (lambda: tl.StreamSpec(**{**SPEC, "names": "xy"}), "names of stream 'a' is 'xy': expected a list of names"),
        (lambda: tl.StreamSpec(**{**SPEC, "rate_hz": 0}), "rate_hz of stream 'a' is 0: expected a number above 0"),
        (lambda: tl.ColorJitter(per_frame="no"), r"ColorJitter\(per_frame\)='no' is invalid: expected True or False"),  # type: ignore[arg-type]
        (lambda: tl.Every(seconds=True), r"Every\(seconds=True\) is invalid"),
    ],
)
def test_what_would_be_taken_for_something_else_is_refused(call: Callable[[], Any], message: str) -> None:
    """Values that Python would let pass: NumPy reads None as float64, a string is a list of letters, 'no' is true."""
    with pytest.raises(ConfigError, match=message):
        call()


def test_numbers_and_dtypes_of_numpy_are_taken(tmp_path: Path) -> None:
    """As their plain values, which states and manifests hold."""
    with tl.Writer(tmp_path / "set", streams=[tl.StreamSpec(**SPEC)], step_rate_hz=np.int64(10)) as writer:
        writer.add_episode({"a": np.zeros((3, 2), np.float32)})
    assert tl.open(tmp_path / "set").step_rate_hz == 10
    assert tl.StreamSpec(**{**SPEC, "dtype": np.float32}) == tl.StreamSpec(**SPEC)
    assert tl.StreamSpec(**{**SPEC, "dtype": np.dtype("float32"), "shape": np.array([2])}) == tl.StreamSpec(**SPEC)
    assert type(tl.Every(steps=np.int64(5)).steps) is int  # type: ignore[arg-type]


def test_a_function_of_episodes_that_fails_names_the_episode(demo_dataset: Path) -> None:
    """And the cause."""
    with pytest.raises(ConfigError, match=r"episodes failed for episode 0 \(.*\): AttributeError: .*nokey") as caught:
        tl.Loader(demo_dataset, window=tl.Window(), global_batch_size=2, episodes=lambda info: info.nokey)  # type: ignore[attr-defined]
    assert isinstance(caught.value.__cause__, AttributeError)


def test_numbers_that_would_stop_the_machine_are_refused(demo_dataset: Path) -> None:
    """Threads and batches ahead without end."""
    usual: dict[str, Any] = {"window": tl.Window(), "global_batch_size": 2, "streams": ["action"]}
    with pytest.raises(ConfigError, match=f"num_workers={10**6} is too large: expected less than 4096"):
        tl.Loader(demo_dataset, **usual, num_workers=10**6)
    with pytest.raises(ConfigError, match="prefetch=1000000000000 is too large: expected less than 65536"):
        tl.Loader(demo_dataset, **usual, prefetch=10**12)


def test_settings_of_a_checkpointer_are_settings(tmp_path: Path) -> None:
    """A number of steps or commits is told what it is."""
    state = {"m": {"w": torch.zeros(1)}}
    with pytest.raises(ConfigError, match=r"every=5 is unusable: .* Did you mean tl\.Every\(steps=5\)\?"):
        tl.Checkpointer(tmp_path, state, every=5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"keep=5 is unusable: .* Did you mean tl\.Keep\(last=5\)\?"):
        tl.Checkpointer(tmp_path, state, keep=5)  # type: ignore[arg-type]


def test_what_torch_refuses_and_what_a_dataset_is_not(demo_dataset: Path) -> None:
    """Options of a DataLoader; and a dataset in the place of one of torch."""
    dataset = tl.open(demo_dataset)
    with tl.Loader(dataset, window=tl.Window(), global_batch_size=2, streams=["action"]) as loader:
        for options in ({"timeout": "x"}, {"prefetch_factor": 2}, {"persistent_workers": True}):
            with pytest.raises(ConfigError, match="torch's DataLoader refuses its options"):
                loader.as_dataloader(**options)  # type: ignore[arg-type]
    with tl.Loader(dataset, window=tl.Window(), global_batch_size=2, num_epochs=1, streams=["action"]) as loader:
        for ask in (
            lambda: loader[3],
            lambda: next(iter(torch.utils.data.DataLoader(loader, generator=torch.Generator()))),
        ):
            with pytest.raises(TypeError, match=r"a loader is not indexed.*batch_at.*as_dataloader"):
                ask()
    with pytest.raises(TypeError, match=r"a dataset is not indexed.*windows come from tl\.Loader"):
        next(iter(torch.utils.data.DataLoader(dataset, batch_size=4, generator=torch.Generator())))  # type: ignore[arg-type]
