"""A dataset whose video no decoder here knows: the error names the codec, the place and the way out."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import xxhash
from damaging import seal

import trajload as tl

OLD, NEW = b'"codec":"h264"', b'"codec":"vvc1"'


def with_codec(folder: Path, target: Path) -> Path:
    """Return a copy whose indexes name another codec of four letters, with every checksum and digest made to fit."""
    shutil.copytree(folder, target)
    manifest = json.loads((target / "manifest.json").read_bytes())
    for shard in manifest["shards"]:
        path = target / shard["index"]["name"]
        data = path.read_bytes()
        header_end = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:header_end])
        start, stop = (header_end + n for n in header["profile.text"]["data_offsets"])
        profile = data[start:stop]
        assert profile.count(OLD) >= 1
        changed = profile.replace(OLD, NEW)
        old, new = (f"{xxhash.xxh3_64_intdigest(text):016x}".encode() for text in (profile, changed))
        assert data[:header_end].count(old) == 1
        head = data[:header_end].replace(old, new)
        path.write_bytes(head + data[header_end:start] + changed + data[stop:])
        shard["index"]["sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
        shard["index"]["header_xxh3_64"] = f"{xxhash.xxh3_64_intdigest(head):016x}"
    seal(target, manifest)
    return target


def test_codec_without_a_decoder_is_named_with_its_place(demo_dataset: Path, tmp_path: Path) -> None:
    """Reading goes well up to the first picture; then codec, stream, episode and what to do stand in the error."""
    folder = with_codec(demo_dataset, tmp_path / "vvc")
    dataset = tl.open(folder)
    videos = [name for name, spec in dataset.streams.items() if spec.is_video and spec.modality is tl.Modality.RGB]
    others = [name for name, spec in dataset.streams.items() if not spec.is_picture and not spec.is_text]
    with tl.Loader(folder, window=tl.Window(num_steps=4), global_batch_size=2, seed=1, streams=others) as loader:
        assert loader.batch_at(0).refs
    for run in ("oracle", "threads"):
        with (
            tl.Loader(folder, window=tl.Window(num_steps=4), global_batch_size=2, seed=1, streams=videos[:1]) as loader,
            pytest.raises(tl.errors.DecodeError) as caught,
        ):
            loader.batch_at(0) if run == "oracle" else next(iter(loader))
        message = str(caught.value)
        assert "codec 'vvc1' is not supported: expected one of 'h264', 'hevc', 'av1'" in message
        assert "Re-encode the videos (ffmpeg -i IN -c:v libx264 OUT.mp4) or drop the stream" in message
        assert caught.value.at.stream == videos[0] and caught.value.at.episode is not None and caught.value.at.shard
