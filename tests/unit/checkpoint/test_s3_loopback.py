"""The object store's promises against an S3 service over HTTP, with replies that get lost on the way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from by_path import load

from trajload.checkpoint.entries import Keep
from trajload.checkpoint.object_store import ObjectStore

pytest.importorskip("obstore")
s3lab = load(Path(__file__).with_name("s3lab.py"))

pytestmark = [pytest.mark.multiproc, pytest.mark.slow]


@pytest.fixture(scope="module")
def service() -> Iterator[int]:
    """The port of an S3 service."""
    with s3lab.moto_server() as port:
        yield port


@pytest.fixture
def middle(service: int) -> Iterator[Any]:
    """A proxy before it."""
    with s3lab.proxy(service) as made:
        yield made


def is_record(method: str, path: str) -> bool:
    return method == "PUT" and "/commits/" in path


def test_checkpoint_comes_back_over_http(service: int, save: Any) -> None:
    """Multipart uploads, small records, retention and pins."""
    bucket = s3lab.s3(service, "plain")
    store = ObjectStore(bucket, prefix="runs/a")
    big = bytes(range(256)) * 80_000
    first, second = save(store, 1, {"a": big}, world=2), save(store, 2)
    store.pin("first", first)
    again = ObjectStore(bucket, prefix="runs/a", create=False)
    assert again.newest() == (second, [])
    assert again.part(first, 1).read("a") == big
    assert first.durability == "service"
    third = save(store, 3)
    assert store.retain(Keep(last=1)) == [second]
    assert again.commits() == [first, third]


def test_lost_repeated_and_refused_replies_neither_lose_nor_double_a_commit(middle: Any, save: Any) -> None:
    """Whatever happens to the put of a record, the answer given is the truth."""
    store = ObjectStore(s3lab.s3(middle.port, "flaky"))
    troubles = itertools.cycle(["lose", None, "repeat", "refuse", None])
    middle.trouble = lambda method, path: next(troubles) if is_record(method, path) else None
    told = [save(store, step) for step in range(12)]
    middle.trouble = lambda method, path: None
    assert {"lose", "repeat", "refuse"} <= set(middle.made)
    assert store.commits() == told
    assert [commit.seq for commit in told] == list(range(1, 13))


def test_racing_writers_over_http_have_one_winner_a_number(middle: Any, race: Any) -> None:
    """Two clients, every third reply of a record lost."""
    bucket = s3lab.s3(middle.port, "race")
    count = itertools.count()
    middle.trouble = lambda method, path: "lose" if is_record(method, path) and next(count) % 3 == 0 else None
    race(lambda: ObjectStore(bucket), num_writers=2, num_steps=8)
