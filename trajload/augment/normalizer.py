"""Normalisation of signals by a dataset's statistics: invertible, as a transform or on batches and tensors."""

# Shapes: B windows, T steps, D signal size

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args

import numpy as np

from trajload.arguments import explains_calls
from trajload.augment.contract import Layout, WindowDict
from trajload.augment.measure import measure_stats, stored_stats
from trajload.checks import check_choice
from trajload.errors import ConfigError
from trajload.sources.base import Dataset
from trajload.spec import StreamSpec
from trajload.types import NDArray

__all__ = ["Method", "Normalizer", "Scale"]

Method = Literal["mean_std", "min_max", "quantiles"]
_NEEDED = {
    "mean_std": ("mean", "std", "min", "max"),
    "min_max": ("min", "max"),
    "quantiles": ("q01", "q99", "min", "max"),
}
_TINY = 1e-9
"""A spread smaller than this share of the values' size is rounding, not movement."""
_T = TypeVar("_T")


@dataclass(frozen=True)
class Scale:
    """Of one stream: y = (x - center) / scale, component by component."""

    method: str
    center: tuple[float, ...]
    scale: tuple[float, ...]
    shape: tuple[int, ...]
    """Of one step."""

    def arrays(self) -> tuple[NDArray, NDArray]:
        """Return center and scale as float64 of the step's shape."""
        return np.array(self.center).reshape(self.shape), np.array(self.scale).reshape(self.shape)


