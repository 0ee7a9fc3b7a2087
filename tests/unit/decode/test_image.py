"""JPEG and PNG: colour, exact depth, orientation, and every way a picture can be wrong."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import xxhash
from PIL import Image as PillowImage

from trajload.errors import DecodeError, ShardCorruptError
from trajload.refs import ImageTrack
from trajload.spec import Image, StreamSpec
from trajload.types import Modality


def saved(array: np.ndarray | PillowImage.Image, fmt: str, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    image = array if isinstance(array, PillowImage.Image) else PillowImage.fromarray(array)
    image.save(buffer, fmt, **kwargs)
    return buffer.getvalue()


def track_of(pictures: list[bytes], encoding: str, shape: tuple[int, int, int]) -> tuple[ImageTrack, bytes]:
    sizes = np.array([len(p) for p in pictures], np.int64)
    offsets = np.concatenate(([0], np.cumsum(sizes)[:-1])) + 512
    sums = np.array([xxhash.xxh3_64_intdigest(p) for p in pictures], np.uint64)
    return ImageTrack("shard.tar", encoding, shape, offsets, sizes, sums), b"\0" * 512 + b"".join(pictures)


def spec_of(
    encoding: Any, shape: tuple[int, int, int], modality: Modality = Modality.RGB, dtype: str = "uint8"
) -> StreamSpec:
    return StreamSpec(name="cam", modality=modality, encoding=encoding, shape=shape, dtype=dtype)


def one(tools: Any, picture: bytes, encoding: str, shape: tuple[int, int, int], **kwargs: Any) -> np.ndarray:
    track, data = track_of([picture], encoding, shape)
    return tools.get_rows(track, data, [0], spec_of(encoding, shape, **kwargs))[0]


@pytest.fixture(scope="module")
def colour() -> np.ndarray:
    return np.random.default_rng(6).integers(0, 256, (21, 34, 3), dtype=np.uint8)


@pytest.mark.parametrize("kwargs", [{}, {"compress_level": 0}, {"optimize": True}], ids=str)
def test_png_colour_is_exact(kwargs: Any, colour: np.ndarray, tools: Any) -> None:
    """PNG comes back bit for bit, channels first."""
    assert np.array_equal(one(tools, saved(colour, "PNG", **kwargs), "png", (21, 34, 3)), colour.transpose(2, 0, 1))


@pytest.mark.parametrize("kwargs", [{"quality": 90}, {"quality": 90, "progressive": True}, {"subsampling": 0}], ids=str)
def test_jpeg_equals_pillow(kwargs: Any, colour: np.ndarray, tools: Any) -> None:
    """JPEG gives what Pillow gives."""
    data = saved(colour, "JPEG", **kwargs)
    wanted = np.asarray(PillowImage.open(io.BytesIO(data)))
    assert np.array_equal(one(tools, data, "jpg", (21, 34, 3)), wanted.transpose(2, 0, 1))


def test_sixteen_bit_png_depth_is_exact(tools: Any) -> None:
    """All of 0..65535 survives, with zero (no reading) kept as zero."""
    depth = np.arange(65536, dtype=np.uint16).reshape(256, 256)
    got = one(tools, saved(depth, "PNG"), "png", (256, 256, 1), modality=Modality.DEPTH, dtype="uint16")
    assert got.dtype == np.uint16 and np.array_equal(got[0], depth)


def test_depth_resized_holds_only_stored_values(tools: Any) -> None:
    """Nearest neighbour: no depth appears that was not measured."""
    depth = np.random.default_rng(1).integers(0, 65536, (20, 30), dtype=np.uint16)
    track, data = track_of([saved(depth, "PNG")], "png", (20, 30, 1))
    spec = spec_of("png", (20, 30, 1), Modality.DEPTH, "uint16")
    got = tools.get_rows(track, data, [0], spec, Image(size=(7, 11)))
    assert got.shape == (1, 1, 7, 11) and np.isin(got, depth).all()


@pytest.mark.parametrize("mode", ["L", "1", "P", "RGBA", "LA"])
def test_other_modes_become_rgb(mode: str, tools: Any) -> None:
    """Gray is repeated, palettes are looked up, alpha is dropped without blending."""
    image = PillowImage.fromarray(np.random.default_rng(2).integers(0, 256, (8, 9, 3), dtype=np.uint8)).convert(mode)
    if mode in ("RGBA", "LA"):
        image.putalpha(7)
    got = one(tools, saved(image, "PNG"), "png", (8, 9, 3))
    assert np.array_equal(got, np.asarray(image.convert("RGB")).transpose(2, 0, 1))
    if mode == "RGBA":
        assert np.array_equal(got, np.asarray(image)[:, :, :3].transpose(2, 0, 1))


def test_cmyk_jpeg_becomes_rgb(tools: Any) -> None:
    """CMYK is converted, not reinterpreted."""
    image = PillowImage.new("CMYK", (16, 8), (0, 255, 255, 0))
    got = one(tools, saved(image, "JPEG", quality=95), "jpg", (8, 16, 3))
    assert got[0].mean() > 240 and got[1:].mean() < 20


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, tools: Any) -> None:
    """The picture is delivered upright, and its declared shape is the upright one."""
    from PIL import ImageOps

    array = np.random.default_rng(3).integers(0, 256, (8, 24, 3), dtype=np.uint8)
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    data = saved(array, "PNG", exif=exif)
    shape = (24, 8, 3) if orientation >= 5 else (8, 24, 3)
    wanted = np.asarray(ImageOps.exif_transpose(PillowImage.open(io.BytesIO(data))))
    assert np.array_equal(one(tools, data, "png", shape), wanted.transpose(2, 0, 1))


def test_rows_in_any_order_with_repeats(colour: np.ndarray, tools: Any) -> None:
    """Row order is the caller's, and repeats cost nothing."""
    pictures = [np.roll(colour, i, axis=0) for i in range(4)]
    track, data = track_of([saved(p, "PNG") for p in pictures], "png", (21, 34, 3))
    got = tools.get_rows(track, data, [3, 0, 3, 1], spec_of("png", (21, 34, 3)))
    assert np.array_equal(got, np.stack([pictures[i] for i in (3, 0, 3, 1)]).transpose(0, 3, 1, 2))


