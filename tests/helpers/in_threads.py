"""Work done in several threads at once."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

__all__ = ["in_threads"]


def in_threads(work: Callable[..., object], arguments: Iterable[object], *, timeout_s: float = 300.0) -> None:
    """Call `work` with each of `arguments` in a thread of its own, all at once, and wait for them; raise what one raised."""
    errors: list[BaseException] = []

    def run(argument: object) -> None:
        try:
            work(argument)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(argument,), daemon=True) for argument in arguments]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout_s)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), f"threads still run after {timeout_s} s"
