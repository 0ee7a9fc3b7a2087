"""What an error says to someone who wrote almost the right thing, as users of other libraries do."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.checks import check_bool, check_choice, check_int, did_you_mean
from trajload.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("shuffle", " Did you mean 'shuffled'?"),
        ("SHUFFLED", " Did you mean 'shuffled'?"),
        (" shuffled ", " Did you mean 'shuffled'?"),
        ("random", ""),
        ("", ""),
        (None, ""),
        (3, ""),
    ],
)
def test_a_slip_of_a_name_is_told_from_another_word(given: Any, expected: str) -> None:
    """Case, outer spaces and a few letters; nothing is suggested for what is like no name."""
    assert did_you_mean(given, ("sequential", "shuffled")) == expected


@pytest.mark.parametrize("value", [True, 2.0, "2", None, -1, np.float64(2), np.bool_(True)])
def test_what_is_no_int_or_too_small_is_refused(value: Any) -> None:
    """Bools and whole floats are slips, not numbers."""
    with pytest.raises(ConfigError, match=re.escape(f"n={value!r} is invalid: expected an int of at least 0.")):
        check_int("n", value, 0)


def test_ints_of_any_kind_pass() -> None:
    """NumPy's too, up to the bound."""
    assert check_int("n", np.int32(4), 0, 5) == 4
    assert type(check_int("n", np.int32(4), 0, 5)) is int
    with pytest.raises(ConfigError, match="n=5 is too large: expected less than 5"):
        check_int("n", 5, 0, 5)


@pytest.mark.parametrize("value", [None, "no", 0, 1])
def test_only_bools_are_bools(value: Any) -> None:
    """'no' would count as True."""
    with pytest.raises(ConfigError, match="expected True or False"):
        check_bool("flag", value)


def test_an_unknown_choice_lists_all_and_names_the_nearest() -> None:
    """The nearest one comes last."""
    with pytest.raises(
        ConfigError, match=r"pad='Edge' is unknown: expected one of 'none', 'edge'\. Did you mean 'edge'\?"
    ):
        check_choice("pad", "Edge", ("none", "edge"))


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"workers": 2}, "num_workers=2; 2 worker processes are workers='processes:2'"),
        ({"workers": "2"}, "num_workers=2; 2 worker processes are workers='processes:2'"),
        ({"workers": 0}, "num_workers=0, which leaves the work to the calling thread"),
        ({"workers": "process:2"}, "Did you mean 'processes:2'?"),
        ({"order": "shuffle"}, "Did you mean 'shuffled'?"),
        ({"order": tl.Interleaved}, "It is a class: call it"),
        ({"on_error": "substitutes"}, "Did you mean 'substitute'?"),
        ({"streams": "action"}, "Did you mean ['action']?"),
        ({"streams": ["acton"]}, "Did you mean 'action'?"),
        ({"streams": [["action"]]}, "streams holds ['action']: expected names of streams"),
        ({"streams": {"cam_front": (64, 64)}}, "expected tl.Image(...), or None"),
        ({"streams": {"action": True}}, "expected tl.Signal(...), or None"),
        ({"window": 16}, "Did you mean tl.Window(num_steps=16)?"),
        ({"window": tl.Window(delta_indices={"actoin": [0]})}, "Did you mean 'action'?"),
        ({"episodes": ["episode-000000"]}, "To choose by key, pass lambda info: info.key in keys."),
        ({"episodes": [True, False, True]}, "take np.flatnonzero(mask)"),
        ({"episodes": {"train": [0]}}, "episodes=parts['train']"),
        ({"transforms": None}, "transforms=None is unusable: expected a list of transforms, () for none."),
        ({"check_ranks": "no"}, "check_ranks='no' is invalid: expected True or False."),
        ({"rank": True, "world_size": 2}, "rank=True is invalid: expected an int."),
        ({"device": 3.5}, "expected 'cuda', 'cuda:1', 'cpu' or a torch.device."),
        ({"dataset": {"a": ("x", 1.0)}}, "Several datasets are a tl.Mixture"),
    ],
)
def test_the_loader_says_what_was_meant(demo_dataset: Path, arguments: dict[str, Any], hint: str) -> None:
    """A ConfigError of one line, with the cure in it."""
    usual: dict[str, Any] = {"dataset": demo_dataset, "window": tl.Window(num_steps=2), "global_batch_size": 2}
    with pytest.raises(ConfigError, match=re.escape(hint)) as caught:
        tl.Loader(**{**usual, "streams": ["action"], **arguments})
    assert "\n" not in str(caught.value)


