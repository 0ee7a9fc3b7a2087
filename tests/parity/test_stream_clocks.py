"""Clocked streams through the loader: values, ages, intervals, windows left out, clocks that do not rise."""

# Shapes: B windows, T places, N rows of a stream in its episode

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import trajload as tl
from trajload.errors import AlignError, ConfigError, ResumeError, WindowError
from trajload.pipeline.rows import read_rows

COMMON: dict[str, Any] = {"global_batch_size": 4, "seed": 5, "rank": 0, "world_size": 1, "num_workers": 0}
STEP_NS = 50_000_000
"""Steps at 20 Hz; the IMU at about 100 Hz, with jitter, lost rows and a gap."""
STREAMS = [
    tl.StreamSpec(name="action", modality=tl.Modality.ACTION, encoding="npy", shape=(), dtype="float64"),
    tl.StreamSpec(
        name="imu", modality=tl.Modality.PROPRIOCEPTION, encoding="npy", shape=(2,), dtype="float32", clock="clocked", rate_hz=100
    ),
    tl.StreamSpec(
        name="count", modality=tl.Modality.PROPRIOCEPTION, encoding="npy", shape=(), dtype="int32", clock="clocked"
    ),
]  # fmt: skip
LENGTHS = (30, 12, 25, 18)


def imu_times(e: int) -> np.ndarray:
    """Jittered, every seventh row lost, and half a second without rows in episode 2."""
    n = LENGTHS[e] * 5
    times = np.arange(n, dtype=np.int64) * 10_000_000 + (np.arange(n) * 7919 + e) % 4_000_000
    keep = np.arange(n) % 7 != 3
    if e == 2:
        keep &= (times < 400_000_000) | (times > 900_000_000)
    return times[keep]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> tl.Dataset:
    """Four episodes; the last has no IMU."""
    path = tmp_path_factory.mktemp("clocks") / "data"
    with tl.Writer(path, streams=STREAMS, step_rate_hz=20) as writer:
        for e, length in enumerate(LENGTHS):
            counted = np.arange(0, length * STEP_NS, 20_000_000, dtype=np.int64)
            values: dict[str, Any] = {
                "action": np.arange(length, dtype=np.float64),
                "count": np.arange(len(counted), dtype=np.int32),
            }
            stamps = {"count": counted}
            if e != 3:
                stamps["imu"] = imu_times(e)
                values["imu"] = np.stack([stamps["imu"] / 1e9, np.sin(stamps["imu"] / 1e8)], axis=1).astype(np.float32)
            writer.add_episode(values, key=f"ep-{e}", timestamps_ns=stamps)
    return tl.open(path)  # fmt: skip


class Altered(tl.Dataset):
    """The dataset with other timestamps of its IMU."""

    def __init__(self, inner: tl.Dataset, times: Callable[[np.ndarray], np.ndarray]) -> None:
        self._inner, self._times = inner, times
        for name in (
            "name",
            "path",
            "kind",
            "digest",
            "streams",
            "num_steps_E",
            "terminated_E",
            "step_rate_hz",
            "store",
        ):
            setattr(self, name, getattr(inner, name))
        self.episode_key, self.episode, self.track = inner.episode_key, inner.episode, inner.track  # type: ignore[method-assign]
        self.step_times_ns = inner.step_times_ns  # type: ignore[method-assign]

    def episode_key(self, episode: int) -> str:
        raise NotImplementedError

    def episode(self, episode: int) -> Any:
        raise NotImplementedError

    def track(self, episode: int, stream: str) -> Any:
        raise NotImplementedError

    def step_times_ns(self, episode: int, steps: np.ndarray) -> np.ndarray:
        raise NotImplementedError

    def stream_times_ns(self, episode: int, stream: str) -> np.ndarray:
        times = self._inner.stream_times_ns(episode, stream)
        return self._times(times) if stream == "imu" else times


class Without(Altered):
    """The dataset without its IMU."""

    def has_stream(self, episode: int, stream: str) -> bool:
        return stream != "imu" and super().has_stream(episode, stream)


def load(dataset: tl.Dataset, signal: Any, window: tl.Window | None = None, **more: Any) -> tl.Loader:
    return tl.Loader(
        dataset, window=window or tl.Window(num_steps=4, pad="edge"), streams={"imu": signal, "action": None}, **{**COMMON, **more}
    )  # fmt: skip


