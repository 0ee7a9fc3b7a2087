"""A call that does not fit says what was meant; one that fits is as it was."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trajload as tl
from trajload import checkpoint
from trajload.arguments import check_options, explains_calls
from trajload.errors import ArgumentError, ConfigError
from trajload.foreign_names import _TABLE
from trajload.interop.dataloader import _OF_TORCH, TrajDataLoader
from trajload.shards.video_encode import VideoEncode

NOT_CALLED = {"Batch", "Dataset", "Modality", "TrajloadError", "WindowRef", "__version__", "checkpoint", "errors"}
"""Public names that users do not call, or that stand for modules; `Batch` and `WindowRef` are made inside, by the thousand."""
CALLED = [name for name in tl.__all__ if name not in NOT_CALLED]
MADE_INSIDE = {
    *(
        "Commit",
        "Continuation",
        "Disk",
        "Fault",
        "FileEntry",
        "Generation",
        "PartReader",
        "PartSummary",
        "PartWriter",
        "Report",
        "Saved",
    ),
    *("ObjectStore", "Streams"),
}
"""Classes whose objects users are given; an `ObjectStore` is opened, and `Streams` stands above."""
OF_CHECKPOINT = [name for name in checkpoint.__all__ if name not in MADE_INSIDE]


@pytest.mark.parametrize("name", CALLED)
def test_every_public_name_answers_an_argument_that_it_lacks(name: str) -> None:
    """With its own name, before anything is opened; `Streams` takes generators by any name."""
    if name == "Streams":
        with pytest.raises(ConfigError, match=r"stream 'worng_name' is a builtins\.int"):
            tl.Streams(worng_name=1)
        return
    with pytest.raises(ArgumentError, match=rf"^{name}\(\) has no argument 'worng_name'"):
        getattr(tl, name)(worng_name=1)


@pytest.mark.parametrize("name", OF_CHECKPOINT)
def test_names_of_the_checkpoint_package_answer_alike(name: str) -> None:
    """Those that users call."""
    with pytest.raises(ArgumentError, match=rf"^{name}\(\) has no argument 'worng_name'"):
        getattr(checkpoint, name)(worng_name=1)


def test_methods_that_stand_in_a_base_answer_by_the_name_of_the_class(demo_dataset: Path, tmp_path: Path) -> None:
    """Of a loader and a checkpointer, whose bases nobody has heard of."""
    options: dict[str, Any] = {"window": tl.Window(), "global_batch_size": 2, "streams": ["action"]}
    with tl.Loader(demo_dataset, **options) as loader, tl.Checkpointer(tmp_path, {"n": {}}) as ckpt:
        for call, method in (
            ("Loader.stats", loader.stats),
            ("Loader.order_digest", loader.order_digest),
            ("Checkpointer.pin", ckpt.pin),
            ("Checkpointer.promote", ckpt.promote),
        ):
            with pytest.raises(ArgumentError, match=rf"^{call}\(\) has no argument 'worng_name'"):
                method(worng_name=1)  # type: ignore[call-arg,operator]


@pytest.mark.parametrize(
    ("call", "hints"),
    [
        (
            lambda: tl.Loader("x", batch_size=32, shuffle=True, num_epoch=2, delta_timestamps={}, sequence_length=8),
            [
                "'batch_size': global_batch_size is the number of windows over all ranks",
                "'shuffle': order='shuffled', the default",
                "'num_epoch'. Did you mean 'num_epochs'?",
                "window=tl.Window(delta_timestamps=...)",
                "'sequence_length': window=tl.Window(num_steps=...)",
                "Loader() needs 'window', 'global_batch_size', which have no default.",
            ],
        ),
        (
            lambda: tl.Loader("x", tl.Window(), 32),
            ["takes only 'dataset' without a name, and got 3", "window=, global_batch"],
        ),
        (lambda: tl.Loader(), ["Loader() needs 'dataset', 'window', 'global_batch_size'"]),
        (lambda: tl.Loader("x", dataset="x"), ["got 'dataset' twice"]),
        (lambda: tl.Window(16), ["takes no argument without a name, and got 1. Name the others: num_steps="]),
        (lambda: tl.Window(window_size=16), ["num_steps= is the number of steps in a window"]),
        (lambda: tl.Image(height=64, width=64), ["size=(height, width)"]),
        (lambda: tl.Mixture({}, weights=[1]), ["{'a': (dataset, 0.7), ...}"]),
        (
            lambda: tl.open(repo_id="lerobot/pusht"),
            ["tl.open(folder)", "open() needs 'path_or_url', which has no default"],
        ),
        (lambda: tl.Writer("x", fps=30), ["step_rate_hz="]),
        (lambda: tl.Checkpointer("x", {}, every_n_train_steps=9), ["every=tl.Every(steps=...)"]),
        (lambda: tl.Normalizer.from_dataset(None, method="x"), ["Did you mean 'methods'?"]),
        (lambda: tl.Window(anything=1), ["It takes num_steps, stride,"]),
    ],
    ids=lambda value: "" if callable(value) else value[0][:24],
)
def test_names_from_elsewhere_are_translated(call: Callable[[], Any], hints: list[str]) -> None:
    """All that is wrong in one line."""
    with pytest.raises(ArgumentError) as caught:
        call()
    assert [hint for hint in hints if hint not in str(caught.value)] == []
    assert "\n" not in str(caught.value)


def test_methods_and_a_dataloader_answer_too(demo_dataset: Path) -> None:
    """Options of a DataLoader are those of torch that are left to users."""
    with tl.Loader(demo_dataset, window=tl.Window(), global_batch_size=2, streams=["action"]) as loader:
        with pytest.raises(ArgumentError, match=r"Loader.seek\(\) has no argument 'step': the train_step comes first"):
            loader.seek(step=3)  # type: ignore[call-arg]
        with pytest.raises(
            ArgumentError, match=r"as_dataloader\(\) has no argument 'num_worker'. Did you mean 'num_workers'"
        ):
            loader.as_dataloader(num_worker=2)
        with pytest.raises(ArgumentError, match="'seed': it is an argument of tl"):
            loader.as_dataloader(seed=2)
        assert list(inspect.signature(loader.as_dataloader).parameters)[:3] == [
            "num_workers",
            "steps_per_epoch",
            "transform",
        ]


def test_a_call_that_fits_and_its_errors_are_as_they_were() -> None:
    """A TypeError from inside stays what it is; signature, documentation and name stay, too."""

    @explains_calls
    def add(a: int, b: Any = 1) -> Any:
        """Add."""
        return a + b

    assert (add(1), add(1, b=2)) == (2, 3)
    with pytest.raises(TypeError, match="unsupported operand") as caught:
        add(1, "x")
    assert not isinstance(caught.value, ArgumentError)
    assert (str(inspect.signature(add)), add.__doc__, add.__name__) == (
        "(a: 'int', b: 'Any' = 1) -> 'Any'",
        "Add.",
        "add",
    )
    with pytest.raises(ArgumentError, match=r"add\(\) needs 'a', which has no default"):
        add()  # type: ignore[call-arg]


def test_options_that_are_passed_on_are_compared() -> None:
    """With what the callee takes."""
    check_options("f", {"a": 1}, ["a", "b"])
    with pytest.raises(ArgumentError, match=r"f\(\) has no argument 'zzz'. It takes a, b\."):
        check_options("f", {"zzz": 1}, ["a", "b"])


def signature_of(call: str) -> list[str]:
    """Return the arguments of a row of the table."""
    owner, _, method = call.partition(".")
    subject: Any = {"as_dataloader": TrajDataLoader, "VideoEncode": VideoEncode}.get(owner) or getattr(tl, owner)
    return list(inspect.signature(getattr(subject, method) if method else subject).parameters)


@pytest.mark.parametrize("call", _TABLE)
def test_the_table_holds_no_name_that_exists(call: str) -> None:
    """Nor one twice; and every argument that a hint names is one: 'num_steps=' of this call, or of the one it writes out."""
    names = [name for row in _TABLE[call] for name in row.split()]
    assert sorted({name for name in names if names.count(name) > 1}) == []
    assert sorted(set(names) & set(signature_of(call))) == []
    known = {name for row in (*CALLED, "as_dataloader", "VideoEncode") for name in signature_of(row)} | set(
        signature_of(call)
    )
    known |= set(_OF_TORCH)
    for hint in _TABLE[call].values():
        named = set(re.findall(r"\b([a-z_]+)=", hint))
        assert named <= known, hint
        for code in re.findall(r"tl\.\w+\([^.()]*=[^()]*?\)", hint):
            ast.parse(code.replace("{name}", "x"))
