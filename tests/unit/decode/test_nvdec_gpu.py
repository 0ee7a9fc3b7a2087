"""NVDEC itself: needs an NVIDIA GPU, and says so where there is none. TRAJLOAD_REQUIRE_GPU=1 makes its absence a failure."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.devices import video_devices
from trajload.decode.nvdec import DeviceDecoder, decode_to_device, find_nvdec
from trajload.decode.parity import compare_pictures
from trajload.spec import Image

pytestmark = pytest.mark.gpu

# NVDEC's smallest H.264 picture is 48x16, of other codecs about 144x144.
SIZE = (160, 192)
RECIPES: dict[str, dict[str, Any]] = {
    "h264": {"encoder": "libx264", "options": (("bf", "3"),)},
    "hevc": {
        "encoder": "libx265",
        "options": (("x265-params", "log-level=none:pools=none:frame-threads=1:keyint=12"),),
    },
    "vp9": {"encoder": "libvpx-vp9", "container": "webm", "options": (("cpu-used", "5"),)},
    "av1": {"encoder": "libsvtav1", "options": (("preset", "12"), ("svtav1-params", "lp=1"))},
}


@pytest.fixture(autouse=True)
def nvdec() -> None:
    found = find_nvdec()
    if not found.is_available:
        message = f"NVDEC NOT TESTED: {found.reason}"
        if os.environ.get("TRAJLOAD_REQUIRE_GPU") == "1":
            pytest.fail(message)
        pytest.skip(message)


@pytest.mark.parametrize("name", RECIPES)
def test_nvdec_gives_the_bytes_of_the_cpu_path(name: str, tools: Any) -> None:
    """8-bit 4:2:0, native and resized, any rows: the chip's bits through the same integers."""
    data = tools.make_video(tools.Recipe(name, size=SIZE, **RECIPES[name]))
    track, context = tools.whole_track(data), DecodeContext(devices=video_devices("cuda"))
    spec = tools.video_spec(track)
    for rows in ([0], [20, 2, 20, 17], list(range(36))):
        for size in (SIZE, (64, 64)):
            got = tools.get_rows(track, data, rows, spec, Image(size=size), context)
            assert np.array_equal(got, tools.get_rows(track, data, rows, spec, Image(size=size))), (rows, size)
    context.close()


def test_nvdec_ten_bits_are_within_the_bound(tools: Any) -> None:
    """P010 frames from the chip: mean difference at most 1 grey level, PSNR at least 42 dB."""
    data = tools.make_video(tools.Recipe("hevc", size=SIZE, pix_fmt="yuv420p10le", **RECIPES["hevc"]))
    track, context = tools.whole_track(data), DecodeContext(devices=video_devices("cuda"))
    spec = tools.video_spec(track)
    got = tools.get_rows(track, data, range(36), spec, context=context)
    assert compare_pictures(got, tools.get_rows(track, data, range(36), spec)).is_within


def test_pictures_stay_on_the_device_when_asked(tools: Any) -> None:
    """A CUDA tensor as target gets the same pictures without a way over the host."""
    data = tools.make_video(tools.Recipe("h264", size=SIZE, **RECIPES["h264"]))
    track, rows = tools.whole_track(data), np.array([5, 30, 5])
    store, out = tools.MemoryStore(data), torch.zeros((3, 3, *SIZE), dtype=torch.uint8, device="cuda:0")
    decode_to_device(track, rows, [store.read(r) for r in plan_reads(track, rows)], out, decoder=DeviceDecoder(0))
    assert np.array_equal(out.cpu().numpy(), tools.get_rows(track, data, rows, tools.video_spec(track)))


def test_auto_settles_and_keeps_the_bytes(tools: Any) -> None:
    """Whichever is faster here, the choice is made after four windows and no byte changes."""
    data = tools.make_video(tools.Recipe("h264", size=SIZE, **RECIPES["h264"]))
    track, devices = tools.whole_track(data), video_devices("auto")
    assert devices is not None
    context, spec = DecodeContext(devices=devices), tools.video_spec(track)
    for i in range(8):
        assert np.array_equal(
            tools.get_rows(track, data, [i, i + 20], spec, context=context),
            tools.get_rows(track, data, [i, i + 20], spec),
        )
    (stream,) = devices.report()["streams"]
    assert stream["device"] in ("cpu", "cuda") and "ms a window on the device" in stream["reason"]