@pytest.mark.parametrize("align", ["nearest", "previous", "linear"])
@pytest.mark.parametrize("offset_s", [0.0, 0.003, -0.012])
def test_value_and_age_are_those_of_a_search(dataset: tl.Dataset, align: Any, offset_s: float) -> None:
    """Each place holds what a search through the episode's rows finds, with its age, whatever the clock's offset."""
    signal = tl.Signal(align=align, offset_s=offset_s, age=True, tolerance_s=0.02)
    num_real = num_missed = 0
    with load(dataset, signal) as loader:
        for batch in itertools.islice(loader, 20):
            for b, ref in enumerate(batch.refs):
                e = ref.episode_index
                assert batch["imu_is_missing"][b] == (e == 3)
                if e == 3:
                    assert not batch["imu"][b].any()
                    assert batch["imu_is_pad"][b].all()
                    continue
                clock_N = dataset.stream_times_ns(e, "imu") + round(offset_s * 1e9)
                values_N = read_rows(dataset, e, "imu", list(range(len(clock_N))))
                assert values_N is not None
                for t, step in enumerate(batch["step_index"][b].tolist()):
                    time = step * STEP_NS
                    before = np.flatnonzero(clock_N <= time)
                    after = np.flatnonzero(clock_N >= time)
                    left, right = before[-1] if len(before) else -1, after[0] if len(after) else -1
                    if align == "nearest":
                        row = int(np.argmin(np.abs(clock_N - time)))
                        is_miss = abs(clock_N[row] - time) > 20_000_000
                        want = values_N[row]
                    elif align == "previous":
                        row, is_miss = left, left < 0 or time - clock_N[left] > 20_000_000
                        want = values_N[row]
                    else:
                        row = left
                        is_miss = left < 0 or right < 0 or max(time - clock_N[left], clock_N[right] - time) > 20_000_000
                        whole = int(clock_N[right] - clock_N[left])
                        weight = (time - clock_N[left]) / whole if whole else 0.0
                        want = values_N[left].astype(float) * (1 - weight) + values_N[right].astype(float) * weight
                    is_pad = step >= LENGTHS[e] or is_miss
                    assert bool(batch["imu_is_pad"][b, t]) == is_pad
                    if not is_pad:
                        np.testing.assert_allclose(batch["imu"][b, t].numpy(), want, rtol=1e-6, atol=1e-7)
                        assert batch["imu_age_ns"][b, t] == time - clock_N[row]
                        num_real += 1
                    else:
                        assert batch["imu_age_ns"][b, t] == 0
                    if step < LENGTHS[e] and is_miss:
                        assert not batch["imu"][b, t].any()
                        num_missed += 1
    assert min(num_real, num_missed) > 5  # fmt: skip


def test_interval_holds_all_rows_since_the_step_before(dataset: tl.Dataset) -> None:
    """Values, counts and masks of each place; padded to the longest of the batch, never beyond."""
    with load(dataset, tl.Signal(align="interval", age=True), tl.Window(num_steps=3, dilation=2, pad="edge")) as loader:
        for batch in itertools.islice(loader, 20):
            counts = batch["imu_count"]
            longest = int(counts.max())
            assert tuple(batch["imu"].shape) == (4, 3, longest, 2)
            assert batch["imu_interval_is_pad"].equal(torch.arange(longest) >= counts[..., None])
            for b, ref in enumerate(batch.refs):
                if ref.episode_index == 3:
                    assert not counts[b].any()
                    continue
                clock_N = dataset.stream_times_ns(ref.episode_index, "imu")
                for t, step in enumerate(batch["step_index"][b].tolist()):
                    rows = np.flatnonzero((clock_N > (step - 2) * STEP_NS) & (clock_N <= step * STEP_NS))
                    rows = rows if step < LENGTHS[ref.episode_index] else rows[:0]
                    assert counts[b, t] == len(rows)
                    assert bool(batch["imu_is_pad"][b, t]) == (len(rows) == 0)
                    want = read_rows(dataset, ref.episode_index, "imu", rows.tolist())
                    np.testing.assert_array_equal(batch["imu"][b, t, : len(rows)].numpy(), want)
                    assert not batch["imu"][b, t, len(rows) :].any()


