"""Colour video on an NVIDIA decoder (NVDEC), through PyAV's CUDA hwaccel, on the same packets and the same plan.

Nothing here imports torch or touches a device before it is asked to: `find_nvdec` says whether it could, and why not.
"""

# Shapes: F wanted frames

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.plan import Blobs, VideoReads, check_rows, plan_video
from trajload.errors import DecodeError
from trajload.refs import VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Int64Array, Modality, NDArray

if TYPE_CHECKING:
    from av.codec.hwaccel import HWAccel
    from av.video.codeccontext import VideoCodecContext
    from av.video.frame import VideoFrame

__all__ = ["DeviceDecoder", "NvdecStatus", "decode_to_device", "find_nvdec", "open_nvdec", "unsupported_reason"]

# Codecs whose standard fixes every bit of a decoded picture, so that the chip gives what software gives. FFmpeg's own
# decoder of each drives the chip; for AV1 that is not the one the CPU path uses.
NVDEC_CODECS = ("h264", "hevc", "av1", "vp9", "vp8")
_FORMATS = {"yuv420p": "nv12", "yuvj420p": "nv12", "yuv420p10le": "p010le"}
# Where 10-bit chroma is sited matters to swscale, and the packet table does not say: these have a default.
_LEFT_SITED = ("h264", "hevc")
# Each holds its reference frames on the device, some 100 MB at 1080p.
_MAX_DECODERS = 4


@dataclass(frozen=True, slots=True)
class NvdecStatus:
    """Whether colour video can be decoded on a device here."""

    is_available: bool
    reason: str
    """What is missing, or the device's name in words."""
    device: int | None = 0
    """Number of the CUDA device; None for `DeviceDecoder`'s way with software."""


def find_nvdec(device: int | None = None) -> NvdecStatus:
    """Return whether NVDEC can be used here, with the reason; never raises. None is the process's current CUDA device.

    Looks at PyAV's build and at torch, and opens the device once: where there is none that takes some milliseconds, where there is
    one it makes its CUDA context.
    """
    number = device or 0
    try:
        if device is None:
            from trajload.decode.device_pixels import current_device

            number = current_device()
        reason = _missing(number)
    except Exception as err:  # a broken driver fails in many ways, and every one of them means no
        reason = f"{type(err).__name__}: {err}"
    return NvdecStatus(reason is None, reason or f"CUDA device {number}", number)


def _missing(device: int) -> str | None:
    import av
    from av.video.frame import VideoFrame
    from av.video.plane import VideoPlane

    from trajload.decode.device_pixels import cuda_problem, on_device

    try:
        from av.codec.hwaccel import hwdevices_available
    except ImportError as err:
        return f"PyAV {av.__version__} cannot hand over frames of a device: {err}"
    if not hasattr(VideoPlane, "__dlpack__") or not hasattr(VideoFrame, "sw_format"):
        return f"PyAV {av.__version__} cannot hand over frames of a device: expected 18.1 or later"
    if "cuda" not in hwdevices_available():
        return f"PyAV {av.__version__} is built without CUDA (it has {', '.join(hwdevices_available()) or 'no device'})"
    problem = cuda_problem(device)
    if problem is not None:
        return problem
    try:
        with on_device(device):
            _accelerator(device).create(av.Codec("h264", "r"))
    except (TypeError, av.FFmpegError, NotImplementedError) as err:
        return f"FFmpeg cannot open CUDA device {device}: {err}"
    return None


def _accelerator(device: int) -> HWAccel:
    """Return PyAV's settings for frames that stay on the device, in the CUDA context that is current."""
    from av.codec.hwaccel import HWAccel

    options: dict[str, object] = {"primary_ctx": "0", "current_ctx": "1"}
    return HWAccel("cuda", device=device, allow_software_fallback=False, options=options, is_hw_owned=True)


def unsupported_reason(index: VideoIndex, spec: StreamSpec) -> str | None:
    """Return why a stream cannot be decoded on a device, or None if it can as far as its index tells."""
    from trajload.decode.pixels import is_matrix_known

    if spec.modality is not Modality.RGB:
        return f"{spec.modality} video is exact on the CPU only"
    if index.codec not in NVDEC_CODECS:
        return f"codec {index.codec!r} is not one of {', '.join(NVDEC_CODECS)}"
    if index.pix_fmt not in _FORMATS:
        return f"pixel format {index.pix_fmt!r} is not one of {', '.join(_FORMATS)}"
    if index.pix_fmt == "yuv420p10le" and index.codec not in _LEFT_SITED:
        return f"{index.codec} does not say where 10-bit chroma is sited"
    if index.width % 2 or index.height % 2:
        return f"size {index.width}x{index.height} is odd, and PyAV hands over the chroma of even sizes only"
    if not is_matrix_known(index.color_space):
        return f"colour space {index.color_space!r} has no matrix here"
    return None


