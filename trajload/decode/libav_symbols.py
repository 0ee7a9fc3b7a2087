"""The FFmpeg libraries that PyAV has loaded, found by address and checked, so that compiled code can call them.

A process must never hold a second libavcodec: its state would not be the one PyAV set up. So symbols are looked up
through the handle of PyAV's own extension module, which sees the libraries it is linked to and nothing else.
"""

from __future__ import annotations

import ctypes
import errno
import functools
import os
import sys
from dataclasses import dataclass
from typing import Any

__all__ = ["Libav", "LibavUnavailableError", "find_libav", "read_int32", "read_int64", "write_int64"]

# AVFrame's `flags` and `decode_error_flags` by (major of libavcodec, major of libavutil): the releases whose structs are
# known here. Fields that stood still for ten years are constants below; `libav_check` tests all of them before first use.
_FLAG_OFFSETS = {(62, 60): (276, 320)}

# struct AVPacket
PACKET_BUF, PACKET_PTS, PACKET_DTS, PACKET_DATA, PACKET_SIZE = 0, 8, 16, 24, 32
# struct AVFrame: data[8], linesize[8], then scalars
FRAME_DATA, FRAME_LINESIZE, FRAME_WIDTH, FRAME_HEIGHT, FRAME_FORMAT, FRAME_PTS = 0, 64, 104, 108, 116, 136
# struct AVBufferRef
BUFFER_DATA, BUFFER_SIZE = 8, 16
# struct AVCodecParameters
PARAMETERS_EXTRADATA, PARAMETERS_EXTRADATA_SIZE = 16, 24
# struct AVOption
_OPTION_OFFSET = 16

NO_PTS = -(1 << 63)
INPUT_PADDING = 64
END_OF_STREAM = -int.from_bytes(b"EOF ", "little")

_P, _I, _STR = ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p
_PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {
    "avcodec_version": (ctypes.c_uint, []),
    "avutil_version": (ctypes.c_uint, []),
    "avcodec_find_decoder_by_name": (_P, [_STR]),
    "avcodec_alloc_context3": (_P, [_P]),
    "avcodec_free_context": (None, [_P]),
    "avcodec_open2": (_I, [_P, _P, _P]),
    "avcodec_parameters_alloc": (_P, []),
    "avcodec_parameters_free": (None, [_P]),
    "avcodec_parameters_from_context": (_I, [_P, _P]),
    "avcodec_parameters_to_context": (_I, [_P, _P]),
    "avcodec_send_packet": (_I, [_P, _P]),
    "avcodec_receive_frame": (_I, [_P, _P]),
    "avcodec_flush_buffers": (None, [_P]),
    "av_packet_alloc": (_P, []),
    "av_packet_free": (None, [_P]),
    "av_new_packet": (_I, [_P, _I]),
    "av_packet_unref": (None, [_P]),
    "av_frame_alloc": (_P, []),
    "av_frame_free": (None, [_P]),
    "av_frame_unref": (None, [_P]),
    "av_frame_get_plane_buffer": (_P, [_P, _I]),
    "av_mallocz": (_P, [ctypes.c_size_t]),
    "av_get_pix_fmt": (_I, [_STR]),
    "av_opt_find": (_P, [_P, _STR, _STR, _I, _I]),
    "av_opt_set_int": (_I, [_P, _STR, ctypes.c_int64, _I]),
    "av_opt_get_int": (_I, [_P, _STR, _I, _P]),
    "av_opt_set_image_size": (_I, [_P, _STR, _I, _I, _I]),
}


class LibavUnavailableError(Exception):
    """The libraries cannot be called directly here; PyAV does the work instead. Never leaves this package."""


def read_int64(address: int) -> int:
    return ctypes.c_int64.from_address(address).value


def read_int32(address: int) -> int:
    return ctypes.c_int32.from_address(address).value


def write_int64(address: int, value: int) -> None:
    ctypes.c_int64.from_address(address).value = value


@dataclass(frozen=True, slots=True)
class Libav:
    """Functions of libavcodec and libavutil, and where fields of their structs stand."""

    functions: dict[str, Any]
    flags_offset: int
    """Of AVFrame.flags."""
    errors_offset: int
    """Of AVFrame.decode_error_flags."""
    eagain: int = -errno.EAGAIN

    def call(self, name: str, *args: Any) -> Any:
        """Call a function; pointers are plain integers, 0 for NULL."""
        return self.functions[name](*args)

    def address(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def free(self, name: str, pointer: int) -> None:
        """Call a function that takes a pointer to the pointer and sets it to NULL."""
        if pointer:
            self.functions[name](ctypes.byref(ctypes.c_void_p(pointer)))

    def option_offset(self, context: int, name: bytes) -> int:
        """Return where an integer option of an AVCodecContext stands in it; checked by writing and reading it back.

        Raises:
            LibavUnavailableError: There is no such option, or it stands elsewhere.
        """
        option = self.call("av_opt_find", context, name, None, 0, 0)
        if not option:
            raise LibavUnavailableError(f"this libavcodec has no option {name.decode()!r}")
        offset = read_int32(option + _OPTION_OFFSET)
        if not 0 < offset < 1 << 12:
            raise LibavUnavailableError(f"option {name.decode()!r} has offset {offset}")
        before = ctypes.c_int64()
        self.call("av_opt_get_int", context, name, 0, ctypes.byref(before))
        for value in (8, 0):
            self.call("av_opt_set_int", context, name, value, 0)
            if read_int32(context + offset) != value:
                raise LibavUnavailableError(f"option {name.decode()!r} does not stand at offset {offset}")
        self.call("av_opt_set_int", context, name, before.value, 0)
        return offset


def _load() -> Libav:
    import av
    import av.codec.context

    if sys.platform == "win32" or ctypes.sizeof(ctypes.c_void_p) != 8 or sys.byteorder != "little":
        raise LibavUnavailableError("the platform is not a little-endian 64-bit Unix")
    versions = av.library_versions
    majors = (versions["libavcodec"][0], versions["libavutil"][0])
    if majors not in _FLAG_OFFSETS:
        raise LibavUnavailableError(f"libavcodec {majors[0]} with libavutil {majors[1]} is not known")
    try:
        # Only what is loaded already: the handle of PyAV's module, whose symbols include those of its libraries.
        handle = ctypes.CDLL(av.codec.context.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        functions = {}
        for name, (result, arguments) in _PROTOTYPES.items():
            function = getattr(handle, name)
            function.restype, function.argtypes = result, arguments
            functions[name] = function
    except (OSError, AttributeError) as err:
        raise LibavUnavailableError(f"PyAV's libraries cannot be reached: {err}") from None
    for library, function_name in (("libavcodec", "avcodec_version"), ("libavutil", "avutil_version")):
        number = functions[function_name]()
        if (number >> 16, number >> 8 & 255, number & 255) != tuple(versions[library]):
            raise LibavUnavailableError(
                f"another {library} than PyAV's answers: {number >> 16}, not {versions[library]}"
            )
    return Libav(functions, *_FLAG_OFFSETS[majors])


@functools.lru_cache(maxsize=1)
def find_libav() -> tuple[Libav | None, str]:
    """Return the checked libraries of this process, or None and why they are not used."""
    from trajload.decode.libav_check import check_libav

    try:
        libav = _load()
        check_libav(libav)
    except LibavUnavailableError as err:
        return None, str(err)
    return libav, ""
