"""From planes on a device to pictures of the batch, in torch: the one file of decoding that imports it.

8-bit 4:2:0 is converted and resized in the integers of `kernels.py`, so the bytes are those of the CPU path on every
device. 10-bit 4:2:0 stays within the tolerance stated for swscale, which is what the CPU path uses there.
"""

# Shapes: T frames, H height, W width, h and w of chroma, K taps, O output samples

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.pixels import swscale_coefficients, yuv_coefficients
from trajload.decode.resize import WEIGHT_BITS, axis_weights
from trajload.types import NDArray

if TYPE_CHECKING:
    import torch
    from av.video.frame import VideoFrame

    from trajload.refs import VideoIndex

__all__ = [
    "cuda_problem",
    "finish_on_device",
    "import_planes",
    "on_device",
    "resize_on_device",
    "write_rows",
    "yuv_to_rgb",
]

# Samples of one colour that are worked on at a time: the int32 copies of some ten planes of them stay near 700 MB.
_MAX_SAMPLES = 1 << 24


def current_device() -> int:
    """Return the CUDA device that this process has set, 0 where there is none."""
    import torch

    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def cuda_problem(device: int) -> str | None:
    """Return why torch cannot use CUDA device `device` here, or None if it can."""
    try:
        import torch
    except ImportError as err:
        return f"torch cannot be imported: {err}"
    if torch.version.cuda is None:
        return f"torch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "torch finds no CUDA device (no NVIDIA driver, or none is visible to this process)"
    if not 0 <= device < torch.cuda.device_count():
        return f"device {device} does not exist: torch sees {torch.cuda.device_count()}"
    return None


@contextmanager
def on_device(device: int | None) -> Iterator[None]:
    """Make the CUDA context that torch uses current, and its legacy default stream, for the block; None does nothing.

    FFmpeg then takes the current context. It would refuse the device's primary one, which is the same, once torch has
    made it with other flags. On one stream, copies stay behind the decoder's and before the next use of its surfaces.
    """
    if device is None:
        yield
        return
    import torch

    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.default_stream(device)):
        # the context of a thread is made by its first call that needs one
        torch.zeros(1, device=f"cuda:{device}")
        yield


