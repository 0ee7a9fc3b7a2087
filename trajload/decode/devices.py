"""Which device decodes which video: asked for, or found out by timing a few windows of each kind of stream on both.

One object serves all threads of a loader. It never changes which windows there are, nor their order; what it found out
stands in `report`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import numpy as np

from trajload.checks import check_choice
from trajload.decode.nvdec import NvdecStatus, find_nvdec, unsupported_reason
from trajload.decode.parity import MAX_MEAN_ABS, MIN_PSNR_DB, Parity, compare_pictures
from trajload.decode.plan import Blobs, VideoReads
from trajload.errors import ConfigError, DecodeError, MissingDependencyError, TrajloadError
from trajload.refs import VideoIndex, VideoTrack
from trajload.spec import StreamSpec
from trajload.types import Modality, NDArray

if TYPE_CHECKING:
    from trajload.decode.nvdec import DeviceDecoder

__all__ = ["DecodeMode", "StreamChoice", "VideoDevices", "video_devices"]

DecodeMode: TypeAlias = Literal["cpu", "auto", "cuda"]

# The first window on a device pays for opening its decoder, so it counts for the bytes and not for the time.
_NUM_WARM = 1
_NUM_TIMED = 3


@dataclass(slots=True)
class StreamChoice:
    """What is known of one kind of stream (codec, size, pixel format, delivered size) and who decodes it."""

    codec: str
    width: int
    height: int
    pix_fmt: str
    size: tuple[int, int]
    """(H, W) delivered."""
    device: Literal["cpu", "cuda", "open"] = "open"
    reason: str = ""
    num_compared: int = 0
    """Windows decoded on both."""
    cpu_s: float = 0.0
    """Seconds that one thread of the CPU took for the timed windows."""
    cuda_s: float = 0.0
    """Seconds that the device took for the same windows, results copied to the host."""
    parity: Parity | None = None
    """The worst of the compared windows."""
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def settle(self, device: Literal["cpu", "cuda"], reason: str) -> None:
        self.reason = reason
        self.device = device


def video_devices(mode: DecodeMode, *, num_threads: int = 1, device: int | None = None) -> VideoDevices | None:
    """Return who decides where video is decoded, for `DecodeContext(devices=...)`; None where all of it is the CPU's.

    Args:
        mode: "cpu"; "cuda" for NVDEC, an error where it is missing; "auto" for the faster of both where they give the
            same bytes, the CPU where there is no device.
        num_threads: Decoder threads that share the work: under "auto" the device must beat all of them together.
        device: CUDA device; None takes the one that this process has set (`torch.cuda.set_device`).

    Raises:
        ConfigError: An unknown mode.
        MissingDependencyError: "cuda" is asked for where NVDEC cannot be used; says what is missing.
    """
    check_choice("decode", mode, get_args(DecodeMode))
    if mode == "cpu":
        return None
    status = find_nvdec(device)
    if mode == "cuda" and not status.is_available:
        raise MissingDependencyError(
            f"decode='cuda' cannot be used here: {status.reason}; expected an NVIDIA driver, a CUDA build of torch and a PyAV "
            "build with CUDA (its own wheels have it). Install what is missing, or use decode='auto' or 'cpu'."
        )
    return VideoDevices(mode, status, num_threads=num_threads)


class VideoDevices:
    """Decides for each window of video whether the CPU or the device decodes it. Thread-safe; one per process.

    Under "auto" windows are the CPU's while a kind of stream is being timed, and the device takes over only if it gave
    equal bytes and beat `num_threads` threads; so the bytes of a batch do not depend on the machine. Under "cuda" all
    colour video is the device's, and its first windows must be near the CPU's (`parity`).

    Args:
        mode: "auto" or "cuda".
        status: What `find_nvdec` found.
        num_threads: Decoder threads that share the work.
    """

    def __init__(self, mode: Literal["auto", "cuda"], status: NvdecStatus, *, num_threads: int = 1) -> None:
        if num_threads < 1:
            raise ConfigError(f"num_threads={num_threads} is invalid: expected at least 1.")
        self.mode = mode
        self.status = status
        self.device = status.device
        self._num_threads = num_threads
        self._lock = threading.Lock()
        self._choices: dict[tuple[Any, ...], StreamChoice] = {}
        self._num_windows = {"cpu": 0, "cuda": 0}

    def __reduce__(self) -> tuple[Any, ...]:
        # Another process finds out for itself.
        return partial(video_devices, self.mode, num_threads=self._num_threads, device=self.device), ()

    def decode(
        self,
        track: VideoTrack,
        reads: VideoReads,
        source: Blobs,
        out: NDArray,
        *,
        spec: StreamSpec,
        on_cpu: Callable[[NDArray], None],
        decoders: Callable[[], DeviceDecoder],
    ) -> None:
        """Write the frames of `reads` to their rows of `out`, on whichever device the stream's choice says.

        Args:
            on_cpu: Does it on the CPU, into the array it is given.
            decoders: Returns the calling thread's decoder on the device.
        """
        size = (int(out.shape[2]), int(out.shape[3]))
        choice = self._choice(track.index, spec, size)

        def on_device(target: NDArray) -> None:
            decoders().decode(track, reads, source, target, size)

        if choice.device == "open":
            # One thread finds out. Under "auto" the others go on with the CPU; under "cuda" they wait, since the
            # bytes of a window must not depend on who was first.
            if choice.lock.acquire(blocking=self.mode == "cuda"):
                try:
                    if choice.device == "open":
                        self._try_both(choice, out, reads.wanted_W3[:, 2], on_cpu, on_device)
                        return
                finally:
                    choice.lock.release()
            elif self.mode == "auto":
                self._run("cpu", on_cpu, out)
                return
            # what another thread found out may be an error for this one too
            choice = self._choice(track.index, spec, size)
        if choice.device == "cpu":
            self._run("cpu", on_cpu, out)
            return
        try:
            self._run("cuda", on_device, out)
        except Exception as err:
            self._after_failure(choice, err, on_cpu, out)

    def _choice(self, index: VideoIndex, spec: StreamSpec, size: tuple[int, int]) -> StreamChoice:
        stored = (index.codec, index.width, index.height, index.pix_fmt, index.color_space, index.color_range)
        key = (*stored, index.rotation, spec.modality, size)
        with self._lock:
            found = self._choices.get(key)
            if found is None:
                found = StreamChoice(index.codec, index.width, index.height, index.pix_fmt, size)
                self._choices[key] = found
                reason = unsupported_reason(index, spec)
                if not self.status.is_available:
                    found.settle("cpu", self.status.reason)
                elif reason is not None:
                    found.settle("cpu", reason)
        if self.mode == "cuda" and found.device == "cpu" and spec.modality is Modality.RGB:
            raise ConfigError(
                f"decode='cuda' cannot decode stream {spec.name!r}: {found.reason}. Use decode='auto', which leaves it to the CPU."
            )
        return found

    def _run(self, device: str, function: Callable[[NDArray], None], out: NDArray) -> float:
        begin = time.perf_counter()
        function(out)
        spent = time.perf_counter() - begin
        with self._lock:
            self._num_windows[device] += 1
        return spent

    def _try_both(
        self,
        choice: StreamChoice,
        out: NDArray,
        rows: NDArray,
        on_cpu: Callable[[NDArray], None],
        on_device: Callable[[NDArray], None],
    ) -> None:
        """Decode the window on both, compare, and settle the choice once enough is known; `out` gets its bytes."""
        other = np.empty_like(out)
        cpu, cuda = (out, other) if self.mode == "auto" else (other, out)
        # What is wrong with the window itself is raised here, in the CPU path's words.
        cpu_s = self._run("cpu", on_cpu, cpu)
        try:
            cuda_s = self._run("cuda", on_device, cuda)
        except Exception as err:
            self._settle_failed(choice, err)
            return
        parity = compare_pictures(cuda[rows], cpu[rows])
        choice.num_compared += 1
        if choice.parity is None or parity.psnr_db < choice.parity.psnr_db:
            choice.parity = parity
        if choice.num_compared > _NUM_WARM:
            choice.cpu_s += cpu_s
            choice.cuda_s += cuda_s
        if self.mode == "cuda":
            if not parity.is_within:
                choice.settle("cpu", f"the device's pictures differ from the CPU's: {parity}")
                raise DecodeError(
                    f"the pictures of CUDA device {self.status.device} differ from the CPU's: {parity}; expected at most {MAX_MEAN_ABS} grey "
                    f"level and at least {MIN_PSNR_DB} dB. Update the driver, or use decode='auto' or 'cpu'."
                )
            choice.settle("cuda", f"asked for; {choice.parity}")
        elif not parity.is_equal:
            choice.settle("cpu", f"the device's bytes differ from the CPU's: {parity}")
        elif choice.num_compared == _NUM_WARM + _NUM_TIMED:
            self._settle_by_time(choice)

    def _settle_by_time(self, choice: StreamChoice) -> None:
        all_threads_s = choice.cpu_s / self._num_threads
        figures = (
            f"{choice.cuda_s / _NUM_TIMED * 1e3:.2f} ms a window on the device, {choice.cpu_s / _NUM_TIMED * 1e3:.2f} ms "
            f"on each of {self._num_threads} CPU threads"
        )
        choice.settle("cuda" if choice.cuda_s < all_threads_s else "cpu", figures)

    def _settle_failed(self, choice: StreamChoice, err: Exception) -> None:
        """Note that the device failed at a window the CPU decodes; under "cuda" that is an error."""
        words = err.message if isinstance(err, TrajloadError) else f"{type(err).__name__}: {err}"
        choice.settle("cpu", f"the device failed where the CPU did not: {words}")
        if self.mode == "cuda":
            raise DecodeError(
                f"CUDA device {self.status.device} cannot decode {choice.codec} {choice.width}x{choice.height} {choice.pix_fmt}, "
                f"the CPU can: {words}. Use decode='auto' or 'cpu'."
            ) from err

    def _after_failure(
        self, choice: StreamChoice, err: Exception, on_cpu: Callable[[NDArray], None], out: NDArray
    ) -> None:
        # If the window is at fault the CPU fails too, and its error is the one to raise.
        self._run("cpu", on_cpu, out)
        self._settle_failed(choice, err)

    def report(self) -> dict[str, Any]:
        """Return a plain dict for statistics: mode, what was found, windows per device, and each stream's choice."""
        with self._lock:
            choices = list(self._choices.values())
            windows = dict(self._num_windows)
        streams = []
        for choice in choices:
            row = {f: getattr(choice, f) for f in StreamChoice.__slots__ if f not in ("lock", "parity")}
            streams.append({**row, "parity": None if choice.parity is None else asdict(choice.parity)})
        return {
            "mode": self.mode,
            "is_available": self.status.is_available,
            "found": self.status.reason,
            "windows": windows,
            "streams": streams,
        }