@explains_calls
class Normalizer:
    """Scales signals to a common range and back, by the statistics of the data it was made from. Immutable.

    - 'mean_std': mean 0, standard deviation 1.
    - 'min_max': the least value to -1, the greatest to 1.
    - 'quantiles': the 1 % quantile to -1, the 99 % quantile to 1; values beyond are not clipped, so all can be undone.

    A component that never moves is only shifted: to 0. One whose quantiles coincide is scaled by its least and
    greatest value. One that never was finite stays as it is. Normalised values are float32.

    Three ways to use it: as a transform of a loader (`transforms=[..., normalizer]`); on a batch
    (`normalizer.normalize(batch)`); on any tensor or array whose last axes are a step's (`normalize(x, "action")`).
    Masked steps that are zeros stay zeros in windows and batches.
    """

    def __init__(
        self, streams: Mapping[str, Scale], *, data_digest: str, origin: Mapping[str, str] | None = None
    ) -> None:
        """Use `from_dataset` or `from_json`."""
        self.streams = dict(streams)
        self.data_digest = data_digest
        """Digest of the dataset that the statistics are of."""
        self.origin = dict(origin or {})
        """For each stream: 'stored' or 'measured'."""

    def __repr__(self) -> str:
        how = ", ".join(f"{name!r} by {scale.method}" for name, scale in self.streams.items())
        return f"<Normalizer {how}; statistics of dataset {self.data_digest[:12]}…>"

    # ---- where it comes from ----

    @classmethod
    def from_dataset(
        cls,
        dataset: Dataset,
        methods: Mapping[str, Method],
        *,
        stats: Literal["auto", "stored", "measured"] = "auto",
    ) -> Normalizer:
        """Return the normalizer of a dataset.

        Args:
            dataset: An opened dataset.
            methods: For each stream to normalise: 'mean_std', 'min_max' or 'quantiles'.
            stats: 'stored' takes what the dataset stores (`dataset.stats()`), 'measured' reads all rows of the streams,
                'auto' measures only what is not stored.

        Raises:
            ConfigError: An unknown stream or method, a stream that holds no numbers, or statistics that are not stored.
        """
        if not isinstance(methods, Mapping) or not methods:
            raise ConfigError(f"methods={methods!r} is invalid: expected a dict such as {{'action': 'mean_std'}}.")
        check_choice("stats", stats, ("auto", "stored", "measured"))
        if not isinstance(dataset, Dataset):
            raise ConfigError(f"dataset={dataset!r} is unusable: expected an opened dataset, as tl.open returns it.")
        found: dict[str, Mapping[str, Any]] = {}
        origin = {}
        for name, method in methods.items():
            _check_method(name, method)
            spec = dataset.spec(name)
            if spec.is_picture or spec.is_text or np.dtype(spec.dtype).kind not in "fiu":
                raise ConfigError(
                    f"stream {name!r} cannot be normalised: got {spec.encoding} of {spec.dtype}, expected a signal of numbers."
                )
            kept = None if stats == "measured" else stored_stats(dataset, name, _NEEDED[method])
            if kept is None and stats == "stored":
                raise ConfigError(
                    f"dataset {dataset.name!r} stores no {', '.join(_NEEDED[method])} of stream {name!r}, which {method!r} "
                    "needs. Pass stats='auto' to compute them from the data."
                )
            if kept is not None:
                found[name] = kept
            origin[name] = "measured" if kept is None else "stored"
        found.update(measure_stats(dataset, [name for name in methods if name not in found]))
        scales = {name: scale_of(found[name], method, dataset.spec(name).shape) for name, method in methods.items()}
        return cls(scales, data_digest=dataset.digest, origin=origin)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Normalizer:
        """Return the normalizer that `to_json` described, for instance from beside a checkpoint."""
        try:
            scales = {
                name: Scale(s["method"], tuple(s["center"]), tuple(s["scale"]), tuple(s["shape"]))
                for name, s in value["streams"].items()
            }
            return cls(scales, data_digest=value["data_digest"], origin=value.get("origin"))
        except (KeyError, TypeError, AttributeError) as err:
            raise ConfigError(f"this is no normalizer: expected what Normalizer.to_json() gave ({err!r}).") from err

    def to_json(self) -> dict[str, Any]:
        """Return all numbers, JSON-able, exact: what `from_json` takes. Keep it beside the model."""
        return {
            "data_digest": self.data_digest,
            "origin": dict(self.origin),
            "streams": {
                name: {"method": s.method, "center": list(s.center), "scale": list(s.scale), "shape": list(s.shape)}
                for name, s in self.streams.items()
            },
        }

    @property
    def digest(self) -> str:
        """Hex digest of every number: equal digests, equal normalisation."""
        text = json.dumps(self.to_json()["streams"], sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    # ---- as a transform ----

    def config_json(self) -> dict[str, Any]:
        """Return what a loader's state compares: methods, the data they are of, and a digest of the numbers."""
        return {
            "methods": {name: scale.method for name, scale in self.streams.items()},
            "data_digest": self.data_digest,
            "digest": self.digest,
        }

    def bind(self, specs: Mapping[str, StreamSpec]) -> Normalizer:
        """Return itself; ConfigError where a stream is not in the batch."""
        for name in self.streams:
            if name not in specs:
                have = ", ".join(map(repr, specs))
                raise ConfigError(f"Normalizer names stream {name!r}, which is not in the batch: it has {have}.")
        return self

    def out_layout(self, layout: Layout) -> Layout:
        """Return the layout with its streams as float32."""
        out = dict(layout)
        for name, scale in self.streams.items():
            shape = tuple(layout[name][0])
            if shape != scale.shape:
                raise ConfigError(
                    f"Normalizer has shape {scale.shape} for stream {name!r}: got steps of shape {shape}."
                )
            out[name] = (shape, np.dtype(np.float32))
        return out

    def __call__(self, window: WindowDict, generator: np.random.Generator) -> WindowDict:
        """Normalise one window; draws nothing."""
        for name in self.streams:
            window[name] = self._masked(window[name], window[f"{name}_is_pad"], self._forward(window[name], name))
        return window

    # ---- on batches and tensors ----

    def normalize(self, values: _T, stream: str | None = None) -> _T:
        """Return a batch with its streams normalised (a shallow copy), or one tensor or array of `stream`, as float32.

        Steps that are masked and all zeros stay zeros in a batch. A tensor's last axes must be a step's.
        """
        return self._each(values, stream, self._forward)

    def denormalize(self, values: _T, stream: str | None = None) -> _T:
        """Return what `normalize` was given, but for rounding: float32, or float64 of float64 values.

        For a model's output: `normalizer.denormalize(prediction, "action")`, of any number of leading axes.
        """
        return self._each(values, stream, self._backward)

    def _each(self, values: Any, stream: str | None, function: Any) -> Any:
        if not isinstance(values, dict):
            if stream is None:
                raise ConfigError(
                    "which stream is this tensor of? Pass normalize(x, 'action') or denormalize(x, 'action')."
                )
            return function(values, stream)
        if stream is not None:
            raise ConfigError(
                f"stream={stream!r} goes with a tensor, not with a batch: leave it out, or pass batch[{stream!r}]."
            )
        out = values.copy()
        for name in self.streams:
            if name not in values:
                raise ConfigError(f"batch has no stream {name!r}: it has {', '.join(map(repr, values))}.")
            done = function(values[name], name)
            mask = values.get(f"{name}_interval_is_pad", values.get(f"{name}_is_pad"))
            out[name] = done if mask is None else self._masked(values[name], mask, done)
        return out

    def _forward(self, x: Any, stream: str) -> Any:
        center, scale = self._numbers(x, stream)
        return _narrow((_wide(x) - center) / scale)

    def _backward(self, y: Any, stream: str) -> Any:
        center, scale = self._numbers(y, stream)
        done = _wide(y) * scale + center
        return done if str(y.dtype).endswith("float64") else _narrow(done)

    def _numbers(self, x: Any, stream: str) -> tuple[Any, Any]:
        if stream not in self.streams:
            raise ConfigError(
                f"stream {stream!r} has no statistics here: got those of {', '.join(map(repr, self.streams))}."
            )
        found = self.streams[stream]
        if not hasattr(x, "dtype") or tuple(x.shape[x.ndim - len(found.shape) :]) != found.shape:
            got = tuple(x.shape) if hasattr(x, "shape") else type(x).__name__
            raise ConfigError(
                f"values of stream {stream!r} are {got}: expected an array whose last axes are {found.shape}."
            )
        center, scale = found.arrays()
        if isinstance(x, np.ndarray):
            return center, scale
        wide = x.double()  # a tensor: its own methods, so that this module needs no torch
        return wide.new_tensor(center.tolist()), wide.new_tensor(scale.tolist())

    @staticmethod
    def _masked(before: Any, is_pad: Any, after: Any) -> Any:
        """Zero the steps of `after` that are masked and all zeros before: they say that there are no data."""
        flat = before.reshape((*is_pad.shape, math.prod(before.shape[is_pad.ndim :])))
        after[is_pad & (flat == 0).all(-1)] = 0
        return after


def scale_of(stats: Mapping[str, Any], method: Method, shape: tuple[int, ...]) -> Scale:
    """Return the scale of one stream; see `Normalizer` for components that do not move."""

    def values(name: str) -> NDArray:
        given = np.asarray(stats[name], dtype=object).reshape(-1)
        return np.array([np.nan if v is None else float(v) for v in given], dtype=np.float64)

    low, high = values("min"), values("max")
    half = high / 2 - low / 2  # halved first: the difference of two large floats may overflow
    if method == "mean_std":
        center, scale = values("mean"), values("std")
    elif method == "min_max":
        center, scale = low + half, half
    else:
        low_q, high_q = values("q01"), values("q99")
        scale = high_q / 2 - low_q / 2
        center = low_q + scale
        with np.errstate(invalid="ignore"):
            flat = ~(scale > _TINY * np.abs(center)) & (half > _TINY * np.abs(low + half))
        center, scale = np.where(flat, low + half, center), np.where(flat, half, scale)
    with np.errstate(invalid="ignore"):
        still = (high == low) | ~(scale > _TINY * np.abs(center))
    center = np.where(still & np.isfinite(low), low, center)
    known = np.isfinite(center) & np.isfinite(scale)
    center, scale = np.where(known, center, 0.0), np.where(known & ~still, scale, 1.0)
    return Scale(method, tuple(center.tolist()), tuple(scale.tolist()), tuple(shape))


def _check_method(stream: str, method: Any) -> None:
    if method not in get_args(Method):
        raise ConfigError(
            f"method {method!r} of stream {stream!r} is unknown: expected one of {', '.join(map(repr, get_args(Method)))}."
        )


def _wide(x: Any) -> Any:
    return x.astype(np.float64) if isinstance(x, np.ndarray) else x.double()


def _narrow(x: Any) -> Any:
    return x.astype(np.float32) if isinstance(x, np.ndarray) else x.float()
