"""The fast ways for JPEG and PNG give what Pillow gives, or leave the picture to it: no byte depends on what is installed."""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image as PillowImage
from PIL import ImageOps

from trajload.decode import DecodeContext
from trajload.decode.image import write_image
from trajload.decode.jpeg import find_simplejpeg, scaled_size
from trajload.decode.png import decode_png, read_plain_png
from trajload.errors import ConfigError, DecodeError
from trajload.spec import Image, StreamSpec, check_request
from trajload.types import Modality


@pytest.fixture(scope="module")
def fast() -> DecodeContext:
    context = DecodeContext()
    if context.fast_jpeg() is None:
        pytest.skip(f"JPEG FAST PATH NOT TESTED: {context.jpeg_reason}")
    return context


@pytest.fixture(scope="module")
def slow() -> DecodeContext:
    context = DecodeContext(use_simplejpeg=False)
    assert context.fast_jpeg() is None and context.jpeg_reason == "asked for"
    return context


def spec_of(
    encoding: Any, shape: tuple[int, ...], modality: Modality = Modality.RGB, dtype: str = "uint8"
) -> StreamSpec:
    return StreamSpec(name="cam", modality=modality, encoding=encoding, shape=shape, dtype=dtype)


def write(
    data: bytes, spec: StreamSpec, context: DecodeContext, size: tuple[int, int] | None = None, scaling: bool = False
) -> np.ndarray:
    shown = size or spec.shape[:2]
    channels = 3 if spec.modality is Modality.RGB else spec.shape[2]
    out = np.full((channels, *shown), 77, spec.dtype)
    request = Image(size=size, jpeg_scaling=scaling)
    write_image(data, spec.encoding, out, "image 0", spec=spec, request=request, context=context)
    return out


def textured(height: int, width: int, seed: int = 0) -> PillowImage.Image:
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width]
    base = np.stack([x * 3, y * 5, (x + y) * 2], axis=-1) % 200 + rng.integers(0, 56, (height, width, 3))
    return PillowImage.fromarray(base.astype(np.uint8))


def saved(image: PillowImage.Image, fmt: str, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, fmt, **kwargs)
    return buffer.getvalue()


# ---- JPEG ----


@pytest.mark.parametrize(
    "kwargs",
    [{}, {"progressive": True}, {"optimize": True}, {"restart_marker_blocks": 3}, {"qtables": "web_low"}],
    ids=str,
)
@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpeg_equals_pillow(subsampling: str, kwargs: Any, fast: DecodeContext) -> None:
    """Every subsampling, coding and odd size."""
    for size in ((48, 64), (47, 61), (1, 1), (8, 9), (17, 16)):
        for quality in (30, 75, 97):
            data = saved(textured(*size), "JPEG", quality=quality, subsampling=subsampling, **kwargs)
            wanted = np.asarray(PillowImage.open(io.BytesIO(data))).transpose(2, 0, 1)
            assert np.array_equal(write(data, spec_of("jpg", (*size, 3)), fast), wanted), (size, quality)


