"""A lock that a forked child finds free."""

from __future__ import annotations

import os
import threading
import warnings

from trajload.storage.locks import ForkLock


def test_one_thread_at_a_time_has_the_lock() -> None:
    """Within a process it is a lock like any other."""
    lock, order = ForkLock(), []

    def late() -> None:
        with lock:
            order.append("late")

    with lock:
        thread = threading.Thread(target=late)
        thread.start()
        thread.join(0.05)
        assert thread.is_alive()
        order.append("early")
    thread.join()
    assert order == ["early", "late"]


def test_a_forked_child_finds_the_lock_free_while_the_parent_holds_it() -> None:
    """What a thread of the parent held is not held in the child, where that thread does not run."""
    lock = ForkLock()
    with lock, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
        if child == 0:
            thread = threading.Thread(target=lambda: lock.__enter__(), daemon=True)
            thread.start()
            thread.join(300)
            os._exit(9 if thread.is_alive() else 7)
        assert os.WEXITSTATUS(os.waitpid(child, 0)[1]) == 7
