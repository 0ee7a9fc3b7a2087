"""Tuning: what is measured of each encoding, which one is recommended, and that applying it makes windows cheaper."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload.convert import convert
from trajload.convert.tune import tune_encoding, tuned_encodings
from trajload.convert.tune_report import Candidate, StreamTuning
from trajload.costs.profile import profile
from trajload.errors import ConfigError

WINDOW = tl.Window(num_steps=8)
NOW = Candidate(
    codec="h264",
    gop=250,
    crf=None,
    window_ms=9.0,
    decoded_per_frame=8,
    bytes_per_frame=100,
    psnr_db=None,
    encode_ms=None,
)


def candidate(window_ms: float, bytes_per_frame: float, psnr_db: float | None = 40.0) -> Candidate:
    return replace(
        NOW, gop=8, crf=20, window_ms=window_ms, bytes_per_frame=bytes_per_frame, psnr_db=psnr_db, encode_ms=1.0
    )


@pytest.mark.parametrize(
    ("candidates", "best", "why"),
    [
        ([candidate(3, 150), candidate(2, 180)], 1, "4.5 times less"),
        ([candidate(2.1, 150), candidate(2, 180)], 0, "1.50 times the bytes"),  # as good as the cheapest, and smaller
        ([candidate(1, 150, 30), candidate(3, 150)], 1, "40.0 dB"),  # the cheapest looks bad
        ([candidate(1, 400), candidate(3, 150)], 1, ""),  # the cheapest is too large
        ([candidate(2, 250, None)], 0, "the same pictures"),
        ([candidate(8.5, 90)], None, "no setting decodes windows more than a tenth faster"),
        (
            [candidate(1, 400), candidate(1, 100, 20)],
            None,
            "no setting has at least 36 dB and at most 3 times the bytes",
        ),
        ([], None, "no setting has"),
    ],
)
def test_recommended_is_the_cheapest_within_bounds(candidates: list[Candidate], best: int | None, why: str) -> None:
    """Cost first, then bytes among the nearly equal; and nothing at all where little is won."""
    found = StreamTuning(stream="cam", now=NOW, num_frames_sampled=96, candidates=candidates)
    found.recommend(min_psnr_db=36, max_growth=3)
    assert found.best is (None if best is None else candidates[best])
    assert why in found.why


@pytest.fixture(scope="module")
def far(mixed_data: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes with a keyframe at their beginning only."""
    parts = [mixed_data.Part("cam_large", 250, 2)]
    sizes = {"cam_small": (48, 64), "cam_large": (96, 128)}
    return mixed_data.write_mixed(tmp_path_factory.mktemp("far") / "data", parts=parts, sizes=sizes, num_frames=130)


def test_far_keyframes_are_found_costly_and_the_cure_works(far: Path, tmp_path: Path) -> None:
    """Measured on a sample, applied by convert, and measured again: windows cost at most half of what they did."""
    dataset = tl.open(far)
    report = tune_encoding(
        dataset,
        window=WINDOW,
        codecs=["h264"],
        gops=[4, 64],
        num_frames=64,
        num_episodes=2,
        min_psnr_db=25,
        max_growth=20,
    )
    (found,) = report.streams
    assert (found.stream, found.now.codec, found.now.crf) == ("cam_large", "h264", None)
    assert found.now.decoded_per_frame > 5
    short, long = found.candidates
    assert short.window_ms < long.window_ms and short.bytes_per_frame > long.bytes_per_frame
    assert short.decoded_per_frame == pytest.approx((8 + 1.5) / 8, rel=0.05)
    assert short.psnr_db is not None and 25 < short.psnr_db < 60
    assert found.best is short and "times less" in found.why
    assert list(tuned_encodings(report)) == ["cam_large"] and tuned_encodings(report)["cam_large"].gop == 4
    convert(dataset, tmp_path / "out", reencode=tuned_encodings(report))
    new = tl.open(tmp_path / "out")
    before, after = (profile(d, window=WINDOW, streams=["cam_large"]).report.streams for d in (dataset, new))
    assert after["cam_large"]["seconds"] < before["cam_large"]["seconds"] / 2
    dataset.close()
    new.close()


def test_lossless_video_gives_the_same_pictures(far: Path) -> None:
    """A PSNR without end is said as None; FFV1 has one keyframe distance only."""
    dataset = tl.open(far)
    report = tune_encoding(
        dataset, window=WINDOW, codecs=["ffv1"], gops=[1, 8], num_frames=16, num_episodes=1, repeats=1
    )
    (only,) = report.streams[0].candidates
    assert only.psnr_db is None and only.decoded_per_frame == 1
    dataset.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"codecs": ["mpeg1"]}, "codec 'mpeg1' is unknown"),
        ({"codecs": []}, "must not be empty"),
        ({"gops": [0]}, r"gop=0"),
        ({"crf": 99}, r"crf=99"),
        ({"num_episodes": 0}, "num_episodes=0"),
        ({"max_growth": -1}, "max_growth=-1"),
        ({"streams": ["action"]}, "'action' is no video of colour"),
        ({"streams": ["cam_small"]}, "no episode of 'mixed' has stream 'cam_small'"),
    ],
)
def test_bad_arguments_are_refused(far: Path, arguments: dict[str, Any], message: str) -> None:
    """Each by its name, before anything is encoded."""
    dataset = tl.open(far)
    with pytest.raises(ConfigError, match=message):
        tune_encoding(dataset, window=WINDOW, **arguments)
    dataset.close()
