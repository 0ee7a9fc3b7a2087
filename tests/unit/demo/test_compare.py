"""The comparison of two runs finds every way in which they can differ."""

from __future__ import annotations

from dataclasses import replace

from trajload.demo.compare import compare_logs
from trajload.demo.train import LogLine, read_log

RUN = [LogLine(step, f"digest-{step}", (1.0 / (step + 3)).hex()) for step in range(10)]


def test_equal_runs_are_equal() -> None:
    """The same lines from the resume on are equal, all of them compared."""
    comparison = compare_logs(RUN, RUN[4:], start=4, stop=10)
    assert comparison.equal and comparison.num_compared == 6


def test_other_batch_is_named() -> None:
    """A batch with another digest is found, and named by its train_step."""
    other = [*RUN[4:7], replace(RUN[7], digest="other"), *RUN[8:]]
    comparison = compare_logs(RUN, other, start=4, stop=10)
    assert not comparison.equal
    assert (comparison.batches_differ, comparison.losses_differ, comparison.missing) == ((7,), (), ())


def test_loss_off_by_one_bit_is_named() -> None:
    """A loss that differs in its last bit only is found."""
    value = RUN[5].loss_value
    other = [RUN[4], replace(RUN[5], loss=(value + 2**-55).hex()), *RUN[6:]]
    assert value != value + 2**-55
    comparison = compare_logs(RUN, other, start=4, stop=10)
    assert not comparison.equal and comparison.losses_differ == (5,) and comparison.batches_differ == ()


def test_lost_repeated_reordered_and_surplus_steps_are_not_equal() -> None:
    """Every train_step must be there exactly once and in order."""
    assert compare_logs(RUN, [*RUN[4:6], *RUN[7:]], start=4, stop=10).missing == (6,)
    assert compare_logs(RUN, [*RUN[4:7], *RUN[6:]], start=4, stop=10).missing == (6,)
    assert compare_logs(RUN, RUN[3:], start=4, stop=10).missing == (3,)
    assert not compare_logs(RUN, [*RUN[4:8], RUN[9], RUN[8]], start=4, stop=10).equal


def test_nothing_compared_is_not_equal() -> None:
    """A run that ended before it began proves nothing."""
    assert not compare_logs(RUN, [], start=10, stop=10).equal
    assert not compare_logs(RUN, [], start=4, stop=10).equal


def test_log_cut_short_by_a_kill_ends_with_its_last_whole_line(tmp_path) -> None:
    """A line without its end does not count; a log that was never begun is empty."""
    path = tmp_path / "log.jsonl"
    assert read_log(path) == []
    whole = '{"train_step": 0, "digest": "a", "loss": "0x1p-1"}\n'
    path.write_text(whole + whole[:30])
    assert read_log(path) == [LogLine(0, "a", "0x1p-1")]
