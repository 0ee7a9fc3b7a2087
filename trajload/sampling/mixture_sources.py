"""`Mixture` and `Source`: which datasets a run draws from, in which shares, and what each of them gives to a batch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from trajload.arguments import explains_calls
from trajload.errors import ConfigError, at
from trajload.reprs import short_repr
from trajload.sampling.cells import check_stretch_steps
from trajload.sampling.mixture import By, check_by, source_seed
from trajload.sampling.orders import OrderConfig
from trajload.sampling.select import EpisodeChoice
from trajload.sampling.weights import Weight, weight_phases
from trajload.sources.base import Dataset
from trajload.sources.open import open as open_dataset
from trajload.spec import StreamRequest, Window
from trajload.types import PathLikeStr

if TYPE_CHECKING:
    from trajload.augment.contract import Transform

__all__ = ["Mixture", "Source"]

_MAX_NAME_BYTES = 64
"""Names stand in every state."""


@explains_calls
@dataclass(frozen=True, eq=False)
class Source:
    """One dataset of a mixture. What is left out is taken from the Loader.

    Example:
        >>> Source("robot-data", weight=0.3, rename={"camera_1": "image"}).weight
        0.3
    """

    dataset: Dataset | PathLikeStr
    """An opened dataset, or a path for `tl.open`."""
    weight: Weight = field(kw_only=True)
    """Share of this source, or {train_step: share}: each counts from its train_step on."""
    window: Window | None = field(default=None, kw_only=True)
    """Of this source, with the source's own stream names; as many num_steps as the others."""
    streams: Iterable[str] | Mapping[str, StreamRequest | None] | None = field(default=None, kw_only=True)
    """As `Loader(streams=...)`, with the source's own stream names."""
    rename: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """The source's own stream name → batch key. Streams that are not named keep their names."""
    episodes: EpisodeChoice = field(default=None, kw_only=True)
    """As `Loader(episodes=...)`."""
    order: str | OrderConfig | None = field(default=None, kw_only=True)
    """Of this source's windows, for instance `tl.Weighted` with weights of its episodes."""
    transforms: Iterable[Transform] = field(default=(), kw_only=True)
    """Run over this source's windows, before those of the Loader; they see the source's own stream names."""

    def __post_init__(self) -> None:
        # A mixture may serve several loaders: iterators are read once, here.
        if not isinstance(self.streams, (str, Mapping)) and isinstance(self.streams, Iterable):
            object.__setattr__(self, "streams", tuple(self.streams))
        is_streams = isinstance(self.streams, (str, Mapping, Iterable)) and not hasattr(self.streams, "dtype")
        if self.streams is not None and not is_streams:
            raise ConfigError(
                f"Source(streams={self.streams!r}) is unusable: expected a list of names, a dict, or None."
            )
        is_list = isinstance(self.transforms, Iterable) and not hasattr(self.transforms, "dtype")
        if callable(self.transforms) or not is_list:
            raise ConfigError(f"Source(transforms={self.transforms!r}) is unusable: expected a list of transforms.")
        object.__setattr__(self, "transforms", tuple(self.transforms))
        if not isinstance(self.rename, Mapping):
            raise ConfigError(f"Source(rename={self.rename!r}) is unusable: expected own stream name → batch key.")
        for own, key in self.rename.items():
            if not isinstance(own, str) or not isinstance(key, str):
                raise ConfigError(
                    f"Source(rename={{{own!r}: {key!r}}}) is unusable: expected own stream name → batch key."
                )
        object.__setattr__(self, "rename", dict(self.rename))

    __repr__ = short_repr


