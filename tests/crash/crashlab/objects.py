"""The same questions asked of an object store: the process dies, or a request fails or loses its reply, at each request.

A wrapper around obstore's functions stands between the store and obstore's `MemoryStore`. A dead process makes no more
requests, whatever its `finally` blocks would like to do; one that has lost a reply does not know that the work was done.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from crashlab import judge
from crashlab.board import Board
from crashlab.scenario import Player
from crashlab.sweeps import Tally

from trajload.checkpoint.object_medium import ObjectMedium
from trajload.checkpoint.object_store import ObjectStore
from trajload.errors import TrajloadError, WriterConflictError

__all__ = [
    "HOWS",
    "Requests",
    "instead_of_obstore",
    "memory_store",
    "num_requests",
    "race_for_names",
    "race_of_writers",
    "request_sweep",
]

HOWS = ("killed before", "killed after", "failed", "reply lost", "sent twice")
_ROOT = Path("store")


class Killed(BaseException):
    """The process is dead: not an Exception, so nobody handles it."""


class Requests:
    """obstore's functions, one of whose calls goes wrong.

    Args:
        at: The so-many-th, from 1; 0 for none.
        how: One of `HOWS`.
        names: Count calls of these functions only; () for all.
    """

    def __init__(self, at: int = 0, how: str = HOWS[0], names: tuple[str, ...] = ()) -> None:
        self._at, self._how, self._names, self._dead = at, how, names, False
        self.made: list[str] = []
        self.hit: str | None = None

    def __getattr__(self, name: str) -> Any:
        import obstore

        real = getattr(obstore, name)
        return lambda *arguments, **options: self.request(name, lambda: real(*arguments, **options))

    def request(self, name: str, action: Callable[[], Any]) -> Any:
        """Do what is asked, unless this is the request that goes wrong."""
        from obstore.exceptions import GenericError

        if self._dead:
            raise Killed
        if self._names and name not in self._names:
            return action()
        self.made.append(name)
        if len(self.made) != self._at:
            return _Upload(self, action()) if name == "open_writer" else action()
        self.hit = name
        if self._how == "sent twice":
            if name in ("put", "delete"):
                action()
            return _Upload(self, action()) if name == "open_writer" else action()
        self._dead = self._how.startswith("killed")
        error: BaseException = Killed() if self._dead else GenericError("the connection was cut")
        if self._how in ("killed after", "reply lost"):
            action()
        raise error


class _Upload:
    """obstore's writer, whose calls are requests too."""

    def __init__(self, requests: Requests, writer: Any) -> None:
        self._requests, self._writer = requests, writer

    def write(self, data: bytes) -> Any:
        return self._requests.request("write", lambda: self._writer.write(data))

    def close(self) -> Any:
        return self._requests.request("close", self._writer.close)


def _opener(memory: Any, requests: Requests | None) -> Callable[[Path], ObjectStore]:
    def open_store(root: Path) -> ObjectStore:
        if requests is None:
            return ObjectStore(memory, prefix=root.name)
        with instead_of_obstore(requests):
            return ObjectStore(memory, prefix=root.name)

    return open_store


@contextmanager
def instead_of_obstore(requests: Requests) -> Iterator[None]:
    """Give every medium made in the block `requests` to call, and no patience."""
    real = ObjectMedium.__init__

    def init(self: ObjectMedium, *arguments: Any, **options: Any) -> None:
        real(self, *arguments, **options, pause=lambda seconds: None)
        self._api = requests

    ObjectMedium.__init__ = init  # type: ignore[method-assign]
    try:
        yield
    finally:
        ObjectMedium.__init__ = real  # type: ignore[method-assign]


def memory_store() -> Any:
    """Return an empty object store in memory."""
    from obstore.store import MemoryStore

    return MemoryStore()


def _play(memory: Any, requests: Requests, actions: Sequence[Any], board: Board) -> str | None:
    try:
        Player(_ROOT, board, _opener(memory, requests)).play(actions, (TrajloadError,))  # type: ignore[arg-type]
    except (Killed, TrajloadError):
        return None
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return None


def _of_stores(actions: Sequence[Any]) -> list[Any]:
    """Return the actions without exports: those go to a folder of this machine, wherever the store is."""
    return [action for action in actions if action[0] != "export"]


