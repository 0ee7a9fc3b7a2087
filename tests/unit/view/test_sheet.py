"""Contact sheets show the frames that are in a batch, mark what is no data, and are written whole."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from trajload.collate.batch import Batch
from trajload.errors import ConfigError, WindowError
from trajload.loader import Loader
from trajload.pipeline.rows import nearest_rows, read_rows, read_value
from trajload.refs import WindowRef
from trajload.sources.open import open as open_dataset
from trajload.spec import Signal, Window
from trajload.view import contact_sheet, episode_sheet
from trajload.view.pixels import as_frames, false_colour, tile_size, to_rgb
from trajload.view.window import pick_signals, pick_steps

B, T, H, W = 3, 6, 16, 32


def make_batch(*, pad_from: int = T, missing_row: int | None = None) -> Batch:
    """A batch whose frames are of one colour each: red counts rows, green steps."""
    video = torch.zeros((B, T, 3, H, W), dtype=torch.uint8)
    video[:, :, 0] = (60 * (torch.arange(B) + 1)).to(torch.uint8)[:, None, None, None]
    video[:, :, 1] = (40 * torch.arange(T)).to(torch.uint8)[None, :, None, None]
    is_pad = torch.arange(T)[None].repeat(B, 1) >= pad_from
    is_missing = torch.zeros(B, dtype=torch.bool)
    if missing_row is not None:
        is_missing[missing_row] = True
    steps = torch.arange(T)[None].repeat(B, 1) + 10
    refs = [WindowRef("src", b, f"ep-{b}", 10, 10 + T, 1, 7 * b, 0, b) for b in range(B)]
    return Batch(
        {
            "cam": video,
            "cam_is_pad": is_pad,
            "cam_is_missing": is_missing,
            "action": torch.linspace(0, 1, B * T * 2).reshape(B, T, 2),
            "action_is_pad": torch.zeros((B, T), dtype=torch.bool),
            "action_is_missing": torch.zeros(B, dtype=torch.bool),
            "task": ["push"] * B,
            "task_is_missing": torch.zeros(B, dtype=torch.bool),
            "is_first": steps == 0,
            "is_last": steps == 15,
            "is_terminal": steps == 15,
            "step_index": steps,
        },
        train_step=5,
        refs=refs,
    )


def colours(path: Path) -> set[tuple[int, int, int]]:
    """All colours of a PNG."""
    with Image.open(path) as image:
        return set(map(tuple, np.asarray(image.convert("RGB")).reshape(-1, 3).tolist()))


def test_contact_sheet_holds_every_frame_of_every_row(tmp_path: Path) -> None:
    """The frames' own colours stand on the sheet, and the path is returned."""
    path = contact_sheet(make_batch(), tmp_path / "new" / "sheet.png")
    assert path == tmp_path / "new" / "sheet.png"
    assert {(60 * (b + 1), 40 * t, 0) for b in range(B) for t in range(T)} <= colours(path)


def test_contact_sheet_is_the_same_for_the_same_batch(tmp_path: Path) -> None:
    """Same batch, same bytes."""
    first, second = (contact_sheet(make_batch(), tmp_path / name).read_bytes() for name in ("a.png", "b.png"))
    assert first == second


def test_contact_sheet_draws_no_more_rows_and_steps_than_asked(tmp_path: Path) -> None:
    """Two rows, and the first, a middle and the last step."""
    found = colours(contact_sheet(make_batch(), tmp_path / "s.png", max_rows=2, max_steps=3))
    assert {(60, 0, 0), (60, 200, 0), (120, 0, 0)} <= found
    assert not any(red == 180 and blue == 0 and green % 40 == 0 for red, green, blue in found)
    assert (60, 40, 0) not in found


def test_padding_is_crossed_out(tmp_path: Path) -> None:
    """A padded frame bears the alarm colour, which no other batch here has."""
    alarm = (200, 40, 40)
    assert alarm not in colours(contact_sheet(make_batch(), tmp_path / "real.png"))
    assert alarm in colours(contact_sheet(make_batch(pad_from=4), tmp_path / "padded.png"))


def test_missing_stream_is_named_instead_of_drawn(tmp_path: Path) -> None:
    """No tile of the row that lacks the camera, and a remark in its place."""
    found = colours(contact_sheet(make_batch(missing_row=1), tmp_path / "s.png"))
    assert (120, 40, 0) not in found and (60, 40, 0) in found
    assert (200, 40, 40) in found


def test_contact_sheet_without_pictures_draws_plots(tmp_path: Path) -> None:
    """A state-only batch has a sheet, too."""
    batch = make_batch()
    for key in ("cam", "cam_is_pad", "cam_is_missing"):
        del batch[key]
    assert (31, 119, 180) in colours(contact_sheet(batch, tmp_path / "s.png"))


def test_streams_with_steps_of_their_own_are_drawn_whole(demo_dataset: Path, tmp_path: Path) -> None:
    """Cameras with other lengths than the window, chunks and intervals have their own columns."""
    window = Window(num_steps=1, pad="edge", delta_indices={"cam_front": [-20, -10, 0], "action": range(12)})
    streams = {"cam_front": None, "action": None, "proprioception": Signal(align="interval")}
    with Loader(
        demo_dataset, window=window, streams=streams, global_batch_size=2, rank=0, world_size=1, num_workers=0
    ) as loader:
        path = contact_sheet(loader.batch_at(0), tmp_path / "sheet.png", max_rows=1, tile=64)
    with Image.open(path) as image:
        assert image.width >= 8 * 64  # eight of twelve actions, though the window has one step


