"""Ranges of delivered train_steps: a set, in few numbers."""

from __future__ import annotations

from trajload.pipeline.seen import MAX_RANGES, Seen, union


def test_delivered_train_steps_are_a_set() -> None:
    """Going on, jumping, going back and delivering again."""
    seen = Seen()
    assert seen.ranges == []
    for step in (0, 1, 2, 10, 11, 1, 2, 3, 12):
        assert seen.add(step) == step + 1
    assert seen.ranges == [(0, 4), (10, 13)]
    seen.clear()
    assert seen.ranges == [] and seen.add(7) == 8 and seen.ranges == [(7, 8)]


def test_too_many_ranges_tell_more_and_never_less() -> None:
    """Those that lie closest are joined."""
    many = [(10 * i, 10 * i + 1 + 8 * (i == 5)) for i in range(MAX_RANGES + 1)]
    found = union(many)
    assert len(found) == MAX_RANGES and (50, 61) in found
    assert all(any(begin <= a and b <= stop for begin, stop in found) for a, b in many)


def test_what_is_taken_back_is_not_lost_where_it_was_seen_before() -> None:
    """Train_step 3 is delivered, comes again after a seek, and is taken back: once it was seen."""
    seen = Seen()
    for train_step in (0, 1, 2, 3, 9):
        seen.add(train_step)
    mark = seen.mark
    seen.add(3)
    seen.add(20)
    seen.back_to(mark)
    assert seen.ranges == [(0, 4), (9, 10)]
    seen.add(10)
    assert seen.ranges == [(0, 4), (9, 11)]
