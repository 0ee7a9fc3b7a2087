"""Small parts of the training process: its timing and its arguments."""

from __future__ import annotations

import pytest

from trajload.demo import train as module
from trajload.demo.process import _LineCounter
from trajload.demo.train import TrainConfig, main, summary_path
from trajload.errors import ConfigError


def test_meter_yields_everything_and_closes_what_it_watches() -> None:
    """All batches pass, and leaving the loop early closes the loader's iterator."""
    closed = []

    def batches():
        try:
            yield from range(5)
        finally:
            closed.append(True)

    meter = module._Meter(begin=0.0)
    assert list(meter.watch(batches())) == list(range(5))
    assert meter.num_waits == 4 and closed == [True]
    watched = module._Meter(begin=0.0).watch(batches())
    assert next(watched) == 0
    watched.close()
    assert closed == [True, True]


def test_meter_summary_counts_windows_and_wait(monkeypatch) -> None:
    """With a clock that ticks once a call, one second of each step is work and one is wait."""
    clock = iter(range(100))
    monkeypatch.setattr(module.time, "perf_counter", lambda: float(next(clock)))
    meter = module._Meter(begin=0.0)
    assert len(list(meter.watch(iter(range(4))))) == 4
    summary = meter.summary(rows=16, pictures_per_row=48)
    assert summary["wait_percent"] == 50.0
    assert summary["windows_per_s"] == 8.0 and summary["pictures_per_s"] == 384.0
    assert summary["step_ms"] == 2000.0 and summary["wait_ms_per_step"] == 1000.0


def test_config_survives_its_file(tmp_path) -> None:
    """What a process is told is what it reads."""
    config = TrainConfig(dataset="d", folder="f", log="log.jsonl", train_steps=9, checkpoint_every=4, seed=-3)
    config.save(tmp_path / "config.json")
    assert TrainConfig.load(tmp_path / "config.json") == config
    assert summary_path(tmp_path / "log.jsonl").name == "log.jsonl.summary.json"


def test_process_without_a_config_says_what_it_wants() -> None:
    """The module's command takes exactly one argument."""
    with pytest.raises(ConfigError, match="expected one argument"):
        main([])


def test_lines_of_a_growing_log_are_counted_once(tmp_path) -> None:
    """Only whole lines count, also where a line arrives in two parts."""
    path = tmp_path / "log.jsonl"
    counter = _LineCounter(path)
    assert counter.count() == 0
    with path.open("ab", buffering=0) as file:
        for part, expected in ((b"one\ntw", 1), (b"", 1), (b"o\n", 2), (b"three\nfour\n", 4)):
            file.write(part)
            assert counter.count() == expected
