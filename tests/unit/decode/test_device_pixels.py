"""Conversion and resizing in torch: the CPU path's bytes where it has integers, near swscale elsewhere."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import av
import numpy as np
import pytest
import torch

from trajload.decode import DecodeContext, kernels
from trajload.decode.device_pixels import finish_on_device, import_planes, resize_on_device, write_rows, yuv_to_rgb
from trajload.decode.parity import compare_pictures
from trajload.decode.pixels import finish_picture, swscale_coefficients
from trajload.decode.resize import resize_planes
from trajload.errors import ConfigError
from trajload.refs import VideoIndex
from trajload.shards.video_codec import COLOR_RANGE_NUMBERS, COLOR_SPACE_NUMBERS

SIZES = [(48, 64), (46, 50), (48, 47), (2, 2), (2, 1)]
MATRICES = ["bt709", "bt470bg", "bt2020nc", "smpte240m", "fcc", "unspecified"]


def index_of(pix_fmt: str, size: tuple[int, int], space: str, range_: str, rotation: int = 0) -> VideoIndex:
    none = np.zeros(0, np.int64)
    empty = {name: none for name in VideoIndex.__slots__ if name[-2:] in ("_P", "_F", "_G")}
    return VideoIndex(
        codec="h264", extradata=b"", time_base=None, width=size[1], height=size[0], pix_fmt=pix_fmt,  # type: ignore[arg-type]
        color_space=space, color_range=range_, rotation=rotation, **empty,
    )  # fmt: skip


def noise_planes(size: tuple[int, int], seed: int = 4) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return 8-bit planes that hold every value, far out of gamut."""
    rng = np.random.default_rng(seed)
    half = ((size[0] + 1) // 2, (size[1] + 1) // 2)
    return tuple(rng.integers(0, 256, shape, dtype=np.uint8) for shape in (size, half, half))  # type: ignore[return-value]


def tensors(y: np.ndarray, u: np.ndarray, v: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.from_numpy(y)[None], torch.from_numpy(np.stack([u, v], axis=-1))[None]


def kernel_picture(y: np.ndarray, u: np.ndarray, v: np.ndarray, index: VideoIndex) -> np.ndarray:
    out = np.empty((3, *y.shape), np.uint8)
    coefficients = swscale_coefficients(index.pix_fmt, index.color_space, index.color_range)
    kernels.yuv420_to_rgb(y.reshape(-1), u.reshape(-1), v.reshape(-1), y.shape[1], u.shape[1], coefficients, out)
    return out


@pytest.mark.parametrize("space", MATRICES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_eight_bit_conversion_is_the_kernels_bytes(size: tuple[int, int], space: str) -> None:
    """Every matrix, range and size, on noise over all sample values: not one byte differs."""
    planes = noise_planes(size)
    for pix_fmt, range_ in (
        ("yuv420p", "limited"),
        ("yuv420p", "full"),
        ("yuvj420p", "full"),
        ("yuv420p", "unspecified"),
    ):
        index = index_of(pix_fmt, size, space, range_)
        got = yuv_to_rgb(*tensors(*planes), index)[0].numpy()
        assert np.array_equal(got, kernel_picture(*planes, index)), (pix_fmt, range_)


def natural(size: tuple[int, int]) -> np.ndarray:
    y, x = np.mgrid[0 : size[0], 0 : size[1]] / max(size)
    base = np.stack([np.sin(5 * x + 2 * y), np.cos(4 * y - x), np.sin(3 * (x + y))], axis=-1) * 110 + 128
    return np.clip(base + np.random.default_rng(2).normal(0, 3, base.shape), 0, 255).astype(np.uint8)


def frame_of(pix_fmt: str, size: tuple[int, int], space: str, range_: str) -> av.VideoFrame:
    frame = av.VideoFrame.from_ndarray(natural(size), format="rgb24").reformat(format=pix_fmt)
    frame.colorspace, frame.color_range = COLOR_SPACE_NUMBERS[space], COLOR_RANGE_NUMBERS[range_]
    return frame


def semi_planar(frame: av.VideoFrame, bits: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the tensors a device would hold: chroma interleaved; 10-bit samples in the upper bits."""
    planes = []
    for plane, component in zip(frame.planes, frame.format.components, strict=True):
        rows = np.frombuffer(plane, np.uint8).view(np.uint8 if bits == 8 else np.uint16)
        rows = rows.reshape(component.height, -1)[:, : component.width]
        planes.append(rows << 6 if bits == 10 else rows)
    return tensors(*(np.ascontiguousarray(p) for p in planes))


@pytest.mark.parametrize("range_", ["limited", "full", "unspecified"])
@pytest.mark.parametrize("size", [(48, 64), (46, 50), (47, 64), (33, 47), (48, 47)], ids=str)
@pytest.mark.parametrize(("pix_fmt", "bits"), [("yuv420p", 8), ("yuv420p10le", 10)])
def test_conversion_is_near_swscale(pix_fmt: str, bits: int, size: tuple[int, int], range_: str) -> None:
    """8 and 10 bits, odd sizes: mean difference at most 1 of 255 and PSNR at least 42 dB against swscale."""
    for space in ("bt709", "unspecified"):
        frame = frame_of(pix_fmt, size, space, range_)
        index = index_of(pix_fmt, size, space, range_)
        got = yuv_to_rgb(*semi_planar(frame, bits), index, is_left=False)[0].numpy()
        parity = compare_pictures(got, np.ascontiguousarray(frame.to_ndarray(format="rgb24").transpose(2, 0, 1)))
        assert parity.is_within, (space, str(parity))


@pytest.mark.parametrize("range_", ["limited", "full"])
@pytest.mark.parametrize("size", [(48, 64), (47, 64), (48, 47), (33, 47)], ids=str)
def test_ten_bit_noise_is_near_swscale(size: tuple[int, int], range_: str) -> None:
    """Chroma that jumps from sample to sample shows which upsampling is meant: any other gives 22 dB."""
    rng = np.random.default_rng(9)
    frame = av.VideoFrame(size[1], size[0], "yuv420p10le")
    for plane in frame.planes:
        plane.update(rng.integers(200, 820, plane.buffer_size // 2, dtype=np.uint16).tobytes())
    frame.colorspace, frame.color_range = COLOR_SPACE_NUMBERS["bt709"], COLOR_RANGE_NUMBERS[range_]
    got = yuv_to_rgb(*semi_planar(frame, 10), index_of("yuv420p10le", size, "bt709", range_), is_left=False)[0].numpy()
    parity = compare_pictures(got, np.ascontiguousarray(frame.to_ndarray(format="rgb24").transpose(2, 0, 1)))
    assert parity.is_within and parity.max_abs <= 4, str(parity)


@pytest.mark.parametrize("size", [(24, 32), (128, 128), (7, 90), (48, 64), (1, 1), (47, 63)], ids=str)
def test_resize_is_the_kernels_bytes(size: tuple[int, int]) -> None:
    """Down, up and mixed: the torch resize gives what the compiled one gives."""
    pictures = np.random.default_rng(5).integers(0, 256, (2, 3, 48, 64), dtype=np.uint8)
    wanted = np.empty((2, 3, *size), np.uint8)
    context = DecodeContext()
    for picture, out in zip(pictures, wanted, strict=True):
        resize_planes(picture, out, context)
    assert np.array_equal(resize_on_device(torch.from_numpy(pictures), size).numpy(), wanted)


@pytest.mark.parametrize("rotation", [0, 90, 180, 270])
def test_turned_and_resized_is_the_cpu_order(rotation: int) -> None:
    """Resized before it is turned, as `finish_picture` does it."""
    planes, size = noise_planes((48, 64)), (20, 30)
    index = index_of("yuv420p", (48, 64), "bt709", "limited", rotation)
    wanted = np.empty((3, *size), np.uint8)
    finish_picture(kernel_picture(*planes, index), wanted, rotation, True, DecodeContext())
    y, uv = tensors(*planes)
    assert np.array_equal(finish_on_device([y[0]], [uv[0]], index, size)[0].numpy(), wanted)


def test_many_frames_are_worked_on_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A window too large for one go gives the same pictures."""
    from trajload.decode import device_pixels

    index = index_of("yuv420p", (48, 64), "bt709", "limited")
    stacks = [tensors(*noise_planes((48, 64), seed)) for seed in range(5)]
    y, uv = [a[0] for a, _ in stacks], [b[0] for _, b in stacks]
    whole = finish_on_device(y, uv, index, (48, 64))
    monkeypatch.setattr(device_pixels, "_MAX_SAMPLES", 2 * 48 * 64)
    assert torch.equal(finish_on_device(y, uv, index, (48, 64)), whole) and len(whole) == 5


@pytest.mark.parametrize("pix_fmt", ["nv12", "p010le"])
def test_planes_come_over_by_dlpack(pix_fmt: str) -> None:
    """PyAV's planes become tensors of torch's own memory, row padding left behind."""
    frame = frame_of(pix_fmt, (48, 50), "bt709", "limited")
    y, uv = import_planes(frame)
    kind = np.uint8 if pix_fmt == "nv12" else np.int16
    luma = np.frombuffer(frame.planes[0], np.uint8).view(kind).reshape(48, -1)[:, :50]
    assert y.shape == (48, 50) and uv.shape == (24, 25, 2) and y.is_contiguous() and uv.is_contiguous()
    assert np.array_equal(y.numpy(), luma)


@pytest.mark.parametrize("rows", [[2, 3, 4], [4, 0, 2], [3]], ids=str)
@pytest.mark.parametrize("kind", ["array", "tensor"])
def test_rows_are_written_where_they_belong(rows: list[int], kind: str) -> None:
    """Runs and scattered rows, into host arrays and tensors; other rows are left alone."""
    pictures = torch.arange(len(rows) * 3, dtype=torch.uint8).reshape(-1, 3, 1, 1) + 1
    out: Any = np.zeros((6, 3, 1, 1), np.uint8)
    write_rows(pictures, np.array(rows), out if kind == "array" else torch.from_numpy(out))
    assert np.array_equal(out[rows], pictures.numpy()) and out.any(axis=(1, 2, 3)).sum() == len(rows)


def test_parity_tells_near_from_far() -> None:
    """One level everywhere is within the bound, two are not; shapes must agree."""
    base = np.full((2, 3, 8, 8), 100, np.uint8)
    assert compare_pictures(base, base).is_equal and str(compare_pictures(base, base)) == "equal bytes"
    one, two = compare_pictures(base + 1, base), compare_pictures(base + 2, base)
    assert (one.mean_abs, one.max_abs, one.is_within, one.is_equal) == (1.0, 1, True, False)
    assert not two.is_within and "PSNR 42.1 dB" in str(two)
    with pytest.raises(ConfigError, match="cannot be compared: expected equal shapes of uint8"):
        compare_pictures(base, base[:1])


def test_unknown_tag_would_change_the_picture() -> None:
    """BT.601 and BT.709 differ here too: equality above is not by chance."""
    planes, index = noise_planes((48, 64)), index_of("yuv420p", (48, 64), "bt709", "limited")
    other = yuv_to_rgb(*tensors(*planes), replace(index, color_space="bt470bg"))
    assert not torch.equal(yuv_to_rgb(*tensors(*planes), index), other)