@pytest.mark.parametrize("pad", ["none", "edge"])
def test_windows_with_a_miss_are_not_numbered(dataset: tl.Dataset, pad: Any) -> None:
    """on_miss="drop" leaves exactly the windows without a miss; an epoch has each of them once."""
    window = tl.Window(num_steps=4, pad=pad)
    with load(dataset, tl.Signal(tolerance_s=0.02), window, num_epochs=1) as every:
        kept = [
            (ref.episode_index, ref.start)
            for batch in every
            for b, ref in enumerate(batch.refs)
            if not batch["row_is_pad"][b]
            and (
                batch["imu_is_missing"][b]
                or not (batch["imu_is_pad"] & (batch["step_index"] < _length(batch)))[b].any()
            )
        ]
        num_windows = every.num_windows
    with load(
        dataset, tl.Signal(tolerance_s=0.02, on_miss="drop"), window, num_epochs=1, order="sequential"
    ) as dropping:
        got = [
            (r.episode_index, r.start)
            for batch in dropping
            for b, r in enumerate(batch.refs)
            if not batch["row_is_pad"][b]
        ]
        assert got == sorted(kept)
        assert 0 < dropping.num_windows < num_windows
        assert dropping.state_dict()["config"]["dropped"]["num_windows"] == num_windows - dropping.num_windows  # fmt: skip


def _length(batch: tl.Batch) -> torch.Tensor:
    return torch.tensor([LENGTHS[ref.episode_index] for ref in batch.refs])[:, None]


def test_episodes_without_a_stream_give_no_windows_by_choice(dataset: tl.Dataset) -> None:
    """on_missing="drop" takes the windows of the episode that lacks the IMU away, and no other."""
    with load(dataset, tl.Signal(on_missing="drop"), tl.Window(num_steps=4)) as loader:
        assert loader.num_windows == sum(n - 3 for n in LENGTHS[:3])
        assert not any(loader.batch_at(k)["imu_is_missing"].any() for k in range(20))
    with load(dataset, None, tl.Window(num_steps=4)) as loader:
        assert loader.num_windows == sum(n - 3 for n in LENGTHS)


def test_seconds_outside_the_episode_leave_the_window_out_without_padding(dataset: tl.Dataset) -> None:
    """A quarter second back and 0.1 s on: anchors 5 to n - 3, and with padding all, masked where time runs out."""
    deltas = {"imu": [-0.25, 0.0, 0.1]}
    with load(dataset, None, tl.Window(delta_timestamps=deltas), order="sequential", num_epochs=1) as loader:
        starts = [(r.episode_index, r.start) for b in loader for i, r in enumerate(b.refs) if not b["row_is_pad"][i]]
        inside = [(e, s) for e in range(3) for s in range(5, LENGTHS[e] - 2)]
        assert starts == inside + [(3, s) for s in range(LENGTHS[3])]
    with load(dataset, None, tl.Window(delta_timestamps=deltas, pad="edge")) as loader:
        assert loader.num_windows == sum(LENGTHS)
        batch = loader.batch_at(0)
        assert tuple(batch["imu_is_pad"].shape) == (4, 3)
        assert tuple(batch["action"].shape) == (4, 1)


@pytest.mark.parametrize(
    ("policy", "row_of_row"),
    [("sort", {0: 0, 1: 2, 2: 1}), ("drop", {0: 0, 1: 1})],
)
def test_bad_clock_is_refused_or_repaired_by_policy(
    dataset: tl.Dataset, policy: Any, row_of_row: dict[int, int]
) -> None:
    """Rows 1 and 2 swapped in time: refused with both times, or taken in time order, or the late one left out."""

    def swapped(times: np.ndarray) -> np.ndarray:
        out = times.copy()
        if len(out) > 2:
            out[1], out[2] = times[2], times[1]
        return out

    spoiled = Altered(dataset, swapped)
    window = tl.Window(num_steps=1, pad="edge")
    with load(spoiled, None, window, order="sequential") as loader:
        first, second = dataset.stream_times_ns(0, "imu")[[1, 2]].tolist()
        with pytest.raises(
            AlignError, match=rf"row 1 is at {second} ns, row 2 at {first} ns .*on_bad_clock='sort' or 'drop'"
        ):
            loader.batch_at(0)
    deltas = {"imu": [t / 1e9 for t in dataset.stream_times_ns(0, "imu")[: len(row_of_row)].tolist()]}
    if policy == "drop":  # row 1 now bears the time of row 2
        deltas = {"imu": [dataset.stream_times_ns(0, "imu")[i] / 1e9 for i in (0, 2)]}
    with load(
        spoiled,
        tl.Signal(on_bad_clock=policy, align="exact", on_miss="error"),
        tl.Window(delta_timestamps=deltas, pad="edge"),
        order="sequential",
        global_batch_size=1,
    ) as loader:
        got = loader.batch_at(0)["imu"][0].numpy()
    np.testing.assert_array_equal(got, read_rows(dataset, 0, "imu", list(row_of_row.values())))


