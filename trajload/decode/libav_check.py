"""The test that libav's structs look as `libav_symbols` believes, done once per process before anything relies on it.

Four frames of H.264, 36 x 18, with a B frame and a cropped edge, whole and with a damaged packet, are decoded twice: by
PyAV, and by calling libavcodec directly and reading fields by their offsets. Everything must agree. Pointers are
followed only once libav itself has said that they lie in one of its buffers.
"""

from __future__ import annotations

import base64
import ctypes
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.libav_symbols import (
    BUFFER_DATA,
    BUFFER_SIZE,
    END_OF_STREAM,
    FRAME_DATA,
    FRAME_FORMAT,
    FRAME_HEIGHT,
    FRAME_LINESIZE,
    FRAME_PTS,
    FRAME_WIDTH,
    NO_PTS,
    PACKET_BUF,
    PACKET_DATA,
    PACKET_DTS,
    PACKET_PTS,
    PACKET_SIZE,
    PARAMETERS_EXTRADATA,
    PARAMETERS_EXTRADATA_SIZE,
    Libav,
    LibavUnavailableError,
    read_int32,
    read_int64,
    write_int64,
)
from trajload.refs import VideoIndex

if TYPE_CHECKING:
    from trajload.decode.libav_decoder import LibavDecoder

__all__ = ["check_libav"]

_HEADER = "AU1ACv/hABdnTUAK9mvPEQgAAAMACAAAAwHgeJEpwAEABWjOgxLI"
# (pts, packet) in decode order, made with libx264; user data removed.
_PACKETS = (
    (
        0,
        "AAAAQWWIhAP973He/8SAAVzdlqqn8uzVVEI0GAVLTTTTL29vbxagYmAoQPiCC/b251FDo5iHDpgJAjgxJIoGjVHxQ6Lc",
    ),
    (2, "AAAAH0GaKD8JDlHAMc/UcAxw4xRdH6Bt1HDHccSLo7jNUzg="),
    (1, "AAAABgGeRQTngA=="),
    (3, "AAAAF0GaTD8E1b/Uf8Yq2+o/8NgSlH7fqObA"),
)
# The last packet, damaged so that its frame comes out with decode_error_flags set.
_DAMAGED = (3, "AAAAF0GaTD8EAL/Uf8Yq2+o/8NgSlH7fqObA")
_WIDTH, _HEIGHT = 36, 18
_KEY_FLAG = 2
_CORRUPT_FLAG = 1


def _require(is_so: bool, what: str) -> None:
    if not is_so:
        raise LibavUnavailableError(f"the self-test failed: {what}")


def _clip_index() -> VideoIndex:
    none = np.zeros(0, np.int64)
    return VideoIndex(
        codec="h264", extradata=base64.b64decode(_HEADER), time_base=Fraction(1, 30),
        width=_WIDTH, height=_HEIGHT, pix_fmt="yuv420p", color_space="unspecified", color_range="unspecified",
        rotation=0, offset_P=none, size_P=none, pts_P=none, dts_P=none,
        is_keyframe_P=none.astype(bool), is_discard_P=none.astype(bool), gop_checksum_G=none.astype(np.uint64),
        packet_of_frame_F=none, seek_of_frame_F=none,
    )  # fmt: skip


