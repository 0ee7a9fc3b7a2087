"""What users say about the shares of a mixture: a number for each source, or numbers that change at given train_steps.

Weights are read as the decimals they are written as, and kept as fractions, so that no share hangs on a rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from trajload.errors import ConfigError

__all__ = ["Weight", "WeightPhase", "weight_json", "weight_phases"]

Weight: TypeAlias = "float | Mapping[int, float]"
"""A number >= 0, or {train_step: number}: each number counts from its train_step on, and 0 must be among them."""

_SUM_TOLERANCE = Fraction(1, 10**9)


@dataclass(frozen=True, slots=True)
class WeightPhase:
    """The weights from one train_step on, one for each source, with a sum of exactly 1."""

    begin: int
    weights: tuple[Fraction, ...]


def weight_phases(weights: Mapping[str, Weight]) -> tuple[WeightPhase, ...]:
    """Return the phases that the weights of all sources make together, by rising train_step, the first from 0 on.

    Args:
        weights: Name of each source → its weight.

    Raises:
        ConfigError: No source, a weight that is no finite number >= 0, a source without a weight from train_step 0 on
            or with nothing but 0, or weights that do not sum to 1 in a phase.
    """
    if not weights:
        raise ConfigError("the mixture has no source: expected at least one.")
    steps_of = {name: _steps(name, weight) for name, weight in weights.items()}
    for name, steps in steps_of.items():
        if not any(steps.values()):
            raise ConfigError(f"the weight of source {name!r} is 0 from beginning to end: leave the source out.")
    phases: list[WeightPhase] = []
    last = [steps[0] for steps in steps_of.values()]
    for begin in sorted({step for steps in steps_of.values() for step in steps}):
        exact = last = [steps.get(begin, before) for steps, before in zip(steps_of.values(), last, strict=True)]
        total = sum(exact, Fraction(0))
        if abs(total - 1) > _SUM_TOLERANCE:
            raise ConfigError(
                f"the weights of the mixture sum to {float(total)!r} from train_step {begin} on: got "
                f"{', '.join(f'{n!r}: {float(w)!r}' for n, w in zip(weights, exact, strict=True))}, expected a sum of 1."
            )
        phase = WeightPhase(begin, tuple(w / total for w in exact))
        if not phases or phase.weights != phases[-1].weights:
            phases.append(phase)
    return tuple(phases)


def weight_json(weight: Weight) -> Any:
    """Return what a state records of a checked weight: '7/10', or {'0': '7/10', '1000': '1/2'}."""
    if isinstance(weight, Mapping):
        return {str(int(step)): str(_exact("", value)) for step, value in sorted(weight.items())}
    return str(_exact("", weight))


def _steps(name: str, weight: Weight) -> dict[int, Fraction]:
    if not isinstance(weight, Mapping):
        return {0: _exact(f"weight={weight!r} of source {name!r}", weight)}
    out: dict[int, Fraction] = {}
    for step, value in weight.items():
        if isinstance(step, bool) or not isinstance(step, (int, np.integer)) or not 0 <= step < 2**63:
            raise ConfigError(
                f"the weight of source {name!r} changes at {step!r}: expected train_steps, ints of at least 0."
            )
        out[int(step)] = _exact(f"weight={value!r} of source {name!r} from train_step {step} on", value)
    if 0 not in out:
        raise ConfigError(
            f"the weight of source {name!r} begins at {'no train_step' if not out else f'train_step {min(out)}'}: "
            "expected one for train_step 0 too; 0.0 leaves the source out until then."
        )
    return dict(sorted(out.items()))


def _exact(what: str, value: Any) -> Fraction:
    if isinstance(value, Fraction) and value >= 0:
        return value
    is_number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not is_number or not 0 <= value < float("inf"):
        raise ConfigError(f"{what} is invalid: expected a finite number of at least 0.")
    return Fraction(repr(float(value)))  # 0.1 means one tenth, not the binary number next to it
