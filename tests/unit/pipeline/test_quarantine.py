"""Substitutes for bad windows: keyed, bounded, logged once per cause."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from trajload.errors import DecodeError, Locus, StageFailedError
from trajload.pipeline import worker_main
from trajload.pipeline.quarantine import MAX_QUARANTINED, Quarantine, substitute_id


def test_substitute_is_keyed_by_position_and_attempt() -> None:
    """The same position and attempt give the same window, others give others."""
    ids = {(p, a): substitute_id(7, p, a, 10**9) for p in range(50) for a in range(1, 5)}
    assert all(0 <= w < 10**9 for w in ids.values())
    assert len(set(ids.values())) == len(ids)
    assert ids == {(p, a): substitute_id(7, p, a, 10**9) for p, a in ids}


def test_quarantined_window_is_replaced_from_its_train_step_on() -> None:
    """What was delivered before stays as it was."""
    bad = Quarantine()
    bad.add(5, 100, DecodeError("x"))
    assert not bad.holds(5, 99)
    assert bad.holds(5, 100)
    assert not bad.holds(6, 100)
    again = Quarantine()
    again.load(bad.to_json())
    assert again.to_json() == [[5, 100, "DecodeError"]]


def test_quarantine_logs_once_per_cause_and_shard(caplog: pytest.LogCaptureFixture) -> None:
    """A thousand failures of one shard are one line."""
    bad = Quarantine()
    with caplog.at_level(logging.WARNING, logger="trajload"):
        for i in range(10):
            bad.add(i, 0, DecodeError("x", at=Locus(shard="000000.tar")))
        bad.add(11, 0, DecodeError("x", at=Locus(shard="000001.tar")))
    assert len(caplog.records) == 2


def test_quarantine_beyond_its_budget_stops_the_run() -> None:
    """A dataset that is broken all over is an error, not a different dataset."""
    bad = Quarantine()
    for i in range(MAX_QUARANTINED):
        bad.add(i, 0, DecodeError("x"))
    bad.add(0, 1, DecodeError("x"))  # known already: costs nothing
    with pytest.raises(StageFailedError, match=rf"more than {MAX_QUARANTINED} windows .* window 999"):
        bad.add(999, 0, DecodeError("x"))


def test_news_of_a_bad_window_is_told_though_others_are_told_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's decoder notes one while its deliverer takes what there is: it goes along with the next batch, never lost."""
    news, pack, taken = worker_main._News(MAX_QUARANTINED), worker_main.pack_error, []

    def packs_slowly(err: BaseException) -> Any:
        if err.args == ("second",):
            taken.append(news.take())
        return pack(err)

    monkeypatch.setattr(worker_main, "pack_error", packs_slowly)
    news.add(5, 3, DecodeError("first"))
    news.add(6, 3, DecodeError("second"))
    taken.append(news.take())
    assert [[row[0] for row in rows] for rows in taken] == [[5], [6]]
