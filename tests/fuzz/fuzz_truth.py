"""Random small datasets with what they hold, and what a batch of them must hold, written from the documentation alone."""

# Shapes: N rows, T places of a stream in a window

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

import trajload as tl
from trajload.shards.video_encode import VideoEncode

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "int64", "float16", "float32", "float64")
SHAPES = ((), (1,), (3,), (2, 3), (130,))


@dataclass
class Episode:
    num_steps: int
    times: np.ndarray
    terminated: bool | None
    rows: dict[str, Any] = field(default_factory=dict)
    clocks: dict[str, np.ndarray] = field(default_factory=dict)


@dataclass
class World:
    path: Path
    specs: list[tl.StreamSpec]
    episodes: list[Episode]
    rate: Fraction | None


def pick(rng: np.random.Generator, *values: Any) -> Any:
    return values[rng.integers(len(values))]


def make_world(rng: np.random.Generator, path: Path) -> World:
    """Write a dataset of 1 to 12 episodes of 1 to 40 steps, of any kinds of streams; everything is stored losslessly."""
    specs = []
    for i, kind in enumerate(
        ["signal", *rng.choice(["signal", "text", "png", "depth", "ffv1", "h264"], rng.integers(4))]
    ):
        clock = pick(rng, "stepwise", "clocked") if i else "stepwise"
        rate_hz = pick(rng, None, 15.0, 100.0) if clock == "clocked" else None
        side = (int(rng.integers(9, 30)), int(rng.integers(9, 30)))
        modality, encoding, shape, dtype = {
            "signal": ("action", pick(rng, "npy", "npy.zst"), pick(rng, *SHAPES), pick(rng, *DTYPES)),
            "text": ("language", "json", (), pick(rng, "str", "json")),
            "png": ("rgb", "png", (*side, 3), "uint8"),
            "depth": ("depth", pick(rng, "png", "mkv"), (*side, 1), "uint16"),
            "ffv1": ("rgb", "mkv", (*side, 3), "uint8"),
            "h264": ("rgb", "mp4", (*side, 3), "uint8"),
        }[str(kind)]
        specs.append(
            tl.StreamSpec(
                name=f"{kind}{i}",
                modality=tl.Modality(modality),
                encoding=encoding,
                shape=shape,
                dtype=dtype,
                clock=clock,
                rate_hz=rate_hz,
            )
        )
    video = {
        s.name: VideoEncode(codec="ffv1")
        if s.encoding == "mkv"
        else VideoEncode(lossless=True, preset="ultrafast", gop=pick(rng, 1, 7, 250), b_frames=pick(rng, 0, 3))
        for s in specs
        if s.is_video
    }
    world = World(path, specs, [], pick(rng, Fraction(30), Fraction(30000, 1001), None))
    with tl.Writer(
        path, streams=specs, step_rate_hz=world.rate, shard_bytes=pick(rng, 4096, 1 << 28), video=video
    ) as w:
        for _ in range(int(pick(rng, 1, 2, 4, 12))):
            _add_episode(rng, world, w)
    return world


