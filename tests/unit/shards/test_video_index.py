"""The packet table: what it states, that its ranges hold the packets, and what is refused, by name."""

from __future__ import annotations

import io
import itertools
import struct
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import xxhash

from trajload.errors import DecodeError, SourceError
from trajload.shards import video_index
from trajload.shards.video_codec import derive_pts, is_hidden, is_random_access, open_decoder
from trajload.shards.video_index import build_video_index


def write_video(
    count: int = 24,
    codec: str = "libx264",
    container: str = "mp4",
    gop: int = 8,
    options: dict[str, str] | None = None,
    tick: int = 1,
    size: tuple[int, int] = (48, 64),
) -> bytes:
    """Return a tiny video; `tick` is the unit of the time base in 1/3000 s."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options={"fflags": "+bitexact"}) as output:
        stream: Any = output.add_stream(codec, rate=30, options=options or {})
        context = stream.codec_context
        context.width, context.height, context.pix_fmt = size[1], size[0], "yuv420p"
        context.gop_size, context.thread_count = gop, 1
        context.time_base = Fraction(tick, 3000)
        for i in range(count):
            array = np.full((*size, 3), (i * 9) % 256, np.uint8)
            array[:, i % size[1]] = 255
            frame = av.VideoFrame.from_ndarray(array, format="rgb24")
            frame.pts, frame.time_base = i * 100, Fraction(1, 3000)
            output.mux(stream.encode(frame.reformat(format="yuv420p")))
        output.mux(stream.encode(None))
    return buffer.getvalue()


X264 = {"bf": "2", "sc_threshold": "0"}


def remux(data: bytes, keep: Sequence[int] | None = None, times: Any = None, container: str = "mp4") -> bytes:
    """Return the packets `keep` of a video in a new container, with times changed by `times(number, packet)`."""
    buffer = io.BytesIO()
    with av.open(io.BytesIO(data)) as source, av.open(buffer, "w", format=container) as output:
        stream = source.streams.video[0]
        copy = output.add_stream_from_template(stream)
        for number, packet in enumerate(source.demux(stream)):
            if packet.size == 0 or (keep is not None and number not in keep):
                continue
            if times is not None:
                times(number, packet)
            packet.stream = copy
            output.mux(packet)
    return buffer.getvalue()


def test_index_of_path_and_of_bytes_are_equal(tmp_path: Path) -> None:
    """A file and its bytes give the same table."""
    data = write_video(options=X264)
    path = tmp_path / "video.mp4"
    path.write_bytes(data)
    a, b = build_video_index(path), build_video_index(data)
    for name in a.__slots__:
        left, right = getattr(a, name), getattr(b, name)
        assert np.array_equal(left, right) if isinstance(left, np.ndarray) else left == right, name


def test_every_range_holds_its_packet_and_every_group_its_checksum() -> None:
    """Bytes at offset and size are the demuxed packets, and group checksums are xxh3_64 of them joined."""
    data = write_video(options=X264)
    index = build_video_index(data)
    with av.open(io.BytesIO(data)) as container:
        packets = [bytes(p) for p in container.demux(video=0) if p.size]
    assert [data[o : o + s] for o, s in zip(index.offset_P, index.size_P, strict=True)] == packets
    bounds = [*index.gop_start_G.tolist(), len(packets)]
    sums = [xxhash.xxh3_64_intdigest(b"".join(packets[a:b])) for a, b in itertools.pairwise(bounds)]
    assert index.gop_checksum_G.tolist() == sums
    assert len(sums) == 3


def test_base_offset_moves_all_packets() -> None:
    """A video inside a larger file is indexed as if alone, with offsets moved."""
    data = write_video(options=X264)
    assert np.array_equal(build_video_index(data, base_offset=512).offset_P, build_video_index(data).offset_P + 512)


def test_index_states_what_a_decoder_needs() -> None:
    """Codec, size, format, time base and times are the stream's."""
    index = build_video_index(write_video(options=X264))
    assert (index.codec, index.width, index.height, index.pix_fmt) == ("h264", 64, 48, "yuv420p")
    assert (index.color_space, index.color_range, index.rotation) == ("unspecified", "unspecified", 0)
    assert index.extradata[:1] == b"\x01"
    times = index.pts_P[index.packet_of_frame_F] * index.time_base
    assert times.tolist() == [Fraction(i, 30) for i in range(24)]
    assert (np.diff(index.dts_P) > 0).all()


