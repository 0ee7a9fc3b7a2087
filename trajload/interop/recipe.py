"""How to build the same loader in another process: what is sent there, and what is built from it."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.errors import ConfigError
from trajload.sampling.mixture_sources import Mixture
from trajload.sampling.select import EpisodeChoice, choose_episodes
from trajload.sources.base import Dataset, Reopening
from trajload.types import BoolArray

if TYPE_CHECKING:
    from trajload.loader import Loader

__all__ = ["LoaderRecipe"]


class LoaderRecipe:
    """The arguments of a loader, small enough to be sent to every worker: below 64 KiB for 100,000 episodes.

    A dataset is sent as its path and digest (`Dataset.reopening`), chosen episodes as one bit each. The other loader
    works in the thread that asks: processes and read-ahead are its caller's business.
    """

    def __init__(self, loader: Loader) -> None:
        arguments = {**loader.arguments, "check_ranks": False, "device": None}
        arguments.update(num_workers=0, workers="threads")
        self._make: Callable[..., Loader] = type(loader)
        self._dataset: Dataset | _MixtureRecipe
        if isinstance(loader.dataset, Mixture):
            self._dataset = _MixtureRecipe(loader.dataset)
        else:
            self._dataset = loader.dataset
            arguments["episodes"] = _packed(loader.dataset, arguments["episodes"])
        del arguments["dataset"]
        self._arguments = arguments
        self._config_digest = loader.state_dict()["config_digest"]

    def build(self) -> Loader:
        """Return a new loader at train_step 0.

        Raises:
            SourceError: The dataset has changed since.
            ConfigError: What was built is another loader, for instance since a transform's settings came from elsewhere.
        """
        dataset = self._dataset.build() if isinstance(self._dataset, _MixtureRecipe) else _opened(self._dataset)
        loader = self._make(dataset, **_unpacked(self._arguments))
        digest = loader.state_dict()["config_digest"]
        if digest != self._config_digest:
            raise ConfigError(
                f"the loader built in this process is another one: got configuration {digest[:12]}…, expected "
                f"{self._config_digest[:12]}…. Are trajload and your transforms of the same version in all processes?"
            )
        return loader

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_dataset": _sent(self._dataset)}


class _MixtureRecipe:
    """The same for a mixture."""

    def __init__(self, mixture: Mixture) -> None:
        self._by, self._stretch_steps = mixture.by, mixture.stretch_steps
        self._make_source = {name: type(source) for name, source in mixture.sources.items()}
        self._sources = {
            name: {
                **{f.name: getattr(source, f.name) for f in dataclasses.fields(source)},
                "dataset": mixture.datasets[name],
                "episodes": _packed(mixture.datasets[name], source.episodes),
            }
            for name, source in mixture.sources.items()
        }

    def build(self) -> Mixture:
        sources = {name: self._make_source[name](**_unpacked(given)) for name, given in self._sources.items()}
        return Mixture(sources, by=self._by, stretch_steps=self._stretch_steps)

    def __getstate__(self) -> dict[str, Any]:
        sources = {name: {key: _sent(value) for key, value in given.items()} for name, given in self._sources.items()}
        return {**self.__dict__, "_sources": sources}


def _sent(value: Any) -> Any:
    """Return what stands for a dataset in a pickle; anything else as it is."""
    return (value.reopening() or value) if isinstance(value, Dataset) else value


def _opened(value: Any) -> Any:
    """Return the dataset that `_sent` stood for; anything else as it is."""
    return value.open() if isinstance(value, Reopening) else value


class _PackedEpisodes:
    """Which episodes are taken, a bit each; what a function chose as well."""

    def __init__(self, is_chosen_E: BoolArray) -> None:
        self._num, self._bits = len(is_chosen_E), zlib.compress(np.packbits(is_chosen_E).tobytes())

    def unpack(self) -> list[int]:
        bits = np.frombuffer(zlib.decompress(self._bits), dtype=np.uint8)
        return np.flatnonzero(np.unpackbits(bits, count=self._num)).tolist()


def _packed(dataset: Dataset, episodes: EpisodeChoice) -> _PackedEpisodes | None:
    is_chosen_E = choose_episodes(dataset, episodes)
    return None if is_chosen_E is None else _PackedEpisodes(is_chosen_E)


def _unpacked(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {key: v.unpack() if isinstance(v, _PackedEpisodes) else _opened(v) for key, v in arguments.items()}