def test_resized_rgb_equals_resizing_the_picture(colour: np.ndarray, tools: Any) -> None:
    """Images and video share one filter."""
    from trajload.decode import DecodeContext
    from trajload.decode.resize import resize_planes

    track, data = track_of([saved(colour, "PNG")], "png", (21, 34, 3))
    got = tools.get_rows(track, data, [0], spec_of("png", (21, 34, 3)), Image(size=(10, 50)))[0]
    wanted = np.empty((3, 10, 50), np.uint8)
    resize_planes(np.ascontiguousarray(colour.transpose(2, 0, 1)), wanted, DecodeContext())
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize(("fmt", "encoding"), [("PNG", "png"), ("JPEG", "jpg")])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9])
def test_truncated_picture_raises(fmt: str, encoding: str, share: float, colour: np.ndarray, tools: Any) -> None:
    """Half a picture is an error, not a half-gray picture."""
    data = saved(colour, fmt)
    with pytest.raises(DecodeError, match=rf"image 0 of stream 'cam' is not a whole {encoding} picture"):
        one(tools, data[: int(len(data) * share)], encoding, (21, 34, 3))


def test_flipped_bit_is_a_corrupt_shard(colour: np.ndarray, tools: Any) -> None:
    """The checksum is verified on every read, before Pillow sees the bytes."""
    track, data = track_of([saved(colour, "PNG")] * 2, "png", (21, 34, 3))
    place = int(track.offset_N[1]) + 40
    bad = data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :]
    spec = spec_of("png", (21, 34, 3))
    tools.get_rows(track, bad, [0], spec)
    with pytest.raises(
        ShardCorruptError,
        match=rf"image 1 of stream 'cam' at bytes \[{track.offset_N[1]}, \d+\) of 'shard.tar' is damaged",
    ):
        tools.get_rows(track, bad, [1], spec)


@pytest.mark.parametrize(
    ("picture", "shape", "modality", "dtype", "message"),
    [
        (np.zeros((8, 9, 3), np.uint8), (9, 8, 3), Modality.RGB, "uint8", r"shows 8 x 9, expected 9 x 8 \(H x W\)"),
        (np.zeros((8, 9), np.uint16), (8, 9, 3), Modality.RGB, "uint8", r"holds 'I;16' values \(more than 8 bits\)"),
        (np.zeros((8, 9), np.uint8), (8, 9, 1), Modality.DEPTH, "uint16", r"holds 1 channel\(s\) of uint8 .*expected 1 of uint16"),
        (np.zeros((8, 9, 3), np.uint8), (8, 9, 1), Modality.DEPTH, "uint8", r"holds 3 channel\(s\) of uint8 .*expected 1 of uint8"),
    ],
)  # fmt: skip
def test_picture_unlike_its_spec_is_named(
    picture: Any, shape: Any, modality: Any, dtype: str, message: str, tools: Any
) -> None:
    """Got and expected stand in the message."""
    with pytest.raises(DecodeError, match=message):
        one(tools, saved(picture, "PNG"), "png", shape, modality=modality, dtype=dtype)


def test_jpeg_named_png_is_refused(colour: np.ndarray, tools: Any) -> None:
    """The declared format is the only one tried: other parsers stay out of reach of hostile bytes."""
    with pytest.raises(DecodeError, match=r"is not a whole png picture"):
        one(tools, saved(colour, "JPEG"), "png", (21, 34, 3))
