"""Whether the streams of several sources can stand in one batch; the message names both sources and what to do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from trajload.collate.stream_slots import StreamLayout
from trajload.errors import ConfigError
from trajload.pipeline.config import StreamChoice
from trajload.spec import Window

__all__ = ["check_collatable"]


def check_collatable(
    sources: Sequence[tuple[str, Window, Sequence[StreamChoice], Mapping[str, StreamLayout]]],
) -> None:
    """Raise ConfigError where two sources differ in the length of windows or in what a batch key holds.

    Args:
        sources: Name, window, streams and delivered layout of each.
    """
    first_name, first_window = sources[0][:2]
    for name, window, _, _ in sources[1:]:
        if window.num_steps != first_window.num_steps:
            raise ConfigError(
                f"windows of the mixture cannot be collated: source {first_name!r} has num_steps={first_window.num_steps}, "
                f"source {name!r} num_steps={window.num_steps}. Give all the same; stride, dilation and padding may differ."
            )
    seen: dict[str, tuple[str, str, str]] = {}
    for name, _, choices, layout in sources:
        for choice in choices:
            what = _describe(choice, layout.get(choice.key))
            before = seen.setdefault(choice.key, (name, choice.name, what))
            if before[2] != what:
                raise ConfigError(
                    f"batch key {choice.key!r} cannot be collated: {_stream(before[0], before[1], choice.key)} gives "
                    f"{before[2]}, {_stream(name, choice.name, choice.key)} {what}. {_cure(choice)}"
                )


def _stream(source: str, stream: str, key: str) -> str:
    return f"source {source!r}" + ("" if stream == key else f" (its stream {stream!r})")


def _describe(choice: StreamChoice, layout: StreamLayout | None) -> str:
    """Return all that must agree, in words."""
    if layout is None:
        return "text" if choice.spec.dtype == "str" else "JSON values"
    kind = f"{choice.spec.modality.value} pictures" if choice.spec.is_picture else "signals"
    places = "1 place" if layout.num_places == 1 else f"{layout.num_places} places"
    more = " with ages" * layout.has_age + " as intervals" * layout.is_ragged
    return f"{np.dtype(layout.dtype).name} {kind} {tuple(layout.row_shape)} at {places}{more}"


def _cure(choice: StreamChoice) -> str:
    how = "one size (tl.Image(size=...))" if choice.spec.is_picture else "float32 (a tl.Normalizer in each tl.Source)"
    return (
        f"Ask for {how}, the same steps and settings, rename one of them with tl.Source(rename=...), or leave it out."
    )
