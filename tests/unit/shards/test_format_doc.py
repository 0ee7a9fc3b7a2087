"""docs/format.md is complete: a reader written from it alone, without this library, gives the same values."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
import zstandard

from trajload.shards.index_schema import PREFIXES, dtypes
from trajload.shards.layout import ENCODINGS
from trajload.sources.native import open_native

DOC = (Path(__file__).resolve().parents[3] / "docs" / "format.md").read_text()
SAFETENSORS = {"BOOL": "?", "U8": "u1", "I8": "i1", "I32": "<i4", "I64": "<i8", "U64": "<u8"}


class DocReader:
    """What somebody would write with format.md in hand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_bytes())
        assert self.manifest["format"] == "trajload" and self.manifest["format_version"] == 1
        shard = self.manifest["shards"][0]
        self.tar = (folder / shard["name"]).read_bytes()
        raw = (folder / shard["index"]["name"]).read_bytes()
        n = int.from_bytes(raw[:8], "little")
        assert f"{xxhash.xxh3_64_intdigest(raw[: 8 + n]):016x}" == shard["index"]["header_xxh3_64"]
        header = json.loads(raw[8 : 8 + n])
        self.metadata = header.pop("__metadata__")
        checksums = json.loads(self.metadata["checksums"])
        self.column: dict[str, Any] = {}
        for name, place in header.items():
            begin, end = place["data_offsets"]
            data = raw[8 + n + begin : 8 + n + end]
            assert f"{xxhash.xxh3_64_intdigest(data):016x}" == checksums[name]
            self.column[name] = np.frombuffer(data, SAFETENSORS[place["dtype"]])

    def digest(self) -> str:
        body = {k: v for k, v in self.manifest.items() if k != "digest"}
        text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def run(self, prefix: str, row: int, column: str) -> Any:
        ends = self.column[prefix]
        return self.column[column][ends[row] : ends[row + 1]]

    def key(self, episode: int) -> str:
        return self.run("episode.key_offset", episode, "episode.key_text").tobytes().decode()

    def track(self, episode: int, stream: str) -> int:
        code = json.loads(self.metadata["streams"]).index(stream)
        first = self.column["episode.track_offset"][episode]
        return int(first + list(self.run("episode.track_offset", episode, "track.stream")).index(code))

    def member(self, track: int, row: int = 0) -> bytes:
        m = self.column["track.member"][track] + row
        offset, size = self.column["member.offset"][m], self.column["member.size"][m]
        data = self.tar[offset : offset + size]
        assert xxhash.xxh3_64_intdigest(data) == self.column["member.checksum"][m]
        return data

    def rows(self, episode: int, stream: str) -> Any:
        spec = next(s for s in self.manifest["streams"] if s["name"] == stream)
        track = self.track(episode, stream)
        num_rows, detail = self.column["track.num_rows"][track], self.column["track.detail"][track]
        if self.column["track.encoding"][track] == 0:
            start = self.column["npy.data_offset"][detail]
            count = num_rows * int(np.prod(spec["shape"], dtype=int))
            return np.frombuffer(self.tar, spec["dtype"], count=count, offset=start).reshape(num_rows, *spec["shape"])
        data = b""
        offsets, sizes = (self.run("zst.chunk_offset", detail, f"chunk.{name}") for name in ("offset", "size"))
        for offset, size in zip(offsets, sizes, strict=True):
            data += zstandard.decompress(self.tar[offset : offset + size])
        return np.frombuffer(data, spec["dtype"]).reshape(num_rows, *spec["shape"])


@pytest.fixture(scope="module")
def reader(every_encoding: Any) -> DocReader:
    return DocReader(every_encoding.path)


def test_the_digest_follows_from_the_page(reader: DocReader) -> None:
    """Canonical JSON as described gives the manifest's digest."""
    assert reader.digest() == reader.manifest["digest"]


@pytest.mark.parametrize("stream", ["state", "reward", "heights", "imu"])
def test_arrays_follow_from_the_page(every_encoding: Any, reader: DocReader, stream: str) -> None:
    """Raw and compressed rows are found and equal."""
    np.testing.assert_array_equal(reader.rows(1, stream), every_encoding.episodes[1][stream])