def test_best_stream_is_taken_unless_one_is_named() -> None:
    """Of two video streams FFmpeg's best one is taken; any can be named; a name that is no video is refused."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        streams: list[Any] = []
        for width in (32, 96):
            stream: Any = output.add_stream("mpeg4", rate=10)
            stream.width, stream.height, stream.pix_fmt = width, 32, "yuv420p"
            streams.append(stream)
        streams[1].disposition = av.stream.Disposition.default.value
        for stream in streams:
            for i in range(5):
                frame = av.VideoFrame.from_ndarray(np.full((32, stream.width, 3), i * 20, np.uint8), format="rgb24")
                output.mux(stream.encode(frame))
            output.mux(stream.encode(None))
    data = buffer.getvalue()
    assert build_video_index(data).width == 96
    assert build_video_index(data, stream_index=0).width == 32
    with pytest.raises(
        SourceError, match=r"stream 5 is not a video stream: the file's streams are 0 \(video\), 1 \(video\)"
    ):
        build_video_index(data, stream_index=5)


def test_matroska_packets_stand_behind_their_block_header() -> None:
    """WebM and Matroska give the position of the block; the table holds the payload's."""
    data = write_video(container="matroska", options=X264)
    index = build_video_index(data)
    with av.open(io.BytesIO(data)) as container:
        positions = [p.pos for p in container.demux(video=0) if p.size]
    assert ((index.offset_P - np.array(positions)) >= 4).all()


def test_avi_without_b_frames_takes_its_decode_order() -> None:
    """MPEG-4 part 2 in AVI has no pts; without B pictures the order of storage is the order of display."""
    index = build_video_index(write_video(codec="mpeg4", container="avi", options={"bf": "0"}, tick=100))
    assert index.pts_P.tolist() == index.dts_P.tolist() == list(range(24))


def test_h264_in_avi_is_refused_since_its_times_are_guessed() -> None:
    """libavformat invents monotone times for AVI; with B pictures they would shuffle frames, so none are believed."""
    with pytest.raises(SourceError, match=r"no presentation times, and 'h264' may show pictures in another order"):
        build_video_index(write_video(container="avi", options=X264, tick=100))


def test_avi_with_b_frames_is_refused() -> None:
    """With B pictures the order of display cannot be known, so it is not guessed."""
    data = write_video(codec="mpeg4", container="avi", options={"bf": "2"}, tick=100)
    with pytest.raises(SourceError, match=r"no presentation times, and packet \d+ holds (a B picture|2 pictures)"):
        build_video_index(data)


def test_h264_without_pts_is_refused() -> None:
    """H.264 without presentation times may be reordered: refused, with the cure."""
    with pytest.raises(SourceError, match=r"'h264' may show pictures in another order"):
        derive_pts("h264", [b"x"])


def test_raw_stream_without_times_is_refused() -> None:
    """A raw Annex B stream has no timestamps at all."""
    with pytest.raises(SourceError, match=r"no timestamps at all \(24 packets\)"):
        build_video_index(write_video(container="h264", options=X264))


def test_text_file_renamed_mp4_is_refused(tmp_path: Path) -> None:
    """A text file is not opened as a video, whatever its name."""
    path = tmp_path / "notes.mp4"
    path.write_text("these are my notes about the run of the 3rd of May\n" * 40)
    with pytest.raises(SourceError, match=r"not a readable video: .* about 2040 bytes that begin with b'these are my'"):
        build_video_index(path)


def test_lfs_pointer_is_named_as_one() -> None:
    """A Git LFS pointer is told apart from damage, with the command that fetches the file."""
    text = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
    with pytest.raises(SourceError, match=rf"Git LFS pointer of {len(text)} bytes.*git lfs pull"):
        build_video_index(text)


