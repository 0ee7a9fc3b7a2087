"""Real videos through the device's way of decoding, run with software: the CPU path's bytes, at stored size and resized."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from trajload.decode import DecodeContext, decode_rows, plan_reads
from trajload.decode.nvdec import DeviceDecoder, decode_to_device, unsupported_reason
from trajload.decode.parity import compare_pictures
from trajload.errors import DecodeError, SourceError
from trajload.refs import VideoTrack
from trajload.shards.video_index import build_video_index
from trajload.spec import Image, StreamSpec
from trajload.storage import LocalStore
from trajload.types import Modality

pytestmark = pytest.mark.real_data

SUFFIXES = {".mp4", ".mov", ".mkv", ".webm", ".avi"}
# Decoded pixels of one video: long groups of large pictures would take minutes.
MAX_PIXELS = 30_000_000


def test_real_videos_look_the_same_by_the_devices_way(real_data: Path) -> None:
    """H.264, AV1 and whatever else there is, with their matrices, ranges, turns and edit lists: equal bytes wherever a device would be used."""
    compared = set()
    for path in sorted(p for p in real_data.rglob("*") if p.suffix in SUFFIXES):
        try:
            index = build_video_index(path)
        except (SourceError, DecodeError):
            continue  # refused before decoding, which other tests check
        turned = index.rotation in (90, 270)
        shown = (index.width, index.height) if turned else (index.height, index.width)
        spec = StreamSpec(name="cam", modality=Modality.RGB, encoding="mp4", shape=(*shown, 3), dtype="uint8")
        track = VideoTrack(path.name, index, 0, index.num_frames)
        rows = np.minimum(np.array([1, 2, 3]), index.num_frames - 1)
        cost = int(index.packet_of_frame_F[rows[-1]] + 1) * index.width * index.height
        if unsupported_reason(index, spec) is not None or cost > MAX_PIXELS:
            continue
        store, context = LocalStore(path.parent), DecodeContext()
        blobs = [store.read(where) for where in plan_reads(track, rows)]
        for size in (shown, (64, 96)):
            wanted, got = np.zeros((3, 3, *size), np.uint8), torch.zeros((3, 3, *size), dtype=torch.uint8)
            decode_rows(
                track, rows, blobs, wanted, spec=spec, request=Image(size=size), store=store, context=context
            )  # fmt: skip
            decode_to_device(track, rows, blobs, got, decoder=DeviceDecoder(None))
            parity = compare_pictures(got.numpy(), wanted)
            is_right = parity.is_within if index.pix_fmt == "yuv420p10le" else parity.is_equal
            assert is_right, f"{path.name} {size}: {parity}"
        compared.add((index.codec, path.name))
        store.close()
        context.close()
    assert len(compared) >= 20 and {codec for codec, _ in compared} >= {"h264", "av1"}, compared
