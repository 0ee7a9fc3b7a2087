"""What one decoding thread keeps between windows: open decoders, scratch memory, resize weights."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np

from trajload.errors import ConfigError
from trajload.refs import VideoIndex
from trajload.spec import StreamSpec
from trajload.types import NDArray

if TYPE_CHECKING:
    import zstandard
    from av.video.codeccontext import VideoCodecContext
    from av.video.reformatter import VideoReformatter

    from trajload.decode.devices import VideoDevices
    from trajload.decode.jpeg import FastJpeg
    from trajload.decode.libav_symbols import Libav
    from trajload.decode.libav_video import LoopSetup
    from trajload.decode.nvdec import DeviceDecoder
    from trajload.decode.resize import PictureFilter

__all__ = ["DecodeContext", "Engine"]

Engine: TypeAlias = Literal["libav", "pyav"]

# Cameras of a dataset seldom differ in more than a handful of (codec, header) pairs; each open decoder holds its
# reference frames, some 10 MB at 1080p.
_MAX_DECODERS = 8
_MAX_SCRATCH = 16
_UNKNOWN: Literal["unknown"] = "unknown"


def _decoder_key(index: VideoIndex) -> tuple[Any, ...]:
    size = (index.width, index.height, index.pix_fmt)
    return (index.codec, index.extradata, *size, index.color_space, index.color_range)


def _loop_key(index: VideoIndex, spec: StreamSpec, size: tuple[int, ...]) -> tuple[Any, ...]:
    shown = (index.color_space, index.color_range, index.rotation, spec.shape, spec.dtype, spec.modality, size)
    return (index.codec, index.extradata, index.width, index.height, index.pix_fmt, *shown)


class DecodeContext:
    """State that makes decoding fast and never changes its result. One per thread; not thread-safe.

    Holds no file and no reference to any dataset. `close` frees the codecs; the object can be used again after it.

    Args:
        engine: What decodes video: "libav" (our compiled loop over libavcodec), "pyav", or None for libav where it
            passes its self-test. Formats that the loop does not know go through PyAV with any of them.
        devices: Says which windows of colour video an NVIDIA decoder takes; shared by the contexts of all threads.
            None decodes everything on the CPU.
        use_simplejpeg: False leaves all JPEGs to Pillow; the bytes are the same.
        is_blank: Gives zeros instead of decoding: to measure what all else costs.

    Raises:
        ConfigError: "libav" is asked for, but cannot be used here.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        *,
        devices: VideoDevices | None = None,
        use_simplejpeg: bool = True,
        is_blank: bool = False,
    ) -> None:
        self.devices = devices
        self.is_blank = is_blank
        self._device_decoder: DeviceDecoder | None = None
        self._libav: Libav | None = None
        self._is_engine_known = engine == "pyav"
        self.engine_reason = "asked for" if engine == "pyav" else ""
        """Why PyAV does all the work, where it does."""
        self.windows_by_engine: dict[Engine, int] = {"libav": 0, "pyav": 0}
        """Video windows that each engine delivered."""
        self._may_use_simplejpeg = use_simplejpeg
        self._is_jpeg_known = False
        self._fast_jpeg: FastJpeg | None = None
        self.jpeg_reason = ""
        """Why Pillow decodes all JPEGs, where it does; known after the first one."""
        self._loops: OrderedDict[tuple[Any, ...], LoopSetup | None] = OrderedDict()
        self.quick_setups: dict[object, LoopSetup] = {}
        """Some of those that `loop_setup` keeps, by keys of `QuickVideo`: looked up without working out what a key is."""
        self._decoders: OrderedDict[tuple[Any, ...], VideoCodecContext] = OrderedDict()
        self._scratch: OrderedDict[tuple[Any, ...], NDArray] = OrderedDict()
        self._filters: OrderedDict[tuple[Any, ...], PictureFilter] = OrderedDict()
        self._reformatters: OrderedDict[tuple[Any, ...], VideoReformatter] = OrderedDict()
        self._coefficients: dict[tuple[str, ...], NDArray] = {}
        self._zstd: zstandard.ZstdDecompressor | None = None
        self._verified: set[int] = set()
        if engine == "libav" and self.libav() is None:
            raise ConfigError(f"engine 'libav' cannot be used here: {self.engine_reason}. Leave the choice open.")

    def decoder(self, index: VideoIndex) -> VideoCodecContext:
        """Return the open decoder for `index`'s stream, flushed of earlier packets by whoever used it last."""
        key = _decoder_key(index)
        found = self._decoders.get(key)
        if found is None:
            from trajload.shards.video_codec import open_decoder

            found = open_decoder(index)
            self._decoders[key] = found
            while len(self._decoders) > _MAX_DECODERS:
                self._decoders.popitem(last=False)
        else:
            self._decoders.move_to_end(key)
        return found

    def device_decoder(self) -> DeviceDecoder:
        """Return this thread's decoder on the device of `devices`."""
        if self._device_decoder is None:
            from trajload.decode.nvdec import DeviceDecoder

            if self.devices is None:
                raise AssertionError("only `devices` ask for it")
            self._device_decoder = DeviceDecoder(self.devices.device)
        return self._device_decoder

    def drop_decoder(self, index: VideoIndex) -> None:
        """Forget the decoder of `index`'s stream: after an error its inner state is not to be trusted."""
        self._decoders.pop(_decoder_key(index), None)

    @property
    def engine(self) -> Engine:
        """What decodes video where both can."""
        return "pyav" if self.libav() is None else "libav"

    def libav(self) -> Libav | None:
        """Return the libraries of the compiled loop, None where PyAV does its work."""
        if not self._is_engine_known:
            from trajload.decode.libav_symbols import find_libav

            self._libav, self.engine_reason = find_libav()
            self._is_engine_known = True
        return self._libav

    def loop_setup(self, index: VideoIndex, spec: StreamSpec, size: tuple[int, ...]) -> LoopSetup | None:
        """Return what the compiled loop needs for pictures of that size, or None where PyAV decodes the stream.

        Raises:
            DecodeError: The video does not show what the spec declares.
        """
        key = _loop_key(index, spec, size)
        found = self._loops.get(key, _UNKNOWN)
        if not isinstance(found, str):
            self._loops.move_to_end(key)
            return found
        libav = self.libav()
        if libav is None:
            return None
        from trajload.decode.libav_video import make_setup

        made = self._loops[key] = make_setup(libav, index, spec, size, self)
        while len(self._loops) > _MAX_DECODERS:
            self.quick_setups.clear()
            _, old = self._loops.popitem(last=False)
            if old is not None:
                old.close()
        return made

    def drop_loop(self, index: VideoIndex, spec: StreamSpec, size: tuple[int, ...], *, for_good: bool) -> None:
        """Forget the loop's decoder after an error; `for_good` leaves the stream to PyAV from now on."""
        key = _loop_key(index, spec, size)
        old = self._loops.pop(key, None)
        self.quick_setups.clear()
        if old is not None:
            old.close()
        if for_good:
            self._loops[key] = None

    def reformatter(self, *key: Any) -> VideoReformatter:
        """Return swscale's converter kept for `key`: it is rebuilt whenever formats change, so one per use."""
        found = self._reformatters.get(key)
        if found is None:
            from av.video.reformatter import VideoReformatter

            found = VideoReformatter()
            self._reformatters[key] = found
            while len(self._reformatters) > _MAX_DECODERS:
                self._reformatters.popitem(last=False)
        else:
            self._reformatters.move_to_end(key)
        return found

    def scratch(self, name: str, shape: tuple[int, ...], dtype: Any) -> NDArray:
        """Return an array of that shape with arbitrary content, the same one for the same arguments."""
        key = (name, shape, np.dtype(dtype).str)
        found = self._scratch.get(key)
        if found is None:
            found = np.empty(shape, dtype=dtype)
            self._scratch[key] = found
            while len(self._scratch) > _MAX_SCRATCH:
                self._scratch.popitem(last=False)
        else:
            self._scratch.move_to_end(key)
        return found

    def filter(self, size_in: tuple[int, ...], size_out: tuple[int, ...]) -> PictureFilter:
        """Return the resize filter from pictures of one size (H, W) to another, kept."""
        key = (size_in, size_out)
        found = self._filters.get(key)
        if found is None:
            from trajload.decode.resize import PictureFilter

            found = self._filters[key] = PictureFilter.between(size_in, size_out)
            while len(self._filters) > _MAX_SCRATCH:
                self._filters.popitem(last=False)
        else:
            self._filters.move_to_end(key)
        return found

    def coefficients(self, kernel: str, pix_fmt: str, color_space: str, color_range: str) -> NDArray:
        """Return the colour matrix for the 420 or the 444 kernel, kept."""
        key = (kernel, pix_fmt, color_space, color_range)
        found = self._coefficients.get(key)
        if found is None:
            from trajload.decode.pixels import swscale_coefficients, yuv_coefficients

            make = swscale_coefficients if kernel == "420" else yuv_coefficients
            found = self._coefficients[key] = make(pix_fmt, color_space, color_range)
        return found

    def fast_jpeg(self) -> FastJpeg | None:
        """Return the decoder that gives Pillow's bytes in less time, or None where there is none."""
        if not self._is_jpeg_known:
            from trajload.decode.jpeg import find_simplejpeg

            self._fast_jpeg, self.jpeg_reason = find_simplejpeg() if self._may_use_simplejpeg else (None, "asked for")
            self._is_jpeg_known = True
        return self._fast_jpeg

    def zstd(self) -> zstandard.ZstdDecompressor:
        """Return this thread's zstd decompressor."""
        if self._zstd is None:
            import zstandard

            self._zstd = zstandard.ZstdDecompressor()
        return self._zstd

    def is_verified(self, root: str, file: str, offset: int) -> bool:
        """Return whether the array at that place was checked against its checksum before."""
        return hash((root, file, offset)) in self._verified

    def mark_verified(self, root: str, file: str, offset: int) -> None:
        # hashes instead of names: 100,000 arrays then take 7 MB, not 30
        self._verified.add(hash((root, file, offset)))

    def close(self) -> None:
        """Free decoders and memory. Idempotent."""
        self._decoders.clear()
        if self._device_decoder is not None:
            self._device_decoder.close()
            self._device_decoder = None
        for loop in self._loops.values():
            if loop is not None:
                loop.close()
        self._loops.clear()
        self.quick_setups.clear()
        self._scratch.clear()
        self._filters.clear()
        self._reformatters.clear()
        self._zstd = None
        self._verified.clear()
