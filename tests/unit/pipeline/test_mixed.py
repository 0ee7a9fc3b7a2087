"""Mixtures that cannot be: every message names the sources, the streams and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import trajload as tl
from trajload.errors import ConfigError, WindowError


def write(folder: Path, **streams: Any) -> tl.Dataset:
    """Write one episode of arrays (T, ...) or text, and open it; uint8 (T, H, W, 3) arrays are pictures."""
    specs = []
    for name, value in streams.items():
        if isinstance(value, str):
            specs.append(tl.StreamSpec(name=name, modality=tl.Modality.LANGUAGE, encoding="txt", shape=(), dtype="str"))
        else:
            is_picture = value.ndim == 4
            specs.append(
                tl.StreamSpec(
                    name=name,
                    modality=tl.Modality.RGB if is_picture else tl.Modality.ACTION,
                    encoding="png" if is_picture else "npy",
                    shape=value.shape[1:],
                    dtype=value.dtype.name,
                )
            )
    with tl.Writer(folder, streams=specs, name=folder.name, step_rate_hz=10) as writer:
        writer.add_episode(streams, key="0", terminated=True)
    return tl.open(folder)


@pytest.fixture(scope="module")
def a(tmp_path_factory: pytest.TempPathFactory) -> tl.Dataset:
    return write(
        tmp_path_factory.mktemp("mixed") / "a",
        cam=np.zeros((12, 8, 8, 3), np.uint8),
        action=np.zeros((12, 2), np.float32),
        note="text",
    )


@pytest.fixture(scope="module")
def b(tmp_path_factory: pytest.TempPathFactory) -> tl.Dataset:
    return write(
        tmp_path_factory.mktemp("mixed") / "b",
        cam=np.ones((15, 8, 16, 3), np.uint8),
        action=np.ones((15, 3), np.float64),
        note=np.zeros((15, 1), np.float32),
        force=np.ones((15, 2), np.float32),
    )


def loader_of(sources: dict[str, Any], **more: Any) -> tl.Loader:
    arguments = {"window": tl.Window(num_steps=3), "global_batch_size": 4, "num_workers": 0, "rank": 0, "world_size": 1}
    mixture = tl.Mixture(sources, by="windows")
    return tl.Loader(mixture, **{**arguments, **more})


@pytest.mark.parametrize(
    ("streams_a", "streams_b", "message"),
    [
        (
            ["cam"],
            ["cam"],
            r"batch key 'cam' cannot be collated: source 'x' gives uint8 rgb pictures \(3, 8, 8\) at 3 places, source 'y' "
            r"uint8 rgb pictures \(3, 8, 16\) at 3 places\. Ask for one size \(tl\.Image\(size=\.\.\.\)\)",
        ),
        (
            ["action"],
            ["action"],
            r"batch key 'action' cannot be collated: source 'x' gives float32 signals \(2,\) at 3 places, source 'y' float64 "
            r"signals \(3,\) at 3 places\. Ask for float32 \(a tl\.Normalizer in each tl\.Source\), the same steps and settings, rename one of them",
        ),
        (["note"], ["note"], r"'note' cannot be collated: source 'x' gives text, source 'y' float32 signals \(1,\)"),
    ],
)
def test_streams_that_differ_are_refused_naming_both_sources(
    a: tl.Dataset, b: tl.Dataset, streams_a: list[str], streams_b: list[str], message: str
) -> None:
    """Shape, dtype and kind of a batch key must agree."""
    with pytest.raises(ConfigError, match=message):
        loader_of({"x": tl.Source(a, weight=0.5, streams=streams_a), "y": tl.Source(b, weight=0.5, streams=streams_b)})


def test_a_renamed_stream_is_named_in_the_message(a: tl.Dataset, b: tl.Dataset) -> None:
    """By the name it has in its dataset."""
    y = tl.Source(b, weight=0.5, streams=["force"], rename={"force": "cam"})
    with pytest.raises(ConfigError, match=r"source 'y' \(its stream 'force'\) float32 signals \(2,\) at 3 places"):
        loader_of({"x": tl.Source(a, weight=0.5, streams=["cam"]), "y": y})


def test_windows_of_different_lengths_are_refused(a: tl.Dataset, b: tl.Dataset) -> None:
    """The window's own keys have one length; so have streams with deltas."""
    x = tl.Source(a, weight=0.5, streams=["action"])
    y = tl.Source(b, weight=0.5, streams=["force"], window=tl.Window(num_steps=4))
    with pytest.raises(ConfigError, match=r"source 'x' has num_steps=3, source 'y' num_steps=4"):
        loader_of({"x": x, "y": y})
    window = tl.Window(num_steps=3, delta_indices={"force": range(5)})
    y = tl.Source(b, weight=0.5, streams=["force"], rename={"force": "action"}, window=window)
    with pytest.raises(
        ConfigError, match=r"'x' gives float32 signals \(2,\) at 3 places, .* signals \(2,\) at 5 places"
    ):
        loader_of({"x": x, "y": y})


