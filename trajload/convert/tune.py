"""`tune-encoding`: how a stream's video should be encoded for the windows that are drawn from it, measured on a sample.

A few stretches of frames are encoded with each codec and keyframe distance; windows of the result are decoded under the clock,
sizes are counted, and pictures are compared with those that were encoded.
"""

# Shapes: T frames of a stretch, H height, W width

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

import numpy as np

from trajload.align.rows import window_offsets
from trajload.arguments import explains_calls
from trajload.convert.tune_report import Candidate, StreamTuning, TuneReport
from trajload.costs.fit import fit_kind
from trajload.costs.kinds import kind_of
from trajload.costs.leads import window_leads, window_rows
from trajload.costs.machine import machine_facts
from trajload.costs.sample import anchors_of, decode_once, spread_windows
from trajload.decode import DecodeContext, row_shape
from trajload.errors import ConfigError, TrajloadError, at
from trajload.pipeline.rows import read_rows
from trajload.refs import ByteRange, VideoTrack
from trajload.shards.video_encode import Codec, VideoEncode, encode_video
from trajload.shards.video_index import build_video_index
from trajload.sources.base import Dataset
from trajload.spec import Image, StreamSpec, Window
from trajload.stop import Stop
from trajload.storage import ByteStore
from trajload.types import Modality, NDArray

__all__ = ["tune_encoding", "tuned_encodings"]

DEFAULT_CODECS = ("h264", "hevc", "av1", "vp9")
DEFAULT_GOPS = (1, 4, 8, 16, 32)
_CRF: Mapping[str, int] = {"h264": 23, "hevc": 26, "av1": 32, "vp9": 32, "ffv1": 0}
"""About the same quality from each codec, where nobody asks for another."""
_NUM_WINDOWS = 8


@dataclass(frozen=True, slots=True, eq=False)
class _Stretch:
    """Neighbouring frames of one episode."""

    episode: int
    first: int
    frames_THWC: NDArray


class _Memory:
    """Bytes of one video as a `ByteStore`."""

    root = ""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, where: ByteRange) -> bytes:
        return self._data[where.offset : where.offset + where.size]

    def size(self, file: str) -> int:
        return len(self._data)

    def close(self) -> None:
        pass


@explains_calls
def tune_encoding(
    dataset: Dataset,
    *,
    window: Window | None = None,
    streams: Iterable[str] | None = None,
    size: tuple[int, int] | None = None,
    codecs: Sequence[str] = DEFAULT_CODECS,
    gops: Sequence[int] = DEFAULT_GOPS,
    crf: int | None = None,
    num_episodes: int = 3,
    num_frames: int = 96,
    min_psnr_db: float = 33.0,
    max_growth: float = 3.0,
    repeats: int = 3,
    progress: Callable[[int, int], None] | None = None,
    stop: Stop | None = None,
) -> TuneReport:
    """Measure codecs and keyframe distances on a sample of each rgb video stream, and recommend one for each.

    Recommended is what decodes windows cheapest with a PSNR of at least `min_psnr_db` and at most `max_growth` times the bytes
    there are now; of settings within a tenth of the cheapest the one with the fewest bytes. Where that saves less than a
    tenth, nothing is recommended.

    Args:
        dataset: The opened dataset.
        window: Windows that are drawn; 16 steps by default.
        streams: Which video streams; all of colour by default.
        size: (height, width) that loaders ask for; as stored by default.
        codecs: Of 'h264', 'hevc', 'av1', 'vp9', 'ffv1'. Codecs that this FFmpeg cannot encode are left out, with a note.
        gops: Frames from one keyframe to the next.
        crf: Quality for all codecs; by default one for each that gives about the same pictures.
        num_episodes: Episodes a stretch is taken from, spread evenly.
        num_frames: Of each stretch, at least twice the window's span and the longest of `gops` where episodes are long enough.
        min_psnr_db: Least quality against the frames as they are decoded now.
        max_growth: Most bytes, as a multiple of those now.
        repeats: How often each window is decoded; the least counts.
        progress: Called with (encodings done, encodings in all).
        stop: Ends it early: the setting that is being measured does not count, nor do streams that were not begun.

    Raises:
        ConfigError: Bad arguments, or no video of colour to tune.
    """
    window = Window(num_steps=16) if window is None else window
    _check(codecs, gops, crf, num_episodes, num_frames, repeats, min_psnr_db, max_growth)
    names = _streams(dataset, streams)
    begin = time.monotonic()
    report = TuneReport(
        dataset=dataset.name,
        path=dataset.path,
        digest=dataset.digest,
        window=window.to_json(),
        size=None if size is None else list(size),
        machine=machine_facts(),
    )
    pairs = [
        (codec, gop)
        for codec in dict.fromkeys(codecs)
        for gop in dict.fromkeys(gops)
        if codec != "ffv1" or gop == gops[0]
    ]
    num_frames = max(num_frames, 2 * window.span, 2 * max(gops))
    stop = Stop() if stop is None else stop
    done = 0
    for name in names:
        with at(dataset=dataset.name, stream=name), stop.breaking_off():
            if stop.wanted:
                break
            with closing(_Meter(dataset.spec(name), window, size, repeats)) as meter:
                tuning = _Tuning(dataset, name, meter, num_episodes, num_frames)
                found = StreamTuning(stream=name, now=tuning.now(), num_frames_sampled=tuning.num_frames)
                report.streams.append(found)
                for codec, gop in pairs:
                    encode = _encode(codec, gop, crf)
                    try:
                        found.candidates.append(tuning.candidate(encode))
                    except ConfigError as err:
                        if not any(err.message in text for text in found.notes):
                            found.notes.append(f"{codec} was left out: {err.message}")
                    done += 1
                    if progress is not None:
                        progress(done, len(names) * len(pairs))
    if stop.wanted:
        report.streams = [found for found in report.streams if found.candidates]
        report.stopped = f"{done} of {len(names) * len(pairs)} settings were measured"
        if not report.streams:
            raise KeyboardInterrupt
    for found in report.streams:
        found.recommend(min_psnr_db=min_psnr_db, max_growth=max_growth)
    report.seconds = round(time.monotonic() - begin, 3)
    return report