def import_planes(frame: VideoFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """Return luma (H, W) and chroma (h, w, 2) of an NV12 or P010 frame, copied to memory of torch's own.

    16-bit samples come as int16, whose sign bit is their upper one: torch can do little with uint16. The capsule is
    passed on by hand, since torch would name its stream, which PyAV does not take; see `on_device`.
    """
    import torch

    planes = [torch.utils.dlpack.from_dlpack(plane.__dlpack__()) for plane in frame.planes]
    luma, chroma = (plane if plane.dtype == torch.uint8 else plane.view(torch.int16) for plane in planes)
    return luma.clone(), chroma.clone()


def yuv_to_rgb(y_THW: torch.Tensor, uv_Thw2: torch.Tensor, index: VideoIndex, *, is_left: bool = True) -> torch.Tensor:
    """Return uint8 RGB (T, 3, H, W) of 4:2:0 planes with interleaved chroma; h and w are halves of H and W, rounded up.

    uint8 planes hold 8-bit samples: at even heights the bytes are those of `kernels.yuv420_to_rgb`. Wider planes hold
    10-bit samples in the upper bits (P010). These, and odd heights, are near what swscale makes of them for the CPU path;
    there it matters whether chroma is sited left (`is_left`, as H.264 and HEVC have it) or nothing is known.
    """
    import torch

    if y_THW.dtype == torch.uint8 and index.height % 2 == 0:
        return _rgb_of_bytes(y_THW, uv_Thw2, index)
    return _rgb_interpolated(y_THW, uv_Thw2, index, is_left)


def _rgb_of_bytes(y_THW: torch.Tensor, uv_Thw2: torch.Tensor, index: VideoIndex) -> torch.Tensor:
    import torch

    gain, offset, red_v, green_u, green_v, blue_u = swscale_coefficients(
        index.pix_fmt, index.color_space, index.color_range
    ).tolist()
    # The same steps as the kernel, each product cut to its upper 16 bits; int32 holds what int16 does there.
    u, v = (((uv_Thw2[..., i].to(torch.int32) - 128) << 3) for i in (0, 1))
    chroma = ((v * red_v) >> 16, ((u * green_u) >> 16) + ((v * green_v) >> 16), (u * blue_u) >> 16)
    luma = (((y_THW.to(torch.int32) << 3) - offset) * gain) >> 16
    height, width = y_THW.shape[1:]
    out = torch.empty((len(y_THW), 3, height, width), dtype=torch.uint8, device=y_THW.device)
    for c, part in enumerate(chroma):
        full = part.repeat_interleave(2, dim=1).repeat_interleave(2, dim=2)[:, :height, :width]
        out[:, c] = (luma + full).clamp_(0, 255)
    return out


def _rgb_interpolated(y_THW: torch.Tensor, uv_Thw2: torch.Tensor, index: VideoIndex, is_left: bool) -> torch.Tensor:
    """Chroma mixed linearly between its rows, and between columns where swscale does that.

    The width decides: odd ones are mixed with centres at half integers, even ones get one chroma sample for each pair of
    pixels, at the pair's middle.
    """
    import torch

    height, width = y_THW.shape[1:]
    is_wide = y_THW.dtype != torch.uint8
    # Samples of 10 bits, whatever came in: they count quarters. Gains lose 2 of 16 fraction bits, so that int32 is enough.
    y, uv = ((x.to(torch.int32) & 0xFFFF) >> 6 if is_wide else x.to(torch.int32) << 2 for x in (y_THW, uv_Thw2))
    gain, offset, red_v, green_u, green_v, blue_u = (
        n >> 2 for n in yuv_coefficients(index.pix_fmt, index.color_space, index.color_range).tolist()
    )
    black = 0 if offset > 0 else 16 << 2
    # 4 fraction bits on top, as chroma has after mixing
    luma = ((y - black) << 4) * gain
    mixed = _mix_axis((uv - 512) << 4, height, 1)
    if width % 2:
        mixed = _mix_axis(mixed, width, 2)
    elif is_left:
        # A sample sited left of its pair stands a quarter before the pair's middle, where swscale wants one.
        after = torch.cat((mixed[:, :, 1:], mixed[:, :, -1:]), dim=2)
        mixed = ((3 * mixed + after + 2) >> 2).repeat_interleave(2, dim=2)
    else:
        mixed = mixed.repeat_interleave(2, dim=2)
    u, v = mixed[..., 0], mixed[..., 1]
    # swscale's path for even widths cuts fractions of limited range on its way, about a level in all; its others round.
    rounding = -(3 << 18) if black and width % 2 == 0 else 1 << 19
    out = torch.empty((len(y_THW), 3, height, width), dtype=torch.uint8, device=y_THW.device)
    for c, part in enumerate((v * red_v, u * green_u + v * green_v, u * blue_u)):
        out[:, c] = ((luma + part + rounding) >> 20).clamp_(0, 255)
    return out


def _mix_axis(chroma: torch.Tensor, num_out: int, dim: int) -> torch.Tensor:
    """Return int32 samples brought to `num_out` along `dim` by linear mixing, centres at half integers."""
    first_O, weight_OK = axis_weights(chroma.shape[dim], num_out)
    return _taps(chroma, first_O, weight_OK, dim, 1 << (WEIGHT_BITS - 1)) >> WEIGHT_BITS


def _taps(x: torch.Tensor, first_O: NDArray, weight_OK: NDArray, dim: int, start: int) -> torch.Tensor:
    """Return int32 `start` + the weighted sums of x's taps along `dim`; x may hold bytes."""
    import torch

    shape = [1] * x.dim()
    shape[dim] = len(first_O)
    first = torch.from_numpy(first_O.astype(np.int64)).to(x.device)
    weight = torch.from_numpy(np.ascontiguousarray(weight_OK.T)).to(x.device)
    size = list(x.shape)
    size[dim] = len(first_O)
    out = torch.full(size, start, dtype=torch.int32, device=x.device)
    for k in range(weight_OK.shape[1]):
        out += x.index_select(dim, first + k).to(torch.int32) * weight[k].reshape(shape)
    return out


def resize_on_device(rgb_TCHW: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return uint8 pictures resized to `size` (H, W): the integers of `kernels.resize`, hence the same bytes."""
    import torch

    rows = _taps(rgb_TCHW, *axis_weights(rgb_TCHW.shape[2], size[0]), 2, 1 << 7) >> 8
    return (_taps(rows, *axis_weights(rgb_TCHW.shape[3], size[1]), 3, 1 << 19) >> 20).to(torch.uint8)


def finish_on_device(
    y: list[torch.Tensor], uv: list[torch.Tensor], index: VideoIndex, size: tuple[int, int]
) -> torch.Tensor:
    """Return uint8 pictures (T, 3, H, W) of `size` from the planes of T frames: converted, resized and turned."""
    import torch

    step = max(1, _MAX_SAMPLES // (index.height * index.width))
    turned = size[::-1] if index.rotation in (90, 270) else size
    parts = []
    for start in range(0, len(y), step):
        rgb = yuv_to_rgb(torch.stack(y[start : start + step]), torch.stack(uv[start : start + step]), index)
        if tuple(rgb.shape[2:]) != turned:
            rgb = resize_on_device(rgb, turned)
        parts.append(torch.rot90(rgb, k=-index.rotation // 90, dims=(2, 3)) if index.rotation else rgb)
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def write_rows(pictures: torch.Tensor, rows: NDArray, out: NDArray | Any) -> None:
    """Write pictures (F, C, H, W) to `out[rows]`; `out` is an array of the host or a tensor of any device."""
    import torch

    target = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
    first, count = int(rows[0]), len(rows)
    if count == 1 or (np.diff(rows) == 1).all():
        # one copy, straight into the batch; it waits for the device
        target[first : first + count].copy_(pictures)
    else:
        target[torch.from_numpy(np.ascontiguousarray(rows)).to(target.device)] = pictures.to(target.device)
