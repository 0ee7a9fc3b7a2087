"""Costs, even shards and new encodings of data that others recorded."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import trajload as tl
from trajload.convert import convert
from trajload.convert.rebalance import rebalance
from trajload.costs.leads import gop_length
from trajload.costs.profile import profile
from trajload.doctor import examine
from trajload.refs import VideoTrack
from trajload.shards.verify import verify
from trajload.shards.video_encode import VideoEncode

CAMERA = "observation.images.ego_view"
WINDOW = tl.Window(num_steps=16)


@pytest.fixture(scope="module")
def gr00t(real_data: Path) -> Path:
    """Five episodes of one camera, a keyframe every 250 frames."""
    return real_data / "lerobot_v2" / "gr00t_robot_sim_pickplace"


@pytest.fixture(scope="module")
def native(gr00t: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gr00t")
    dataset = tl.open(gr00t, cache_dir=folder / "cache")
    convert(dataset, folder / "native")
    dataset.close()
    return folder / "native"


def test_doctor_says_what_a_gop_of_250_costs(native: Path) -> None:
    """With windows of 16: the factor against what is delivered, and against near keyframes."""
    (finding,) = examine(native, decode=False).of("long-gop")
    assert "keyframes up to 250 frames apart: a random window of 16 frames decodes" in finding.message
    factor = float(finding.message.split(" times what it delivers")[0].rsplit(" ", 1)[1])
    assert 5 < factor < 9


def test_profile_measures_leads_and_shorter_groups_cost_less(native: Path, tmp_path: Path) -> None:
    """Encoded anew with a keyframe every eight frames, the same windows take less than half of the time to decode."""
    dataset = tl.open(native)
    before = profile(dataset, window=WINDOW, streams=[CAMERA], windows_per_episode=3, repeats=2)
    (kind,) = before.report.kinds
    assert kind["gop"] >= 200 and kind["lead_ms"] > 0
    convert(dataset, tmp_path / "near", reencode={CAMERA: VideoEncode(gop=8, preset="ultrafast")}, episodes=[0])
    near = tl.open(tmp_path / "near")
    track = near.track(0, CAMERA)
    assert isinstance(track, VideoTrack) and gop_length(track.index) == 8
    after = profile(near, window=WINDOW, streams=[CAMERA], windows_per_episode=3, repeats=2)
    per_step = [r.streams[CAMERA]["seconds"] / d.num_steps for r, d in ((before.report, dataset), (after.report, near))]
    assert per_step[1] < per_step[0] / 2
    dataset.close()
    near.close()


def test_rebalanced_shards_hold_the_same_windows(native: Path, tmp_path: Path) -> None:
    """State, actions and pictures of some windows, by episode and step."""
    report = rebalance(native, tmp_path / "even", num_shards=2, by="steps", measure=False)
    assert verify(tmp_path / "even").ok and len(report.shards) == 2
    old, new = tl.open(native), tl.open(tmp_path / "even")
    low = [name for name, spec in old.streams.items() if not spec.is_picture]

    def windows(dataset: tl.Dataset, streams: list[str], stride: int) -> Counter[tuple[str, int, str]]:
        window = tl.Window(num_steps=16, stride=stride)
        loader = tl.Loader(
            dataset,
            window=window,
            global_batch_size=1,
            order="sequential",
            num_epochs=1,
            streams=streams,
            num_workers=0,
        )
        out: Counter[tuple[str, int, str]] = Counter()
        for batch in loader:
            kept = {key: value for key, value in batch.items() if key not in ("episode_index", "window_id")}
            out[batch.refs[0].episode_key, batch.refs[0].start, tl.Batch(kept, train_step=0, refs=()).digest()] += 1
        loader.close()
        return out

    assert windows(old, low, 60) == windows(new, low, 60)
    assert windows(old, [CAMERA], 200) == windows(new, [CAMERA], 200)
    assert np.array_equal(np.sort(old.num_steps_E), np.sort(new.num_steps_E))
    old.close()
    new.close()
