"""Which setting is the fastest on this machine: one knob after the other, each with the best of those before."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, Field, asdict, dataclass, fields, is_dataclass, replace
from typing import Any

from trajload.bench.headspace import fresh_loader
from trajload.bench.observe import observe
from trajload.errors import ConfigError, TrajloadError
from trajload.loader import Loader
from trajload.machine import num_cpus
from trajload.stop import Stop

__all__ = ["AXES", "Sweep", "Trial", "as_code", "candidates", "shown_arguments", "sweep"]

AXES = ("workers", "prefetch", "order", "backend", "readers")
_WORTH = 1.03
"""A setting must be so many times as fast as the simpler one before it."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One setting, measured."""

    axis: str
    change: dict[str, Any]
    windows_per_s: float | None
    """None where it cannot be used here."""
    wait_share: float | None = None
    why_not: str = ""
    again: float | None = None
    """Windows/s of the fastest of an axis, measured once more right after the setting it is to replace; None for others."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """All settings that were tried, in order, and what is best."""

    trials: list[Trial]
    best: dict[str, Any]
    """Arguments of `Loader` that differ from the loader given."""
    windows_per_s: float
    before: float
    """Of the loader as given."""
    stopped: bool = False
    """Ended before all settings were tried: one that was not measured a second time is not `best`."""

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "gain": self.windows_per_s / self.before if self.before else None}


def candidates(axis: str, loader: Loader) -> list[dict[str, Any]]:
    """Return the settings of an axis that are tried, the simplest first."""
    cpus = max(1, int(num_cpus()))
    if axis == "workers":
        counts = sorted({0, 1, *(2**i for i in range(1, 7) if 2**i <= 2 * cpus), cpus})
        out: list[dict[str, Any]] = [{"num_workers": count, "workers": "threads"} for count in counts]
        if cpus > 1 and loader.rank_batch_size > 1:
            processes = min(cpus, loader.rank_batch_size)
            out.append({"num_workers": processes, "workers": f"processes:{processes}"})
        return out
    if axis == "prefetch":
        return [{"prefetch": depth} for depth in ("auto", 1, 2, 4, 8, 16)]
    if axis == "order":
        return [{"order": order} for order in ("shuffled", "interleaved")]
    if axis == "backend":
        return [{"decode": decode} for decode in ("cpu", "auto", "cuda")]
    if axis == "readers":
        return [{"num_readers": count} for count in (1, 4, 16)]
    raise ConfigError(f"--sweep {axis!r} is unknown: expected some of {', '.join(AXES)}, joined by commas.")


def sweep(
    loader: Loader,
    axes: Iterable[str],
    *,
    seconds: float = 2.0,
    step_s: float = 0.0,
    progress: Callable[[int, int, str], None] | None = None,
    stop: Stop | None = None,
) -> Sweep:
    """Try the settings of each axis, and keep the best of one for the next.

    Args:
        loader: The setting to begin with; it is left alone. `order` changes the windows that batches hold, all others do not.
        axes: Some of `AXES`, in the order in which they are tried.
        seconds: For each setting.
        step_s: Time that the consumer spends on each batch.
        progress: Told (settings done, settings in all, what is tried next).
        stop: Ends it early; the setting that is being tried does not count.
    """
    stop = Stop() if stop is None else stop
    before = _rate(loader, {}, seconds, step_s)[0]
    stop.hold()
    work = _Work(loader, seconds, step_s, before)
    plans = {axis: candidates(axis, loader) for axis in axes}
    total = sum(len(plan) for plan in plans.values()) + 1
    with stop.breaking_off():
        for axis, plan in plans.items():
            for change in plan:
                if progress is not None:
                    progress(len(work.trials) + 1, total, _code_of(change))
                work.try_one(axis, change)
            work.settle()
    if progress is not None:
        progress(total, total, "")
    return Sweep(work.trials, work.best, work.rate, before, stopped=stop.wanted)


class _Work:
    """What was tried, and the best of the axes that are done."""

    def __init__(self, loader: Loader, seconds: float, step_s: float, before: float) -> None:
        self._loader, self._seconds, self._step_s = loader, seconds, step_s
        self.trials: list[Trial] = []
        self.best: dict[str, Any] = {}
        self.rate = before
        self._winner: tuple[int, dict[str, Any], float] | None = None
        """Of the axis in the works: number of its trial, all that is changed, windows/s."""

    def try_one(self, axis: str, change: dict[str, Any]) -> None:
        """Measure a setting of an axis, with the best of the axes before."""
        setting = {**self.best, **change}
        try:
            rate, wait_share = _rate(self._loader, setting, self._seconds, self._step_s)
        except TrajloadError as err:
            self.trials.append(Trial(axis, change, None, None, err.message))
            return
        self.trials.append(Trial(axis, change, rate, wait_share))
        if rate > (self.rate if self._winner is None else self._winner[2]) * _WORTH:
            self._winner = len(self.trials) - 1, setting, rate

    def settle(self) -> None:
        """Keep the fastest of an axis if it is so twice: of many settings that are all the same one looks faster by chance."""
        if self._winner is None:
            return
        number, setting, _ = self._winner
        before = _rate(self._loader, self.best, self._seconds, self._step_s)[0]
        again = _rate(self._loader, setting, self._seconds, self._step_s)[0]
        self.trials[number] = replace(self.trials[number], again=again)
        self._winner, self.rate = None, before
        if again > before * _WORTH:
            self.best, self.rate = setting, again


def _rate(loader: Loader, change: dict[str, Any], seconds: float, step_s: float) -> tuple[float, float]:
    with fresh_loader(loader, change) as changed:
        seen = observe(changed, seconds=seconds, step_s=step_s)
    return statistics.median(seen.rates), seen.wait_share


def _code_of(change: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in change.items())


def as_code(dataset: str, arguments: dict[str, Any], best: dict[str, Any]) -> str:
    """Return Python that builds the loader with the best setting.

    Args:
        dataset: Python that says what is read: a path in quotes, or a mixture.
        arguments: What the loader was built from, beside the dataset.
        best: What to change.
    """
    shown = {**arguments, **best}
    streams = shown.get("streams")
    if isinstance(streams, dict) and all(request is None for request in streams.values()):
        shown["streams"] = list(streams)  # as people write it
    lines = [f"    {name}={_literal(value)}," for name, value in shown.items()]
    imports = (
        ["from fractions import Fraction", "", "import trajload as tl"]
        if "Fraction(" in dataset
        else ["import trajload as tl"]
    )
    return "\n".join([*imports, "", "loader = tl.Loader(", f"    {dataset},", *lines, ")"])


def shown_arguments(loader: Loader) -> dict[str, Any]:
    """Return the arguments of a loader that are not as `Loader` has them by default, beside the dataset and the rank."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(Loader).parameters.items()}
    hidden = ("dataset", "rank", "world_size")
    return {
        name: value
        for name, value in loader.arguments.items()
        if name not in hidden and value != defaults[name] and not (name == "transforms" and not value)
    }


def _literal(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(item)}" for key, item in value.items()) + "}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_literal(item) for item in value) + "]"
    if is_dataclass(value) and not isinstance(value, type):
        set_fields = [(f.name, getattr(value, f.name)) for f in fields(value) if getattr(value, f.name) != _default(f)]
        return f"tl.{type(value).__name__}({', '.join(f'{name}={_literal(item)}' for name, item in set_fields)})"
    return repr(value)


def _default(field: Field[Any]) -> Any:
    return field.default_factory() if field.default_factory is not MISSING else field.default