def open_nvdec(index: VideoIndex, device: int) -> VideoCodecContext:
    """Return an open decoder of the stream whose frames stay on CUDA device `device`; inside `on_device`."""
    import av

    context: Any = av.CodecContext.create(av.Codec(index.codec, "r"), "r", _accelerator(device))
    if not context.is_hwaccel:
        raise DecodeError(f"PyAV's decoder {index.codec!r} cannot drive CUDA. Use decode='cpu'.")
    context.extradata = index.extradata or None
    context.thread_count = 1
    context.width, context.height = index.width, index.height
    context.open()
    return context  # type: ignore[no-any-return]


class DeviceDecoder:
    """Decodes windows of colour video into memory of the host or of a device. One per thread; not thread-safe.

    Args:
        device: Number of a CUDA device, or None for the same way with libav's software decoder and tensors of the CPU:
            slow, but it runs everywhere, and differs from the real thing by nothing but the decoder.
    """

    def __init__(self, device: int | None = 0) -> None:
        self._device = device
        self._decoders: OrderedDict[tuple[Any, ...], VideoCodecContext] = OrderedDict()

    def decode(
        self, track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray | Any, size: tuple[int, int]
    ) -> None:
        """Write the frames of `reads` to their rows of `out` (T, 3, *size) uint8: an array, or a tensor of any device.

        Rows of frames that are asked for again are left alone, as `VideoReads` lists each frame once.

        Raises:
            DecodeError: A frame does not come out, or not as the index says.
            av.FFmpegError, RuntimeError: The device refuses or fails.
        """
        from trajload.decode.device_pixels import on_device

        with on_device(self._device):
            try:
                self._decode(track, reads, source, out, size)
            except BaseException:
                # it may still hold packets of this window, or be broken
                self._decoders.pop(_key(track.index), None)
                raise

    def _decode(
        self, track: VideoTrack, reads: VideoReads, source: Blobs, out: NDArray | Any, size: tuple[int, int]
    ) -> None:
        from trajload.decode.device_pixels import finish_on_device, import_planes, write_rows
        from trajload.decode.video import iter_planned

        index = track.index
        row_of = reads.first_of_frame
        decoder = self._decoder(index)
        check = partial(_check_device_frame, is_device=self._device is not None)
        luma, chroma, rows = [], [], []
        for number, frame in iter_planned(index, reads, source, decoder, check):
            y, uv = import_planes(self._semi_planar(frame, index))
            luma.append(y)
            chroma.append(uv)
            rows.append(row_of[number])
        order = np.argsort(rows)
        pictures = finish_on_device([luma[i] for i in order], [chroma[i] for i in order], index, size)
        write_rows(pictures, np.asarray(rows, dtype=np.int64)[order], out)

    def _decoder(self, index: VideoIndex) -> VideoCodecContext:
        found = self._decoders.get(_key(index))
        if found is None:
            if self._device is None:
                from trajload.shards.video_codec import open_decoder

                found = open_decoder(index)
            else:
                found = open_nvdec(index, self._device)
            self._decoders[_key(index)] = found
            while len(self._decoders) > _MAX_DECODERS:
                self._decoders.popitem(last=False)
        else:
            self._decoders.move_to_end(_key(index))
        return found

    def _semi_planar(self, frame: VideoFrame, index: VideoIndex) -> VideoFrame:
        """Return the frame as a device gives it: it is one already, or software's planes are interleaved."""
        if self._device is not None:
            return frame
        return frame.reformat(format=_FORMATS[index.pix_fmt], threads=1)

    def close(self) -> None:
        """Free the decoders. Idempotent."""
        self._decoders.clear()


def decode_to_device(
    track: VideoTrack, rows: Int64Array, blobs: list[bytes], out: Any, *, decoder: DeviceDecoder
) -> None:
    """Write the colour picture of row `rows[i]` to `out[i]`, a uint8 tensor (T, 3, H, W) of any device.

    For batches that are wanted on the device; `decode_rows` writes to the host. Checksums are verified first. The work is
    queued on the device's default stream: another stream must wait for it.
    """
    from trajload.decode.video import fill_repeats, verified_source

    rows = check_rows(track, rows)
    if len(rows) == 0:
        return
    reads = plan_video(track, rows)
    decoder.decode(track, reads, verified_source(track, reads, blobs), out, (int(out.shape[2]), int(out.shape[3])))
    fill_repeats(track, reads, rows, out)


def _key(index: VideoIndex) -> tuple[Any, ...]:
    return (index.codec, index.extradata, index.width, index.height, index.pix_fmt)


def _check_device_frame(frame: VideoFrame, index: VideoIndex, number: int, *, is_device: bool) -> None:
    """Refuse a frame that is flagged corrupt or looks otherwise than the index says."""
    from trajload.decode.video import check_frame

    if not is_device:
        check_frame(frame, index, number)
        return
    layout = frame.sw_format.name if frame.sw_format is not None else frame.format.name
    if frame.is_corrupt:
        raise DecodeError(f"frame {number} not decodable: the device's decoder flags it as corrupt.")
    if (frame.width, frame.height, layout) != (index.width, index.height, _FORMATS[index.pix_fmt]):
        raise DecodeError(
            f"frame {number} is {frame.width}x{frame.height} {layout} on the device, expected {index.width}x{index.height} "
            f"{_FORMATS[index.pix_fmt]}."
        )