def test_a_loaders_methods_say_what_was_meant(demo_dataset: Path) -> None:
    """Of a batch, a state, a length, and a DataLoader."""
    with tl.Loader(demo_dataset, window=tl.Window(num_steps=2), global_batch_size=2, streams=["action"]) as loader:
        with pytest.raises(KeyError, match="'cam_front' is not in this batch: it has action, action_is_pad"):
            loader.batch_at(0)["cam_front"]
        assert loader.batch_at(0).get("cam_front") is None
        with pytest.raises(ConfigError, match=r"allow='streams' is a single name: .*\('streams',\)"):
            loader.load_state_dict(loader.state_dict(), allow="streams")
        with pytest.raises(ConfigError, match=r"allow=\['sead'\] names no field: .* Did you mean 'seed'\?"):
            loader.load_state_dict(loader.state_dict(), allow=["sead"])
        with pytest.raises(TypeError, match=r"call as_dataloader\(\)"):
            len(loader)
        with pytest.raises(ConfigError, match="num_workers='2' is invalid"):
            loader.as_dataloader(num_workers="2")
        with pytest.raises(ConfigError, match="transform=5 is unusable"):
            loader.as_dataloader(transform=5)


def test_a_dataset_and_a_split_say_what_was_meant(demo_dataset: Path) -> None:
    """Episodes have numbers; parts have names."""
    dataset = tl.open(demo_dataset)
    for episode in ("episode-000000", 1.5):
        with pytest.raises(ConfigError, match="is no number: expected an int, the episode's position"):
            dataset.episode(episode)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"parts=\[0\.9, 0\.1\] is unusable: expected a dict"):
        tl.split(dataset, [0.9, 0.1])  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot be split: expected an opened dataset"):
        tl.split(demo_dataset, {"a": 1.0})  # type: ignore[arg-type]


def test_requests_say_what_was_meant() -> None:
    """One side of a square, and seconds as text."""
    with pytest.raises(ConfigError, match=r"Did you mean size=\(64, 64\)\?"):
        tl.Image(size=64)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="tolerance_s='1' is invalid: expected seconds"):
        tl.Signal(tolerance_s="1")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"modality": "actions"}, r"modality of stream 'a'='actions' is unknown: .* Did you mean 'action'\?"),
        ({"shape": 2}, r"shape of stream 'a' is 2: expected a tuple of ints"),
        ({"shape": (2.0,)}, r"shape of stream 'a' is \(2\.0,\): expected a tuple of ints"),
    ],
)
def test_a_stream_says_what_was_meant(changed: dict[str, Any], message: str) -> None:
    """A modality by name, and the shape of a row."""
    usual: dict[str, Any] = {"name": "a", "modality": "action", "encoding": "npy", "shape": (2,), "dtype": "float32"}
    with pytest.raises(ConfigError, match=message):
        tl.StreamSpec(**{**usual, **changed})


def test_a_writer_of_one_stream_takes_a_list(tmp_path: Path) -> None:
    """Of StreamSpecs, even of one."""
    spec = tl.StreamSpec(name="a", modality=tl.Modality.ACTION, encoding="npy", shape=(2,), dtype="float32")
    with pytest.raises(ConfigError, match="expected a list of StreamSpec values"):
        tl.Writer(tmp_path / "out", streams=spec, step_rate_hz=20)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("file", "hint"),
    [
        ("set/1.0.0/set-train.tfrecord-00000-of-00128", "TFRecord files (RLDS) are not read in place"),
        ("a.hdf5", "HDF5 files are not"),
        ("replay.zarr/.zgroup", "Zarr stores are not"),
        ("run/a.mcap", "MCAP files are not"),
        ("train/shard.00000.mds", "MDS shards are not"),
        ("eps/1.npz", "npz files are not"),
    ],
)
def test_a_folder_of_another_layout_is_named(tmp_path: Path, file: str, hint: str) -> None:
    """With the way to bring it in."""
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).touch()
    with pytest.raises(ConfigError, match=re.escape(hint) + r".*write their episodes once with tl\.Writer"):
        tl.open(tmp_path)


def test_a_name_on_a_hub_is_told_from_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`owner/name` that is no folder here gets the command that downloads it; other paths do not."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="'hf download --repo-type dataset lerobot/pusht --local-dir FOLDER'"):
        tl.open("lerobot/pusht")
    for path in ("pusht", "./lerobot/pusht", "a/b/c", str(tmp_path / "x")):
        with pytest.raises(ConfigError, match="does not exist") as caught:
            tl.open(path)
        assert "Hub" not in str(caught.value)