def test_members_follow_from_the_page(every_encoding: Any, reader: DocReader) -> None:
    """Pictures by row, videos, text; codes of encodings are those of the table."""
    values = every_encoding.episodes[1]
    track = reader.track(1, "cam.wrist")
    assert [reader.member(track, i) for i in range(6)] == values["cam.wrist"]
    assert reader.member(reader.track(1, "cam.front")) == values["cam.front"]
    assert json.loads(reader.member(reader.track(1, "note"))) == values["note"]
    codes = re.search(r"0 `npy`, 1 `npy\.zst`.*?7 `txt`", DOC)
    assert codes is not None
    assert tuple(re.findall(r"\d `([a-z.]+\d?)`", codes[0])) == ENCODINGS


def test_times_and_facts_follow_from_the_page(every_encoding: Any, reader: DocReader) -> None:
    """Keys, lengths, clocks, metadata."""
    assert [reader.key(i) for i in range(3)] == ["ep-0", "ep-1", "000002"]
    assert reader.column["episode.terminated"].tolist() == [0, 1, -1]
    times = reader.run("track.time_offset", reader.track(0, "imu"), "stream_time.ns")
    np.testing.assert_array_equal(times, every_encoding.episodes[0]["timestamps_ns"])
    assert reader.column["episode.rate_num"][2] == 0
    assert reader.run("episode.time_offset", 2, "step_time.ns").tolist() == [0, 10, 35, 36]
    num, den = int(reader.column["episode.rate_num"][1]), int(reader.column["episode.rate_den"][1])
    start = int(reader.column["episode.start_ns"][1])
    by_hand = [start + (2 * i * 10**9 * den + num) // (2 * num) for i in range(6)]
    assert by_hand == open_native(every_encoding.path).step_times_ns(1, np.arange(6)).tolist()
    metadata = reader.run("episode.metadata_offset", 1, "episode.metadata_text").tobytes()
    assert json.loads(metadata) == {"operator": "person 1", "tries": 1}


def test_a_frame_follows_from_the_page(every_encoding: Any, reader: DocReader) -> None:
    """A video frame is decoded from packets and profile alone, equal to decoding the file from its start."""
    import av

    video = int(reader.column["track.detail"][reader.track(0, "cam.front")])
    profile_row = int(reader.column["video.profile"][video])
    profile = json.loads(reader.run("profile.offset", profile_row, "profile.text").tobytes())
    packets = {n: reader.run("video.packet_offset", video, f"packet.{n}") for n in ("offset", "size", "pts", "dts")}
    frame_packet = reader.run("video.frame_offset", video, "frame.packet")
    seek = reader.run("video.frame_offset", video, "frame.seek_packet")
    with av.open(io.BytesIO(every_encoding.episodes[0]["cam.front"])) as source:
        expected = [frame.to_ndarray() for frame in source.decode(video=0)]
    for i in (0, 3, 6, 10):
        context = av.CodecContext.create(profile["codec"], "r")
        context.extradata = base64.b64decode(profile["extradata"])
        got = []
        for p in range(int(seek[i]), len(packets["offset"])):
            offset = int(packets["offset"][p])
            packet = av.Packet(reader.tar[offset : offset + int(packets["size"][p])])
            packet.pts, packet.dts = int(packets["pts"][p]), int(packets["dts"][p])
            got += context.decode(packet)
        got += context.decode(None)
        frame = next(f for f in got if f.pts == packets["pts"][frame_packet[i]])
        np.testing.assert_array_equal(frame.to_ndarray(), expected[i])


def test_every_column_is_on_the_page() -> None:
    """Each column of the schema stands in a table with its dtype."""
    names = {"bool": "BOOL", "uint8": "U8", "int8": "I8", "int32": "I32", "int64": "I64", "uint64": "U64"}
    for name, dtype in dtypes().items():
        wanted = "p" if name in PREFIXES else names[dtype.name]
        row = next(
            (line for line in DOC.splitlines() if line.startswith("| `") and f"`{name}`" in line.split("|")[1]), ""
        )
        assert row.split("|")[2].strip() == wanted, name


def test_every_field_of_the_manifest_is_on_the_page(reader: DocReader) -> None:
    """Top level, streams, shards, index entries, file entries."""
    fields = {*reader.manifest, *reader.manifest["shards"][0], *reader.manifest["shards"][0]["index"]}
    fields |= {*reader.manifest["stats"], *reader.manifest["step_clock"]}
    fields |= {field for spec in reader.manifest["streams"] for field in spec}
    stats = json.loads((reader.folder / "stats.json").read_bytes())
    fields |= {*stats, *stats["streams"]["state"]}
    missing = [field for field in sorted(fields) if f"`{field}`" not in DOC and f'"{field}"' not in DOC]
    assert not missing