@pytest.mark.parametrize(
    ("streams", "window", "message"),
    [
        ({"count": tl.Signal(align="linear")}, {}, r"streams\['count'\] asks for align='linear', but it holds int32: expected floats"),
        ({"action": tl.Signal(align="interval")}, {}, r"streams\['action'\] asks for align='interval', but it is stepwise"),
        ({"action": tl.Signal(age=True)}, {}, r"asks for age=True, but it is stepwise"),
        ({"action": tl.Signal(offset_s=0.1)}, {}, r"asks for offset_s=0\.1, but it is stepwise"),
        (["action"], {"delta_indices": {"acton": [0]}}, r"the window has deltas for stream 'acton', which is not asked for: streams are 'action'"),
        (["action"], {"delta_timestamps": {"action": [0.03]}}, r"holds 0\.03 s, off the step clock of 20 Hz: the nearest step, 1, is at 0\.05 s"),
    ],
)  # fmt: skip
def test_requests_that_do_not_fit_are_refused_by_name(
    dataset: tl.Dataset, streams: Any, window: Any, message: str
) -> None:
    """What a stream cannot give is an error before anything is read."""
    with pytest.raises(ConfigError, match=message):
        tl.Loader(dataset, window=tl.Window(**window), streams=streams, **COMMON)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: tl.Signal(align="exact", tolerance_s=0.1), r"tolerance_s=0\.1 has no meaning with align='exact'"),
        (lambda: tl.Signal(on_missing="skip"), r"on_missing='skip' is unknown: expected one of 'mask', 'drop'"),
        (lambda: tl.Signal(on_bad_clock="fix"), r"on_bad_clock='fix' is unknown: expected one of 'error', 'sort', 'drop'"),
        (lambda: tl.Signal(age=1), r"age=1 is invalid: expected True or False"),
        (lambda: tl.Signal(offset_s=float("inf")), r"offset_s=inf is invalid"),
    ],
)  # fmt: skip
def test_unusable_settings_of_a_request_are_named(make: Callable[[], object], message: str) -> None:
    """Each setting is checked when the request is made."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_all_windows_left_out_is_an_error_that_says_why(dataset: tl.Dataset) -> None:
    """No window without a miss, or no episode with the stream: named, never an empty run."""
    late = Altered(dataset, lambda t: t + 10**12)
    signal = tl.Signal(on_miss="drop", tolerance_s=0.01, on_missing="drop")
    with pytest.raises(WindowError, match=r"no window is left of 64: .*on_miss='drop'"):
        load(late, signal, tl.Window(num_steps=2))
    with pytest.raises(
        WindowError, match=r"no episode is left of 4: each lacks one of 'imu', asked for with on_missing='drop'"
    ):
        load(Without(dataset, lambda t: t), signal)


def test_state_of_other_clocks_windows_or_deltas_is_refused(dataset: tl.Dataset) -> None:
    """Whatever changes batches stands in the state and is named when it differs."""
    with load(dataset, tl.Signal(age=True, on_miss="drop", tolerance_s=0.02), tl.Window(num_steps=2)) as saved:
        state = saved.state_dict()
    with (
        load(dataset, tl.Signal(offset_s=0.001), tl.Window(num_steps=2, delta_indices={"action": [0]})) as other,
        pytest.raises(
            ResumeError,
            match=r"(?s)window\.delta_indices: saved absent.*dropped: saved {'num_windows': 10, .*streams\.imu\.on_miss: saved 'drop'.*offset_s",
        ),
    ):
        other.load_state_dict(state)  # fmt: skip
