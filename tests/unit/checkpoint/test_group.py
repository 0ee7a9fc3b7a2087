"""How ranks come to one answer through a key-value store, without a rank being waited for longer than agreed."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from trajload.checkpoint import group as group_module
from trajload.checkpoint.agree import agree
from trajload.checkpoint.background import Background
from trajload.checkpoint.group import Alone, Together
from trajload.errors import CheckpointAbortedError, CheckpointMismatchError

LONG_S = 60.0
"""So long nobody waits who is given an answer, on however busy a machine."""


def in_ranks(world: int, work: Callable[[Together], Any], absent: tuple[int, ...] = ()) -> dict[int, Any]:
    """Return what `work` gives in a thread for each rank, or the error it raises."""
    store = dist.HashStore()
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        try:
            found[rank] = work(Together(store, rank, world, "test"))
        except Exception as err:
            found[rank] = err

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(world) if rank not in absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG_S)
    return dict(sorted(found.items()))


def test_all_hear_what_rank_0_makes_of_all_answers() -> None:
    """Many decisions one after the other, some ranks slower than others."""

    def work(group: Together) -> list[int]:
        sums = []
        for i in range(20):
            if (i + group.rank) % 7 == 0:
                time.sleep(0.002)
            sums.append(group.decide(f"sum/{i}", group.rank * i, lambda said, absent: sum(said.values()), LONG_S))
            assert group.tell(f"told/{i}", [group.rank, i], LONG_S) == [0, i]
        return sums

    assert in_ranks(3, work) == {rank: [3 * i for i in range(20)] for rank in range(3)}


def test_what_was_said_is_deleted_once_all_have_read_it() -> None:
    """A run of many saves leaves a handful of keys."""
    store = dist.HashStore()
    groups = [Together(store, rank, 2, "test") for rank in range(2)]

    def work(rank: int) -> None:
        for i in range(50):
            groups[rank].tell(f"due/{i}", None, LONG_S)
            groups[rank].decide(f"begin/{i}", rank, lambda said, absent: None, LONG_S)
            groups[rank].decide(f"save/{i}/vote", rank, lambda said, absent: None, LONG_S)

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG_S)
    assert store.num_keys() <= 8


def test_absent_rank_is_named_and_the_others_hear_it_from_rank_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 gives up first; rank 1, which would wait for long, need not."""
    monkeypatch.setattr(group_module, "_GRACE_S", LONG_S)

    def work(group: Together) -> Any:
        begin = time.monotonic()
        while group.rank == 0 and not group._has("test/x/1") and time.monotonic() - begin < LONG_S:
            time.sleep(0.001)  # rank 1 has come, however late it got a core
        begin = time.monotonic()
        said = group.decide("x", None, lambda answers, absent: absent, 0.3)
        return said, time.monotonic() - begin < LONG_S

    assert in_ranks(3, work, absent=(2,)) == {0: ([2], True), 1: ([2], True)}


def test_answer_that_came_while_this_process_was_stopped_counts() -> None:
    """The time is over when it runs again, and it looks once more before it gives up: rank 0, and those that wait for it."""

    class Stopping:
        """A store whose first look is followed by a stop, in which the answer comes."""

        def __init__(self, key: str) -> None:
            self.store, self.key, self.looks = dist.HashStore(), key, 0

        def check(self, keys: list[str]) -> bool:
            found = self.store.check(keys)
            self.looks += 1
            if self.looks == 1:
                self.store.set(self.key, '"here"')
                time.sleep(0.1)
            return bool(found)

        def __getattr__(self, name: str) -> Any:
            return getattr(self.store, name)

    asked = Together(Stopping("test/x/1"), 0, 2, "test")
    assert asked.decide("x", "mine", lambda said, absent: [said, absent], 0.05) == [{0: "mine", 1: "here"}, []]
    assert Together(Stopping("test/x"), 1, 2, "test").tell("x", None, 0.05) == "here"


def test_rank_0_that_says_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the time for an answer and a grace."""
    monkeypatch.setattr(group_module, "_GRACE_S", 0.2)
    [error] = in_ranks(2, lambda group: group.decide("x", None, lambda said, absent: None, 0.1), absent=(0,)).values()
    assert isinstance(error, CheckpointAbortedError) and "rank 0 said nothing about 'x'" in str(error)


def test_bad_answer_ends_the_wait() -> None:
    """Rank 0 does not wait for a rank that is slow once another has failed: this one comes when the others have been told."""
    others_know = threading.Semaphore(0)

    def work(group: Together) -> Any:
        in_time = group.rank != 2 or all(others_know.acquire(timeout=LONG_S / 3) for _ in range(2))
        said = group.decide(
            "x",
            "bad" if group.rank == 1 else "fine",
            lambda answers, absent: "off",
            LONG_S,
            is_bad=lambda a: a == "bad",
        )
        others_know.release()
        return said, in_time

    assert in_ranks(3, work) == dict.fromkeys(range(3), ("off", True))


def test_ranks_that_differ_get_no_nonce() -> None:
    """Field and ranks are named on all of them; those that agree get the same nonce and the sum of sizes."""

    def work(group: Together) -> Any:
        facts = {"step": 7, "loaders": {"loader": {"cursor": {"train_step": 7 + group.rank}}}}
        return agree(group, "begin/1", 7, lambda: (facts, 10), LONG_S)

    for error in in_ranks(2, work).values():
        assert isinstance(error, CheckpointMismatchError)
        assert "loaders.loader.cursor.train_step: rank 1 has 8, rank 0 has 7" in str(error)
    first, second = in_ranks(
        2, lambda group: agree(group, "begin/1", 7, lambda: ({"step": 7}, 10 + group.rank), LONG_S)
    ).values()
    assert first == second and first.bytes == 21 and len(first.nonce) == 32


def test_rank_that_cannot_give_its_state_holds_up_nobody() -> None:
    """It raises its own error; the others hear of it at once, long before they would have given up waiting."""

    def work(group: Together) -> Any:
        begin = time.monotonic()

        def look() -> tuple[dict[str, Any], int]:
            if group.rank == 1:
                raise ZeroDivisionError("in its own code")
            return {"step": 7}, 10

        with pytest.raises((ZeroDivisionError, CheckpointAbortedError)) as caught:
            agree(group, "begin/1", 7, look, 60.0)
        return str(caught.value), time.monotonic() - begin < 30.0

    said = in_ranks(3, work)
    assert said[1] == ("in its own code", True)
    for rank in (0, 2):
        words, in_time = said[rank]
        assert in_time and "rank 1 could not give its state: ZeroDivisionError: in its own code" in words


def test_store_that_is_gone_is_an_aborted_save() -> None:
    """The process that serves it has died."""

    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise dist.DistNetworkError("connection reset by peer")

        set = get = check

    with pytest.raises(CheckpointAbortedError, match=r"cannot reach torch\.distributed's store: connection reset"):
        Together(Gone(), 1, 2, "test").tell("x", None, 1.0)


def test_process_alone_answers_itself() -> None:
    """The same calls work without torch.distributed."""
    assert Alone().tell("x", 3, 1.0) == 3
    assert Alone().decide("x", 3, lambda said, absent: [said, absent], 1.0) == [{0: 3}, []]


def test_background_gives_its_outcome_once() -> None:
    """A result, or the error where it is taken."""
    work: Background[int] = Background("test")
    assert work.take() is None
    go = threading.Event()
    work.start(lambda: 3 if go.wait(10) else 0)
    assert work.busy and work.is_due
    go.set()
    assert work.take() == 3 and not work.is_due and work.take() is None
    work.start(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        work.take()
