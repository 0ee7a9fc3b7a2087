"""Several transforms run over one window, one after the other, each with a generator of its own and each checked."""

# Shapes: T steps

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.augment.contract import Layout, Transform, WindowDict, config_of, name_of
from trajload.errors import ConfigError, StageFailedError, TrajloadError, described
from trajload.rng import key_rng
from trajload.spec import StreamSpec
from trajload.types import BoolArray, NDArray

if TYPE_CHECKING:
    from trajload.collate.stream_slots import StreamSlots

__all__ = ["PURPOSE", "TransformChain"]

PURPOSE = "augment"
"""Of the keys; transform i of a window draws from key_rng(seed, PURPOSE, epoch, window_id, i)."""


class TransformChain:
    """The transforms of a loader, bound to its streams. Stateless, thread-safe if the transforms are.

    Args:
        transforms: In the order of application.
        specs: Streams that transforms see, as stored.
        layout: Of those among them that are pictures or signals, before the first transform.
        seed: Of the run.
        passed_by: Streams of the batch that transforms do not see.

    Raises:
        ConfigError: Something that is no transform, or does not fit the streams.
    """

    def __init__(
        self,
        transforms: Iterable[Transform],
        specs: Mapping[str, StreamSpec],
        layout: Layout,
        seed: int,
        passed_by: Collection[str] = (),
    ) -> None:
        is_list = isinstance(transforms, Iterable) and not isinstance(transforms, (str, Mapping))
        if not is_list or callable(transforms) or hasattr(transforms, "dtype"):
            raise ConfigError(f"transforms={transforms!r} is unusable: expected a list of transforms, () for none.")
        self.transforms: list[Transform] = []
        self.layouts: list[dict[str, tuple[tuple[int, ...], np.dtype[Any]]]] = [_native(layout)]
        """Before the first transform, after the first, and so on."""
        self.config: list[dict[str, Any]] = []
        self.seed = seed
        self._specs = specs
        for i, given in enumerate(transforms):
            if not callable(given) or isinstance(given, type):
                raise ConfigError(
                    f"transforms[{i}]={given!r} is no transform: expected a callable (window, generator) -> window."
                )
            _check_passed_by(f"transforms[{i}] ({name_of(given)})", given, passed_by)
            transform = given.bind(specs) if hasattr(given, "bind") else given
            self.transforms.append(transform)
            self.config.append(config_of(transform))
            self.layouts.append(self._out_layout(i, transform))

    @property
    def layout(self) -> Layout:
        """Of the batch that is delivered."""
        return self.layouts[-1]

    def _out_layout(self, i: int, transform: Any) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
        before = self.layouts[-1]
        if not hasattr(transform, "out_layout"):
            return before
        after = transform.out_layout(dict(before))
        if not isinstance(after, Mapping) or set(after) != set(before):
            got = sorted(after) if isinstance(after, Mapping) else after
            raise ConfigError(
                f"{self._label(i)}.out_layout gives streams {got!r}: expected those it was given, {sorted(before)}. "
                "Streams are chosen with Loader(streams=...)."
            )
        return _native(after)

    def _label(self, i: int) -> str:
        return f"transforms[{i}] ({name_of(self.transforms[i])})"

    def apply(self, window: WindowDict, *, epoch: int, window_id: int, draws: list[Any] | None = None) -> WindowDict:
        """Return the window after all transforms. Arrays of `window` may be written to.

        Args:
            window: Of the layout `layouts[0]`.
            epoch: Of the row.
            window_id: Of the window the row really holds.
            draws: Where what each transform drew is appended: {"transform", "key", "draws"}; `draws` is None for a
                transform that does not tell.

        Raises:
            StageFailedError: A transform raised (it is the cause), or returned something else than it may.
        """
        for i, transform in enumerate(self.transforms):
            pads = {k: v.copy() for k, v in window.items() if k.endswith("_is_pad")}
            lengths = {name: len(window[name]) for name in self.layouts[i]}
            missing = {name: bool(window[f"{name}_is_missing"]) for name in self._specs}
            texts = {name: type(window[name]) for name, spec in self._specs.items() if spec.is_text}
            generator = key_rng(self.seed, PURPOSE, epoch, window_id, i)
            told = None
            try:
                if draws is not None and hasattr(transform, "draw") and hasattr(transform, "apply"):
                    told = transform.draw(window, generator)
                    out = transform.apply(window, told)
                else:
                    out = transform(window, generator)
            except KeyboardInterrupt:
                raise
            except BaseException as err:  # sys.exit() too: in a decoder thread it would end the thread and nothing else
                why = err.message if isinstance(err, TrajloadError) else described(err)
                raise StageFailedError(f"{self._label(i)} failed on a window: {why}") from err
            if draws is not None:
                key = {"seed": self.seed, "purpose": PURPOSE, "counters": [epoch, window_id, i]}
                draws.append({"transform": name_of(transform), "key": key, "draws": told})
            window = self._checked(i, out, lengths, pads, missing, texts)
        return window

    def write(
        self, row: StreamSlots, out: StreamSlots, b: int, *, epoch: int, window_id: int, draws: list[Any] | None = None
    ) -> None:
        """Transform the one window of `row` into row `b` of `out`; steps without data are zeros there."""
        window = self.apply(row.window(0), epoch=epoch, window_id=window_id, draws=draws)
        out.set_window(b, window, {name: is_zero_BT[0] for name, is_zero_BT in row.is_zero.items()})
        out.take_rest(b, row, 0)

    def _checked(
        self,
        i: int,
        out: Any,
        lengths: Mapping[str, int],
        pads: Mapping[str, BoolArray],
        missing: Mapping[str, bool],
        texts: Mapping[str, type],
    ) -> WindowDict:
        if not isinstance(out, dict):
            raise StageFailedError(f"{self._label(i)} returned {type(out).__name__}: expected the window, a dict.")
        keys = {*lengths, *pads, *texts, *(f"{name}_is_missing" for name in missing)}
        if set(out) != keys:
            raise StageFailedError(
                f"{self._label(i)} returned other keys: lacks {sorted(keys - set(out))}, adds {sorted(set(out) - keys)}. "
                "A transform returns the keys it was given."
            )
        window = dict(out)
        for name, (shape, dtype) in self.layouts[i + 1].items():
            window[name] = self._checked_array(i, name, out[name], (lengths[name], *shape), dtype)
        for key, before_T in pads.items():
            after_T = np.asarray(out[key])
            if after_T.shape != before_T.shape or after_T.dtype != np.bool_:
                raise StageFailedError(
                    f"{self._label(i)} returned {key!r} as {after_T.dtype} {after_T.shape}: expected bool {before_T.shape}."
                )
            if (before_T & ~after_T).any():
                raise StageFailedError(
                    f"{self._label(i)} cleared {key!r} at step {int(np.flatnonzero(before_T & ~after_T)[0])}: a transform may "
                    "mark steps as padding, but not padding as data."
                )
            window[key] = after_T
        for name, was in missing.items():
            if bool(out[f"{name}_is_missing"]) != was:
                raise StageFailedError(
                    f"{self._label(i)} changed '{name}_is_missing' from {was}: what an episode lacks is not a transform's to say."
                )
        for name, kind in texts.items():
            if kind is str and not isinstance(out[name], str):
                raise StageFailedError(
                    f"{self._label(i)} returned stream {name!r} as {type(out[name]).__name__}: expected str."
                )
        return window

    def _checked_array(self, i: int, name: str, value: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray:
        array = value if isinstance(value, np.ndarray) else np.asarray(value)  # a tensor shares its memory
        if array.shape == shape and array.dtype == dtype:
            return array
        declared = "its out_layout declares" if hasattr(self.transforms[i], "out_layout") else "unchanged"
        raise StageFailedError(
            f"{self._label(i)} returned stream {name!r} as {array.dtype} {array.shape}: expected {dtype} {shape}, {declared}. "
            "A transform that changes shape or dtype carries out_layout(layout) -> layout."
        )


def _check_passed_by(label: str, transform: Any, passed_by: Collection[str]) -> None:
    for attribute in ("streams", "signs"):
        names = getattr(transform, attribute, None)
        for name in names if isinstance(names, Collection) else ():
            if name in passed_by:
                raise ConfigError(
                    f"{label} names stream {name!r}, asked for with align='interval': such a stream has any number of rows "
                    "at each step and passes by transforms. Leave it out of the transform, or ask for another align."
                )


def _native(layout: Layout) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    return {
        name: (tuple(int(n) for n in shape), np.dtype(dtype).newbyteorder("="))
        for name, (shape, dtype) in layout.items()
    }
