"""From planes on a device to pictures of the batch, in torch: the one file of decoding that imports it.

8-bit 4:2:0 is converted and resized in the integers of `kernels.py`, so the bytes are those of the CPU path on every
device. 10-bit 4:2:0 stays within the tolerance stated for swscale, which is what the CPU path uses there.
"""

# Shapes: T frames, H height, W width, h and w of chroma, K taps, O output samples

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trajload.decode.pixels import swscale_coefficients, yuv_coefficients
from trajload.decode.resize import axis_weights
from trajload.types import NDArray

if TYPE_CHECKING:
    import torch
    from av.video.frame import VideoFrame

    from trajload.refs import VideoIndex

__all__ = ["cuda_problem", "finish_on_device", "import_planes", "resize_on_device", "write_rows", "yuv_to_rgb"]

# Samples of one colour that are worked on at a time: the int32 copies of some ten planes of them stay near 700 MB.
_MAX_SAMPLES = 1 << 24


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


def import_planes(frame: VideoFrame) -> tuple[torch.Tensor, torch.Tensor]:
    """Return luma (H, W) and chroma (h, w, 2) of an NV12 or P010 frame, copied to memory of torch's own.

    The capsule is passed on by hand: torch would name its stream, which PyAV does not take. Both work on the legacy
    default stream, which keeps the copy behind the decoder's and before the next use of the surface.
    """
    import torch

    luma, chroma = (torch.utils.dlpack.from_dlpack(plane.__dlpack__()) for plane in frame.planes)
    return luma.clone(), chroma.clone()


def yuv_to_rgb(y_THW: torch.Tensor, uv_Thw2: torch.Tensor, index: VideoIndex) -> torch.Tensor:
    """Return uint8 RGB (T, 3, H, W) of 4:2:0 planes with interleaved chroma; h and w are halves of H and W, rounded up.

    uint8 planes hold 8-bit samples: each chroma sample is repeated, and even heights equal `kernels.yuv420_to_rgb` in
    every bit. Wider planes hold 10-bit samples in the upper bits (P010): chroma is repeated along rows and mixed 3:1
    between them, which is what swscale does.
    """
    import torch

    if y_THW.dtype == torch.uint8:
        return _rgb_of_bytes(y_THW, uv_Thw2, index)
    return _rgb_of_words(y_THW, uv_Thw2, index)


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


def _rgb_of_words(y_THW: torch.Tensor, uv_Thw2: torch.Tensor, index: VideoIndex) -> torch.Tensor:
    import torch

    gain, _, red_v, green_u, green_v, blue_u = yuv_coefficients(
        index.pix_fmt, index.color_space, index.color_range
    ).tolist()
    is_limited = index.color_range != "full"
    # A 10-bit sample counts a quarter of an 8-bit one, so gains keep 14 of their 16 bits after the last shift.
    # Full range is 1023 there, not 255 * 4.
    scale = 1.0 if is_limited else 255 * 4 / 1023
    gain, red_v, green_u, green_v, blue_u = (round(g * scale) for g in (gain, red_v, green_u, green_v, blue_u))
    luma = ((y_THW.to(torch.int32) >> 6) - (64 if is_limited else 0)) * gain
    height, width = y_THW.shape[1:]
    near = (uv_Thw2.to(torch.int32) >> 6) - 512
    rows = torch.arange(height, device=y_THW.device)
    other = (rows // 2 + (rows % 2) * 2 - 1).clamp_(0, near.shape[1] - 1)
    mixed = 3 * near[:, rows // 2] + near[:, other]
    u, v = mixed[..., 0], mixed[..., 1]
    # a quarter of each product: the mix is of four
    chroma = ((v * (red_v >> 2)), (u * (green_u >> 2)) + (v * (green_v >> 2)), (u * (blue_u >> 2)))
    out = torch.empty((len(y_THW), 3, height, width), dtype=torch.uint8, device=y_THW.device)
    for c, part in enumerate(chroma):
        full = part.repeat_interleave(2, dim=2)[:, :, :width]
        # swscale cuts fractions twice on its way; half a level less is its mean
        out[:, c] = ((luma + full - (1 << 17)) >> 18).clamp_(0, 255)
    return out


def resize_on_device(rgb_TCHW: torch.Tensor, size: tuple[int, int]) -> torch.Tensor:
    """Return uint8 pictures resized to `size` (H, W): the integers of `kernels.resize`, hence the same bytes."""
    import torch

    def taps(num_in: int, num_out: int) -> tuple[torch.Tensor, torch.Tensor]:
        first_O, weight_OK = axis_weights(num_in, num_out)
        first = torch.from_numpy(first_O.astype(np.int64)).to(rgb_TCHW.device)
        return first, torch.from_numpy(np.ascontiguousarray(weight_OK.T)).to(rgb_TCHW.device)

    first, weight_KO = taps(rgb_TCHW.shape[2], size[0])
    rows = torch.full((*rgb_TCHW.shape[:2], size[0], rgb_TCHW.shape[3]), 128, dtype=torch.int32, device=first.device)
    for k in range(len(weight_KO)):
        rows += rgb_TCHW.index_select(2, first + k).to(torch.int32) * weight_KO[k][:, None]
    rows >>= 8
    first, weight_KO = taps(rgb_TCHW.shape[3], size[1])
    out = torch.full((*rgb_TCHW.shape[:2], *size), 1 << 19, dtype=torch.int32, device=first.device)
    for k in range(len(weight_KO)):
        out += rows.index_select(3, first + k) * weight_KO[k]
    return (out >> 20).to(torch.uint8)


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