def test_empty_and_absent_files_are_refused(tmp_path: Path) -> None:
    """Nothing to read is an error of its own."""
    (tmp_path / "empty.mp4").touch()
    with pytest.raises(SourceError, match="got 0 bytes"):
        build_video_index(tmp_path / "empty.mp4")
    with pytest.raises(SourceError, match=r"absent\.mp4' cannot be opened: No such file"):
        build_video_index(tmp_path / "absent.mp4")


def test_audio_only_file_is_refused() -> None:
    """A file with sound alone names the streams it has."""
    buffer = io.BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream: Any = output.add_stream("aac", rate=44100)
        frame = av.AudioFrame.from_ndarray(np.zeros((2, 1024), np.float32), format="fltp", layout="stereo")
        frame.rate = 44100
        output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with pytest.raises(SourceError, match=r"no video stream: its streams are 0 \(audio\)"):
        build_video_index(buffer.getvalue())


@pytest.mark.parametrize("share", [0.3, 0.6, 0.9])
def test_truncated_fragmented_or_plain_file_is_refused_or_counts_less(share: float, tmp_path: Path) -> None:
    """An mp4 whose header stands in front and whose end is missing never yields a table of the full length."""
    path = tmp_path / "whole.mp4"
    whole = io.BytesIO(write_video(options=X264))
    with av.open(whole) as source, av.open(str(path), "w", options={"movflags": "faststart"}) as output:
        copy = output.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = copy
                output.mux(packet)
    data = path.read_bytes()
    assert build_video_index(data).num_frames == 24
    with pytest.raises(SourceError, match=r"truncated|not a readable video"):
        build_video_index(data[: int(len(data) * share)])


def test_container_that_splits_packets_is_refused_with_the_cure() -> None:
    """MPEG-TS cuts packets into 188 bytes: the message says to remux."""
    with pytest.raises(SourceError, match=r"packet 0 is not one run of bytes in the file .*Remux it"):
        build_video_index(write_video(container="mpegts", options=X264))


def test_unsupported_codec_is_refused_by_name() -> None:
    """A codec outside the list is named together with the list."""
    with pytest.raises(SourceError, match=r"codec 'huffyuv' is not supported: expected one of 'h264', 'hevc'"):
        build_video_index(write_video(codec="ffvhuff", container="avi", tick=100).replace(b"FFVH", b"HFYU"))


def test_unknown_codec_is_refused_by_name() -> None:
    """A tag that no decoder claims is refused before any packet is read."""
    data = write_video(options=X264).replace(b"avc1", b"zzz1")
    with pytest.raises(
        SourceError, match=r"stream 0 has a codec that FFmpeg here cannot decode: expected one of 'h264'"
    ):
        build_video_index(data)


@pytest.mark.parametrize("tag", [b"XVID", b"m\xc24v"])
def test_mpeg4_of_a_foreign_tag_without_signature_is_refused(tag: bytes) -> None:
    """FFmpeg would choose workarounds by the tag, which packets do not carry."""
    data = write_video(codec="mpeg4", container="avi", options={"bf": "0"}, tick=100).replace(b"FMP4", tag)
    data = data.replace(b"\x00\x00\x01\xb2", b"\x00\x00\x01\xb7")
    with pytest.raises(SourceError, match=r"MPEG-4 part 2 video of tag .* without an encoder signature|cannot decode"):
        build_video_index(data)


def test_recording_cut_inside_a_group_is_refused() -> None:
    """A file whose first packet is no keyframe cannot be decoded from its start."""
    data = remux(write_video(options=X264), keep=range(3, 24))
    with pytest.raises((SourceError, DecodeError), match=r"not a keyframe a decoder can start at|no picture comes out"):
        build_video_index(data)