@pytest.mark.parametrize("mode", ["L", "CMYK", "RGB"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_jpeg_of_any_mode_and_orientation_equals_pillow(mode: str, orientation: int, fast: DecodeContext) -> None:
    """Gray is repeated, CMYK left to Pillow, and all eight orientations are turned upright."""
    exif = PillowImage.Exif()
    exif[0x0112] = orientation
    data = saved(textured(21, 34).convert(mode), "JPEG", exif=exif)
    upright = ImageOps.exif_transpose(PillowImage.open(io.BytesIO(data))).convert("RGB")
    spec = spec_of("jpg", (*upright.size[::-1], 3))
    assert np.array_equal(write(data, spec, fast), np.asarray(upright).transpose(2, 0, 1))


def test_jpeg_that_stores_rgb_equals_pillow(fast: DecodeContext) -> None:
    """Adobe's marker for untransformed RGB is followed."""
    data = saved(textured(40, 30), "JPEG", keep_rgb=True)
    wanted = np.asarray(PillowImage.open(io.BytesIO(data))).transpose(2, 0, 1)
    assert np.array_equal(write(data, spec_of("jpg", (40, 30, 3)), fast), wanted)


def outcome(data: bytes, spec: StreamSpec, context: DecodeContext) -> Any:
    try:
        return write(data, spec, context).tobytes()
    except DecodeError as err:
        return str(err)


@pytest.mark.parametrize("progressive", [False, True])
def test_damaged_jpeg_gives_the_same_bytes_or_the_same_words(
    progressive: bool, fast: DecodeContext, slow: DecodeContext
) -> None:
    """400 files with flipped or missing bytes: what Pillow still shows is shown, what it refuses is refused."""
    data = saved(textured(40, 56), "JPEG", quality=80, progressive=progressive)
    spec, rng = spec_of("jpg", (40, 56, 3)), np.random.default_rng(11)
    kinds = set()
    for i in range(200):
        bad = bytearray(data)
        if i % 4 == 0:
            bad = bad[: int(rng.integers(2, len(bad)))]
        for _ in range(int(rng.integers(1, 4))):
            bad[int(rng.integers(2, len(bad)))] ^= int(rng.integers(1, 256))
        wanted = outcome(bytes(bad), spec, slow)
        assert outcome(bytes(bad), spec, fast) == wanted, i
        kinds.add(type(wanted))
    assert kinds == {str, bytes}


@pytest.mark.parametrize("size", [(480, 640), (477, 635), (64, 48)], ids=str)
def test_scaled_jpeg_is_the_same_with_either_library(
    size: tuple[int, int], fast: DecodeContext, slow: DecodeContext
) -> None:
    """1/2, 1/4 and 1/8, odd sizes and turned pictures included."""
    for orientation in (1, 6):
        exif = PillowImage.Exif()
        exif[0x0112] = orientation
        data = saved(textured(*size), "JPEG", quality=90, exif=exif)
        spec = spec_of("jpg", (*(size if orientation == 1 else size[::-1]), 3))
        for wanted in ((32, 32), (60, 80), (100, 120), (8, 6), (40, 40)):
            got = write(data, spec, fast, wanted, True)
            assert np.array_equal(got, write(data, spec, slow, wanted, True)), (orientation, wanted)


def test_scaling_is_near_decoding_whole_and_only_on_request(fast: DecodeContext) -> None:
    """A smooth picture at a quarter: other bytes, by little; without the request the bytes are those of the whole."""
    y, x = np.mgrid[0:480, 0:640]
    smooth = np.stack([x / 4, y / 3, (x + y) / 6], axis=-1).astype(np.uint8)
    data = saved(PillowImage.fromarray(smooth), "JPEG", quality=95)
    spec = spec_of("jpg", (480, 640, 3))
    whole, scaled = write(data, spec, fast, (120, 160)), write(data, spec, fast, (120, 160), True)
    difference = np.abs(whole.astype(int) - scaled)
    assert 0 < difference.mean() < 1 and difference.max() < 12


def test_scale_is_the_greatest_that_covers_the_size() -> None:
    """Never smaller than wanted in either direction; 1 where nothing is to be gained."""
    assert scaled_size((480, 640), (60, 80)) == (8, (60, 80))
    assert scaled_size((480, 640), (61, 80)) == (4, (120, 160))
    assert scaled_size((479, 639), (60, 80)) == (8, (60, 80))
    assert scaled_size((480, 640), (480, 1)) == (1, (480, 640))
    assert scaled_size((480, 640), (900, 900)) == (1, (480, 640))


def test_scaling_is_refused_where_it_means_nothing() -> None:
    """Without a size, on png, on depth: named before anything is read; with both it stands in the config."""
    with pytest.raises(ConfigError, match=r"jpeg_scaling=True\) has no meaning without a size"):
        Image(jpeg_scaling=True)
    with pytest.raises(ConfigError, match=r"jpeg_scaling=1\) is invalid: expected True or False"):
        Image(size=(2, 2), jpeg_scaling=1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"asks for jpeg_scaling, but the stream is rgb stored as 'png'"):
        check_request(spec_of("png", (8, 8, 3)), Image(size=(4, 4), jpeg_scaling=True))
    assert Image(size=(4, 4), jpeg_scaling=True).to_json()["jpeg_scaling"] is True
    assert "jpeg_scaling" not in Image(size=(4, 4)).to_json()


def test_library_that_gives_other_bytes_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """A faster but coarser decoder fails the comparison with Pillow, and the reason names the picture."""
    simplejpeg = pytest.importorskip("simplejpeg")
    exact = simplejpeg.decode_jpeg
    monkeypatch.setattr(simplejpeg, "decode_jpeg", lambda *a, **k: exact(*a, **k, fastdct=True, fastupsample=True))
    decoder, reason = find_simplejpeg()
    assert decoder is None and "differs from Pillow at 4:2:0 at 1/1" in reason


# ---- PNG ----


def chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))