def _planes(plane_rows: list[tuple[bytes, int]]) -> list[bytes]:
    """Return each plane cropped to the picture, from (bytes, stride) of the three planes of 4:2:0."""
    sizes = [(_HEIGHT, _WIDTH), (_HEIGHT // 2, _WIDTH // 2), (_HEIGHT // 2, _WIDTH // 2)]
    return [
        b"".join(data[y * stride : y * stride + width] for y in range(height))
        for (data, stride), (height, width) in zip(plane_rows, sizes, strict=True)
    ]


def _reference(index: VideoIndex, clip: tuple[tuple[int, str], ...]) -> list[tuple[Any, ...]]:
    """Return what PyAV gives for each frame of the clip."""
    import av

    from trajload.shards.video_codec import open_decoder

    decoder = open_decoder(index)
    frames = []
    for pts, text in clip:
        packet = av.Packet(base64.b64decode(text))
        packet.pts = packet.dts = pts
        frames += decoder.decode(packet)
    frames += decoder.decode(None)
    return [
        (
            *(f.pts, f.width, f.height, f.format.name, bool(f.key_frame), bool(f.is_corrupt)),
            *([p.line_size for p in f.planes], _planes([(bytes(p), p.line_size) for p in f.planes])),
        )
        for f in frames
    ]


def _check_packet(libav: Libav, packet: int) -> None:
    """Check the fields of AVPacket on one that libav fills."""
    size = 37
    _require(libav.call("av_new_packet", packet, size) == 0, "av_new_packet fails")
    buffer, data = read_int64(packet + PACKET_BUF), read_int64(packet + PACKET_DATA)
    _require(read_int32(packet + PACKET_SIZE) == size and data != 0 and buffer != 0, "AVPacket.size or .data")
    _require(read_int64(buffer + BUFFER_DATA) == data, "AVPacket.buf")
    _require(read_int64(buffer + BUFFER_SIZE) >= size, "AVBufferRef.size")
    _require(read_int64(packet + PACKET_PTS) == NO_PTS == read_int64(packet + PACKET_DTS), "AVPacket.pts or .dts")
    libav.call("av_packet_unref", packet)
    _require(read_int64(packet + PACKET_DATA) == 0 == read_int32(packet + PACKET_SIZE), "av_packet_unref")


def _check_extradata(libav: Libav, context: int, extradata: bytes) -> None:
    """Check that the header given came back as a copy of its own."""
    parameters = libav.call("avcodec_parameters_alloc")
    try:
        _require(libav.call("avcodec_parameters_from_context", parameters, context) >= 0, "AVCodecParameters")
        size = read_int32(parameters + PARAMETERS_EXTRADATA_SIZE)
        data = read_int64(parameters + PARAMETERS_EXTRADATA)
        _require(size == len(extradata) and data != 0, "AVCodecParameters.extradata_size")
        _require(ctypes.string_at(data, size) == extradata, "AVCodecParameters.extradata")
    finally:
        libav.free("avcodec_parameters_free", parameters)


def _read_frame(libav: Libav, frame: int) -> tuple[Any, ...]:
    """Return the fields of an AVFrame in `_reference`'s form, the format by number."""
    flags = read_int32(frame + libav.flags_offset)
    strides, rows = [], []
    for plane in range(3):
        reference = libav.call("av_frame_get_plane_buffer", frame, plane)
        _require(bool(reference), "AVFrame.data lies in none of its buffers")
        start, size = read_int64(reference + BUFFER_DATA), read_int64(reference + BUFFER_SIZE)
        data, stride = read_int64(frame + FRAME_DATA + 8 * plane), read_int32(frame + FRAME_LINESIZE + 4 * plane)
        needed = stride * ((_HEIGHT if plane == 0 else _HEIGHT // 2) - 1) + (_WIDTH if plane == 0 else _WIDTH // 2)
        _require(0 < stride < 4096 and start <= data and data + needed <= start + size, "AVFrame.data or .linesize")
        strides.append(stride)
        rows.append((ctypes.string_at(data, needed), stride))
    width, height, pix_fmt = (read_int32(frame + o) for o in (FRAME_WIDTH, FRAME_HEIGHT, FRAME_FORMAT))
    is_corrupt = bool(flags & _CORRUPT_FLAG) or read_int32(frame + libav.errors_offset) != 0
    is_key = bool(flags & _KEY_FLAG)
    return read_int64(frame + FRAME_PTS), width, height, pix_fmt, is_key, is_corrupt, strides, _planes(rows)


def _decode(libav: Libav, decoder: LibavDecoder, clip: tuple[tuple[int, str], ...]) -> list[tuple[Any, ...]]:
    out = []
    packets: list[tuple[int, str | None]] = [*clip, (0, None)]
    for pts, text in packets:
        if text is None:
            result = libav.call("avcodec_send_packet", decoder.context, None)
        else:
            data = base64.b64decode(text)
            memory = ctypes.create_string_buffer(data, len(data))
            write_int64(decoder.packet + PACKET_DATA, ctypes.addressof(memory))
            ctypes.c_int32.from_address(decoder.packet + PACKET_SIZE).value = len(data)
            write_int64(decoder.packet + PACKET_PTS, pts)
            write_int64(decoder.packet + PACKET_DTS, pts)
            result = libav.call("avcodec_send_packet", decoder.context, decoder.packet)
            write_int64(decoder.packet + PACKET_DATA, 0)
            ctypes.c_int32.from_address(decoder.packet + PACKET_SIZE).value = 0
        _require(result == 0, f"avcodec_send_packet gives {result}")
        while (result := libav.call("avcodec_receive_frame", decoder.context, decoder.frame)) == 0:
            out.append(_read_frame(libav, decoder.frame))
        _require(result in (libav.eagain, END_OF_STREAM), f"avcodec_receive_frame gives {result}")
    return out


def check_libav(libav: Libav) -> None:
    """Raise LibavUnavailableError unless direct calls give what PyAV gives."""
    from trajload.decode.libav_decoder import LibavDecoder

    index = _clip_index()
    damaged = (*_PACKETS[:3], _DAMAGED)
    whole_frames, damaged_frames = _reference(index, _PACKETS), _reference(index, damaged)
    for frames, is_corrupt in ((whole_frames, False), (damaged_frames, True)):
        _require([f[0] for f in frames] == [0, 1, 2, 3], "PyAV does not decode the clip")
        _require([f[4] for f in frames] == [True, False, False, False], "PyAV does not tell key frames")
        _require([f[5] for f in frames] == [False, False, False, is_corrupt], "PyAV does not tell corrupt frames")
    decoder = LibavDecoder(libav, index)
    try:
        _check_packet(libav, decoder.packet)
        _check_extradata(libav, decoder.context, index.extradata)
        for clip, reference in ((_PACKETS, whole_frames), (damaged, damaged_frames)):
            found = _decode(libav, decoder, clip)
            wanted = [(*f[:3], libav.call("av_get_pix_fmt", f[3].encode()), *f[4:]) for f in reference]
            if clip is damaged:
                # what fills a hole is not defined
                found, wanted = ([f[:-1] for f in frames] for frames in (found, wanted))
            _require(found == wanted, "decoded frames differ from PyAV's")
            libav.call("avcodec_flush_buffers", decoder.context)
    finally:
        decoder.close()
