"""Batches on the accelerator, one ahead of the consumer: copied by a thread, on a stream of their own."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, Protocol

from trajload.errors import ConfigError
from trajload.pipeline.stats import StageStats

if TYPE_CHECKING:
    import torch

    from trajload.collate.batch import Batch

__all__ = ["DeviceAhead", "check_device"]

_JOIN_TIMEOUT_S = 60.0


class _Batches(Protocol):
    def check_process(self) -> None: ...

    def next(self) -> Batch | None: ...

    def close(self) -> None: ...


def check_device(device: Any) -> torch.device | None:
    """Return the device that batches are wanted on, None for where they are made.

    Raises:
        ConfigError: No device, or one that this process does not have.
    """
    if device is None:
        return None
    import torch

    try:
        found = torch.device(device)
    except (RuntimeError, TypeError, ValueError) as err:
        said = f" ({str(err).rstrip('.')})" if isinstance(err, RuntimeError) else ""  # of a type it lists signatures
        raise ConfigError(
            f"device={device!r} is invalid: expected 'cuda', 'cuda:1', 'cpu' or a torch.device{said}."
        ) from err
    if found.type == "cuda":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if count == 0:
            raise ConfigError(
                f"device={str(found)!r} cannot be used here: this process sees no CUDA device (torch {torch.__version__}). "
                "Leave it out, or use 'cpu'."
            )
        if found.index is not None and found.index >= count:
            raise ConfigError(f"device={str(found)!r} does not exist: this process sees {count} CUDA devices.")
        if found.index is None:
            found = torch.device("cuda", torch.cuda.current_device())
    return found


class _Shared:
    """What the thread holds: never the DeviceAhead itself, so that dropping it stops the thread."""

    def __init__(self, batches: _Batches, device: torch.device) -> None:
        self.batches = batches
        self.device = device
        self.changed = threading.Condition()
        self.ready: tuple[Batch | None, Any, Batch | None] | BaseException | None = None
        """The batch on the device, the event of its copy, and the batch it came from; or what went wrong."""
        self.closing = False


def _copy_loop(shared: _Shared, stats: StageStats) -> None:
    try:
        copy = _copier(shared.device)
        while True:
            batch = shared.batches.next()
            with stats.timed("transfer"):
                item = (None, None, None) if batch is None else copy(batch)
            del batch
            if not _put(shared, item) or item[0] is None:
                return
            del item
    except BaseException as err:
        _put(shared, err)


def _copier(device: torch.device) -> Any:
    """Return what copies a batch to the device: on a stream of its own where there are streams."""
    import torch

    if device.type != "cuda":
        return lambda batch: (batch.to(device), None, None)
    stream = torch.cuda.Stream(device)

    def copy(batch: Batch) -> tuple[Batch, Any, Batch]:
        with torch.cuda.device(device), torch.cuda.stream(stream):
            moved = batch.to(device, non_blocking=True)
            return moved, stream.record_event(), batch

    return copy


def _put(shared: _Shared, item: Any) -> bool:
    """Hand over one item when the last one is taken; False once closing."""
    with shared.changed:
        while shared.ready is not None and not shared.closing:
            shared.changed.wait()
        if shared.closing:
            return False
        shared.ready = item
        shared.changed.notify_all()
    return True


def _shut_down(shared: _Shared, thread: threading.Thread) -> None:
    with shared.changed:
        shared.closing = True
        shared.changed.notify_all()
    shared.batches.close()
    if thread.ident is not None and thread is not threading.current_thread():
        thread.join(_JOIN_TIMEOUT_S)
    shared.ready = None


class DeviceAhead:
    """The batches of `batches`, on `device`. Stops and closes them with `close`, or when dropped.

    The copy of the next batch runs while the consumer computes. What it reads from is kept until it is done, and what it
    writes is the consumer's: its stream waits for the copy, and the allocator knows of its use.
    """

    def __init__(self, batches: _Batches, device: torch.device, stats: StageStats) -> None:
        self._shared = _Shared(batches, device)
        self._held: deque[tuple[Any, Batch]] = deque()
        thread = threading.Thread(target=_copy_loop, args=(self._shared, stats), name="trajload-device-0", daemon=True)
        self._finalizer = weakref.finalize(self, _shut_down, self._shared, thread)
        thread.start()

    def check_process(self) -> None:
        """Raise ConfigError in a forked child."""
        self._shared.batches.check_process()

    def next(self) -> Batch | None:
        """Return the next batch, ready for use on the current stream of the calling thread; None at the end."""
        shared = self._shared
        with shared.changed:
            while shared.ready is None:
                if shared.closing:
                    return shared.batches.next()  # raises: it was closed
                shared.changed.wait()
            item = shared.ready
            if isinstance(item, BaseException):
                raise item  # stays there, for whoever asks again; the end does, too
            batch, event, host = item
            if batch is None:
                return None
            shared.ready = None
            shared.changed.notify_all()
        if event is not None and host is not None:
            self._hand_over(batch, event, host)
        return batch

    def _hand_over(self, batch: Batch, event: Any, host: Batch) -> None:
        import torch

        stream = torch.cuda.current_stream(self._shared.device)
        stream.wait_event(event)
        for value in batch.values():
            if isinstance(value, torch.Tensor):
                value.record_stream(stream)
        self._held.append((event, host))
        while self._held and self._held[0][0].query():
            self._held.popleft()

    def close(self) -> None:
        """Stop. Idempotent."""
        self._finalizer()
        self._held.clear()