def num_requests(actions: Sequence[Any], names: tuple[str, ...] = ()) -> int:
    """Return how many requests the actions take when nothing goes wrong."""
    requests, board = Requests(names=names), Board()
    problem = _play(memory_store(), requests, _of_stores(actions), board)
    board.close()
    assert problem is None, problem
    return len(requests.made)


def request_sweep(actions: Sequence[Any], how: str, points: Sequence[int], names: tuple[str, ...] = ()) -> Tally:
    """Let request number n go wrong for each n in `points`, then judge what is left as another process sees it."""
    tally = Tally()
    for at in points:
        memory, requests, board = memory_store(), Requests(at, how, names), Board()
        problem = _play(memory, requests, _of_stores(actions), board)
        notes = board.notes()
        board.close()
        if requests.hit is None:
            tally.missed += 1
            continue
        tally.points[requests.hit] += 1
        found = [] if problem is None else [problem]
        found += judge.violations(_ROOT, notes, _opener(memory, None))  # type: ignore[arg-type]
        found += judge.goes_on(_ROOT, _opener(memory, None), sweeps=False)  # type: ignore[arg-type]
        tally.violations += [f"{how} at request {at} ({requests.hit}): {text}" for text in found]
    return tally


def _together(*actions: Callable[[], None]) -> list[BaseException]:
    """Run all at once; return what they raised."""
    raised: list[BaseException] = []

    def guarded(action: Callable[[], None]) -> None:
        try:
            action()
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(action,)) for action in actions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def race_for_names(
    clients: Sequence[Any], rounds: int, make_medium: type[ObjectMedium] = ObjectMedium
) -> tuple[list[int], list[str]]:
    """Let every client publish the same name at the same moment, `rounds` times; return wins and violations."""
    media = [make_medium(client, "race", f"client {i}", pause=lambda seconds: None) for i, client in enumerate(clients)]
    barrier = threading.Barrier(len(media), timeout=300)
    told: list[list[bool]] = [[] for _ in media]

    def publish(index: int) -> None:
        for number in range(rounds):
            barrier.wait()
            told[index].append(media[index].publish(f"commits/{number:010d}.json", b"by %d" % index, "nonce"))

    violations = [f"raised {error!r}" for error in _together(*(lambda i=i: publish(i) for i in range(len(media))))]
    for number, replies in enumerate(zip(*told, strict=False)):
        winners = [index for index, won in enumerate(replies) if won]
        there = media[0].read(f"commits/{number:010d}.json")
        if len(winners) != 1 or there != b"by %d" % winners[0]:
            violations.append(f"name {number}: told to have won were {winners}, and there is {there!r}")
    return [sum(replies) for replies in told], violations


def race_of_writers(clients: Sequence[Any], rounds: int) -> tuple[Counter[str], list[str]]:
    """Let every client save `rounds` times, taking the store over from each other; return outcomes and violations."""
    outcomes: Counter[str] = Counter()
    won: dict[int, str] = {}
    refused: set[tuple[int, int]] = set()
    violations: list[str] = []
    guard = threading.Lock()

    def save(index: int) -> None:
        store = ObjectStore(clients[index], prefix="race")
        for number in range(rounds):
            try:
                with store.writer():
                    generation = store.begin(number)
                    part = generation.part(0)
                    part.write("state", [b"%d" % index])
                    commit = store.commit(generation, [part.finish()], {"who": index, "number": number})
            except WriterConflictError:
                with guard:
                    outcomes["conflict"] += 1
                    refused.add((index, number))
            else:
                with guard:
                    outcomes["won"] += 1
                    if won.setdefault(commit.seq, commit.digest) != commit.digest:
                        violations.append(f"sequence number {commit.seq} was won twice")

    violations += [f"raised {error!r}" for error in _together(*(lambda i=i: save(i) for i in range(len(clients))))]
    reading = ObjectStore(clients[0], prefix="race", create=False)
    there = {commit.seq: commit.digest for commit in reading.commits()}
    if there != won:
        violations.append(
            f"told were {len(won)} commits, there are {len(there)}: {sorted(set(won.items()) ^ set(there.items()))[:3]}"
        )
    both = refused & {(commit.info["who"], commit.info["number"]) for commit in reading.commits()}
    violations += [f"writer {who} was told of a conflict, and save {number} is there" for who, number in both]
    return outcomes, violations
