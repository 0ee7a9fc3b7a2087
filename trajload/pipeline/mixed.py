"""The sources of a mixture made to fit one batch: names mapped, streams compared, what a source lacks filled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trajload.augment.chain import TransformChain
from trajload.augment.contract import Transform
from trajload.augment.own_streams import own_streams
from trajload.collate.stream_slots import StreamLayout
from trajload.errors import ConfigError, at
from trajload.pipeline.collatable import check_collatable
from trajload.pipeline.config import (
    StreamChoice,
    check_keys,
    check_window,
    choose_streams,
    make_transforms,
    stream_layout,
)
from trajload.pipeline.numbering import plan_windows
from trajload.sampling.mixture import MixturePart, source_seed
from trajload.sampling.mixture_sources import Mixture, Source
from trajload.sampling.orders import OrderConfig
from trajload.sources.base import Dataset
from trajload.spec import Image, StreamRequest, StreamSpec, Window
from trajload.types import Modality

__all__ = ["MixedSource", "mix"]


@dataclass(frozen=True, slots=True, eq=False)
class MixedSource:
    """One source, with all that its rows are made from."""

    name: str
    dataset: Dataset
    window: Window
    choices: tuple[StreamChoice, ...]
    """Streams it gives."""
    absent: tuple[StreamChoice, ...]
    """Streams of the batch that it lacks, as they would be after its own transforms."""
    part: MixturePart
    transforms: TransformChain | None
    """Its own, then those of the Loader."""
    num_own_transforms: int
    config: dict[str, Any]
    """What decides its rows, for the state."""


@dataclass(frozen=True, slots=True, eq=False)
class _Chosen:
    name: str
    source: Source
    dataset: Dataset
    window: Window
    choices: tuple[StreamChoice, ...]
    own: tuple[Transform, ...]
    delivered: Mapping[str, StreamLayout]
    """After its own transforms."""


def mix(
    mixture: Mixture,
    *,
    window: Window | None,
    streams: Iterable[str] | Mapping[str, StreamRequest | None] | None,
    order: str | OrderConfig,
    seed: int,
    transforms: Iterable[Transform],
) -> list[MixedSource]:
    """Return the sources of a mixture, each with the streams and transforms of one and the same batch.

    Args:
        mixture: The sources.
        window: For sources that have none of their own; stream names are batch keys.
        streams: For sources that name none themselves, by batch key.
        order: For sources that have none of their own.
        seed: Of the run.
        transforms: Of the Loader: they see batch keys, of every stream of the batch.

    Raises:
        ConfigError: A name that no source has, or streams that cannot be put in one batch; sources are named.
    """
    wanted = _by_key(streams)
    common = tuple(transforms) if not callable(transforms) else transforms  # a callable is refused by the chain
    chosen = []
    for name, source in mixture.sources.items():
        with at(dataset=name):
            chosen.append(_choose(name, source, mixture.datasets[name], window, wanted, seed))
    owners = {choice.key: (c, choice) for c in reversed(chosen) for choice in reversed(c.choices)}
    keys = list(dict.fromkeys(choice.key for c in chosen for choice in c.choices))
    _check_names(wanted, window, keys, mixture)
    check_collatable([(c.name, c.window, c.choices, c.delivered) for c in chosen])
    out = []
    for c in chosen:
        absent = tuple(_as_absent(*owners[key]) for key in keys if key not in {choice.key for choice in c.choices})
        for choice in absent:
            request = wanted.get(choice.key) if wanted else None
            if request is not None and request.on_missing == "drop":
                raise ConfigError(
                    f"source {c.name!r} has no stream for batch key {choice.key!r}, which is asked for with "
                    "on_missing='drop': none of its windows would be left. Use on_missing='mask', leave the source out, or rename one "
                    "of its streams."
                )
        with at(dataset=c.name):
            by_key = {choice.key: choice for choice in (*c.choices, *absent)}
            chain = make_transforms(
                _joined(c.own, common), tuple(by_key[key] for key in keys), source_seed(seed, c.name)
            )
            table, bound, numbering = plan_windows(
                c.dataset, c.window, c.choices, order if c.source.order is None else c.source.order, c.source.episodes
            )
        part = MixturePart(name=c.name, weight=c.source.weight, table=table, order=bound)
        config = {
            "streams": {
                choice.key: {
                    **choice.request.to_json(),
                    "kind": type(choice.request).__name__,
                    **({} if choice.renamed is None else {"name": choice.name}),
                }
                for choice in c.choices
            },
            **numbering,
            **({"transforms": chain.config[: len(c.own)]} if chain is not None and c.own else {}),
        }
        out.append(MixedSource(c.name, c.dataset, c.window, c.choices, absent, part, chain, len(c.own), config))
    check_collatable([(s.name, s.window, (*s.choices, *s.absent), _delivered(s)) for s in out])
    return out


def _by_key(streams: Any) -> dict[str, StreamRequest | None] | None:
    if streams is None:
        return None
    if isinstance(streams, str) or not isinstance(streams, Iterable):
        raise ConfigError(
            f"streams={streams!r} is unusable: expected a list of batch keys, or a dict of key to request."
        )
    out = dict(streams) if isinstance(streams, Mapping) else dict.fromkeys(streams)
    if not out:
        raise ConfigError("streams is empty: expected at least one batch key, or None for all streams of all sources.")
    return out


def _choose(
    name: str,
    source: Source,
    dataset: Dataset,
    window: Window | None,
    wanted: Mapping[str, StreamRequest | None] | None,
    seed: int,
) -> _Chosen:
    """Return what one source gives by itself."""
    key_of = {stream: stream for stream in dataset.streams}
    for stream, key in source.rename.items():
        key_of[dataset.spec(stream).name] = replace(dataset.spec(stream), name=key).name  # raises on unusable names
    stream_of = {key: stream for stream, key in key_of.items()}
    if len(stream_of) < len(key_of) and source.streams is None:
        first, second = next((s, stream_of[k]) for s, k in key_of.items() if stream_of[k] != s)
        raise ConfigError(
            f"streams {first!r} and {second!r} of source {name!r} both claim the batch key {key_of[first]!r}. Name the streams it "
            "gives with tl.Source(streams=...), or rename both."
        )
    if source.streams is not None:
        own_wanted: Any = source.streams
    elif wanted is not None:
        own_wanted = {stream_of[key]: request for key, request in wanted.items() if key in stream_of}
        if not own_wanted:
            raise ConfigError(
                f"source {name!r} has none of the streams asked for ({', '.join(map(repr, wanted))}): it has "
                f"{', '.join(map(repr, stream_of))}. Rename some of them with tl.Source(rename=...), or leave it out."
            )
    else:
        own_wanted = None
    if source.window is None and window is None:
        raise ConfigError(f"source {name!r} has no window: pass window= to the Loader or to tl.Source.")
    names: set[str] = set(dataset.streams if own_wanted is None or isinstance(own_wanted, str) else own_wanted)
    own_window = check_window(source.window) if source.window is not None else _own_window(window, stream_of, names)
    choices = tuple(
        choice if key_of[choice.name] == choice.name else replace(choice, renamed=key_of[choice.name])
        for choice in choose_streams(dataset, own_wanted, own_window)
    )
    check_keys(choices)
    own_names = {choice.key: choice.name for choice in choices}
    own = tuple(
        own_streams(t, own_names) if callable(t) and not isinstance(t, type) else t  # no transform: the chain says so
        for t in source.transforms
    )
    chain = make_transforms(own, choices, source_seed(seed, name))
    return _Chosen(name, source, dataset, own_window, choices, own, _after(stream_layout(choices), chain))


def _own_window(window: Window | None, stream_of: Mapping[str, str], names: set[str]) -> Window:
    """Return the Loader's window with the source's own stream names, without streams it does not give."""
    window = check_window(window)  # type: ignore[arg-type]
    if not window.own_streams:
        return window
    mapped = {
        field: {stream_of[k]: v for k, v in getattr(window, field).items() if stream_of.get(k, "") in names}
        for field in ("delta_indices", "delta_timestamps")
    }
    return replace(window, **mapped)  # type: ignore[arg-type]


def _check_names(
    wanted: Mapping[str, Any] | None, window: Window | None, keys: Sequence[str], mixture: Mixture
) -> None:
    """Refuse batch keys that no source has."""
    asked = [("streams", key) for key in wanted or ()]
    if window is not None and any(source.window is None for source in mixture.sources.values()):
        asked += [("the window's deltas", key) for key in window.own_streams]
    for what, key in asked:
        if key not in keys:
            raise ConfigError(
                f"{what} name {key!r}, which no source of the mixture gives: batch keys are {', '.join(map(repr, keys))}."
            )


def _as_absent(owner: _Chosen, choice: StreamChoice) -> StreamChoice:
    """Return the stream of another source as one that is never there: as it is after its source's own transforms."""
    spec, request = choice.spec, choice.request
    if not spec.is_text:
        layout = owner.delivered[choice.key]
        spec, request = _spec_of(spec, layout), replace(request, size=None) if isinstance(request, Image) else request
    return StreamChoice(spec, replace(request, on_missing="mask"), choice.places, renamed=choice.key)


