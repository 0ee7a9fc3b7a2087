"""Image features of LeRobot folders: pictures inside the parquet, or in files it names."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import trajload as tl
from trajload.decode import DecodeContext, decode_rows, row_shape
from trajload.errors import DecodeError, SourceError, at
from trajload.sources.lerobot import LeRobotSource
from trajload.types import Modality


def rows(dataset, episode, stream, wanted=None, size=None):
    """Decode pictures as a loader does."""
    track, spec, request = dataset.track(episode, stream), dataset.streams[stream], tl.Image(size=size)
    which = np.arange(track.num_rows) if wanted is None else np.asarray(wanted)
    shape, dtype = row_shape(spec, request)
    out = np.empty((len(which), *shape), dtype)
    context = DecodeContext()
    with at(stream=stream):
        decode_rows(track, which, [], out, spec=spec, request=request, store=dataset.store, context=context)
    return out


def encode(array: np.ndarray, kind: str) -> bytes:
    out = io.BytesIO()
    Image.fromarray(array).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("where", ["embedded", "files"])
def test_image_features_give_their_pictures(tmp_path, maker, where):
    """Pictures inside the parquet, or in files it names, come decoded (N, C, H, W), or as their own bytes."""
    root = maker.make_v2(tmp_path / "d", [3], camera=False)
    data = [encode(maker.picture(0, s), "PNG") for s in range(3)]
    cells = []
    for i, one in enumerate(data):
        name = f"images/wrist/frame_{i}.png"
        if where == "files":
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(one)
        cells.append({"bytes": one if where == "embedded" else None, "path": name})
    cell = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    maker.add_column(root, "observation.images.wrist", pa.array(cells, type=cell), "image", (32, 48, 3))
    dataset = LeRobotSource(root)
    spec = dataset.streams["observation.images.wrist"]
    assert (spec.encoding, spec.shape, spec.modality) == ("png", (32, 48, 3), Modality.RGB)
    got = rows(dataset, 0, "observation.images.wrist", [2, 0, 2])
    np.testing.assert_array_equal(got, np.stack([maker.picture(0, i).transpose(2, 0, 1) for i in (2, 0, 2)]))
    assert rows(dataset, 0, "observation.images.wrist", size=(16, 24)).shape == (3, 3, 16, 24)
    assert dataset.track(0, "observation.images.wrist").reader.read_rows(np.array([2, 0])) == [data[2], data[0]]


def test_depth_pictures_are_depth(tmp_path, maker):
    """16-bit gray pictures are depth, one channel."""
    root = maker.make_v2(tmp_path / "d", [2], camera=False)
    depth = np.arange(32 * 48, dtype=np.uint16).reshape(32, 48) * 40
    cells = [{"bytes": encode(depth, "PNG"), "path": None}] * 2
    maker.add_column(root, "observation.depth", pa.array(cells), "image", (32, 48, 1))
    dataset = LeRobotSource(root)
    spec = dataset.streams["observation.depth"]
    np.testing.assert_array_equal(rows(dataset, 0, "observation.depth")[1, 0], depth)
    assert (spec.modality, spec.dtype, spec.shape) == (Modality.DEPTH, "uint16", (32, 48, 1))


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda one: one[: len(one) // 2], r"image 1 of stream 'cam' is not a whole png picture"),
        (lambda one: b"text", r"image 1 of stream 'cam' is not a whole png picture.*4 bytes that begin with b'text'"),
        (
            lambda one: encode(np.zeros((8, 8, 3), np.uint8), "PNG"),
            r"image 1 of stream 'cam' shows 8 x 8, expected 32 x 48 \(H x W\)",
        ),
        (
            lambda one: encode(np.zeros((32, 48), np.uint16), "PNG"),
            r"image 1 of stream 'cam' holds 'I;16' values \(more than 8 bits\)",
        ),
        (lambda one: None, r"a row holds neither picture bytes nor a path"),
    ],
    ids=["truncated", "text", "size", "depth", "nothing"],
)
def test_damaged_pictures_name_their_row(tmp_path, maker, make, said):
    """A picture that cannot be what the stream promises is an error with its row."""
    root = maker.make_v2(tmp_path / "d", [2], camera=False)
    one = encode(maker.picture(0, 0), "PNG")
    cells = pa.array([{"bytes": one}, {"bytes": make(one)}])
    maker.add_column(root, "cam", cells, "image", (32, 48, 3))
    with pytest.raises((DecodeError, SourceError), match=said + r".*stream=cam"):
        rows(LeRobotSource(root), 0, "cam")