@explains_calls
class Mixture:
    """Several datasets in given shares: pass it to `Loader` in place of a dataset.

    Each source goes through its own windows in the order it would have alone; the shares of a batch's rows are exact in every
    short stretch of train_steps. The batch key `source` says where each row is from.

    Example:
        >>> mixture = Mixture({"sim": ("sim-data", 0.7), "real": ("real-data", 0.3)})  # doctest: +SKIP
    """

    def __init__(
        self,
        sources: Mapping[str, Source | tuple[Dataset | PathLikeStr, Weight]],
        *,
        by: By = "windows",
        stretch_steps: int | None = None,
    ) -> None:
        """Check the weights, then open the datasets that are given as paths.

        Args:
            sources: Name → `Source`, or (dataset, weight). The order is that of the rows of a batch.
            by: What weights are shares of: 'windows' drawn (the default), so that a batch has them as shares of its rows; or
                'episodes' gone through, so that a source with long episodes has more rows. It stands in the state.
            stretch_steps: Train_steps in which shares come out exactly. None finds the least one up to 16, anew where weights
                change; where none makes them whole, shares are rounded to rows of 8 train_steps.

        Raises:
            ConfigError: No source, an unusable name, or weights that are negative or do not sum to 1.
        """
        if not isinstance(sources, Mapping):
            raise ConfigError(f"sources={sources!r} is unusable: expected a dict of name to (dataset, weight).")
        self.sources: dict[str, Source] = {_check_name(name): _source(name, given) for name, given in sources.items()}
        self.by: By = check_by(by)
        self._phases = weight_phases({name: source.weight for name, source in self.sources.items()})
        self.stretch_steps = check_stretch_steps(stretch_steps)
        self.datasets: dict[str, Dataset] = {}
        for name, source in self.sources.items():
            with at(dataset=name):
                given = source.dataset
                self.datasets[name] = given if isinstance(given, Dataset) else open_dataset(given)

    @property
    def name(self) -> str:
        """The names of the sources, joined."""
        return " + ".join(self.sources)

    def weights(self, train_step: int = 0) -> dict[str, float]:
        """Return the weight of each source at a train_step; their sum is 1. See `by` for what it is a share of."""
        phase = [phase for phase in self._phases if phase.begin <= max(train_step, 0)][-1]
        return {name: float(weight) for name, weight in zip(self.sources, phase.weights, strict=True)}

    def seed_of(self, name: str, seed: int) -> int:
        """Return the seed that a source draws with in a run of the given seed: `Loader(dataset, seed=...)` alone with it."""
        if name not in self.sources:
            raise ConfigError(f"source {name!r} is unknown: the mixture has {', '.join(map(repr, self.sources))}.")
        return source_seed(seed, name)

    def close(self) -> None:
        """Release open files. Idempotent; a later read opens again what it needs."""
        for dataset in self.datasets.values():
            dataset.close()

    def __len__(self) -> int:
        return len(self.sources)

    def __iter__(self) -> Iterator[str]:
        return iter(self.sources)

    def __repr__(self) -> str:
        phases = [
            f"from train_step {phase.begin} on " * (phase.begin > 0) + _text(self.weights(phase.begin))
            for phase in self._phases
        ]
        return f"Mixture(by {self.by}: {'; '.join(phases)})"


def _text(weights: Mapping[str, float]) -> str:
    return ", ".join(f"{name!r} {weight:.4g}" for name, weight in weights.items())


def _check_name(name: Any) -> str:
    is_text = isinstance(name, str) and name.isprintable()  # no half of a character, nothing that breaks a line
    if not is_text or not 1 <= len(name.encode()) <= _MAX_NAME_BYTES:
        raise ConfigError(
            f"source name {name!r} is unusable: expected a string of 1 to {_MAX_NAME_BYTES} bytes that can be printed."
        )
    return name


def _source(name: str, given: Any) -> Source:
    if isinstance(given, Source):
        return given
    if isinstance(given, (tuple, list)) and len(given) == 2:
        return Source(given[0], weight=given[1])
    raise ConfigError(f"source {name!r} is {given!r}: expected (dataset, weight) or tl.Source(dataset, weight=...).")
