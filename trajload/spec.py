"""What a user or a manifest declares: streams, windows, and how a stream is wanted in a batch."""

# Shapes: B windows, T steps, H height, W width, C channels, D signal size

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from operator import index
from typing import Any, Literal, get_args

import numpy as np

from trajload.arguments import explains_calls
from trajload.checks import check_bool, check_choice, is_number
from trajload.deltas import seconds_to_ns
from trajload.errors import ConfigError, ManifestError
from trajload.reprs import short_repr
from trajload.types import Modality
from trajload.window import Pad, Window

__all__ = [
    "Align",
    "BadClock",
    "Clock",
    "Encoding",
    "Image",
    "Miss",
    "Missing",
    "Pad",
    "Signal",
    "StreamRequest",
    "StreamSpec",
    "Window",
]

Clock = Literal["stepwise", "clocked"]
Align = Literal["nearest", "previous", "linear", "exact", "interval"]
Miss = Literal["error", "mask", "drop"]
Missing = Literal["mask", "drop"]
BadClock = Literal["error", "sort", "drop"]
Encoding = Literal["npy", "npy.zst", "jpg", "png", "mp4", "mkv", "json", "txt", "table"]
"""How the values of a stream are stored. `table` = columns of a foreign file (parquet), never in a shard."""

VIDEO_ENCODINGS = ("mp4", "mkv")
IMAGE_ENCODINGS = ("jpg", "png")
RESERVED_NAMES = frozenset(
    [
        "is_first",
        "is_last",
        "is_terminal",
        "step_index",
        "timestamp_ns",
        "episode_index",
        "window_id",
        "epoch",
        "source",
        "row_is_pad",
    ]
)


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True)
class StreamSpec:
    """One named track of one modality, as a manifest declares it."""

    name: str
    """Batch key; dots allowed (`observation.images.top`). Not empty, no '/', not a reserved batch key."""
    modality: Modality
    encoding: Encoding
    shape: tuple[int, ...]
    """Shape of one row: () scalar, (D,) signal, (H, W, C) picture as shown (after rotation), () for text."""
    dtype: str
    """NumPy dtype name of one row's values; 'str' for language, 'json' for metadata objects."""
    clock: Clock = "stepwise"
    rate_hz: float | None = None
    """Nominal rate; informational for stepwise streams."""
    units: str | None = None
    """Unit of the values as stored, for instance 'm', 'rad', 'mm' for depth in millimetres."""
    names: tuple[str, ...] | None = None
    """Names of the D components, where known."""

    def __post_init__(self) -> None:
        is_text = isinstance(self.name, str)
        if not is_text or not self.name or "/" in self.name or self.name != self.name.strip():
            raise ConfigError(
                f"stream name {self.name!r} is invalid: expected a non-empty name without '/' or outer spaces."
            )
        if self.name in RESERVED_NAMES or self.name.endswith(("_is_pad", "_is_missing")):
            raise ConfigError(f"stream name {self.name!r} is reserved for a batch key. Choose another name.")
        if not isinstance(self.modality, Modality):
            check_choice(f"modality of stream {self.name!r}", self.modality, tuple(m.value for m in Modality))
            object.__setattr__(self, "modality", Modality(self.modality))
        check_choice(f"encoding of stream {self.name!r}", self.encoding, get_args(Encoding))
        check_choice(f"clock of stream {self.name!r}", self.clock, get_args(Clock))
        try:
            if isinstance(self.shape, (str, bytes, set, Mapping)):
                raise TypeError
            object.__setattr__(self, "shape", tuple(index(n) for n in self.shape))
            if any(n < 0 for n in self.shape):
                raise TypeError
        except TypeError:
            raise ConfigError(
                f"shape of stream {self.name!r} is {self.shape!r}: expected a tuple of ints, such as (7,) or ()."
            ) from None
        if self.names is not None:
            if isinstance(self.names, (str, bytes, set, frozenset)) or not np.iterable(self.names):
                raise ConfigError(
                    f"names of stream {self.name!r} is {self.names!r}: expected a list of names, one for each component, or None."
                )
            object.__setattr__(self, "names", tuple(str(n) for n in self.names))
        if self.rate_hz is not None and not (is_number(self.rate_hz) and 0 < self.rate_hz < np.inf):
            raise ConfigError(
                f"rate_hz of stream {self.name!r} is {self.rate_hz!r}: expected a number above 0, or None."
            )
        if self.units is not None and not isinstance(self.units, str):
            raise ConfigError(f"units of stream {self.name!r} is {self.units!r}: expected text such as 'm', or None.")
        if self.is_picture and len(self.shape) != 3:
            raise ConfigError(
                f"shape of stream {self.name!r} is {self.shape}: expected (H, W, C) for encoding {self.encoding!r}."
            )
        if not isinstance(self.dtype, str) or self.dtype not in ("str", "json"):
            try:
                if not isinstance(self.dtype, (str, np.dtype, type)):
                    raise TypeError("it is no name of a dtype")
                found = np.dtype(self.dtype)
                if not isinstance(self.dtype, str):  # np.float32 and np.dtype("float32") mean their name
                    object.__setattr__(self, "dtype", found.name)
            except (TypeError, ValueError) as err:
                raise ConfigError(
                    f"dtype of stream {self.name!r} is {self.dtype!r}: expected a NumPy dtype name, 'str' or 'json'."
                ) from err

    __repr__ = short_repr

    @property
    def is_video(self) -> bool:
        """True for mp4 and mkv, of rgb or depth."""
        return self.encoding in VIDEO_ENCODINGS

    @property
    def is_picture(self) -> bool:
        """True for video and images of any modality (rgb, depth): delivered as (T, C, H, W)."""
        return self.encoding in VIDEO_ENCODINGS or self.encoding in IMAGE_ENCODINGS

    @property
    def is_text(self) -> bool:
        """True for language and JSON: delivered as a list with one object per window."""
        return self.dtype in ("str", "json")

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that stands in a manifest."""
        out: dict[str, Any] = {
            "name": self.name,
            "modality": self.modality.value,
            "encoding": self.encoding,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "clock": self.clock,
        }
        for key in ("rate_hz", "units"):
            if getattr(self, key) is not None:
                out[key] = getattr(self, key)
        if self.names is not None:
            out["names"] = list(self.names)
        return out

    @classmethod
    def from_json(cls, obj: Mapping[str, Any]) -> StreamSpec:
        """Return the spec of a manifest's JSON object; ManifestError names a missing or unusable field."""
        try:
            return cls(
                name=obj["name"],
                modality=Modality(obj["modality"]),
                encoding=obj["encoding"],
                shape=tuple(obj["shape"]),
                dtype=obj["dtype"],
                clock=obj.get("clock", "stepwise"),
                rate_hz=obj.get("rate_hz"),
                units=obj.get("units"),
                names=tuple(obj["names"]) if obj.get("names") is not None else None,
            )
        except KeyError as err:
            raise ManifestError(
                f"stream {obj.get('name', '?')!r} of the manifest lacks field {err.args[0]!r}."
            ) from err
        except (ValueError, TypeError) as err:
            raise ManifestError(f"stream {obj.get('name', '?')!r} of the manifest is unusable: {err}") from err


