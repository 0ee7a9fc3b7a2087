"""Everything that decides the values of a batch, checked once and frozen."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trajload.align.places import Places, stream_places
from trajload.errors import ConfigError
from trajload.sources.base import Dataset
from trajload.spec import StreamRequest, StreamSpec, Window, check_request, default_request

__all__ = ["OnError", "StreamChoice", "choose_streams"]

OnError = Literal["raise", "substitute"]


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """One stream of the batch: what the data hold, and how it is wanted."""

    spec: StreamSpec
    request: StreamRequest
    places: Places
    """Where its values stand relative to a window's anchor."""

    @property
    def name(self) -> str:
        return self.spec.name


def choose_streams(
    dataset: Dataset, streams: Iterable[str] | Mapping[str, StreamRequest | None] | None, window: Window
) -> tuple[StreamChoice, ...]:
    """Return the streams a batch is made of, in the dataset's order.

    Args:
        dataset: The opened dataset.
        streams: None for all; names; or name → `tl.Image(...)`, `tl.Signal(...)` or None for the default.
        window: May give streams steps or times of their own.

    Raises:
        ConfigError: An unknown stream, a request or deltas that do not fit their stream, deltas of a stream that is not
            asked for, two streams that claim one batch key, or no stream at all.
    """
    if not dataset.streams:
        raise ConfigError(
            f"dataset {dataset.name!r} has no stream that can be read: it has {dataset.num_episodes} episodes. "
            "Run 'trajload doctor' on it."
        )
    if streams is None:
        wanted: dict[str, StreamRequest | None] = dict.fromkeys(dataset.streams)
    elif isinstance(streams, str):
        raise ConfigError(
            f"streams={streams!r} is a single name: expected a list of names, or a dict of name to request."
        )
    elif isinstance(streams, Mapping):
        wanted = dict(streams)
    elif isinstance(streams, Iterable):
        wanted = dict.fromkeys(streams)
    else:
        raise ConfigError(f"streams={streams!r} is unusable: expected a list of names, or a dict of name to request.")
    if not wanted:
        raise ConfigError("streams is empty: expected at least one stream of the dataset, or None for all of them.")
    specs = {name: dataset.spec(name) for name in wanted}  # raises, naming the unknown stream
    out = []
    for name in dataset.streams:
        if name not in specs:
            continue
        spec = specs[name]
        request = check_request(spec, wanted[name] or default_request(spec))
        out.append(StreamChoice(spec, request, stream_places(window, spec, request, dataset.step_rate_hz)))
    for name in window.own_streams:
        if name not in specs:
            raise ConfigError(
                f"the window has deltas for stream {name!r}, which is not asked for: streams are {', '.join(map(repr, specs))}."
            )
    _check_keys(out)
    return tuple(out)


def _check_keys(choices: Iterable[StreamChoice]) -> None:
    """Refuse a stream whose name is the key of what another stream asks for, such as 'imu_age_ns'."""
    names = {choice.name for choice in choices}
    for choice in choices:
        keys = ["_age_ns"] if choice.request.age else []
        keys += ["_count"] if choice.request.align == "interval" else []
        for key in keys:
            if choice.name + key in names:
                raise ConfigError(
                    f"stream {choice.name + key!r} has the name of a batch key of stream {choice.name!r}. Ask for one of them."
                )


def check_on_error(on_error: str) -> OnError:
    """Return `on_error` if it is a known policy, else raise ConfigError."""
    if on_error not in get_args(OnError):
        raise ConfigError(
            f"on_error={on_error!r} is unknown: expected one of {', '.join(map(repr, get_args(OnError)))}."
        )
    return on_error  # type: ignore[return-value]


def config_json(
    choices: Iterable[StreamChoice], window: Window, sampler: Mapping[str, Any], on_error: str
) -> dict[str, Any]:
    """Return the JSON-able configuration that decides batches; equal configurations give equal batches."""
    return {
        **sampler,
        "window": window.to_json(),
        "streams": {
            choice.name: {**choice.request.to_json(), "kind": type(choice.request).__name__} for choice in choices
        },
        "on_error": on_error,
    }