def _check(codecs: Sequence[str], gops: Sequence[int], crf: int | None, *counts: float) -> None:
    known = get_args(Codec)
    if not codecs or not gops:
        raise ConfigError("codecs and gops must not be empty: expected at least one of each.")
    for codec in codecs:
        if codec not in known:
            raise ConfigError(f"codec {codec!r} is unknown: expected one of {', '.join(map(repr, known))}.")
        for gop in gops:
            _encode(codec, gop, crf)
    names = ("num_episodes", "num_frames", "repeats", "min_psnr_db", "max_growth")
    for name, value in zip(names, counts, strict=True):
        if isinstance(value, bool) or not value > 0:
            raise ConfigError(f"{name}={value!r} is invalid: expected a number above 0.")


def _encode(codec: str, gop: int, crf: int | None) -> VideoEncode:
    quality = _CRF[codec] if crf is None or codec == "ffv1" else crf
    return VideoEncode(codec=codec, gop=gop, crf=quality)  # type: ignore[arg-type]


def _streams(dataset: Dataset, streams: Iterable[str] | None) -> list[str]:
    videos = [n for n, s in dataset.streams.items() if s.is_video and s.modality is Modality.RGB and s.dtype == "uint8"]
    if streams is None:
        chosen = [n for n in videos if any(dataset.has_stream(e, n) for e in range(dataset.num_episodes))]
    else:
        chosen = [dataset.spec(name).name for name in streams]
    for name in chosen:
        if name not in videos:
            raise ConfigError(
                f"stream {name!r} is no video of colour: expected one of {videos}. Depth is kept without loss."
            )
    if not chosen:
        raise ConfigError(f"dataset {dataset.name!r} has no video of colour: there is nothing to tune.")
    return chosen


class _Meter:
    """Measures what windows of a track cost. Not thread-safe."""

    def __init__(self, spec: StreamSpec, window: Window, size: tuple[int, int] | None, repeats: int) -> None:
        self.spec, self.window, self.repeats = spec, window, repeats
        self.request = Image(size=size)
        self._context = DecodeContext()

    def close(self) -> None:
        self._context.close()

    def window_ms(self, tracks: Sequence[tuple[VideoTrack, ByteStore]], gop: int | None = None) -> tuple[float, float]:
        """Return milliseconds of CPU time that an average window costs, and frames decoded for each frame delivered.

        Args:
            tracks: Videos and where their bytes are.
            gop: Of stretches cut out of longer videos: windows are counted in whole groups, as they come in those.
        """
        points: list[tuple[int, int, float]] = []
        leads, count, rows = 0, 0, 0
        shape, dtype = row_shape(self.spec, self.request)
        offsets_T = window_offsets(self.window)
        for track, store in tracks:
            anchor_W = anchors_of(track.num_rows, self.window)
            lead_W = window_leads(track, anchor_W, track.num_rows, self.window, offsets_T)
            chosen = spread_windows(lead_W, _NUM_WINDOWS)
            rows_WT = window_rows(anchor_W[chosen], track.num_rows, self.window, offsets_T, None, track.num_rows)
            key = object()
            for turn in range(self.repeats + 1):  # the first one opens the decoder and counts for nothing
                for i, rows_T in enumerate(rows_WT):
                    wanted = np.unique(rows_T)
                    out = np.empty((len(wanted), *shape), dtype=dtype)
                    ns = decode_once(track, wanted, out, self.spec, self.request, store, self._context, key)
                    if turn == 0:
                        continue
                    if turn == 1:
                        points.append((len(wanted), int(lead_W[chosen[i]]), ns))
                    else:
                        k = len(points) - len(rows_WT) + i
                        points[k] = (*points[k][:2], min(points[k][2], ns))
            whole = len(lead_W) if gop is None or len(lead_W) < gop else len(lead_W) // gop * gop
            leads, count = leads + int(lead_W[:whole].sum()), count + whole
            rows += len(np.unique(rows_WT[0])) * whole
        cost = fit_kind(*(np.array(column) for column in zip(*points, strict=True)))
        return cost.ns(rows / count, leads / count) / 1e6, (rows + leads) / rows


