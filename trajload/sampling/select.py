"""Which episodes a run takes: filters, and splits that stay as they are when data are appended."""

# Shapes: E episodes, N chosen episodes

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from trajload.arguments import explains_calls
from trajload.checks import quoted
from trajload.errors import ConfigError, described
from trajload.rng import check_seed
from trajload.types import BoolArray, Int64Array

if TYPE_CHECKING:
    from trajload.sources.base import Dataset, EpisodeInfo

__all__ = ["EpisodeChoice", "choose_episodes", "episodes_json", "split"]

EpisodeChoice: TypeAlias = "Callable[[EpisodeInfo], bool] | Iterable[int] | None"
_SUM_TOLERANCE = Fraction(1, 10**9)
_INSTEAD = {
    "b": " Of a mask take np.flatnonzero(mask).",
    "U": " To choose by key, pass lambda info: info.key in keys.",
}
"""By kind of dtype: how to say what was meant."""


def choose_episodes(dataset: Dataset, episodes: EpisodeChoice) -> BoolArray | None:
    """Return which episodes are taken, bool (E,), or None for all of them.

    Args:
        dataset: Whose episodes are chosen from.
        episodes: None for all; numbers of episodes, in any order, negative ones from the end; or a function of
            `EpisodeInfo` that returns True for those wanted. A function is asked once for every episode.

    Raises:
        ConfigError: An episode that does not exist or stands twice, a function that returns no bool, or none chosen.
    """
    if episodes is None:
        return None
    num_episodes = dataset.num_episodes
    if callable(episodes):
        is_chosen_E = np.zeros(num_episodes, dtype=np.bool_)
        for info in dataset.episodes():
            try:
                answer = episodes(info)
            except Exception as err:
                raise ConfigError(
                    f"episodes failed for episode {info.index} ({info.key!r}): {described(err)}. Expected a function of "
                    "EpisodeInfo that returns True or False, or numbers of episodes."
                ) from err
            if not isinstance(answer, (bool, np.bool_)):
                raise ConfigError(
                    f"episodes gave {answer!r} for episode {info.index} ({info.key!r}): expected True or False."
                )
            is_chosen_E[info.index] = answer
    else:
        is_chosen_E = _mask_of(episodes, num_episodes, dataset.name)
    if not is_chosen_E.any():
        raise ConfigError(f"episodes chooses none of the {num_episodes} episodes of {dataset.name!r}.")
    return is_chosen_E


def _mask_of(episodes: Iterable[int], num_episodes: int, dataset_name: str) -> BoolArray:
    try:
        number_N = np.asarray(episodes if isinstance(episodes, np.ndarray) else list(episodes))
    except TypeError:
        raise ConfigError(
            f"episodes={episodes!r} is unusable: expected numbers of episodes, or a function of EpisodeInfo."
        ) from None
    if isinstance(episodes, Mapping) and number_N.size:
        raise ConfigError(
            f"episodes is a dict of {quoted(map(str, episodes))}: expected numbers of episodes. "
            f"Pass one of its parts, such as episodes=parts[{next(iter(episodes))!r}]."
        )
    if number_N.size == 0:
        return np.zeros(num_episodes, dtype=np.bool_)
    if number_N.ndim != 1 or number_N.dtype.kind not in "iu":
        raise ConfigError(
            f"episodes is unusable: got shape {number_N.shape} of {number_N.dtype}, expected numbers of episodes, "
            f"or a function of EpisodeInfo.{_INSTEAD.get(number_N.dtype.kind, '')}"
        )
    is_absent_N = (number_N < -num_episodes) | (number_N >= num_episodes)
    if is_absent_N.any():
        raise ConfigError(
            f"episodes names {int(number_N[is_absent_N][0])}: the dataset {dataset_name!r} has {num_episodes} episodes."
        )
    count_E = np.bincount(number_N.astype(np.int64) % num_episodes, minlength=num_episodes)
    if int(count_E.max()) > 1:
        raise ConfigError(
            f"episodes names episode {int(count_E.argmax())} twice: to draw it more often, use tl.Weighted(episode_weights=...)."
        )
    return count_E > 0


def episodes_json(is_chosen_E: BoolArray) -> dict[str, Any]:
    """Return what a state records of a choice: how many episodes, and a digest of which."""
    number_N = np.flatnonzero(is_chosen_E)
    return {"num_episodes": len(number_N), "digest": hashlib.sha256(number_N.astype("<i8").tobytes()).hexdigest()}


@explains_calls
def split(dataset: Dataset, parts: Mapping[str, float], *, seed: int = 0) -> dict[str, Int64Array]:
    """Return the episodes of each part, by a keyed hash of the episode's key: pass one to `Loader(episodes=...)`.

    Where an episode goes depends on its key, the seed and the fractions alone. Appended episodes change no other, the
    same key goes to the same part in every dataset, and parts are sized about right (like coin throws), not exactly.

    Args:
        dataset: An opened dataset.
        parts: Name → fraction, in an order that matters; fractions are above 0 and sum to 1.
        seed: Another seed gives another split.

    Returns:
        Name → numbers of its episodes, rising, int64. A part may be empty on a small dataset.

    Raises:
        ConfigError: No part, a fraction that is not above 0, or fractions that do not sum to 1.

    Example:
        >>> split(dataset, {"train": 0.9, "val": 0.1}, seed=7)["val"]  # doctest: +SKIP
        array([  3,  17,  42])
    """
    seed = check_seed(seed)
    if not hasattr(dataset, "episode_key"):
        raise ConfigError(f"dataset={dataset!r} cannot be split: expected an opened dataset, as tl.open returns it.")
    if not isinstance(parts, Mapping):
        raise ConfigError(f"parts={parts!r} is unusable: expected a dict such as {{'train': 0.9, 'val': 0.1}}.")
    exact = {name: _fraction(name, value) for name, value in parts.items()}
    total = sum(exact.values(), Fraction(0))
    if abs(total - 1) > _SUM_TOLERANCE:
        raise ConfigError(f"parts={dict(parts)!r} sum to {float(total)!r}: expected fractions that sum to 1.")
    # Integer thresholds on 64 bits: a key's part never hangs on the rounding of a float sum.
    ends: list[int] = []
    running = Fraction(0)
    for value in exact.values():
        running += value
        ends.append(int(running * 2**64))
    ends[-1] = 2**64
    chosen: dict[str, list[int]] = {name: [] for name in exact}
    names = list(exact)
    for episode in range(dataset.num_episodes):
        draw = _key_draw(seed, dataset.episode_key(episode))
        chosen[names[next(i for i, end in enumerate(ends) if draw < end)]].append(episode)
    return {name: np.array(numbers, dtype=np.int64) for name, numbers in chosen.items()}


def _fraction(name: str, value: float) -> Fraction:
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise ConfigError(f"parts[{name!r}]={value!r} is invalid: expected a fraction above 0.")
    return Fraction(repr(float(value)))  # 0.1 means one tenth, not the binary number next to it


def _key_draw(seed: int, key: str) -> int:
    """Return 64 bits of (seed, key)."""
    salt = seed.to_bytes(8, "little", signed=True)
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8, key=salt, person=b"split").digest(), "little")
