"""The device's way of decoding a window, run with software: packets, exact pts, conversion, rows; and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.nvdec import DeviceDecoder, NvdecStatus, decode_to_device, find_nvdec, unsupported_reason
from trajload.decode.parity import compare_pictures
from trajload.decode.pixels import is_matrix_known
from trajload.errors import DecodeError, ShardCorruptError
from trajload.refs import VideoTrack
from trajload.spec import Image, StreamSpec
from trajload.types import Modality

RECIPES: dict[str, dict[str, Any]] = {
    "h264-b-frames": {"encoder": "libx264", "options": (("bf", "3"),)},
    "h264-open-gop-mkv": {"encoder": "libx264", "container": "matroska", "options": (("bf", "3"), ("x264-params", "open-gop=1:scenecut=0"))},
    "h264-edit-list": {"encoder": "libx264", "options": (("bf", "2"),), "first_tick": -800},
    "h264-variable-rate": {"encoder": "libx264", "options": (("bf", "2"),), "ticks": "jitter"},
    "hevc": {"encoder": "libx265", "options": (("x265-params", "log-level=none:pools=none:frame-threads=1:keyint=12:bframes=3"),)},
    "vp9-webm": {"encoder": "libvpx-vp9", "container": "webm", "options": (("cpu-used", "5"),)},
    "av1": {"encoder": "libsvtav1", "options": (("preset", "12"), ("svtav1-params", "lp=1")), "size": (64, 64)},
}  # fmt: skip
ROWS = [[0], [27], [5, 6, 7, 8], [20, 2, 20, 17, 2, 11], list(range(28)), list(range(27, -1, -3))]


def by_device(
    tools: Any, track: VideoTrack, data: bytes, rows: Any, decoder: DeviceDecoder, size: tuple[int, int]
) -> np.ndarray:
    store, rows = tools.MemoryStore(data), np.asarray(rows)
    out = torch.full((len(rows), 3, *size), 77, dtype=torch.uint8)
    decode_to_device(track, rows, [store.read(r) for r in plan_reads(track, rows)], out, decoder=decoder)
    return out.numpy()


@pytest.mark.parametrize("name", RECIPES)
def test_device_path_gives_the_bytes_of_the_cpu_path(name: str, tools: Any) -> None:
    """Any rows, repeats and falling orders included, of any codec a device knows, native and resized."""
    data = tools.make_video(tools.Recipe(name=name, **RECIPES[name]))
    track = tools.whole_track(data)
    spec, decoder, context = tools.video_spec(track), DeviceDecoder(None), DecodeContext()
    assert unsupported_reason(track.index, spec) is None
    for rows in ROWS:
        for size in ((track.index.height, track.index.width), (31, 40)):
            wanted = tools.get_rows(track, data, rows, spec, Image(size=size), context)
            assert np.array_equal(by_device(tools, track, data, rows, decoder, size), wanted), (rows, size)


@pytest.mark.parametrize("rotation", [90, 180, 270])
def test_turned_video_is_turned_alike(rotation: int, tools: Any) -> None:
    """Rotation comes after resizing, on both."""
    data = tools.make_video(tools.Recipe("turned", "libx264"))
    track = tools.whole_track(data)
    track = replace(track, index=replace(track.index, rotation=rotation))
    for size in ((64, 48) if rotation != 180 else (48, 64), (20, 30)):
        wanted = tools.get_rows(track, data, [4, 9], tools.video_spec(track), Image(size=size))
        assert np.array_equal(by_device(tools, track, data, [4, 9], DeviceDecoder(None), size), wanted)


@pytest.mark.parametrize("name", ["hevc", "h264-b-frames"])
def test_ten_bit_video_is_within_the_bound(name: str, tools: Any) -> None:
    """P010 frames: mean difference at most 1 grey level and PSNR at least 42 dB against the CPU path."""
    data = tools.make_video(tools.Recipe(name=name, **RECIPES[name], pix_fmt="yuv420p10le"))
    track = tools.whole_track(data)
    wanted = tools.get_rows(track, data, range(36), tools.video_spec(track))
    parity = compare_pictures(by_device(tools, track, data, range(36), DeviceDecoder(None), (48, 64)), wanted)
    assert parity.is_within and not parity.is_equal, str(parity)


def test_one_decoder_serves_many_streams_in_turns(tools: Any) -> None:
    """More streams than it keeps decoders for, visited twice, leave no trace in each other."""
    made = [tools.make_video(tools.Recipe(str(g), "libx264", gop=g, size=(48, 32 + 16 * g))) for g in range(1, 8)]
    decoder = DeviceDecoder(None)
    for data in made * 2:
        track = tools.whole_track(data)
        size = (track.index.height, track.index.width)
        wanted = tools.get_rows(track, data, [7, 20], tools.video_spec(track))
        assert np.array_equal(by_device(tools, track, data, [7, 20], decoder, size), wanted)
    decoder.close()
    decoder.close()


def test_damage_is_found_before_the_device_sees_it(tools: Any) -> None:
    """Groups are checked against their checksums on the CPU, and the decoder stays usable."""
    data = tools.make_video(tools.Recipe("h264", "libx264"))
    track, decoder = tools.whole_track(data), DeviceDecoder(None)
    place = int(track.index.offset_P[14]) + 5
    bad = data[:place] + bytes([data[place] ^ 64]) + data[place + 1 :]
    with pytest.raises(ShardCorruptError, match="group 1 of the video"):
        by_device(tools, track, bad, [13], decoder, (48, 64))
    wanted = tools.get_rows(track, data, [13], tools.video_spec(track))
    assert np.array_equal(by_device(tools, track, data, [13], decoder, (48, 64)), wanted)


def test_frame_unlike_its_index_is_refused(tools: Any) -> None:
    """The index's format is checked on this path too."""
    data = tools.make_video(tools.Recipe("h264", "libx264", pix_fmt="yuv422p"))
    track = tools.whole_track(data)
    track = replace(track, index=replace(track.index, pix_fmt="yuv420p"))
    with pytest.raises(DecodeError, match=r"frame 3 is 64x48 yuv422p, expected 64x48 yuv420p"):
        by_device(tools, track, data, [3], DeviceDecoder(None), (48, 64))


