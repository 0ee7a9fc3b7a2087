"""Cost tables out of a normal run: what its decoder threads noted, source by source."""

# Shapes: E episodes

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trajload.costs.build import table_of
from trajload.costs.fit import Measured
from trajload.costs.machine import machine_facts
from trajload.costs.table import CostTable
from trajload.errors import ConfigError

if TYPE_CHECKING:
    from trajload.pipeline.engine import Engine
    from trajload.pipeline.source_rows import SourceRows

__all__ = ["run_costs"]


def run_costs(engine: Engine) -> dict[str, CostTable]:
    """Return the costs that the windows decoded so far give, by name of the source.

    Raises:
        ConfigError: Of a source nothing was measured yet.
    """
    return {source.name: _table(engine, number, source) for number, source in enumerate(engine.builder.sources)}


def _table(engine: Engine, number: int, source: SourceRows) -> CostTable:
    has_device = engine.builder.devices is not None
    seen: dict[tuple[str, int], list[Measured]] = {}
    num_episodes = 0
    for stream, sums in engine.stats.costs.sums(number).items():
        choice = source.choices[stream]
        spent_E = sums.wall_ns if has_device and choice.spec.is_video else sums.cpu_ns
        measured_E = sums.rows.nonzero()[0].tolist()
        num_episodes = max(num_episodes, len(measured_E))
        for episode in measured_E:
            rows, frames = int(sums.rows[episode]), int(sums.frames[episode])
            lead = max(0, frames - rows) if choice.spec.is_video else 0
            seen[choice.name, episode] = [Measured(1, rows, lead, float(spent_E[episode]))]
    if not seen:
        raise ConfigError(
            f"no window of {source.name!r} was measured yet: iterate the loader first. Costs are noted for a sample of the windows."
        )
    info: dict[str, Any] = {
        "measured": "run",
        "clock": "time on the wall" if has_device else "CPU time of the decoding thread",
        "window": source.window.to_json(),
        "episodes_measured": num_episodes,
        "backend": "nvdec" if has_device else "cpu",
        "machine": machine_facts(),
    }
    names = dict.fromkeys(name for name, _ in seen)
    return table_of(source.dataset, names, seen, info, by_gop=False)[0]
