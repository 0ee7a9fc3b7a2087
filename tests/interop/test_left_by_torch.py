"""What tests clear away after a worker's death, and what they leave for the leak guard to find."""

from __future__ import annotations

import contextlib
import os
import socket

from left_by_torch import cleared, sockets


def test_only_sockets_of_nobody_are_cleared_away() -> None:
    """One whose other side has gone and that no object holds is; one that is held, or connected, is not."""
    with contextlib.ExitStack() as stack:
        with cleared():
            pairs = [socket.socketpair() for _ in range(3)]
            for _, there in (pairs[0], pairs[1]):
                there.close()
            lost, connected = pairs[0][0].detach(), pairs[2][0].detach()
            stack.callback(os.close, connected)
            stack.enter_context(pairs[1][0])
            stack.enter_context(pairs[2][1])
        left = {fd for fd, _ in sockets()}
        assert lost not in left and {pairs[1][0].fileno(), connected, pairs[2][1].fileno()} <= left
