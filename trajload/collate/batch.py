"""What a loader delivers: tensors keyed by stream, their masks, and where each row came from."""

# Shapes: B windows, T steps

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
import xxhash

from trajload.errors import ConfigError
from trajload.refs import WindowRef

__all__ = ["Batch", "RefsBuilder"]

RefsBuilder = Callable[[], Iterable[WindowRef]]


class Batch(dict[str, "torch.Tensor | list[Any]"]):
    """One rank's windows of one train_step: a dict of tensors, batch first, then time; strings as lists.

    For every picture or signal stream `s`: `s` (B, T, ...), `s_is_pad` (B, T), `s_is_missing` (B,). For every text
    stream: `s` a list of B, `s_is_missing` (B,). Then `is_first is_last is_terminal step_index timestamp_ns` (B, T),
    `episode_index window_id epoch` (B,), `source` a list of B, and `row_is_pad` (B,) in finite runs that pad.

    Beyond the episode's end `step_index` keeps counting, while `timestamp_ns` stays at the last step's time.
    Picklable; a plain dict to everything that takes one.
    """

    def __init__(
        self,
        values: Mapping[str, torch.Tensor | list[Any]] | Iterable[tuple[str, torch.Tensor | list[Any]]] = (),
        *,
        train_step: int,
        refs: Iterable[WindowRef] | RefsBuilder = (),
    ) -> None:
        """Wrap `values`.

        Args:
            values: The tensors and lists; kept, not copied.
            train_step: Whose batch this is.
            refs: One `WindowRef` per row, or a function that makes them when first asked for.
        """
        super().__init__(values)
        self.train_step = train_step
        self._refs: tuple[WindowRef, ...] | RefsBuilder = refs if callable(refs) else tuple(refs)

    if TYPE_CHECKING:
        # A key decides whether a tensor or a list stands there, which no type says: Any spares users a cast at each use.
        def __getitem__(self, key: str, /) -> Any: ...

    def __missing__(self, key: object) -> NoReturn:
        raise KeyError(f"{key!r} is not in this batch: it has {', '.join(self)}")

    @property
    def refs(self) -> tuple[WindowRef, ...]:
        """Which source, episode and steps each row is. Made on first use."""
        if callable(self._refs):
            self._refs = tuple(self._refs())
        return self._refs

    @property
    def streams(self) -> tuple[str, ...]:
        """Names of the streams in the batch: the keys that have an `_is_missing` mask."""
        suffix = "_is_missing"
        names = (key[: -len(suffix)] for key in self if key.endswith(suffix))
        return tuple(name for name in names if name in self)

    def valid_mask(self, stream: str) -> torch.Tensor:
        """Return where `stream` holds real data: bool (B, T), or (B,) for a text stream.

        That is: not beyond the episode's end, not a missed alignment, not missing in the episode, and not a row that
        only fills up the last batch of a finite run.

        Raises:
            ConfigError: The batch has no such stream.
        """
        if not isinstance(stream, str) or stream not in self.streams:
            have = ", ".join(map(repr, self.streams)) or "none"
            raise ConfigError(f"stream {stream!r} is not in this batch: it has {have}.")
        valid_B = ~self._mask(f"{stream}_is_missing")
        if "row_is_pad" in self:
            valid_B = valid_B & ~self._mask("row_is_pad")
        if f"{stream}_is_pad" not in self:
            return valid_B
        return valid_B[:, None] & ~self._mask(f"{stream}_is_pad")

    def _mask(self, key: str) -> torch.Tensor:
        mask = self[key]
        if not isinstance(mask, torch.Tensor):
            raise ConfigError(f"batch[{key!r}] is not a mask: got {type(mask).__name__}, expected a bool tensor.")
        return mask

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Batch:
        """Return the batch with its tensors on `device`; tensors already there and lists are shared, not copied."""
        return self._mapped(lambda x: x.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Batch:
        """Return the batch with its tensors in page-locked memory, so that `to(..., non_blocking=True)` overlaps.

        Raises:
            ConfigError: No accelerator is there to pin memory for.
        """
        if not torch.accelerator.is_available():
            raise ConfigError("pin_memory needs an accelerator, and this process sees none. Leave it out on CPU.")
        return self._mapped(lambda x: x.pin_memory())

    def copy(self) -> Batch:
        """Return a shallow copy: same tensors, own keys."""
        return self._mapped(lambda x: x)

    def _mapped(self, func: Callable[[torch.Tensor], torch.Tensor]) -> Batch:
        values = {k: func(v) if isinstance(v, torch.Tensor) else v for k, v in self.items()}
        return Batch(values, train_step=self.train_step, refs=self._refs)

    def digest(self) -> str:
        """Return 32 hex digits (xxh3, 128 bits) of all keys and values: equal digests, equal batches.

        Hashed by rising key: key, dtype and shape, then the bytes of a contiguous CPU copy; lists as UTF-8 JSON with
        sorted keys. Every part is preceded by its length. Not a defence against forgery. `train_step` and `refs`
        are not part of it.
        """
        hasher = xxhash.xxh3_128()
        for key in sorted(self):
            value = self[key]
            if isinstance(value, torch.Tensor):
                head = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
                # reshape(-1) first: a 0-dimensional tensor cannot be viewed as bytes
                flat = value.detach().cpu().contiguous().reshape(-1)
                body: Any = flat.view(torch.uint8).numpy().data if flat.numel() else b""
            else:
                head, body = "json", _json_bytes(key, value)
            for part in (key.encode(), head.encode(), body):
                hasher.update(struct.pack("<Q", len(part)))
                hasher.update(part)
        return hasher.hexdigest()

    def __reduce__(self) -> tuple[Any, ...]:
        # torch 2.13 writes uint16 tensors and cannot read them again: depth travels as int16, bit for bit.
        names = tuple(k for k, v in self.items() if isinstance(v, torch.Tensor) and v.dtype == torch.uint16)
        values = {k: v.view(torch.int16) if k in names else v for k, v in self.items()}  # type: ignore[union-attr]
        return (_rebuild, (values, self.train_step, self.refs, names))

    def __repr__(self) -> str:
        parts = []
        for key, value in self.items():
            if isinstance(value, torch.Tensor):
                parts.append(f"  {key}: {str(value.dtype).removeprefix('torch.')} {tuple(value.shape)}")
            else:
                parts.append(f"  {key}: list of {len(value)}")
        return "\n".join([f"Batch(train_step={self.train_step},", *parts, ")"])


def _rebuild(
    values: dict[str, torch.Tensor | list[Any]],
    train_step: int,
    refs: tuple[WindowRef, ...],
    uint16: tuple[str, ...] = (),
) -> Batch:
    for name in uint16:
        values[name] = values[name].view(torch.uint16)  # type: ignore[union-attr]
    return Batch(values, train_step=train_step, refs=refs)


def _json_bytes(key: str, value: Any) -> bytes:
    try:
        text = json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    except (TypeError, ValueError) as err:
        raise ConfigError(f"batch[{key!r}] has no digest: expected a tensor or JSON-able values ({err}).") from err
    return text.encode("utf-8", "surrogatepass")
