"""The exception tree: every error keeps message and location, also across processes."""

from __future__ import annotations

import pickle

import pytest

from trajload import errors
from trajload.errors import DecodeError, Locus, TrajloadError, at

CLASSES = [getattr(errors, name) for name in errors.__all__ if name.endswith("Error")]
FULL = Locus(dataset="d", shard="s-0042", episode=17, stream="cam", steps=(200, 216), train_step=3, window_id=9)


def test_all_exception_classes_are_found() -> None:
    """The parametrised tests below see every class of the module."""
    defined = {v for v in vars(errors).values() if isinstance(v, type) and issubclass(v, TrajloadError)}
    assert set(CLASSES) == defined
    assert len(CLASSES) == 21


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_exception_survives_pickling_with_message_and_location(cls: type[TrajloadError]) -> None:
    """Class, text and every field of the location come back."""
    back = pickle.loads(pickle.dumps(cls("got 3, expected 4.", at=FULL)))
    assert type(back) is cls
    assert (back.message, back.at) == ("got 3, expected 4.", FULL)
    assert str(back) == str(cls("got 3, expected 4.", at=FULL))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda c: c.__name__)
def test_exception_text_is_the_message_then_the_location(cls: type[TrajloadError]) -> None:
    """The location follows in brackets, in a fixed order, and only where known."""
    assert str(cls("frame lost.")) == "frame lost."
    assert str(cls("frame lost.", at=Locus(stream="cam", episode=0))) == "frame lost. [episode=0 stream=cam]"
    assert str(cls("x", at=FULL)) == (
        "x [dataset=d shard=s-0042 episode=17 stream=cam steps=[200, 216) train_step=3 window_id=9]"
    )


@pytest.mark.parametrize(
    ("cls", "also"),
    [
        (errors.ConfigError, ValueError),
        (errors.ArgumentError, TypeError),
        (errors.ArgumentError, errors.ConfigError),
        (errors.MissingDependencyError, ImportError),
        (errors.ShardNotFoundError, FileNotFoundError),
        (errors.ShardNotFoundError, errors.ShardError),
        (errors.ShardCorruptError, errors.ShardError),
        (errors.WindowError, IndexError),
        (errors.CheckpointMismatchError, errors.ResumeError),
        (errors.CheckpointMismatchError, errors.CheckpointError),
    ],
)
def test_exception_is_caught_as_the_builtin_people_expect(cls: type[TrajloadError], also: type[Exception]) -> None:
    """Broad and narrow catching both work."""
    with pytest.raises(also):
        raise cls("x")


def test_exhausted_loader_is_no_stop_iteration() -> None:
    """Inside a generator it must not end the loop silently (PEP 479)."""
    assert not issubclass(errors.LoaderExhaustedError, StopIteration)


def test_at_adds_the_location_from_inside_out_and_inner_fields_win() -> None:
    """Each stage adds what it knows; a stage nearer to the fault knows better."""
    with pytest.raises(errors.DecodeError) as caught, at(shard="outer", episode=1), at(stream="cam", shard="inner"):
        raise errors.DecodeError("bad", at=Locus(steps=(0, 2)))
    assert caught.value.at == Locus(shard="inner", episode=1, stream="cam", steps=(0, 2))
    assert str(caught.value) == "bad [shard=inner episode=1 stream=cam steps=[0, 2)]"


def test_at_leaves_other_exceptions_and_success_alone() -> None:
    """Only TrajloadErrors get a location."""
    with pytest.raises(KeyError) as caught, at(shard="s"):
        raise KeyError("k")
    assert not hasattr(caught.value, "at")
    with at(shard="s"):
        pass


def test_at_with_an_unknown_field_is_an_error_of_the_caller() -> None:
    """A misspelt field never hides the fault behind it silently."""
    with pytest.raises(TypeError, match="shart"), at(shart="s"):
        raise errors.DecodeError("bad")


def test_empty_locus_prints_nothing_and_zero_counts_as_known() -> None:
    """None means unknown; 0 is a place."""
    assert str(Locus()) == ""
    assert str(Locus(episode=0, window_id=0)) == "[episode=0 window_id=0]"
    assert Locus(episode=0).merged(Locus(episode=5, shard="s")) == Locus(episode=0, shard="s")


def test_location_that_takes_time_is_found_only_for_an_error() -> None:
    """A function given as a location is called when an error passes, and only then."""
    calls = []

    def key() -> str:
        calls.append(1)
        return "ep-3"

    with at(episode=key):
        pass
    assert not calls
    with pytest.raises(DecodeError) as caught, at(episode=key, shard="s.tar"):
        raise DecodeError("no frame")
    assert caught.value.at.episode == "ep-3" and caught.value.at.shard == "s.tar" and len(calls) == 1


def test_foreign_exception_is_described_whatever_it_says() -> None:
    """A message that cannot be had hides no fault, and an endless one is cut."""

    class Mute(Exception):
        def __str__(self) -> str:
            raise ValueError("not a word")

    assert errors.described(ZeroDivisionError("no such thing")) == "ZeroDivisionError: no such thing"
    assert errors.described(OSError(f"cannot read {object()}")) == "OSError: cannot read <object object>"
    assert errors.described(Mute()) == "Mute: (its message cannot be had: ValueError)"
    assert len(errors.described(ValueError("x" * 10**6))) < 5000