def test_transforms_of_a_source_may_make_streams_fit_or_not(a: tl.Dataset, b: tl.Dataset) -> None:
    """What counts is what comes out of them."""
    both = {"x": tl.Source(a, weight=0.5, streams=["cam"]), "y": tl.Source(b, weight=0.5, streams=["cam"])}
    both["y"] = tl.Source(b, weight=0.5, streams=["cam"], transforms=[tl.Resize(size=(8, 8))])
    with loader_of(both) as loader:
        assert loader.batch_at(0)["cam"].shape == (4, 3, 3, 8, 8)
    both["x"] = tl.Source(a, weight=0.5, streams=["cam"], transforms=[tl.Resize(size=(4, 4))])
    with pytest.raises(ConfigError, match=r"source 'x' gives uint8 rgb pictures \(3, 4, 4\)"):
        loader_of(both)
    with loader_of({"x": tl.Source(a, weight=0.5, streams=["action"]), "y": both["y"]}) as loader:
        batch = loader.batch_at(0)
        assert batch["cam"].shape == (4, 3, 3, 8, 8) and batch["cam_is_missing"].tolist() == [True, True, False, False]
        assert batch["action_is_missing"].tolist() == [False, False, True, True]


@pytest.mark.parametrize(
    ("make", "more", "message"),
    [
        (lambda a, b: {"x": (a, 0.5), "y": (b, 0.5)}, {"streams": ["camera"]}, r"source 'x' has none of the streams asked for \('camera'\): it has 'cam'"),
        (lambda a, b: {"x": (a, 0.5), "y": (b, 0.5)}, {"streams": ["action", "wrist"]}, r"streams name 'wrist', which no source of the mixture gives: batch keys are 'action'"),
        (lambda a, b: {"x": (a, 0.5), "y": (b, 0.5)}, {"streams": "action"}, r"streams='action' is unusable"),
        (lambda a, b: {"x": (a, 0.5), "y": (b, 0.5)}, {"streams": []}, r"streams is empty"),
        (lambda a, b: {"x": tl.Source(a, weight=1, streams=["acton"])}, {}, r"stream 'acton' is unknown.*dataset=x"),
        (lambda a, b: {"x": tl.Source(a, weight=1, rename={"acton": "action"})}, {}, r"stream 'acton' is unknown.*dataset=x"),
        (lambda a, b: {"x": tl.Source(a, weight=1, rename={"action": "epoch"})}, {}, r"stream name 'epoch' is reserved"),
        (lambda a, b: {"x": tl.Source(b, weight=1, rename={"force": "action"})}, {}, r"streams 'action' and 'force' of source 'x' both claim the batch key 'action'"),
        (lambda a, b: {"x": tl.Source(b, weight=1, rename={"force": "action"}, streams=["force", "action"])}, {}, r"streams 'action' and 'force' both claim the batch key 'action'"),
        (lambda a, b: {"x": tl.Source(a, weight=0.5, window=tl.Window(num_steps=3)), "y": (a, 0.5)}, {"window": None}, r"source 'y' has no window: pass window= to the Loader or to tl\.Source"),
        (lambda a, b: {"x": (a, 1)}, {"window": tl.Window(num_steps=3, delta_indices={"axtion": [0]})}, r"the window's deltas name 'axtion', which no source"),
        (lambda a, b: {"x": (a, 1)}, {"num_epochs": 2}, r"num_epochs=2 does not go with a mixture: .*islice"),
        (lambda a, b: {"x": (a, 1)}, {"episodes": [0]}, r"episodes= does not go with a mixture"),
        (lambda a, b: {"x": (a, 1)}, {"order": tl.Weighted(episode_weights=[1, 2])}, r"episode_weights have length 2.*dataset=x"),
        (lambda a, b: {"x": (a, 1)}, {"transforms": [3]}, r"transforms\[0\]=3 is no transform"),
        (lambda a, b: {"x": tl.Source(a, weight=1, transforms=[3])}, {}, r"transforms\[0\]=3 is no transform.*dataset=x"),
        (lambda a, b: {"x": tl.Source(a, weight=1, transforms=[tl.Resize(size=4, streams=["camera"])])}, {}, r"Resize names stream 'camera'.*it has 'cam'.*dataset=x"),
        (
            lambda a, b: {"x": tl.Source(a, weight=0.5, streams=["action"]), "y": tl.Source(b, weight=0.5, rename={"action": "act"})},
            {"streams": {"force": tl.Signal(on_missing="drop")}},
            r"source 'x' has no stream for batch key 'force', which is asked for with on_missing='drop'",
        ),
    ],
)  # fmt: skip
def test_unusable_mixture_is_refused(
    a: tl.Dataset, b: tl.Dataset, make: Any, more: dict[str, Any], message: str
) -> None:
    """Before a batch is made, with the name that is wrong."""
    with pytest.raises(ConfigError, match=message):
        loader_of(make(a, b), **more)