def _spec_of(spec: StreamSpec, layout: StreamLayout) -> StreamSpec:
    shape, dtype = layout.row_shape, layout.dtype
    if spec.is_picture and len(shape) == 3:
        channels, height, width = shape
        is_rgb = spec.modality is Modality.RGB and channels == 3 and dtype == "uint8"
        # Only rgb as it is decoded is rgb to the layout; what transforms made of it keeps its own shape and dtype.
        modality = spec.modality if is_rgb or spec.modality is not Modality.RGB else Modality.DEPTH
        return replace(spec, shape=(height, width, channels), dtype=dtype.name, modality=modality)
    return replace(spec, shape=shape, dtype=dtype.name, encoding="npy" if spec.is_picture else spec.encoding)


def _joined(own: tuple[Any, ...], common: Any) -> Any:
    return common if not isinstance(common, tuple) else (*own, *common)


def _after(layout: Mapping[str, StreamLayout], chain: TransformChain | None) -> dict[str, StreamLayout]:
    out = dict(layout)
    for key, (shape, dtype) in ({} if chain is None else chain.layout).items():
        out[key] = replace(out[key], row_shape=shape, dtype=dtype)
    return out


def _delivered(source: MixedSource) -> dict[str, StreamLayout]:
    return _after(stream_layout((*source.choices, *source.absent)), source.transforms)