@pytest.mark.parametrize(("rows", "steps"), [(0, 8), (8, 0)])
def test_contact_sheet_of_nothing_is_refused(tmp_path: Path, rows: int, steps: int) -> None:
    """At least one row and one step."""
    with pytest.raises(ConfigError, match=rf"max_rows={rows}, max_steps={steps}"):
        contact_sheet(make_batch(), tmp_path / "s.png", max_rows=rows, max_steps=steps)


def test_steps_shown_hold_first_and_last() -> None:
    """Evenly spaced, never more than there are."""
    assert pick_steps(16, 4).tolist() == [0, 5, 10, 15]
    assert pick_steps(3, 8).tolist() == [0, 1, 2]
    assert pick_steps(1, 8).tolist() == [0]


def test_signals_shown_begin_with_actions() -> None:
    """At most three, actions and rewards first."""
    assert pick_signals(["imu", "state", "reward", "action.arm"]) == ["action.arm", "reward", "imu"]


def test_depth_is_black_where_nothing_was_measured() -> None:
    """Zero and NaN are black; near and far differ; the range is told."""
    depth = np.array([[[0, 1000, 2000, np.nan]]])
    rgb, remark = false_colour(depth)
    assert rgb[0, 0, 0].tolist() == [0, 0, 0] and rgb[0, 0, 3].tolist() == [0, 0, 0]
    assert rgb[0, 0, 1].tolist() != rgb[0, 0, 2].tolist()
    assert remark == "1020..1980"


def test_depth_of_nothing_says_so() -> None:
    """An empty depth picture does not divide by zero."""
    rgb, remark = false_colour(np.zeros((1, 4, 4)))
    assert rgb.max() == 0 and remark == "nothing measured"


def test_colour_is_passed_through_and_grey_repeated() -> None:
    """What is 8-bit already is not scaled."""
    frames = np.arange(2 * 3 * 8 * 8, dtype=np.uint8).reshape(2, 3, 8, 8)
    assert np.array_equal(to_rgb(frames)[0], frames.transpose(0, 2, 3, 1))
    assert np.array_equal(to_rgb(frames[:, :1])[0][..., 2], frames[:, 0])


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((5, 3, 16, 16), (5, 3, 16, 16)), ((5, 16, 16), (5, 1, 16, 16)), ((5, 16, 16, 1), (5, 1, 16, 16)), ((5, 4, 4), None), ((5, 7), None)],
    ids=str,
)  # fmt: skip
def test_pictures_are_told_from_signals(shape: tuple[int, ...], expected: tuple[int, ...] | None) -> None:
    """A 4x4 pose is no picture, a raw depth map is one."""
    frames = as_frames(np.zeros(shape, dtype=np.float32))
    assert (None if frames is None else frames.shape) == expected


def test_tile_keeps_proportions() -> None:
    """The longer side is the one asked for."""
    assert tile_size(240, 320, 96) == (72, 96)
    assert tile_size(320, 240, 96) == (96, 72)


def test_episode_sheet_of_the_demo_dataset(demo_dataset: Path, tmp_path: Path) -> None:
    """Every stream of a real dataset can be drawn, in one panel per eight steps."""
    dataset = open_dataset(demo_dataset)
    short = episode_sheet(dataset, 0, tmp_path / "short.png", max_steps=8)
    tall = episode_sheet(dataset, 0, tmp_path / "tall.png", max_steps=16)
    with Image.open(short) as a, Image.open(tall) as b:
        assert b.height > 1.8 * a.height and a.width >= 8 * 96
    dataset.store.close()


def test_episode_sheet_outside_the_episode_is_refused(demo_dataset: Path, tmp_path: Path) -> None:
    """The stretch must exist."""
    dataset = open_dataset(demo_dataset)
    num_steps = int(dataset.num_steps_E[0])
    with pytest.raises(WindowError, match=rf"steps \[4, 900\) do not exist: episode 0 has {num_steps} steps"):
        episode_sheet(dataset, 0, tmp_path / "x.png", start=4, stop=900)
    assert not (tmp_path / "x.png").exists()


def test_rows_read_plainly_equal_the_loaders(demo_dataset: Path) -> None:
    """What is looked at is what is trained on: frames, signals and text of one window."""
    from trajload.loader import Loader
    from trajload.spec import Window

    with Loader(demo_dataset, window=Window(num_steps=4), global_batch_size=1, seed=1, num_workers=0) as loader:
        batch = loader.batch_at(0)
        ref, dataset = batch.refs[0], loader.dataset
        steps = np.arange(ref.start, ref.stop)
        for name in ("cam_front", "action"):
            assert np.array_equal(read_rows(dataset, ref.episode_index, name, steps), batch[name][0].numpy())
        depth_rows = nearest_rows(dataset, ref.episode_index, "depth", steps)
        depth, real = batch["depth"][0].numpy(), batch.valid_mask("depth")[0].numpy()
        assert real.any()
        assert np.array_equal(read_rows(dataset, ref.episode_index, "depth", depth_rows)[real], depth[real])
        assert read_value(dataset, ref.episode_index, "language") == batch["language"][0]


def test_rows_outside_the_track_are_refused(demo_dataset: Path) -> None:
    """Naming how many there are, and where."""
    dataset = open_dataset(demo_dataset)
    with pytest.raises(WindowError, match=r"rows \[2, 5001\) do not exist.*stream=action"):
        read_rows(dataset, 0, "action", [2, 5000])
