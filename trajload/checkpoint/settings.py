"""How a Checkpointer behaves, checked when it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

from trajload.checks import check_int, is_number
from trajload.errors import ConfigError

__all__ = ["Mode", "OnBad", "ResumeMode", "Settings", "WhenBusy"]

Mode = Literal["auto", "sync", "async"]
ResumeMode = Literal["auto", "on", "off"]
OnBad = Literal["fallback", "error"]
WhenBusy = Literal["wait", "skip"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What `Checkpointer` takes beside state, rules and store; see there."""

    mode: Mode
    resume: ResumeMode
    on_bad: OnBad
    when_busy: WhenBusy
    retries: int
    max_aborted: int
    timeout_s: float
    allowed_tags: Collection[str] | None = None
    after_resume: Callable[[Any], Any] | None = None

    def __post_init__(self) -> None:
        for name, kind in (("mode", Mode), ("resume", ResumeMode), ("on_bad", OnBad), ("when_busy", WhenBusy)):
            _check_word(name, getattr(self, name), get_args(kind))
        for name, least in (("retries", 0), ("max_aborted", 1)):
            object.__setattr__(self, name, check_int(name, getattr(self, name), least))
        timeout = self.timeout_s
        if not is_number(timeout) or not 0 < timeout < math.inf:
            raise ConfigError(f"timeout_s={timeout!r} is invalid: expected seconds above 0.")
        tags, hook = self.allowed_tags, self.after_resume
        is_several = isinstance(tags, Collection) and not isinstance(tags, str)
        if tags is not None and not (is_several and all(isinstance(tag, str) for tag in tags)):
            raise ConfigError(
                f"allowed_tags={tags!r} is invalid: expected consent tags, such as ['research'], or None."
            )
        if hook is not None and not callable(hook):
            raise ConfigError(f"after_resume={hook!r} is invalid: expected a function of the report, or None.")


def _check_word(name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ConfigError(f"{name}={value!r} is invalid: expected one of {', '.join(map(repr, allowed))}.")