def png_of(
    raw: bytes, height: int, width: int, depth: int, colour: int, *, between: bytes = b"", parts: int = 1
) -> bytes:
    packed = zlib.compress(raw)
    step = -(-len(packed) // parts)
    idat = b"".join(chunk(b"IDAT", packed[i : i + step]) for i in range(0, len(packed), step))
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + between + idat + chunk(b"IEND", b"")


@pytest.mark.parametrize(("colour", "depth", "channels"), [(0, 8, 1), (0, 16, 1), (2, 8, 3), (6, 8, 4)])
@pytest.mark.parametrize("kind", [0, 1, 2, 3, 4, "mixed"])
def test_every_png_filter_equals_pillow(colour: int, depth: int, channels: int, kind: Any, fast: DecodeContext) -> None:
    """Noise as filtered data is a legal picture that reaches every branch of every filter."""
    rng = np.random.default_rng(5)
    for height, width in ((9, 13), (1, 1), (40, 3), (2, 64)):
        rows = rng.integers(0, 256, (height, 1 + width * channels * depth // 8), dtype=np.uint8)
        rows[:, 0] = rng.integers(0, 5, height) if kind == "mixed" else kind
        data = png_of(rows.tobytes(), height, width, depth, colour, parts=3)
        assert read_plain_png(data) is not None
        image = PillowImage.open(io.BytesIO(data))
        if depth == 16:
            got = write(data, spec_of("png", (height, width, 1), Modality.DEPTH, "uint16"), fast)
            assert np.array_equal(got[0], np.asarray(image))
            continue
        got = write(data, spec_of("png", (height, width, 3)), fast)
        assert np.array_equal(got, np.asarray(image.convert("RGB")).transpose(2, 0, 1))
        if colour == 0:
            got = write(data, spec_of("png", (height, width, 1), Modality.DEPTH), fast)
            assert np.array_equal(got[0], np.asarray(image))


@pytest.mark.parametrize(
    "kwargs", [{"bits": 2}, {"mode": "P"}, {"mode": "1"}, {"mode": "LA"}, {"mode": "I;16"}], ids=str
)
def test_other_pngs_are_left_to_pillow(kwargs: Any, fast: DecodeContext) -> None:
    """Palettes, fewer bits, gray with alpha, 16-bit gray as colour: Pillow's pictures, or Pillow's words."""
    image = textured(12, 10)
    if kwargs.get("mode") == "I;16":
        data = saved(PillowImage.fromarray(np.zeros((12, 10), np.uint16)), "PNG")
        with pytest.raises(DecodeError, match="more than 8 bits"):
            write(data, spec_of("png", (12, 10, 3)), fast)
        return
    data = (
        saved(image.convert("P"), "PNG", **kwargs) if "bits" in kwargs else saved(image.convert(kwargs["mode"]), "PNG")
    )
    assert read_plain_png(data) is None
    wanted = np.asarray(PillowImage.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(write(data, spec_of("png", (12, 10, 3)), fast), wanted)


def test_orientation_in_metadata_is_found(fast: DecodeContext) -> None:
    """A PNG with metadata goes to Pillow, which turns it: the fast way would have shown it lying."""
    exif = PillowImage.Exif()
    exif[0x0112] = 6
    data = saved(textured(12, 20), "PNG", exif=exif)
    assert read_plain_png(data) is None
    assert write(data, spec_of("png", (20, 12, 3)), fast).shape == (3, 20, 12)


def test_chunks_without_meaning_for_samples_are_passed_over(fast: DecodeContext) -> None:
    """Gamma, physical size and a transparent colour change nothing."""
    rows = np.random.default_rng(1).integers(0, 256, (6, 22), dtype=np.uint8)
    rows[:, 0] = 4
    between = chunk(b"gAMA", struct.pack(">I", 45455)) + chunk(b"tRNS", struct.pack(">HHH", 1, 2, 3))
    data = png_of(rows.tobytes(), 6, 7, 8, 2, between=between)
    assert read_plain_png(data) is not None
    wanted = np.asarray(PillowImage.open(io.BytesIO(data)).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(write(data, spec_of("png", (6, 7, 3)), fast), wanted)


@pytest.mark.parametrize("change", ["short", "long", "filter", "checksum", "cut"])
def test_png_with_wrong_data_is_not_ours(change: str, fast: DecodeContext) -> None:
    """Too few or too many rows, an unknown filter, a wrong checksum: never half a picture from the fast way."""
    rows = np.zeros((6, 22), np.uint8)
    if change == "filter":
        rows[3, 0] = 9
    raw = {"short": rows[:5], "long": np.zeros((7, 22), np.uint8)}.get(change, rows).tobytes()
    data = png_of(raw, 6, 7, 8, 2)
    if change in ("checksum", "cut"):
        packed = zlib.compress(raw)
        body = packed[:-1] + bytes([packed[-1] ^ 1]) if change == "checksum" else packed[: len(packed) // 2]
        data = data[:33] + chunk(b"IDAT", body) + chunk(b"IEND", b"")
    found = read_plain_png(data)
    assert found is not None and not decode_png(found, np.zeros((3, 6, 7), np.uint8), fast)


def test_damaged_png_never_differs_from_pillow(fast: DecodeContext) -> None:
    """300 files with flipped bytes: where the fast way answers, Pillow has the same picture."""
    data = saved(textured(24, 32), "PNG")
    rng, answered = np.random.default_rng(3), 0
    for _ in range(300):
        bad = bytearray(data)
        bad[int(rng.integers(0, len(bad)))] ^= int(rng.integers(1, 256))
        found = read_plain_png(bytes(bad))
        out = np.zeros((3, 24, 32), np.uint8)
        if found is None or (found.height, found.width) != (24, 32) or not decode_png(found, out, fast):
            continue
        answered += 1
        wanted = np.asarray(PillowImage.open(io.BytesIO(bytes(bad))).convert("RGB"))
        assert np.array_equal(out, wanted.transpose(2, 0, 1))
    assert answered == 0  # each chunk has a checksum, so no single damaged byte passes


def test_hostile_png_size_costs_no_memory(fast: DecodeContext) -> None:
    """A header that promises 10 gigapixels is compared with the spec before anything is inflated."""
    data = png_of(b"\0" * 100, 100_000, 100_000, 8, 2)
    with pytest.raises(DecodeError, match=r"shows 100000 x 100000, expected 6 x 7|exceeds limit"):
        write(data, spec_of("png", (6, 7, 3)), fast)