def test_a_window_longer_than_every_episode_of_a_source_names_it(a: tl.Dataset, b: tl.Dataset) -> None:
    """One source without windows spoils the mixture."""
    with pytest.raises(WindowError, match=r"dataset=x"):
        loader_of(
            {"y": tl.Source(b, weight=0.5, streams=["force"]), "x": tl.Source(a, weight=0.5, streams=["action"])},
            window=tl.Window(num_steps=13),
        )


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ({}, r"the mixture has no source"),
        ([("x", 1)], r"sources=\[\('x', 1\)\] is unusable: expected a dict"),
        ({"x": "path"}, r"source 'x' is 'path': expected \(dataset, weight\) or tl\.Source"),
        ({"": ("p", 1)}, r"source name '' is unusable"),
        ({3: ("p", 1)}, r"source name 3 is unusable"),
        ({"n" * 65: ("p", 1)}, r"expected a string of 1 to 64 bytes"),
        ({"half\udcff": ("p", 1)}, r"source name 'half\\udcff' is unusable: .* can be printed"),
        ({"two\nlines": ("p", 1)}, r"source name 'two\\nlines' is unusable: .* can be printed"),
        ({"x": ("nowhere", 0.5), "y": ("nowhere", 0.6)}, r"sum to 1\.1"),
        ({"x": ("nowhere", 1)}, r"nowhere.*dataset=x"),
    ],
)
def test_unusable_sources_are_refused_when_the_mixture_is_made(sources: Any, message: str) -> None:
    """Weights before anything is opened."""
    with pytest.raises(ConfigError, match=message):
        tl.Mixture(sources, by="windows")


def test_arguments_of_a_mixture_are_checked(a: tl.Dataset) -> None:
    """What weights are shares of is said rightly; unsaid it is windows."""
    with pytest.raises(ConfigError, match=r"Mixture\(by='steps'\) is unknown"):
        tl.Mixture({"x": (a, 1)}, by="steps")  # type: ignore[arg-type]
    assert tl.Mixture({"x": (a, 1)}).by == "windows"
    with pytest.raises(ConfigError, match=r"stretch_steps=1\.5 is invalid"):
        tl.Mixture({"x": (a, 1)}, by="windows", stretch_steps=1.5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Source\(rename='x'\) is unusable"):
        tl.Source(a, weight=1, rename="x")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"Source\(rename=\{'image': 3\}\) is unusable"):
        tl.Source(a, weight=1, rename={"image": 3})  # type: ignore[dict-item]
    with pytest.raises(ConfigError, match=r"Source\(transforms=.* is unusable: expected a list"):
        tl.Source(a, weight=1, transforms=tl.RandomFlip())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"source 'z' is unknown: the mixture has 'x'"):
        tl.Mixture({"x": (a, 1)}, by="windows").seed_of("z", 3)


def test_one_mixture_serves_several_loaders(a: tl.Dataset, b: tl.Dataset) -> None:
    """Iterators given to a source are read once; a path is opened once."""
    streams, transforms = iter(["action"]), iter([tl.ActionNoise(std=0.1)])
    x = tl.Source(a.path, weight=0.5, streams=streams, transforms=transforms)
    mixture = tl.Mixture({"x": x, "y": tl.Source(b, weight=0.5, streams=["force"])}, by="windows")
    digests = []
    for _ in range(2):
        with tl.Loader(
            mixture, window=tl.Window(num_steps=3), global_batch_size=4, num_workers=0, rank=0, world_size=1
        ) as loader:
            digests.append(loader.batch_at(3).digest())
            assert sorted(loader.batch_at(3).streams) == ["action", "force"]
    assert digests[0] == digests[1] and len(mixture) == 2


def test_window_deltas_of_the_loader_reach_sources_under_their_own_names(a: tl.Dataset, b: tl.Dataset) -> None:
    """Batch keys in the Loader's window are mapped back; a source without the stream does without."""
    window = tl.Window(num_steps=3, delta_indices={"push": range(4)})
    y = tl.Source(b, weight=0.5, streams=["force", "cam"], rename={"force": "push"})
    with loader_of({"x": tl.Source(a, weight=0.5, streams=["action"]), "y": y}, window=window) as loader:
        batch = loader.batch_at(0)
        assert batch["push"].shape == (4, 4, 2) and batch["action"].shape == (4, 3, 2)
        assert batch["push_is_missing"].tolist() == [True, True, False, False]
        assert batch["push"][2:].eq(1).all() and loader.num_windows == 10 + 12
