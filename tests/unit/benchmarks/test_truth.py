"""The comparison's own judge: barcodes are read back, and a wrong window, colour or value is refused."""

# Shapes: B windows, T steps, C channels, H height, W width

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest


def picture(height: int, width: int, episode: int, frame: int) -> np.ndarray:
    """Return a mid-grey (H, W, C) picture with noise and its barcode."""
    from workloads import barcode

    rng = np.random.Generator(np.random.Philox(key=[episode, frame]))
    out = rng.integers(64, 192, (height, width, 3), dtype=np.uint8)
    barcode.draw(out, episode, frame)
    return out


@pytest.mark.parametrize("size", [(64, 64), (240, 320), (480, 640)], ids=str)
@pytest.mark.parametrize(("episode", "frame"), [(0, 0), (1, 4095), (39, 299), (4095, 1365), (2730, 2730)])
def test_barcode_is_read_back(size: tuple[int, int], episode: int, frame: int) -> None:
    """Every picture size of the workloads has room for all 24 bits."""
    from workloads import barcode

    got = barcode.read(picture(*size, episode, frame).transpose(2, 0, 1))
    assert got == (episode, frame)


@pytest.mark.parametrize(("episode", "frame"), [(0, 0), (39, 299), (4095, 1365), (2730, 2730)])
def test_barcode_survives_resizing_to_128(episode: int, frame: int) -> None:
    """The resized workload is checked picture by picture too."""
    from workloads import barcode, truth

    pictures_NCHW = picture(240, 320, episode, frame).transpose(2, 0, 1)[None]
    small = truth.resize(np.ascontiguousarray(pictures_NCHW), (128, 128))[0]
    assert barcode.read(small, stored=(240, 320)) == (episode, frame)


def small_workload() -> Any:
    from workloads.spec import Data, Workload

    data = Data(
        name="small", folder="small", num_episodes=3, num_steps=6, cameras=("cam",), height=64, width=64, gop=3,
        signals={"state": 4, "reward": 1},
    )  # fmt: skip
    return Workload(name="small", data=data, batch=2, frame_steps=2, signal_steps={"state": 3, "reward": 3})


def batch_of(workload: Any, rows: list[tuple[int, int]]) -> dict[str, np.ndarray]:
    """Return a right batch, in fresh arrays."""
    from workloads.signals import make_signals

    pictures = [[picture(64, 64, e, start + t) for t in range(workload.frame_steps)] for e, start in rows]
    signals = {
        name: np.stack([make_signals(workload.data, e)[name][start : start + steps] for e, start in rows])
        for name, steps in workload.signal_steps.items()
    }
    return {"cam": np.array(pictures).transpose(0, 1, 4, 2, 3), **signals}


def make_truth(workload: Any, folder: Path = Path("absent")) -> Any:
    from workloads.truth import Truth

    return Truth(workload, folder, pixel_rows=0)


def test_right_batch_passes_and_is_counted() -> None:
    """The report says how much was compared, and how well the batches mix."""
    workload = small_workload()
    judge = make_truth(workload)
    judge.check(batch_of(workload, [(0, 3), (2, 0)]))
    judge.check(batch_of(workload, [(1, 1), (1, 2)]))
    report = judge.report()
    assert (report["windows"], report["distinct_windows"], report["frames"]) == (4, 4, 8)
    assert report["values"] == 4 * 3 * (4 + 1)
    assert report["distinct_episodes_per_batch"] == 1.5
    assert report["distinct_episodes_uniform"] == pytest.approx(3 * (1 - (2 / 3) ** 2))


@pytest.mark.parametrize("layout", ["hwc", "float"])
def test_other_layouts_are_understood(layout: str) -> None:
    """Channels last and floats in [0, 1] hold the same pictures."""
    workload = small_workload()
    batch = batch_of(workload, [(0, 0), (1, 1)])
    batch["cam"] = np.moveaxis(batch["cam"], 2, -1) if layout == "hwc" else batch["cam"].astype(np.float32) / 255
    make_truth(workload).check(batch)


def test_single_frame_without_its_axis_is_understood() -> None:
    """Some loaders drop the time axis of a window of one frame."""
    workload = replace(small_workload(), frame_steps=1)
    batch = batch_of(workload, [(0, 0), (1, 1)])
    make_truth(workload).check({**batch, "cam": batch["cam"][:, 0]})


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("frame", r"'cam': got frame \(0, 0\), expected \(0, 1\)"),
        ("start", r"row 0 starts at step 4 of episode 0"),
        ("value", r"row 1, 'reward': values differ"),
        ("shape", r"'state' has shape \(2, 2, 4\), expected \(2, 3, 4\)"),
        ("range", r"pictures are float32 up to 255.0"),
    ],
)
def test_wrong_batch_is_refused(damage: str, message: str) -> None:
    """A loader that is fast and wrong is not timed."""
    from workloads.truth import WrongBatchError

    workload = small_workload()
    batch = batch_of(workload, [(0, 0), (1, 1)])
    if damage == "frame":
        batch["cam"][0, 1] = batch["cam"][0, 0]
    elif damage == "start":
        batch["cam"][0] = np.stack([picture(64, 64, 0, frame).transpose(2, 0, 1) for frame in (4, 5)])
    elif damage == "value":
        batch["reward"][1, 2] += 1e-6
    elif damage == "shape":
        batch["state"] = batch["state"][:, :2]
    else:
        batch["cam"] = batch["cam"].astype(np.float32)
        batch["cam"][0, 0, 0, 0, 0] = 255
    with pytest.raises(WrongBatchError, match=message):
        make_truth(workload).check(batch)


def test_colours_are_compared_with_a_decode_of_the_whole_file(tmp_path: Path) -> None:
    """Right frame numbers with wrong colours are refused; what trajload delivers passes."""
    from workloads.native import make_native
    from workloads.spec import Data, Workload
    from workloads.truth import Truth, WrongBatchError, decode_file

    data = Data(name="tiny", folder="tiny", num_episodes=2, num_steps=6, cameras=("cam",), height=64, width=64, gop=3)
    workload = Workload(name="tiny", data=data, batch=2, frame_steps=3)
    make_native(data, tmp_path)
    frames = [decode_file(data.mp4(tmp_path, "cam", episode)) for episode in range(2)]
    batch = {"cam": np.stack([frames[0][1:4], frames[1][3:6]])}
    judge = Truth(workload, tmp_path)
    judge.check(batch)
    assert judge.report()["mean_abs_diff"] == 0
    batch["cam"] = batch["cam"] // 2 + 40
    with pytest.raises(WrongBatchError, match="colours differ"):
        Truth(workload, tmp_path).check(batch)
