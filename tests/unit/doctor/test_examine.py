"""The doctor finds what is wrong, names the place, and leaves healthy data alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from trajload.doctor import DoctorReport, Finding, examine
from trajload.errors import ConfigError
from trajload.sources.base import Dataset

Make = Callable[..., Dataset]


def only(report: DoctorReport, code: str) -> Finding:
    """Return the one finding of a kind; everything found is in the message if there is none."""
    found = report.of(code)
    assert len(found) == 1, [str(f) for f in report.findings]
    return found[0]


def test_healthy_dataset_has_no_finding(make: Make) -> None:
    """Nothing is found where nothing is wrong; first and last picture of each episode are decoded."""
    report = examine(make())
    assert report.findings == ()
    assert report.is_healthy
    assert (report.num_episodes, report.num_examined, report.num_frames_decoded) == (3, 3, 6)


def test_nan_in_actions_is_a_warning_with_stream_episode_and_steps(make: Make) -> None:
    """One NaN is found, and where."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 1:
            values["action"][7:9, 1] = np.nan

    finding = only(examine(make(spoil)), "nan-values")
    assert finding.severity == "warning"
    assert "'action' holds nan in 2 of 40 rows, first in row 7" in finding.message
    place = finding.places[0]
    assert (place.stream, place.episode, place.steps) == ("action", "ep-1", (7, 9))


def test_infinity_is_found_like_nan(make: Make) -> None:
    """Inf is as bad as NaN."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 0:
            values["imu"][3, 2] = np.inf

    assert "'imu' holds inf in 1 of 200 rows, first in row 3" in only(examine(make(spoil)), "nan-values").message


def test_constant_stream_is_a_warning(make: Make) -> None:
    """A stream that never moves carries nothing."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        values["action"][:] = 0.5

    finding = only(examine(make(spoil)), "constant-stream")
    assert "every row of 3 episodes is [0.5, 0.5]" in finding.message


def test_constant_component_is_noted_by_name(make: Make) -> None:
    """One resting joint is named, and is only a note."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        values["action"][:, 1] = 0

    finding = only(examine(make(spoil)), "constant-component")
    assert finding.severity == "note"
    assert "1 of 2 components never change (turn)" in finding.message


def test_frozen_episode_is_told_from_moving_ones(make: Make) -> None:
    """An action that stands still in one episode only is suspicious."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 2:
            values["action"][:] = 0.25

    finding = only(examine(make(spoil)), "frozen-episode")
    assert finding.places[0].episode == "ep-2"


def test_outlier_is_named_with_its_value(make: Make) -> None:
    """A value in other units is found."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 1:
            values["action"][20, 0] = 5000.0

    finding = only(examine(make(spoil)), "outlier")
    assert "component force reaches 5000" in finding.message
    assert finding.places[0].episode == "ep-1"


def test_long_gop_says_what_windows_cost(make: Make) -> None:
    """Keyframes far apart are found from the index, in frames decoded per frame wanted."""
    finding = only(examine(make(gop=150, lengths=(150, 150)), decode=False), "long-gop")
    assert "up to 150 frames apart: a random window of 16 frames decodes" in finding.message
    assert "trajload convert" in finding.advice
    assert finding.count == 2


def test_a_gop_of_250_says_the_factor_it_costs(make: Make) -> None:
    """Against what is delivered, and against a keyframe every ten frames; longer windows share their lead among more frames."""
    dataset = make(gop=250, lengths=(250,))
    report = examine(dataset, decode=False)
    message = only(report, "long-gop").message
    # Starts 0 to 234 decode 16 to 250 frames, 133 on average; with short groups it would be 16 and 4.5 more.
    assert (
        "up to 250 frames apart: a random window of 16 frames decodes 133 on average, 8.3 times what it delivers"
        in message
    )
    assert "and 6.5 times what it would with a keyframe every 10 frames" in message
    assert "tune-encoding" in only(report, "long-gop").advice
    message = only(examine(dataset, decode=False, num_steps=48), "long-gop").message
    assert "a random window of 48 frames decodes 149 on average, 3.1 times" in message


def test_black_picture_is_a_warning(make: Make) -> None:
    """A first picture of one value is a covered lens."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 0:
            values["cam"][:] = 0

    finding = only(examine(make(spoil)), "blank-picture")
    assert (finding.places[0].episode, finding.count) == ("ep-0", 2)


def test_missing_stream_is_noted_with_its_mask(make: Make) -> None:
    """An episode without a camera is normal, and said."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 1:
            del values["cam"]

    finding = only(examine(make(spoil)), "missing-stream")
    assert finding.severity == "note"
    assert "missing in 1 of 3 episodes" in finding.message
    assert "cam_is_missing" in finding.advice


def test_stream_that_no_episode_has_is_a_warning(make: Make) -> None:
    """Declared, never recorded."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        del values["cam"]

    assert only(examine(make(spoil)), "declared-without-data").places[0].stream == "cam"


def test_empty_text_is_a_warning(make: Make) -> None:
    """A blank instruction is found."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 2:
            values["task"] = "  "

    assert only(examine(make(spoil)), "empty-text").places[0].episode == "ep-2"


def test_short_episode_is_noted(make: Make) -> None:
    """Fewer steps than a usual window."""
    finding = only(examine(make(lengths=(40, 5))), "short-episode")
    assert "5 steps, fewer than a window of 16" in finding.message


def test_clocked_stream_that_ends_early_leaves_steps_uncovered(make: Make) -> None:
    """A sensor that stopped half-way is found, with the steps it leaves alone."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 0:
            values["imu"] = values["imu"][:100]
            extra["timestamps_ns"] = {"imu": extra["timestamps_ns"]["imu"][:100]}

    finding = only(examine(make(spoil)), "clock-coverage")
    assert "leaves 19 of 40 steps without a row" in finding.message
    assert finding.places[0].steps == (21, 40)