@pytest.mark.parametrize(
    ("change", "modality", "reason"),
    [
        ({"codec": "ffv1"}, Modality.RGB, "codec 'ffv1' is not one of h264, hevc, av1, vp9, vp8"),
        ({"pix_fmt": "yuv444p"}, Modality.RGB, "pixel format 'yuv444p' is not one of yuv420p, yuvj420p, yuv420p10le"),
        ({"codec": "av1", "pix_fmt": "yuv420p10le"}, Modality.RGB, "av1 does not say where 10-bit chroma is sited"),
        ({"width": 63}, Modality.RGB, "size 63x48 is odd"),
        ({"height": 47}, Modality.RGB, "size 64x47 is odd"),
        ({"color_space": "ycgco"}, Modality.RGB, "colour space 'ycgco' has no matrix here"),
        ({}, Modality.DEPTH, "depth video is exact on the CPU only"),
    ],
)
def test_streams_a_device_cannot_decode_are_named(change: Any, modality: Modality, reason: str, tools: Any) -> None:
    """The reason stands in the calibration's report or in the error."""
    track = tools.whole_track(tools.make_video(tools.Recipe("h264", "libx264")))
    spec = StreamSpec(name="cam", modality=modality, encoding="mp4", shape=(48, 64, 3), dtype="uint8")
    assert reason in str(unsupported_reason(replace(track.index, **change), spec))
    assert is_matrix_known("bt709") and not is_matrix_known("ycgco")


def test_missing_device_is_a_reason_and_no_error() -> None:
    """Whatever this machine has, finding out does not raise; a device number that cannot exist is never available."""
    found, absurd = find_nvdec(), find_nvdec(9999)
    assert isinstance(found, NvdecStatus) and found.reason
    assert not absurd.is_available and absurd.reason


@pytest.mark.skipif(torch.version.cuda is not None, reason="checks the words for a torch without CUDA")
def test_torch_without_cuda_is_named() -> None:
    """The reason says which part is missing, with its version."""
    assert find_nvdec().reason == f"torch {torch.__version__} is built without CUDA"
