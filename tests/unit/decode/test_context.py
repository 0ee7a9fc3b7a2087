"""A context never changes results: reuse, other streams between, threads beside each other, damaged streams, close."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import xxhash
from in_threads import in_threads

from trajload.decode import DecodeContext
from trajload.errors import TrajloadError

RECIPES = {
    "h264": {"encoder": "libx264", "options": (("bf", "2"),)},
    "hevc": {"encoder": "libx265", "options": (("x265-params", "log-level=none:pools=none"),)},
    "vp9": {"encoder": "libvpx-vp9", "container": "webm", "options": (("cpu-used", "5"),)},
    "mpeg4": {"encoder": "mpeg4", "options": (("bf", "2"),)},
    "ffv1": {"encoder": "ffv1", "container": "matroska"},
    "mjpeg": {"encoder": "mjpeg", "container": "matroska", "pix_fmt": "yuvj420p"},
}


@pytest.fixture(scope="module")
def streams(tools: Any) -> dict[str, Any]:
    out = {}
    for name, recipe in RECIPES.items():
        data = tools.make_video(tools.Recipe(name=name, count=20, **recipe))
        track = tools.whole_track(data)
        spec = tools.video_spec(track)
        out[name] = (track, data, spec, tools.get_rows(track, data, range(20), spec))
    return out


def test_one_context_serves_streams_in_turn(streams: Any, tools: Any, context: DecodeContext) -> None:
    """Windows of several streams, mixed through one context, are what each gives alone."""
    rng = np.random.default_rng(0)
    for _ in range(60):
        name = list(streams)[int(rng.integers(len(streams)))]
        track, data, spec, whole = streams[name]
        rows = rng.integers(0, 20, int(rng.integers(1, 6)))
        assert np.array_equal(tools.get_rows(track, data, rows, spec, context=context), whole[rows]), (name, rows)


def test_closed_context_can_be_used_again(streams: Any, tools: Any, context: DecodeContext) -> None:
    """close frees, and is no trap."""
    track, data, spec, whole = streams["h264"]
    for _ in range(2):
        assert np.array_equal(tools.get_rows(track, data, [7], spec, context=context)[0], whole[7])
        context.close()
        context.close()


@pytest.mark.parametrize("engine", ["libav", "pyav"])
def test_threads_with_their_own_contexts_do_not_disturb_each_other(engine: Any, streams: Any, tools: Any) -> None:
    """Four threads over all streams at once, each with its context, give what one thread gives."""
    failures: list[str] = []

    def work(seed: int) -> None:
        context, rng = DecodeContext(engine), np.random.default_rng(seed)
        for _ in range(25):
            name = list(streams)[int(rng.integers(len(streams)))]
            track, data, spec, whole = streams[name]
            rows = rng.integers(0, 20, 3)
            if not np.array_equal(tools.get_rows(track, data, rows, spec, context=context), whole[rows]):
                failures.append(f"{name} {rows}")
        context.close()

    in_threads(work, range(4))
    assert failures == []


def test_context_keeps_a_bounded_number_of_decoders(tools: Any, context: DecodeContext) -> None:
    """Many different cameras do not pile up open decoders."""
    for i in range(12):
        data = tools.make_video(tools.Recipe(name="v", encoder="mpeg4", count=2, size=(16, 16 + 2 * i)))
        track = tools.whole_track(data)
        tools.get_rows(track, data, [1], tools.video_spec(track), context=context)
    assert len(context._decoders if context.engine == "pyav" else context._loops) == 8
    context.close()
    gc.collect()
    assert len(context._decoders) + len(context._loops) == 0


@pytest.mark.parametrize("name", list(RECIPES))
def test_damaged_packets_raise_or_decode_but_never_crash_or_hang(
    name: str, streams: Any, tools: Any, context: DecodeContext
) -> None:
    """Bytes flipped past the checksum give a TrajloadError or a picture; the context serves good streams after it."""
    track, data, spec, whole = streams[name]
    index = track.index
    rng = np.random.default_rng(9)
    for _ in range(40):
        packet = int(rng.integers(len(index.offset_P)))
        bad = bytearray(data)
        for place in rng.integers(0, index.size_P[packet], 5).tolist():
            bad[int(index.offset_P[packet]) + place] = int(rng.integers(256))
        bounds = [*index.gop_start_G.tolist(), len(index.offset_P)]
        sums = []
        for a, b in zip(bounds[:-1], bounds[1:], strict=True):  # noqa: RUF007
            parts = [bytes(bad[o : o + s]) for o, s in zip(index.offset_P[a:b], index.size_P[a:b], strict=True)]
            sums.append(xxhash.xxh3_64_intdigest(b"".join(parts)))
        signed = replace(track, index=replace(index, gop_checksum_G=np.array(sums, np.uint64)))
        rows = rng.integers(0, 20, 3)
        try:
            got = tools.get_rows(signed, bytes(bad), rows, spec, context=context)
        except TrajloadError as err:
            assert str(err)
        else:
            assert got.shape == (3, 3, *spec.shape[:2])
        # Fresh decoders agree on what is an error, and on its words. The pixels of a hole are whatever a buffer held.
        outcomes = []
        for fresh in (DecodeContext(engine="libav"), DecodeContext(engine="pyav")):
            try:
                outcomes.append(str(tools.get_rows(signed, bytes(bad), rows, spec, context=fresh).shape))
            except TrajloadError as err:
                outcomes.append(str(err))
            fresh.close()
        assert outcomes[0] == outcomes[1]
    assert np.array_equal(tools.get_rows(track, data, [3, 15], spec, context=context), whole[[3, 15]])