def test_gap_in_a_clock_is_found(make: Make) -> None:
    """A pause of a sensor is found, with its length."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        if e == 0:
            times = extra["timestamps_ns"]["imu"]
            keep = (times < 500_000_000) | (times >= 800_000_000)
            values["imu"], extra["timestamps_ns"] = values["imu"][keep], {"imu": times[keep]}

    finding = only(examine(make(spoil)), "time-gap")
    assert "pauses 1 times; the longest, after row 49, lasts 0.31 s at a period of 0.01 s" in finding.message


def test_wrong_stream_rate_is_found(make: Make) -> None:
    """A sensor that runs at half its declared rate."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        values["imu"], extra["timestamps_ns"] = values["imu"][::2], {"imu": extra["timestamps_ns"]["imu"][::2]}

    assert "comes at 50 Hz, but declares 100 Hz" in only(examine(make(spoil)), "stream-rate").message


def test_video_with_fewer_frames_than_promised_is_an_error(make: Make, altered: Any) -> None:
    """The index has fewer frames than the metadata say: windows at the end would fail."""

    def track(given: Any, episode: int, stream: str) -> Any:
        return replace(given, num_rows=45) if (episode, stream) == (1, "cam") else given

    report = examine(altered(make(), track=track))
    assert "promises 45 frames from frame 0 on, but the video has 40" in only(report, "frames-missing").message
    assert only(report, "rows-left-over").places[0].episode == "ep-1"
    assert not report.is_healthy


def test_fewer_rows_than_steps_is_an_error(make: Make, altered: Any) -> None:
    """A stepwise stream must reach the end of its episode."""

    def track(given: Any, episode: int, stream: str) -> Any:
        return replace(given, num_rows=38) if (episode, stream) == (2, "action") else given

    finding = only(examine(altered(make(), track=track)), "rows-missing")
    assert finding.severity == "error"
    assert finding.places[0].steps == (38, 40)


def test_step_times_that_fall_are_an_error(make: Make, altered: Any) -> None:
    """Time runs forward."""

    def times(given: np.ndarray, episode: int, steps: np.ndarray) -> np.ndarray:
        out = given.copy()
        out[steps == 10] = 0
        return out

    finding = only(examine(altered(make(), step_times_ns=times)), "time-not-rising")
    assert "step 9 is at 450000000 ns, step 10 at 0 ns" in finding.message
    assert finding.count == 3


def test_stream_clock_that_does_not_rise_says_what_each_repair_keeps(make: Make, altered: Any) -> None:
    """A step back and a repeated time are counted, with the rows that the named policies leave."""

    def times(given: np.ndarray, episode: int, stream: str) -> np.ndarray:
        out = given.copy()
        if episode == 1:
            out[5] = out[4]
            out[10], out[11] = given[11], given[10]
        return out

    finding = only(examine(altered(make(), stream_times_ns=times)), "time-not-rising")
    assert (
        "row 4 is at 40000000 ns, row 5 at 40000000 ns (the same time 1 times, a step back 1 times)" in finding.message
    )
    assert "'sort'), which keeps 199 of 200 rows, or 'drop', which keeps 198" in finding.advice
    assert finding.places[0].stream == "imu"


def test_flipped_bytes_of_a_video_are_a_finding_not_the_end(make: Make) -> None:
    """Damage in one episode is named, and the others are looked at all the same."""
    dataset = make()
    track = dataset.track(1, "cam")
    shard = f"{dataset.path}/{track.file}"
    with open(shard, "r+b") as file:
        file.seek(int(track.index.offset_P[0]) + 20)
        file.write(b"\xff" * 40)
    dataset.store.close()
    report = examine(dataset.path)
    finding = only(report, "undecodable")
    assert (finding.severity, finding.places[0].episode, finding.count) == ("error", "ep-1", 1)
    assert report.num_frames_decoded == 4


def test_deep_decodes_one_picture_per_group(make: Make) -> None:
    """With `deep`, the first frame of each group is decoded, too: 40 frames in groups of 8 are 5 and the last one."""
    assert examine(make(), deep=True).num_frames_decoded == 3 * 6


def test_max_episodes_spreads_over_the_dataset(make: Make) -> None:
    """Two of five episodes are the first and the last."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        values["task"] = ""

    seen: list[tuple[int, int]] = []
    report = examine(
        make(spoil, lengths=(40,) * 5), max_episodes=2, progress=lambda done, total: seen.append((done, total))
    )
    assert [p.episode for p in only(report, "empty-text").places] == ["ep-0", "ep-4"]
    assert seen == [(1, 2), (2, 2)]


def test_max_episodes_zero_is_refused(make: Make) -> None:
    """At least one episode must be looked at."""
    with pytest.raises(ConfigError, match=r"max_episodes=0 is invalid"):
        examine(make(), max_episodes=0)


def test_report_is_json_with_errors_first(make: Make, altered: Any) -> None:
    """The report survives JSON; what is worst stands first."""

    def spoil(e: int, values: dict[str, Any], extra: dict[str, Any]) -> None:
        values["task"] = ""

    def track(given: Any, episode: int, stream: str) -> Any:
        return replace(given, num_rows=38) if stream == "action" else given

    report = json.loads(json.dumps(examine(altered(make(spoil), track=track)).to_json()))
    severities = [f["severity"] for f in report["findings"]]
    assert severities == ["error", "error", "warning"]  # too few rows, their checksum, the empty text
    assert report["findings"][0]["code"] == "rows-missing" and report["findings"][0]["count"] == 3
    assert (report["num_errors"], report["num_warnings"], report["is_healthy"]) == (2, 1, False)
