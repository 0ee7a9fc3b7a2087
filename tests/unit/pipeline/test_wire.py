"""Messages to and from worker processes: whole, torn, with descriptors; errors keep class, words and place."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from trajload import errors
from trajload.errors import Locus, StageFailedError, TrajloadError
from trajload.pipeline.wire import Channel, FrameReader, RemoteTraceback, pack_error, unpack_error

CLASSES = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, TrajloadError)]


@pytest.fixture
def ends() -> Iterator[tuple[Channel, Channel]]:
    pair = [Channel(sock) for sock in socket.socketpair()]
    yield pair[0], pair[1]
    for end in pair:
        end.close()


def test_messages_and_descriptors_arrive_in_order(ends: tuple[Channel, Channel]) -> None:
    """A descriptor comes with its own message, as a copy that is closed on exec."""
    read_end, write_end = os.pipe()
    ends[0].send(("first", [1, 2]))
    ends[0].send(("second",), (write_end,))
    os.close(write_end)
    assert ends[1].receive() == (("first", [1, 2]), [])
    message, (fd,) = ends[1].receive()
    assert message == ("second",)
    assert not os.get_inheritable(fd)
    os.write(fd, b"x")
    assert os.read(read_end, 1) == b"x"
    os.close(fd)
    os.close(read_end)


def test_reader_never_blocks_and_drops_a_torn_message(ends: tuple[Channel, Channel]) -> None:
    """Bytes may come one by one; what a killed worker did not finish is no message."""
    reader = FrameReader(ends[1].socket)
    assert list(reader.messages()) == []
    ends[0].send({"a": 1})
    whole = ends[1].socket.recv(1 << 16)
    got = []
    for byte in (*whole, *whole, *whole[:-1]):
        ends[0].socket.send(bytes([byte]))
        got += reader.messages()
    ends[0].close()
    got += reader.messages()
    assert got == [{"a": 1}, {"a": 1}]
    assert reader.ended


def test_end_of_the_other_side_is_an_error_of_its_own(ends: tuple[Channel, Channel]) -> None:
    """Waiting for a message that cannot come ends."""
    ends[0].close()
    with pytest.raises(EOFError):
        ends[1].receive()
    with pytest.raises(OSError, match="Broken pipe"):
        ends[1].send("nobody hears this")


@pytest.mark.parametrize("cls", CLASSES)
def test_error_keeps_class_message_and_location(cls: type[TrajloadError]) -> None:
    """What was raised in a worker is raised by the loader, with the far traceback as its cause."""
    locus = Locus(dataset="d", shard="s", episode="e", stream="x", steps=(1, 3), train_step=4, window_id=5)
    try:
        raise cls("what failed; what to do", at=locus)
    except TrajloadError as err:
        back = unpack_error(pack_error(err))
    assert (type(back), str(back), back.at) == (cls, str(cls("what failed; what to do", at=locus)), locus)
    assert isinstance(back.__cause__, RemoteTraceback)
    assert "test_wire.py" in str(back.__cause__)


def test_foreign_errors_become_ours() -> None:
    """A subclass that another module defines comes as its base; anything else as a failed stage."""

    class Special(errors.DecodeError):
        pass

    assert type(unpack_error(pack_error(Special("no")))) is errors.DecodeError
    back = unpack_error(pack_error(KeyError("k")))
    assert type(back) is StageFailedError
    assert "KeyError: 'k'" in back.message