def test_doubled_presentation_time_is_refused() -> None:
    """Two packets of the same pts cannot be told apart, so the file is refused with both named."""
    with pytest.raises(SourceError, match=r"packets 4 and 5 have the same presentation time"):
        build_video_index(
            remux(
                write_video(options={"bf": "0"}, container="matroska", tick=100),
                times=double_to_previous,
                container="matroska",
            )
        )


def double_to_previous(number: int, packet: Any) -> None:
    if number == 5:
        packet.pts = packet.dts = 133  # the time of packet 4, in milliseconds


def test_header_that_promises_more_frames_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer packets than the header's count, without an edit list that explains them, is a truncated file."""
    data = write_video(options=X264)
    at = data.index(b"stsz") + 12
    assert int.from_bytes(data[at : at + 4], "big") == 24

    class Stream:
        frames, index = 745, 0

    class Container:
        class format:
            name = "mov,mp4"

    packets = video_index._Packets(size=[1] * 6)
    with pytest.raises(SourceError, match=r"the header promises 745 frames, but only 6 packets exist in \d+ bytes"):
        video_index._refuse_missing_packets(data, data, Container(), Stream(), packets)  # type: ignore[arg-type]


def test_random_access_needs_idr_or_immediate_recovery() -> None:
    """H.264: IDR yes, recovery point 0 yes, gradual recovery no, bare I picture no; HEVC: IRAP only."""
    start = b"\x00\x00\x01"
    assert is_random_access("h264", b"", start + b"\x65\x88" + start + b"\x41")
    assert is_random_access("h264", b"", start + b"\x06\x06\x01\x84\x80" + start + b"\x41\x9a")
    assert not is_random_access("h264", b"", start + b"\x06\x06\x01\x44\x80" + start + b"\x41\x9a")
    assert not is_random_access("h264", b"", start + b"\x41\x9a")
    assert not is_random_access("h264", b"", b"")
    assert is_random_access("hevc", b"", start + bytes([21 << 1, 1]))
    assert not is_random_access("hevc", b"", start + bytes([1 << 1, 1]))
    assert is_random_access("vp9", b"", b"anything")


def test_hidden_vp8_packets_are_told_by_their_show_bit() -> None:
    """VP8's alternate reference frames have the show bit clear; other codecs have no such packets."""
    assert is_hidden("vp8", b"\x00\x01")
    assert not is_hidden("vp8", b"\x10\x01")
    assert not is_hidden("h264", b"\x00")


def test_decoder_that_refuses_its_header_is_a_decode_error() -> None:
    """A damaged codec header is an error of ours, not of libav's."""
    from dataclasses import replace

    index = build_video_index(write_video(codec="ffv1", container="matroska", options={"level": "3"}))
    with pytest.raises(DecodeError, match=r"decoder 'ffv1' refuses the stream's header \(9 bytes\)"):
        open_decoder(replace(index, extradata=b"\x01" + b"\xff" * 8))
    with pytest.raises(DecodeError, match=r"codec 'cinepak' is not supported"):
        open_decoder(replace(index, codec="cinepak"))


@pytest.mark.parametrize(
    ("matrix", "wanted"),
    [
        ((65536, 0, 0, 65536), 0),
        ((0, 65536, -65536, 0), 90),
        ((-65536, 0, 0, -65536), 180),
        ((0, -65536, 65536, 0), 270),
        ((-65536, 0, 0, 65536), "mirrors the picture"),
        ((46341, 46341, -46341, 46341), "turns the picture by 45 degrees: expected a multiple of 90"),
    ],
)
def test_display_matrix_becomes_a_clockwise_turn_or_is_refused(matrix: tuple[int, ...], wanted: Any) -> None:
    """Quarter turns are kept, mirrored and slanted pictures are refused by name."""
    a, b, c, d = matrix
    header = write_video(options=X264)
    # the track header's matrix: a, b, u, c, d, v, x, y, w
    at = header.index(b"tkhd") + 4 + 40
    values = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    data = header[:at] + values + header[at + 36 :]
    if isinstance(wanted, int):
        assert build_video_index(data).rotation == wanted
    else:
        with pytest.raises(SourceError, match=wanted):
            build_video_index(data)