@dataclass(frozen=True, kw_only=True, slots=True)
class StreamRequest:
    """How one stream is wanted in the batch; base of `Image` and `Signal`.

    All but `on_missing` is for clocked streams: row i of a stepwise stream belongs to step i, always.
    """

    align: Align = "nearest"
    """`nearest`: the row nearest to a step's time, the earlier of two. `previous`: the last one at or before it.
    `exact`: the row at exactly its time. `linear`: between the rows on both sides (float signals). `interval`: all
    rows since the step before (signals): (B, T, K, ...), with `_interval_is_pad` (B, T, K) and `_count` (B, T)."""
    tolerance_s: float | None = None
    """Largest distance between a step and the row it gets. None = one and a half periods of the stream's nominal
    rate (half a period to the nearest row, plus jitter), or no limit without a rate. `linear`: on both sides."""
    on_miss: Miss = "mask"
    """What a step without a row within tolerance does: `mask` = zeros and `_is_pad`, `error` = AlignError,
    `drop` = the window is not numbered, so that no epoch has it."""
    on_missing: Missing = "mask"
    """What an episode without the stream does: `mask` = zeros and `_is_missing`, `drop` = it gives no windows."""
    age: bool = False
    """Deliver `<stream>_age_ns` (B, T) int64: step time minus the time of the row taken (of the last one at or before
    the step under `linear`, of the newest one under `interval`); 0 where `_is_pad`."""
    offset_s: float = 0.0
    """Added to the stream's timestamps: seconds that the stream's clock is behind the step clock."""
    on_bad_clock: BadClock = "error"
    """What timestamps that do not strictly rise do: `error` = AlignError, `sort` = rows are taken in the order of
    their times, the first of equal ones; `drop` = rows not later than all before them are left out."""

    def __post_init__(self) -> None:
        check_choice("align", self.align, get_args(Align))
        check_choice("on_miss", self.on_miss, get_args(Miss))
        check_choice("on_missing", self.on_missing, get_args(Missing))
        check_choice("on_bad_clock", self.on_bad_clock, get_args(BadClock))
        if self.tolerance_s is not None and not (is_number(self.tolerance_s) and self.tolerance_s >= 0):
            raise ConfigError(f"tolerance_s={self.tolerance_s!r} is invalid: expected seconds >= 0, or None.")
        if self.tolerance_s is not None:  # 3, 3.0 and NumPy's 3 are one setting, and stand as one in a state
            object.__setattr__(self, "tolerance_s", float(self.tolerance_s))
        if self.tolerance_s and self.align in ("exact", "interval"):
            raise ConfigError(
                f"tolerance_s={self.tolerance_s!r} has no meaning with align={self.align!r}. Leave it out."
            )
        check_bool("age", self.age)
        seconds_to_ns("offset_s", self.offset_s)

    __repr__ = short_repr

    @property
    def offset_ns(self) -> int:
        return seconds_to_ns("offset_s", self.offset_s)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the request; settings that came later stand in it where they are used."""
        out: dict[str, Any] = {"align": self.align, "tolerance_s": self.tolerance_s, "on_miss": self.on_miss}
        for name, default in (("on_missing", "mask"), ("age", False), ("on_bad_clock", "error")):
            if getattr(self, name) != default:
                out[name] = getattr(self, name)
        if self.offset_ns:
            out["offset_s"] = self.offset_ns / 1e9
        return out


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Image(StreamRequest):
    """A picture stream (video or images, rgb or depth), delivered as (B, T, C, H, W).

    rgb is uint8 RGB, resized with an antialiased area/bilinear filter; depth keeps its stored dtype and unit
    and is resized by nearest neighbour, since averaging depths invents surfaces.
    """

    size: tuple[int, int] | None = None
    """(H, W) wanted; None keeps the stored size."""
    jpeg_scaling: bool = False
    """Decode JPEG at 1/2, 1/4 or 1/8 of its size where that still covers `size`, then resize: faster, and other pixels
    than decoding whole (a mean of frequencies instead of pixels). For rgb stored as jpg, with a `size`."""

    def __post_init__(self) -> None:
        # super() without arguments does not work in a slots dataclass on Python 3.10
        StreamRequest.__post_init__(self)
        if self.size is not None:
            is_several = isinstance(self.size, Iterable) and getattr(self.size, "ndim", 1) == 1
            size = tuple(self.size) if is_several else (self.size,)
            if len(size) != 2 or any(
                isinstance(n, bool) or not isinstance(n, (int, np.integer)) or n < 1 for n in size
            ):
                square = f" Did you mean size=({self.size}, {self.size})?" if isinstance(self.size, int) else ""
                raise ConfigError(
                    f"Image(size={self.size!r}) is invalid: expected (height, width), ints of at least 1.{square}"
                )
            object.__setattr__(self, "size", (int(size[0]), int(size[1])))
        if not isinstance(self.jpeg_scaling, bool):
            raise ConfigError(f"Image(jpeg_scaling={self.jpeg_scaling!r}) is invalid: expected True or False.")
        if self.jpeg_scaling and self.size is None:
            raise ConfigError("Image(jpeg_scaling=True) has no meaning without a size. Give one, or leave it out.")

    def to_json(self) -> dict[str, Any]:
        out = {**StreamRequest.to_json(self), "size": list(self.size) if self.size else None}
        if self.jpeg_scaling:
            out["jpeg_scaling"] = True
        return out


@explains_calls
@dataclass(frozen=True, kw_only=True, slots=True, repr=False)
class Signal(StreamRequest):
    """A low-dimensional stream (proprioception, action, reward, ...), delivered as (B, T, D) in its stored dtype."""


@dataclass(frozen=True, kw_only=True, slots=True)
class UniformClock:
    """Step times of a whole dataset or episode: step i is at `start_ns + round(i / rate_hz)` exactly.

    The rate is a fraction, so ten hours at 29.97 Hz end on the right nanosecond.
    """

    rate_hz: Fraction
    start_ns: int = 0

    def __post_init__(self) -> None:
        if not self.rate_hz > 0:
            raise ConfigError(f"step rate {self.rate_hz!r} is invalid: expected a rate above 0 Hz.")

    def times_ns(self, steps: np.ndarray) -> np.ndarray:
        """Return int64 nanoseconds of `steps` (any shape, int64 >= 0), rounded half up, without float."""
        num, den = self.rate_hz.numerator, self.rate_hz.denominator
        steps = np.asarray(steps, dtype=np.int64)
        if num >= 2**32 or (steps.size and int(steps.max()) * den >= 2**63):
            # A rate made from a float, Fraction(29.97), has terms of 48 bits and more: Python ints do not overflow.
            exact = [self.start_ns + (2 * i * den * 1_000_000_000 + num) // (2 * num) for i in steps.ravel().tolist()]
            return np.array(exact, dtype=np.int64).reshape(steps.shape)
        # i * den * 1e9 / num, in two parts so that int64 does not overflow: whole seconds, then the rest.
        ticks = steps * den
        whole, rest = np.divmod(ticks, num)
        return self.start_ns + whole * 1_000_000_000 + (rest * 1_000_000_000 * 2 + num) // (2 * num)


def default_request(spec: StreamSpec) -> StreamRequest:
    """Return the request a stream gets when the user names none."""
    return Image() if spec.is_picture else Signal()


def check_request(spec: StreamSpec, request: StreamRequest) -> StreamRequest:
    """Return `request` if it can be asked of `spec`, else raise ConfigError naming both."""
    if not isinstance(request, StreamRequest):
        kind = "Image" if spec.is_picture else "Signal"
        raise ConfigError(
            f"streams[{spec.name!r}]={request!r} is unusable: expected tl.{kind}(...), or None for the stream as stored."
        )
    if isinstance(request, Image) and not spec.is_picture:
        raise ConfigError(
            f"streams[{spec.name!r}] asks for an Image, but the stream is stored as {spec.encoding!r}. Use tl.Signal(...)."
        )
    if isinstance(request, Signal) and spec.is_picture:
        raise ConfigError(
            f"streams[{spec.name!r}] asks for a Signal, but the stream is stored as {spec.encoding!r}. Use tl.Image(...)."
        )
    if isinstance(request, Image) and request.jpeg_scaling and (spec.encoding, spec.modality) != ("jpg", Modality.RGB):
        raise ConfigError(
            f"streams[{spec.name!r}] asks for jpeg_scaling, but the stream is {spec.modality} stored as {spec.encoding!r}: "
            "expected rgb stored as 'jpg'. Leave it out."
        )
    _check_align(spec, request)
    return request


def _check_align(spec: StreamSpec, request: StreamRequest) -> None:
    align, asks = request.align, f"streams[{spec.name!r}] asks for"
    if align in ("linear", "interval") and (spec.is_picture or spec.is_text):
        raise ConfigError(f"{asks} align={align!r}, but the stream is stored as {spec.encoding!r}: expected a signal.")
    if align == "linear" and np.dtype(spec.dtype).kind != "f":
        raise ConfigError(f"{asks} align='linear', but it holds {spec.dtype}: expected floats. Use align='nearest'.")
    if request.age and spec.is_text:
        raise ConfigError(f"{asks} age=True, but the stream is text. Leave it out.")
    if spec.clock == "stepwise":
        for name, is_used in (
            ("align", align in ("linear", "interval")),
            ("age", request.age),
            ("offset_s", request.offset_ns),
        ):
            if is_used:
                raise ConfigError(
                    f"{asks} {name}={getattr(request, name)!r}, but it is stepwise: its row i belongs to step i. Leave it out."
                )
