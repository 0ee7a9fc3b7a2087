"""One open decoder of libavcodec, owned by us: context, packet and frame, freed when dropped or closed."""

from __future__ import annotations

import ctypes
import weakref

import numpy as np

from trajload.decode.libav_symbols import (
    INPUT_PADDING,
    PARAMETERS_EXTRADATA,
    PARAMETERS_EXTRADATA_SIZE,
    Libav,
    LibavUnavailableError,
    write_int64,
)
from trajload.refs import VideoIndex
from trajload.shards.video_codec import COLOR_RANGE_NUMBERS, COLOR_SPACE_NUMBERS, SUPPORTED_CODECS

__all__ = ["LibavDecoder"]

_SLICE_THREADS = 2


def _free(libav: Libav, pointers: dict[str, int]) -> None:
    for function, pointer in pointers.items():
        libav.free(function, pointer)


class LibavDecoder:
    """A single-threaded decoder for one stream, set up exactly as `video_codec.open_decoder` sets up PyAV's.

    Owns its libav memory: `close` (idempotent; also when dropped) frees it. Not at interpreter exit, where a daemon
    thread may still be decoding.

    Raises:
        LibavUnavailableError: No decoder of the codec, or it refuses the header. PyAV's path then says so properly.
    """

    def __init__(self, libav: Libav, index: VideoIndex) -> None:
        pointers: dict[str, int] = {}
        self._finalizer = weakref.finalize(self, _free, libav, pointers)
        self._finalizer.atexit = False
        codec = 0
        for name in SUPPORTED_CODECS.get(index.codec, ()):
            codec = codec or libav.call("avcodec_find_decoder_by_name", name.encode()) or 0
        if not codec:
            raise LibavUnavailableError(f"no decoder for {index.codec!r}")
        pointers["avcodec_free_context"] = self.context = libav.call("avcodec_alloc_context3", codec) or 0
        pointers["av_packet_free"] = self.packet = libav.call("av_packet_alloc") or 0
        pointers["av_frame_free"] = self.frame = libav.call("av_frame_alloc") or 0
        if not all(pointers.values()):
            raise LibavUnavailableError("out of memory")
        set_extradata(libav, self.context, index.extradata)
        self.pix_fmt = libav.call("av_get_pix_fmt", index.pix_fmt.encode())
        results = [libav.call("av_opt_set_image_size", self.context, b"video_size", index.width, index.height, 0)]
        for option, value in (
            (b"threads", 1),
            (b"thread_type", _SLICE_THREADS),
            (b"pixel_format", self.pix_fmt),
            (b"colorspace", COLOR_SPACE_NUMBERS.get(index.color_space, 2)),
            (b"color_range", COLOR_RANGE_NUMBERS.get(index.color_range, 0)),
        ):
            results.append(libav.call("av_opt_set_int", self.context, option, value, 0))
        if min(results) < 0:
            raise LibavUnavailableError(f"options are refused: {results}")
        self.skip_offset = libav.option_offset(self.context, b"skip_frame")
        self.reorder_offset = libav.option_offset(self.context, b"has_b_frames")
        if libav.call("avcodec_open2", self.context, codec, None) < 0:
            raise LibavUnavailableError("the decoder refuses the stream's header")

    @property
    def is_open(self) -> bool:
        """Whether its memory is there: what holds it may have closed it."""
        return self._finalizer.alive

    def close(self) -> None:
        self._finalizer()


def set_extradata(libav: Libav, context: int, extradata: bytes) -> None:
    """Give an AVCodecContext a copy of the codec's header, the way demuxers do: through AVCodecParameters."""
    parameters = libav.call("avcodec_parameters_alloc")
    if not parameters:
        raise LibavUnavailableError("out of memory")
    try:
        results = [libav.call("avcodec_parameters_from_context", parameters, context)]
        if extradata:
            memory = libav.call("av_mallocz", len(extradata) + INPUT_PADDING)
            if not memory:
                raise LibavUnavailableError("out of memory")
            ctypes.memmove(memory, extradata, len(extradata))
            write_int64(parameters + PARAMETERS_EXTRADATA, memory)
            ctypes.c_int32.from_address(parameters + PARAMETERS_EXTRADATA_SIZE).value = len(extradata)
        results.append(libav.call("avcodec_parameters_to_context", context, parameters))
    finally:
        libav.free("avcodec_parameters_free", parameters)
    if min(results) < 0:
        raise LibavUnavailableError(f"codec parameters are refused: {results}")


def loop_state(libav: Libav, decoder: LibavDecoder) -> np.ndarray:
    """Return what `libav_loop` must know of libav, as int64: see the constants there."""
    return np.array(
        [
            *(libav.address(f"avcodec_{name}") for name in ("send_packet", "receive_frame", "flush_buffers")),
            *(libav.address(f"av_frame_{name}") for name in ("unref", "get_plane_buffer")),
            decoder.context,
            decoder.packet,
            decoder.frame,
            decoder.context + decoder.skip_offset,
            decoder.context + decoder.reorder_offset,
            libav.flags_offset,
            libav.errors_offset,
            libav.eagain,
        ],
        dtype=np.int64,
    )
