"""What a loader says of itself, for dashboards: plain numbers, Prometheus text, OpenTelemetry, and loggers like wandb."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from trajload.checks import check_int
from trajload.errors import ConfigError, MissingDependencyError

if TYPE_CHECKING:
    from trajload.collate.batch import Batch
    from trajload.loader import Loader

__all__ = ["flat_stats", "log_stats", "observe_loader", "prometheus_text"]

_COUNTERS: dict[str, str] = {
    "batches": "Batches delivered.",
    "windows": "Windows made.",
    "frames": "Pictures delivered.",
    "frames_decoded": "Pictures that went through a decoder.",
    "bytes_read": "Bytes read from storage.",
    "substituted": "Windows replaced because they could not be read.",
    "worker_respawns": "Worker processes started again.",
    "worker_hangs": "Worker processes that made no progress.",
}
_GAUGES: dict[str, str] = {
    "train_step": "Train_step of the next batch.",
    "quarantined": "Windows known to be bad.",
    "num_workers": "Decoder threads.",
    "num_readers": "Reader threads.",
    "prefetch": "Train_steps in the works at once.",
    "batch_bytes": "Bytes of a batch.",
}


def flat_stats(stats: Mapping[str, Any], prefix: str = "trajload/") -> dict[str, float]:
    """Return `Loader.stats` as flat numbers, as loggers take them: 'trajload/wait_share', 'trajload/decode/median_ms', ...

    Args:
        stats: From `Loader.stats`.
        prefix: In front of each name.
    """
    elapsed = stats["elapsed_s"]
    out: dict[str, float] = {name: float(stats[name]) for name in (*_COUNTERS, *_GAUGES) if name in stats}
    out["elapsed_s"] = elapsed
    out["wait_share"] = stats["seconds"]["wait"] / elapsed if elapsed else 0.0
    out["windows_per_s"] = stats["windows"] / elapsed if elapsed else 0.0
    if stats["first_batch_s"] is not None:
        out["first_batch_s"] = stats["first_batch_s"]
    for name in ("mean_ready", "empty_share"):
        if stats["queue"][name] is not None:
            out[f"queue/{name}"] = stats["queue"][name]
    for stage, told in stats["stages"].items():
        if told["count"]:
            out[f"{stage}/seconds"] = told["seconds"]
            out[f"{stage}/median_ms"] = told["median_s"] * 1e3
            out[f"{stage}/p99_ms"] = told["p99_s"] * 1e3
    for name in ("used_bytes", "peak_bytes", "blocks_decoded", "blocks_decoded_again", "blocks_evicted"):
        if stats["pool"]["budget_bytes"]:
            out[f"pool/{name}"] = float(stats["pool"][name])
    return {prefix + name: value for name, value in out.items()}


def log_stats(
    loader: Loader, log: Callable[..., object], *, every: int = 100, prefix: str = "trajload/"
) -> Iterator[Batch]:
    """Yield the batches of a loader, and call `log(numbers, step=train_step)` after each `every` of them.

    The numbers are those of `flat_stats`; `wait_share` and `windows_per_s` are of the batches since the last call.

    Args:
        loader: What is iterated.
        log: `wandb.log`, `mlflow.log_metrics`, or a function of yours of that form.
        every: Batches between two calls, at least 1.
        prefix: In front of each name.

    Example:
        >>> for batch in log_stats(loader, wandb.log, every=50):   # doctest: +SKIP
        ...     train(batch)                                       # doctest: +SKIP
    """
    return _logged(loader, log, check_int("every", every, 1), prefix)


def _logged(loader: Loader, log: Callable[..., object], every: int, prefix: str) -> Iterator[Batch]:
    before = loader.stats()
    for number, batch in enumerate(loader, 1):
        train_step = batch.train_step
        yield batch
        del batch
        if number % every == 0:
            now = loader.stats()
            elapsed = now["elapsed_s"] - before["elapsed_s"]
            numbers = flat_stats(now, prefix)
            if elapsed > 0:  # not if the counters were set back meanwhile
                numbers[prefix + "wait_share"] = (now["seconds"]["wait"] - before["seconds"]["wait"]) / elapsed
                numbers[prefix + "windows_per_s"] = (now["windows"] - before["windows"]) / elapsed
            log(numbers, step=train_step)
            before = now


def prometheus_text(stats: Mapping[str, Any], labels: Mapping[str, str] | None = None) -> str:
    """Return `Loader.stats` in Prometheus' text format, to be served by whatever serves your metrics.

    Args:
        stats: From `Loader.stats`.
        labels: Of all lines, such as {"rank": "0"}.

    Raises:
        ConfigError: A name that cannot be a label's.
    """
    own = dict(labels or {})
    for name in own:
        if not re.fullmatch(r"[a-zA-Z_][a-zA-Z0-9_]*", name) or name in ("stage", "quantile"):
            raise ConfigError(
                f"label {name!r} is invalid: expected letters, digits and '_', not 'stage' or 'quantile'."
            )
    lines: list[str] = []

    def family(name: str, kind: str, text: str, samples: list[tuple[str, dict[str, str], float]]) -> None:
        lines.append(f"# HELP trajload_{name} {text}")
        lines.append(f"# TYPE trajload_{name} {kind}")
        lines.extend(f"trajload_{name}{end}{_labels({**own, **more})} {value!r}" for end, more, value in samples)

    for name, text in _COUNTERS.items():
        if name in stats:
            family(f"{name}_total", "counter", text, [("", {}, stats[name])])
    for name, text in _GAUGES.items():
        if name in stats:
            family(name, "gauge", text, [("", {}, stats[name])])
    waited_s = stats["seconds"]["wait"]
    family("consumer_wait_seconds_total", "counter", "Time that the consumer was blocked.", [("", {}, waited_s)])
    if stats["queue"]["mean_ready"] is not None:
        ready = stats["queue"]["mean_ready"]
        family("queue_ready_batches", "gauge", "Finished batches that stood ready, on average.", [("", {}, ready)])
    summary: list[tuple[str, dict[str, str], float]] = []
    for stage, told in stats["stages"].items():
        if told["count"]:
            summary.append(("", {"stage": stage, "quantile": "0.5"}, told["median_s"]))
            summary.append(("", {"stage": stage, "quantile": "0.99"}, told["p99_s"]))
            summary.append(("_sum", {"stage": stage}, told["seconds"]))
            summary.append(("_count", {"stage": stage}, told["count"]))
    family("stage_seconds", "summary", "Time that a piece of work of each stage takes.", summary)
    return "\n".join(lines) + "\n"


def _labels(labels: Mapping[str, str]) -> str:
    if not labels:
        return ""
    escaped = {
        name: str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        for name, value in labels.items()
    }
    return "{" + ",".join(f'{name}="{value}"' for name, value in escaped.items()) + "}"


def observe_loader(loader: Loader, meter: Any = None, labels: Mapping[str, str] | None = None) -> None:
    """Register a loader's numbers with OpenTelemetry: they are read whenever metrics are collected, at no cost in between.

    Args:
        loader: Whose numbers; it must live as long as the meter's provider collects.
        meter: An OpenTelemetry `Meter`; None takes that of the global provider.
        labels: Attributes of all numbers, such as {"rank": "0"}.

    Raises:
        MissingDependencyError: OpenTelemetry is not installed.
    """
    try:
        from opentelemetry.metrics import Observation, get_meter
    except ImportError as err:
        raise MissingDependencyError(
            "exporting to OpenTelemetry needs its API; run: pip install opentelemetry-api"
        ) from err
    meter = get_meter("trajload") if meter is None else meter
    attributes = dict(labels or {})

    def reader(name: str) -> Callable[[Any], list[Any]]:
        def read(_: Any) -> list[Any]:
            stats = loader.stats()
            return [Observation(stats[name], attributes)] if name in stats else []

        return read

    for name, text in _COUNTERS.items():
        meter.create_observable_counter(f"trajload.{name}", [reader(name)], description=text)
    for name, text in _GAUGES.items():
        meter.create_observable_gauge(f"trajload.{name}", [reader(name)], description=text)

    def stages(_: Any) -> list[Any]:
        told = loader.stats()["seconds"]
        return [Observation(seconds, {**attributes, "stage": stage}) for stage, seconds in told.items()]

    text = "Busy time of each stage; of 'wait', the time that the consumer was blocked."
    meter.create_observable_counter("trajload.stage.seconds", [stages], unit="s", description=text)
