"""Several datasets on a command line: one path after the other, in shares given by --weights."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.sampling.mixture_sources import Mixture
    from trajload.sources.base import Dataset

__all__ = ["mixture_code", "open_all", "parse_weights"]


def parse_weights(text: str | None, num_datasets: int) -> list[Fraction]:
    """Return the share of each dataset that '2,1' describes, exactly; even ones of None.

    Raises:
        ConfigError: Not one number above 0 for each dataset.
    """
    if text is None:
        return [Fraction(1, num_datasets)] * num_datasets
    try:
        weights = [Fraction(part.strip()) for part in text.split(",")]
    except (ValueError, ZeroDivisionError):
        raise ConfigError(f"--weights {text!r} is invalid: expected numbers, for instance 2,1.") from None
    if len(weights) != num_datasets or min(weights) <= 0:
        raise ConfigError(
            f"--weights {text!r} does not fit: expected a number above 0 for each of {num_datasets} datasets, in their order."
        )
    return [weight / sum(weights) for weight in weights]


def open_all(paths: Sequence[str], weights: str | None, *, skip_missing: bool) -> Dataset | Mixture:
    """Return the dataset at the one path, or a mixture of those at several; sources have the datasets' names.

    Raises:
        ConfigError: Weights that do not fit.
    """
    from trajload.sampling.mixture_sources import Mixture
    from trajload.sources.open import open as open_dataset

    shares = parse_weights(weights, len(paths))
    opened = [open_dataset(path, missing="skip" if skip_missing else "error") for path in paths]
    if len(opened) == 1:
        return opened[0]
    names: list[str] = []
    for dataset in opened:
        # The same name twice: a second version of a dataset, or one that is mixed with itself.
        same = sum(name.partition("#")[0] == dataset.name for name in names)
        names.append(dataset.name if not same else f"{dataset.name}#{same + 1}")
    return Mixture({name: (dataset, share) for name, dataset, share in zip(names, opened, shares, strict=True)})  # type: ignore[misc]


def mixture_code(paths: Sequence[str], mixture: Mixture) -> str:
    """Return Python that makes the mixture again."""
    named = zip(paths, mixture.sources.items(), strict=True)
    parts = [f"{name!r}: ({path!r}, {source.weight!r})" for path, (name, source) in named]
    return "tl.Mixture({" + ", ".join(parts) + "})"