class _Tuning:
    """The sample of one stream, and what it costs as it is stored and as it might be."""

    def __init__(self, dataset: Dataset, stream: str, meter: _Meter, num_episodes: int, num_frames: int) -> None:
        self.meter, self.spec = meter, dataset.spec(stream)
        self._rate_hz = Fraction(str(dataset.step_rate_hz or self.spec.rate_hz or 30)).limit_denominator(100_000)
        having = [e for e in range(dataset.num_episodes) if dataset.has_stream(e, stream)]
        if not having:
            raise ConfigError(f"no episode of {dataset.name!r} has stream {stream!r}: there is nothing to tune.")
        chosen = np.unique(np.linspace(0, len(having) - 1, min(num_episodes, len(having))).astype(np.int64))
        self._stretches: list[_Stretch] = []
        self._stored: list[tuple[VideoTrack, ByteStore]] = []
        self._bytes_per_frame: list[float] = []
        for episode in (having[i] for i in chosen.tolist()):
            track = dataset.track(episode, stream)
            assert isinstance(track, VideoTrack)
            length = min(num_frames, track.num_rows)
            first = (track.num_rows - length) // 2
            frames = read_rows(dataset, episode, stream, np.arange(first, first + length, dtype=np.int64))
            assert frames is not None
            self._stretches.append(_Stretch(episode, first, np.ascontiguousarray(frames.transpose(0, 2, 3, 1))))
            self._stored.append((track, dataset.store))
            self._bytes_per_frame.append(float(track.index.size_P.sum()) / max(1, track.index.num_frames))
        self.num_frames = sum(len(s.frames_THWC) for s in self._stretches)

    def now(self) -> Candidate:
        """Return what windows cost as the stream is stored; its quality is what others are compared with."""
        ms, decoded = self.meter.window_ms(self._stored)
        kinds = [kind_of(self.spec, track) for track, _ in self._stored]
        return Candidate(
            codec=kinds[0].codec,
            gop=max(kind.gop for kind in kinds),
            crf=None,
            window_ms=ms,
            decoded_per_frame=decoded,
            bytes_per_frame=sum(self._bytes_per_frame) / len(self._bytes_per_frame),
            psnr_db=None,
            encode_ms=None,
        )

    def candidate(self, encode: VideoEncode) -> Candidate:
        """Return what windows cost with other settings."""
        tracks: list[tuple[VideoTrack, ByteStore]] = []
        num_bytes, squares, values, seconds = 0, 0.0, 0, 0.0
        for stretch in self._stretches:
            begin = time.process_time()
            data, _ = encode_video(stretch.frames_THWC, rate_hz=self._rate_hz, encode=encode)
            seconds += time.process_time() - begin
            try:
                index = build_video_index(data)
            except TrajloadError as err:
                raise ConfigError(f"its videos cannot be indexed: {err.message}") from err
            track = VideoTrack("tuned", index, 0, len(stretch.frames_THWC))
            tracks.append((track, _Memory(data)))
            num_bytes += int(index.size_P.sum())
            error = self._difference(tracks[-1], stretch.frames_THWC)
            squares, values = squares + error, values + stretch.frames_THWC.size
        ms, decoded = self.meter.window_ms(tracks, encode.gop)
        mean_square = squares / values
        return Candidate(
            codec=encode.codec,
            gop=encode.gop,
            crf=encode.crf,
            window_ms=ms,
            decoded_per_frame=decoded,
            bytes_per_frame=num_bytes / self.num_frames,
            psnr_db=None if mean_square == 0 else float(10 * np.log10(255**2 / mean_square)),
            encode_ms=seconds * 1e3 / self.num_frames,
        )

    def _difference(self, stored: tuple[VideoTrack, ByteStore], frames_THWC: NDArray) -> float:
        """Return the sum of squared differences of a video's frames from those it was made of."""
        track, store = stored
        context, total = DecodeContext(), 0.0
        shape, dtype = row_shape(self.spec, Image())
        for start in range(0, len(frames_THWC), 32):
            rows = np.arange(start, min(start + 32, len(frames_THWC)), dtype=np.int64)
            out = np.empty((len(rows), *shape), dtype=dtype)
            decode_once(track, rows, out, self.spec, Image(), store, context, self)
            difference = out.transpose(0, 2, 3, 1).astype(np.int32) - frames_THWC[rows]
            total += float((difference * difference).sum(dtype=np.int64))
        context.close()
        return total


def tuned_encodings(report: TuneReport) -> dict[str, VideoEncode]:
    """Return the settings recommended, by stream; streams better left as they are are left out."""
    return {
        found.stream: VideoEncode(codec=best.codec, gop=best.gop, crf=best.crf or 0)  # type: ignore[arg-type]
        for found in report.streams
        if (best := found.best) is not None
    }
