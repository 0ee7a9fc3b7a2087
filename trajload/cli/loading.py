"""The loader that a command line describes: by options, by a configuration file, or by a saved state."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trajload.errors import ArgumentError, ConfigError
from trajload.spec import Image, Signal, StreamRequest, Window

if TYPE_CHECKING:
    from trajload.loader import Loader

__all__ = [
    "BatchSize",
    "NumSteps",
    "Order",
    "Pad",
    "Seed",
    "SizeOption",
    "SkipMissing",
    "Streams",
    "Stride",
    "Transforms",
    "loader_arguments",
]

NumSteps = Annotated[int, typer.Option(help="Steps in a window.", min=1)]
Stride = Annotated[int, typer.Option(help="Steps between the starts of neighbouring windows.", min=1)]
Dilation = Annotated[int, typer.Option(help="Steps between neighbouring steps of a window.", min=1)]
Pad = Annotated[str, typer.Option(help="Windows beyond an episode's end: none, edge or zero.")]
BatchSize = Annotated[int, typer.Option(help="Windows per train_step, over all ranks.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of the order.")]
Order = Annotated[str, typer.Option(help="shuffled, interleaved, continuous or sequential; or a version (shuffled/1).")]
Streams = Annotated[
    list[str] | None, typer.Option("--stream", "-s", help="Load this stream only; repeatable. All by default.")
]
SizeOption = Annotated[
    str | None, typer.Option("--size", help="Resize pictures to HEIGHTxWIDTH, for instance 128x128.")
]
SkipMissing = Annotated[
    bool, typer.Option("--skip-missing", help="Leave out episodes whose files are absent, instead of refusing.")
]
Transforms = Annotated[
    list[str] | None,
    typer.Option(
        "--transform",
        help='Augment: a JSON object with "name" and arguments; repeatable, in order. Own: "module:function".',
    ),
]

_LOADER_KEYS = ("global_batch_size", "seed", "order", "num_epochs", "drop_last", "on_error")


def parse_size(text: str | None) -> tuple[int, int] | None:
    """Return (height, width) of '96x128', or of '96' for a square."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if len(parts) == 1:
        parts = parts * 2
    if len(parts) != 2 or not all(part.isdigit() and int(part) > 0 for part in parts):
        raise ConfigError(f"--size {text!r} is invalid: expected HEIGHTxWIDTH, for instance 128x128.")
    return int(parts[0]), int(parts[1])


def loader_arguments(
    dataset: Any,
    *,
    num_steps: int,
    stride: int,
    dilation: int,
    pad: str,
    batch_size: int,
    seed: int,
    order: str,
    streams: list[str] | None,
    size: str | None,
) -> dict[str, Any]:
    """Return the keyword arguments of `Loader` that the options describe."""
    requests = stream_requests(dataset, streams, size)
    window = Window(num_steps=num_steps, stride=stride, dilation=dilation, pad=pad)  # type: ignore[arg-type]
    return {"window": window, "global_batch_size": batch_size, "seed": seed, "order": order, "streams": requests}


def stream_requests(dataset: Any, streams: list[str] | None, size: str | None) -> dict[str, StreamRequest | None]:
    """Return what is asked of the streams named, or of all: of one dataset, or by batch key of a mixture."""
    wanted = parse_size(size)
    specs: dict[str, Any] = {}
    for one in getattr(dataset, "datasets", {"": dataset}).values():
        specs = {**one.streams, **specs}
    names = list(specs)
    if streams and hasattr(dataset, "datasets"):
        unknown = [name for name in streams if name not in specs]
        if unknown:
            raise ConfigError(
                f"stream {unknown[0]!r} is unknown: the sources {', '.join(map(repr, dataset))} have "
                f"{', '.join(map(repr, specs))}."
            )
        names = streams
    elif streams:
        names = [dataset.spec(name).name for name in streams]
    return {name: Image(size=wanted) if wanted and specs[name].is_picture else None for name in names}


def arguments_from_config(config: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the keyword arguments of `Loader` that a configuration describes.

    Args:
        config: As `loader.state_dict()["config"]` has it: `window`, `global_batch_size`, and, where wanted, `seed`,
            `order`, `num_epochs`, `drop_last`, `on_error`, `episodes` as a list of numbers, `streams` as a list of names
            or as name → object with `size`, `align`, `tolerance_s`, `on_miss`, and `transforms` as a list of objects
            with `name` and arguments.
        where: The file it came from, for messages.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(f"{where} holds a {type(config).__name__} as configuration: expected an object of fields.")
    for key in ("window", "global_batch_size"):
        if key not in config:
            raise ConfigError(f"{where} lacks {key!r}: expected the configuration of a loader.")
    arguments = {key: config[key] for key in _LOADER_KEYS if key in config}
    if "transforms" in config:
        arguments["transforms"] = config["transforms"]
    if isinstance(config["window"], dict) and isinstance(config["window"].get("digest"), str):
        raise ConfigError(f"{where} holds only a digest of its long window: pass the window with --config instead.")
    if config.get("episodes") is not None:
        if not isinstance(config["episodes"], list):
            raise ConfigError(
                f"{where} holds only a digest of its episodes: pass a configuration with --config in which 'episodes' "
                "is the list of their numbers, beside the state."
            )
        arguments["episodes"] = config["episodes"]
    try:
        arguments["window"] = Window(**config["window"])
        arguments["streams"] = _requests(config.get("streams"))
    except (TypeError, ValueError, AttributeError) as err:
        if isinstance(err, ConfigError) and not isinstance(err, ArgumentError):
            raise
        raise ConfigError(f"{where} is no loader configuration: {err}") from err
    return arguments


def _requests(streams: Any) -> Any:
    if streams is None or isinstance(streams, list):
        return streams
    if "digest" in streams and isinstance(streams["digest"], str):
        raise ConfigError(
            "the state holds only a digest of its long stream configuration: pass the streams with --config instead."
        )
    return {name: None if value is None else _request(dict(value)) for name, value in streams.items()}


def _request(value: dict[str, Any]) -> StreamRequest:
    kind = value.pop("kind", "Image" if "size" in value else "Signal")
    if kind == "Image" and value.get("size") is not None:
        value["size"] = tuple(value["size"])
    return (Image if kind == "Image" else Signal)(**value)


def parse_transforms(texts: list[str]) -> list[Any]:
    """Return the objects of --transform options; a text that is no JSON object is a name without arguments."""
    out: list[Any] = []
    for text in texts:
        if not text.lstrip().startswith("{"):
            out.append(text)
            continue
        try:
            out.append(json.loads(text))
        except json.JSONDecodeError as err:
            raise ConfigError(f"--transform {text!r} is not JSON: {err}.") from err
    return out


def read_json(path: str) -> dict[str, Any]:
    """Return the JSON object of a file, or raise ConfigError saying what the file holds instead."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
    except FileNotFoundError:
        raise ConfigError(f"file {path!r} does not exist: expected a JSON file.") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as err:
        raise ConfigError(f"file {path!r} is not JSON: {err}.") from err
    if not isinstance(value, dict):
        raise ConfigError(f"file {path!r} holds a {type(value).__name__}: expected a JSON object.")
    return value


def loader_of(dataset: Any, arguments: Mapping[str, Any], **more: Any) -> Loader:
    """Return the loader; imported here because it brings torch. Transforms come as names and arguments."""
    from trajload.augment.named import transforms_from_json
    from trajload.loader import Loader

    transforms = transforms_from_json(arguments.get("transforms", []), dataset)
    return Loader(dataset, **{**arguments, "transforms": transforms}, **more)