def _add_episode(rng: np.random.Generator, world: World, writer: tl.Writer) -> None:
    n, start, rate = int(pick(rng, 1, 2, 5, rng.integers(1, 40))), int(pick(rng, 0, 1_700_000_000 * 10**9)), world.rate
    more: dict[str, Any] = {"start_ns": start}
    if rate is None:
        more = {"step_times_ns": start + np.cumsum(rng.integers(1, 80_000_000, n))}
        times = more["step_times_ns"]
    else:
        times = np.array([start + (2 * i * 10**9 / rate + 1) / 2 // 1 for i in range(n)], dtype=np.int64)
    episode = Episode(n, times, pick(rng, True, False, None))
    for spec in world.specs:
        if spec is not world.specs[0] and rng.random() < 0.12:
            continue
        num_rows = n
        if spec.clock == "clocked":
            num_rows = int(pick(rng, 1, 2, n, 2 * n))
            gap = max(2_000_000, int(times[-1] - times[0]) // num_rows)
            gaps = rng.integers(1_000_001, 2 * gap, num_rows)
            episode.clocks[spec.name] = times[0] - gap + np.cumsum(gaps)
            if rng.random() < 0.3:  # a row at exactly a step's time
                episode.clocks[spec.name] += times[n // 2] - episode.clocks[spec.name][num_rows // 2]
        episode.rows[spec.name] = _values(rng, spec, num_rows)
    writer.add_episode(episode.rows, num_steps=n, terminated=episode.terminated, timestamps_ns=episode.clocks, **more)
    world.episodes.append(episode)


def _values(rng: np.random.Generator, spec: tl.StreamSpec, num_rows: int) -> Any:
    if spec.is_text:
        return [f"é{i}" if spec.dtype == "str" else {"i": [i, None]} for i in range(num_rows)]
    if spec.dtype == "bool":
        return rng.random((num_rows, *spec.shape)) < 0.5
    if spec.dtype.startswith("float"):
        return rng.normal(size=(num_rows, *spec.shape)).astype(spec.dtype)
    return rng.integers(0, np.iinfo(spec.dtype).max, (num_rows, *spec.shape), dtype=spec.dtype, endpoint=True)


class Look:
    """One stream in the window at an anchor: which places are masked, and what stands there."""

    def __init__(self, world: World, e: int, name: str, request: Any, window: tl.Window, anchor: int) -> None:
        spec, episode = next(s for s in world.specs if s.name == name), world.episodes[e]
        own = [window.dilation * i for i in range(-window.history, window.num_steps - window.history)]
        steps = [anchor + d for d in ([0] if spec.is_text else window.delta_indices.get(name, own))]
        num_steps = episode.num_steps
        self.spec, self.is_missing = spec, name not in episode.rows
        self.out = [not 0 <= s < num_steps for s in steps]
        self.miss, self.age = [False] * len(steps), [0] * len(steps)
        clamped = [min(max(s, 0), num_steps - 1) for s in steps]
        self.values: list[Any] = [None] * len(steps)
        if self.is_missing:
            return
        rows, values = list(clamped), episode.rows[name]
        if spec.clock == "clocked":
            offset_ns = round(Fraction(request.offset_s) * 10**9)
            clock = [int(t) + offset_ns for t in episode.clocks[name]]
            limit = self._limit(request)
            for i, s in enumerate(clamped):
                time = int(episode.times[s])
                if request.align == "previous":
                    row = max((j for j, t in enumerate(clock) if t <= time), default=None)
                    is_miss = row is None
                    row = row or 0
                else:
                    row, is_miss = min(range(len(clock)), key=lambda j: (abs(clock[j] - time), j)), False
                is_miss = is_miss or (limit is not None and abs(clock[row] - time) > limit)
                rows[i], self.miss[i] = row, is_miss and not self.out[i]
                self.age[i] = 0 if is_miss or self.out[i] else time - clock[row]
        self.is_pad = [o or m for o, m in zip(self.out, self.miss, strict=True)]
        for i in range(len(steps)):
            real = [j for j in range(i, -1, -1) if not self.out[j]] or [
                j for j in range(i, len(steps)) if not self.out[j]
            ]
            j = real[0] if real else i
            is_zero = self.miss[j] or (self.out[i] and window.pad == "zero")
            self.values[i] = None if is_zero else values[rows[j if spec.clock == "clocked" else i]]

    def _limit(self, request: Any) -> int | None:
        if request.align == "exact":
            return 0
        if request.tolerance_s is not None:
            return round(Fraction(request.tolerance_s) * 10**9)
        return None if self.spec.rate_hz is None else round(Fraction(3 * 10**9, 2) / Fraction(self.spec.rate_hz))


def all_windows(world: World, streams: dict[str, Any], window: tl.Window) -> list[tuple[int, int]]:
    """Return (episode, anchor) of every window in the order of their ids."""
    offsets = [0, -window.dilation * window.history, window.dilation * (window.num_steps - window.history - 1)]
    offsets += [d for name in streams for d in window.delta_indices.get(name, ())]
    found = []
    for e, episode in enumerate(world.episodes):
        if any(r.on_missing == "drop" and name not in episode.rows for name, r in streams.items()):
            continue
        last = episode.num_steps - (max(offsets) if window.pad == "none" else 0)
        for anchor in range(-min(offsets) if window.pad == "none" else 0, last, window.stride):
            looks = [Look(world, e, name, r, window, anchor) for name, r in streams.items() if r.on_miss == "drop"]
            if not any(any(look.miss) for look in looks):
                found.append((e, anchor))
    return found


def check_batch(world: World, batch: tl.Batch, streams: dict[str, Any], window: tl.Window) -> None:
    """Raise AssertionError where a batch does not hold what the documentation says."""
    ids = all_windows(world, streams, window)
    for b, ref in enumerate(batch.refs):
        e, anchor = ids[int(batch["window_id"][b])]
        episode, last = world.episodes[e], world.episodes[e].num_steps - 1
        assert (ref.episode_index, ref.start) == (e, anchor - window.history * window.dilation)
        steps = [ref.start + window.dilation * t for t in range(window.num_steps)]
        assert batch["step_index"][b].tolist() == steps
        assert batch["timestamp_ns"][b].tolist() == [int(episode.times[min(max(s, 0), last)]) for s in steps]
        assert batch["is_first"][b].tolist() == [s == 0 for s in steps]
        assert batch["is_terminal"][b].tolist() == [s == last and episode.terminated is True for s in steps]
        for name, request in streams.items():
            look = Look(world, e, name, request, window, anchor)
            where = f"{name} of episode {e} at {anchor}, {request}, {window}"
            if look.spec.is_text:
                none = "" if look.spec.dtype == "str" else None
                is_none = look.is_missing or look.miss[0]
                got = (bool(batch[f"{name}_is_missing"][b]), batch[name][b])
                assert got == (is_none, none if is_none else look.values[0]), where
                continue
            assert bool(batch[f"{name}_is_missing"][b]) == look.is_missing, where
            assert batch[f"{name}_is_pad"][b].tolist() == (
                [True] * len(look.out) if look.is_missing else look.is_pad
            ), where
            if request.age:
                assert batch[f"{name}_age_ns"][b].tolist() == look.age, where
            for got_row, row in zip(batch[name][b].numpy(), look.values, strict=True):
                wanted = 0 if row is None else row.transpose(2, 0, 1) if look.spec.is_picture else row
                np.testing.assert_array_equal(got_row, np.broadcast_to(wanted, got_row.shape), err_msg=where)
