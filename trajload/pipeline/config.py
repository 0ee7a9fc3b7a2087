"""Everything that decides the values of a batch, checked once and frozen."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from trajload.align.places import Places, stream_places
from trajload.augment.chain import TransformChain
from trajload.augment.contract import Transform
from trajload.checks import check_choice, check_int, did_you_mean, quoted
from trajload.collate.stream_slots import StreamLayout
from trajload.decode import row_shape
from trajload.errors import ConfigError
from trajload.machine import num_cpus
from trajload.sources.base import Dataset
from trajload.spec import StreamRequest, StreamSpec, Window, check_request, default_request
from trajload.world import World

__all__ = ["OnError", "StreamChoice", "choose_streams", "config_json", "make_transforms", "stream_layout"]


_MAX_THREADS = 4096
"""Fewer than so many threads of a kind: a number with a slip in it would be started without end."""

OnError = Literal["raise", "substitute"]


@dataclass(frozen=True, slots=True)
class StreamChoice:
    """One stream of the batch: what the data hold, and how it is wanted."""

    spec: StreamSpec
    request: StreamRequest
    places: Places
    """Where its values stand relative to a window's anchor."""
    renamed: str | None = None
    """Batch key, where that is not the stream's name."""

    @property
    def name(self) -> str:
        """Of the stream in its dataset."""
        return self.spec.name

    @property
    def key(self) -> str:
        """Of the stream in the batch."""
        return self.spec.name if self.renamed is None else self.renamed


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
            f"streams={streams!r} is a single name: expected a list of names, or a dict of name to request. "
            f"Did you mean [{streams!r}]?"
        )
    elif isinstance(streams, Mapping):
        wanted = dict(streams)
    elif isinstance(streams, Iterable) and not hasattr(streams, "dtype"):  # an array's elements are no names
        names = list(streams)
        for name in names:
            if not isinstance(name, str):
                raise ConfigError(
                    f"streams holds {name!r}: expected names of streams, or a dict of name to tl.Image(...), tl.Signal(...) or None."
                )
        wanted = dict.fromkeys(names)
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
                f"the window has deltas for stream {name!r}, which is not asked for: streams are {quoted(specs)}."
                f"{did_you_mean(name, specs)}"
            )
    check_keys(out)
    return tuple(out)


def check_window(window: Window | None) -> Window:
    """Return `window` if it is one, else raise ConfigError."""
    if not isinstance(window, Window):
        meant = f" Did you mean tl.Window(num_steps={window})?" if isinstance(window, int) else ""
        raise ConfigError(f"window={window!r} is unusable: expected tl.Window(num_steps=...).{meant}")
    return window


def choose_world(rank: int | None, world_size: int | None, device_mesh: Any = None) -> World:
    """Return the ranks that were asked for, or those of the mesh, or of the environment."""
    if (rank is None) != (world_size is None):
        raise ConfigError(f"rank={rank!r} and world_size={world_size!r}: give both or neither.")
    if device_mesh is not None:
        if rank is not None:
            raise ConfigError("device_mesh and rank= both say which rank this is: give one of them.")
        return World.from_mesh(device_mesh)
    return World.from_env() if rank is None or world_size is None else World(rank=rank, world_size=world_size)


def check_rows(rows: slice | None, global_batch_size: int) -> None:
    """Raise ConfigError unless `rows` is None or a half-open range inside the global batch, not empty."""
    if rows is None:
        return
    ends = (rows.start, rows.stop) if isinstance(rows, slice) else ()
    is_range = ends and all(isinstance(end, (int, np.integer)) for end in ends) and rows.step in (None, 1)
    if not is_range or not 0 <= ends[0] < ends[1] <= global_batch_size:
        raise ConfigError(
            f"rows={rows!r} is invalid: expected slice(start, stop) of the {global_batch_size} rows of the global batch."
        )


def check_keys(choices: Iterable[StreamChoice]) -> None:
    """Refuse two streams of one key, and one whose key is that of what another asks for, such as 'imu_age_ns'."""
    choices = tuple(choices)
    keys = [choice.key for choice in choices]
    for choice in choices:
        if keys.count(choice.key) > 1:
            names = " and ".join(repr(c.name) for c in choices if c.key == choice.key)
            raise ConfigError(f"streams {names} both claim the batch key {choice.key!r}. Ask for one of them.")
        ends = ["_age_ns"] if choice.request.age else []
        ends += ["_count"] if choice.request.align == "interval" else []
        for end in ends:
            if choice.key + end in keys:
                raise ConfigError(
                    f"stream {choice.key + end!r} has the name of a batch key of stream {choice.key!r}. Ask for one of them."
                )


def check_on_error(on_error: str) -> OnError:
    """Return `on_error` if it is a known policy, else raise ConfigError."""
    check_choice("on_error", on_error, get_args(OnError))
    return on_error  # type: ignore[return-value]


def config_json(
    choices: Iterable[StreamChoice],
    window: Window,
    sampler: Mapping[str, Any],
    on_error: str,
    transforms: TransformChain | None,
) -> dict[str, Any]:
    """Return the JSON-able configuration that decides batches; equal configurations give equal batches."""
    return {
        **sampler,
        "window": window.to_json(),
        "streams": {
            choice.key: {**choice.request.to_json(), "kind": type(choice.request).__name__} for choice in choices
        },
        "on_error": check_on_error(on_error),
        # Absent without transforms, so that states from before there were any still load.
        **({"transforms": transforms.config} if transforms is not None else {}),
    }


def stream_layout(choices: Iterable[StreamChoice]) -> dict[str, StreamLayout]:
    """Return what a decoded window looks like: each picture and signal stream."""
    return {
        c.key: StreamLayout(
            *row_shape(c.spec, c.request),
            num_places=c.places.num_places,
            has_age=c.request.age,
            is_ragged=c.request.align == "interval",
        )
        for c in choices
        if not c.spec.is_text
    }


def make_transforms(
    transforms: Iterable[Transform], choices: Iterable[StreamChoice], seed: int
) -> TransformChain | None:
    """Return the transforms bound to the streams of the batch, None if there are none; ConfigError if they do not fit.

    Ragged streams pass by them: how many rows there are at each place is known only once a window is planned.
    """
    choices = tuple(choices)
    layout = stream_layout(choices)
    ragged = [name for name, stream in layout.items() if stream.is_ragged]
    chain = TransformChain(
        transforms,
        {c.key: c.spec for c in choices if c.key not in ragged},
        {name: (stream.row_shape, stream.dtype) for name, stream in layout.items() if name not in ragged},
        seed,
        passed_by=ragged,
    )
    return chain if chain.transforms else None


def check_workers(num_workers: int | None) -> int:
    """Return the number of decoder threads."""
    if num_workers is None:
        return math.ceil(num_cpus())
    return check_int(
        "num_workers", num_workers, 0, _MAX_THREADS, expected="an int of at least 0, or None for one per CPU"
    )


def check_readers(num_readers: int) -> int:
    """Return the number of reader threads."""
    return check_int("num_readers", num_readers, 1, _MAX_THREADS)


def kept(value: Any) -> Any:
    """Return `value`, or what an iterator yields as a list, so that it can be read again."""
    return list(value) if isinstance(value, Iterator) else value
