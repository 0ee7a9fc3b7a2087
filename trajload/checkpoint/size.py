"""How large a checkpoint will be, before it is written: exact for what is there, and a formula for what is not yet.

Nothing is copied, and tensors on the `meta` device will do, so a model can be planned for that fits into no memory here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trajload.arguments import explains_calls
from trajload.checkpoint.capture import Taken, snapshot
from trajload.checkpoint.tensors import dtype_name
from trajload.errors import ConfigError

__all__ = ["ComponentSize", "ParameterPlan", "SizePlan", "bytes_text", "plan_size"]


def bytes_text(count: float) -> str:
    """Return a number of bytes in both units.

    Example:
        >>> bytes_text(14_000_000_000)
        '14.0e9 B = 13.04 GiB'
    """
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1000**power:
            return f"{count / 1000**power:.1f}e{3 * power} B = {count / 1024**power:.2f} {unit}"
    return f"{count:.0f} B"


@dataclass(frozen=True, slots=True)
class ParameterPlan:
    """The size of a training state by the number of parameters: for a model that is not built yet."""

    parameters: int
    bytes_each: Mapping[str, float]
    """Bytes per parameter of each thing that is kept: weights, master weights, moments."""

    @property
    def bytes(self) -> int:
        return round(self.parameters * sum(self.bytes_each.values()))

    def __str__(self) -> str:
        parts = " + ".join(f"{size:g} {name}" for name, size in self.bytes_each.items())
        return f"{bytes_text(self.bytes)} ({self.parameters:,} parameters x ({parts}) B)"


@dataclass(frozen=True, slots=True)
class ComponentSize:
    """One component's files."""

    name: str
    files: Mapping[str, int]
    """Bytes of each file, exactly."""
    dtypes: Mapping[str, int]
    """Bytes of tensors, by dtype; names of one tensor count once."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    @property
    def overhead(self) -> int:
        """Bytes that are not tensors: headers and everything else that is kept."""
        return self.bytes - sum(self.dtypes.values())


@dataclass(frozen=True, slots=True)
class SizePlan:
    """What a save of a state would write. `str()` gives a table."""

    components: tuple[ComponentSize, ...]

    @property
    def bytes(self) -> int:
        """Of all files of the components; the store's own records add a few hundred bytes for each file."""
        return sum(component.bytes for component in self.components)

    @property
    def dtypes(self) -> dict[str, int]:
        """Bytes of tensors by dtype."""
        found: dict[str, int] = {}
        for component in self.components:
            for dtype, size in component.dtypes.items():
                found[dtype] = found.get(dtype, 0) + size
        return found

    def bytes_per_second(self, interval_s: float) -> float:
        """Return the share of the disk that saves every `interval_s` seconds take."""
        if not interval_s > 0:
            raise ConfigError(f"interval_s is {interval_s!r}: expected seconds above 0.")
        return self.bytes / interval_s

    @staticmethod
    def per_parameter(
        parameters: int, *, weights: float = 2, master: float = 4, moments: float = 8, **more: float
    ) -> ParameterPlan:
        """Return the size of a state by the number of parameters.

        The defaults are mixed precision with Adam: weights in 16 bits, master weights and two moments in 32.

        Example:
            >>> str(SizePlan.per_parameter(10**9))
            '14.0e9 B = 13.04 GiB (1,000,000,000 parameters x (2 weights + 4 master + 8 moments) B)'
        """
        each = {"weights": weights, "master": master, "moments": moments, **more}
        wrong = [name for name, size in each.items() if not size >= 0]
        if wrong or not isinstance(parameters, int) or parameters < 0:
            raise ConfigError(
                f"parameters={parameters!r}, bytes each {each!r}: expected a whole number, and sizes of at least 0."
            )
        return ParameterPlan(parameters, {name: size for name, size in each.items() if size})

    def __str__(self) -> str:
        lines = [f"{bytes_text(self.bytes)} in {sum(len(c.files) for c in self.components)} files"]
        for component in self.components:
            kinds = ", ".join(f"{dtype} {bytes_text(size)}" for dtype, size in component.dtypes.items())
            overhead = f"other {bytes_text(component.overhead)}"
            lines.append(
                f"  {component.name}: {bytes_text(component.bytes)} ({kinds + ', ' if kinds else ''}{overhead})"
            )
        return "\n".join(lines)


@explains_calls
def plan_size(state: Mapping[str, Any]) -> SizePlan:
    """Return what a save of `state` would write now, to the byte. Nothing is copied.

    An optimiser that has not made a step has no moments yet: plan after the first one, or by `SizePlan.per_parameter`.

    Raises:
        ConfigError, CheckpointError: As `snapshot`.
    """
    return SizePlan(tuple(_size(taken) for taken in snapshot(state, copy=False).taken.values()))


def _size(taken: Taken) -> ComponentSize:
    dtypes: dict[str, int] = {}
    for name in taken.layout.names:
        tensor = taken.tensors[name]
        kind = dtype_name(tensor.dtype)
        dtypes[kind] = dtypes.get(kind, 0) + tensor.numel() * tensor.dtype.itemsize
    return ComponentSize(taken.name, {planned.name: planned.bytes for planned in taken.files()}, dtypes)
