"""Real pictures: awkward JPEG and PNG files, EXIF orientation, and 16-bit depth of a depth camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from PIL import Image as PillowImage

from trajload.decode import DecodeContext, decode_rows, plan_reads, row_shape
from trajload.errors import DecodeError
from trajload.refs import ImageTrack
from trajload.spec import Image, StreamSpec
from trajload.storage import LocalStore
from trajload.types import Modality

pytestmark = pytest.mark.real_data


def load(
    path: Path, encoding: Any, shape: tuple[int, int, int], modality: Modality = Modality.RGB, dtype: str = "uint8"
) -> np.ndarray:
    data = path.read_bytes()
    sums = np.array([xxhash.xxh3_64_intdigest(data)], np.uint64)
    track = ImageTrack(path.name, encoding, shape, np.zeros(1, np.int64), np.array([len(data)], np.int64), sums)
    spec = StreamSpec(name="cam", modality=modality, encoding=encoding, shape=shape, dtype=dtype)
    store, rows = LocalStore(path.parent), np.array([0])
    wanted, kind = row_shape(spec, Image())
    out = np.empty((1, *wanted), kind)
    blobs = [store.read(r) for r in plan_reads(track, rows)]
    decode_rows(track, rows, blobs, out, spec=spec, request=Image(), store=store, context=DecodeContext())
    return out[0]


@pytest.mark.parametrize("number", range(150, 155))
def test_depth_camera_frames_are_exact(number: int, real_data: Path) -> None:
    """16-bit millimetres come back as stored, holes included."""
    path = real_data / f"images/rgbd_7scenes_tsdf/rgbd-frames/frame-{number:06d}.depth.png"
    got = load(path, "png", (480, 640, 1), Modality.DEPTH, "uint16")
    assert got.dtype == np.uint16 and np.array_equal(got[0], np.asarray(PillowImage.open(path)))
    assert 0.10 < (got == 0).mean() < 0.20 and got.max() > 2000


def test_depth_camera_colour_is_exact(real_data: Path) -> None:
    """The colour picture beside it is a plain RGB PNG."""
    path = real_data / "images/rgbd_7scenes_tsdf/rgbd-frames/frame-000150.color.png"
    assert np.array_equal(load(path, "png", (480, 640, 3)), np.asarray(PillowImage.open(path)).transpose(2, 0, 1))


def test_exif_orientations_show_the_same_picture(real_data: Path) -> None:
    """Landscape_N stored in four orientations has one shape and, but for compression, one content."""
    folder = real_data / "images/exif_orientation"
    pictures = [load(folder / f"Landscape_{n}.jpg", "jpg", (1200, 1800, 3)).astype(np.int16) for n in (1, 3, 6, 8)]
    for picture in pictures[1:]:
        assert np.abs(picture - pictures[0]).mean() < 4


@pytest.mark.parametrize(
    ("name", "encoding", "shape"),
    [
        ("hopper_gray.jpg", "jpg", (128, 128, 3)),
        ("pil_sample_cmyk.jpg", "jpg", (100, 100, 3)),
        ("flower.jpg", "jpg", (360, 480, 3)),
        ("transparent.png", "png", (150, 200, 3)),
    ],
)
def test_awkward_pictures_become_rgb(name: str, encoding: str, shape: tuple[int, int, int], real_data: Path) -> None:
    """Gray, CMYK and RGBA become the RGB that Pillow converts them to."""
    path = real_data / "images/pillow_awkward" / name
    wanted = np.asarray(PillowImage.open(path).convert("RGB")).transpose(2, 0, 1)
    assert np.array_equal(load(path, encoding, shape), wanted)


@pytest.mark.parametrize(
    ("name", "encoding", "shape"),
    [
        ("truncated_image.png", "png", (1, 1, 3)),
        ("truncated_jpeg.jpg", "jpg", (100, 100, 3)),
        ("pngtest_bad.png.bin", "png", (69, 91, 3)),
    ],
)
def test_damaged_pictures_raise(name: str, encoding: str, shape: tuple[int, int, int], real_data: Path) -> None:
    """Truncated and damaged files are errors, never half a picture."""
    path = real_data / "images/pillow_awkward" / name
    try:
        with PillowImage.open(path) as image:
            shape = (image.size[1], image.size[0], 3)
    except OSError:
        pass
    with pytest.raises(DecodeError, match=r"image 0 of stream 'cam' is not a whole"):
        load(path, encoding, shape)
