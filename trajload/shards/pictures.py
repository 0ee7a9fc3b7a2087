"""Pictures of one stream into members: encoded images, videos as they are, or frames to be encoded."""

# Shapes: N rows, H height, W width, C channels

from __future__ import annotations

import io
import tempfile
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trajload.errors import ConfigError, DecodeError, SourceError, words_of
from trajload.shards.values import EncodedStream, check_array, is_path
from trajload.spec import StreamSpec
from trajload.types import NDArray

if TYPE_CHECKING:
    from trajload.refs import VideoIndex
    from trajload.shards.video_encode import VideoEncode

__all__ = ["encode_images", "encode_video_stream"]

_JPEG_QUALITY = 95
_EXIF_ORIENTATION = 0x0112


def _frames(spec: StreamSpec, value: Any) -> NDArray:
    """Return frames (N, H, W, C) of the stream's dtype; gray ones may come as (N, H, W)."""
    ndim = getattr(value, "ndim", None)
    if spec.shape[2] == 1 and ndim == 3:
        value = value[..., None]
    return check_array(spec, value)


def encode_images(spec: StreamSpec, value: Any) -> EncodedStream:
    """Return one encoded picture for each row, from frames or from bytes that already are of the encoding."""
    if (
        isinstance(value, (list, tuple))
        and value
        and all(isinstance(item, (bytes, bytearray, memoryview)) for item in value)
    ):
        contents = tuple((_check_image(spec, bytes(item), row),) for row, item in enumerate(value))
    elif is_path(value) or isinstance(value, (bytes, bytearray)):
        raise ConfigError(
            f"stream {spec.name!r} has encoding {spec.encoding!r}: got {type(value).__name__}, expected frames "
            "(N, H, W, C) or a list of encoded pictures. Declare it with encoding='mp4' to store a video."
        )
    else:
        contents = tuple((_encode_image(spec, frame),) for frame in _frames(spec, value))
    return EncodedStream(spec.encoding, len(contents), False, contents, None)


def _encode_image(spec: StreamSpec, frame_HWC: NDArray) -> bytes:
    from PIL import Image

    picture = Image.fromarray(frame_HWC[..., 0] if frame_HWC.shape[2] == 1 else frame_HWC)
    out = io.BytesIO()
    if spec.encoding == "jpg":
        picture.save(out, "JPEG", quality=_JPEG_QUALITY, subsampling=0)
    else:
        picture.save(out, "PNG", compress_level=4)
    return out.getvalue()


def _check_image(spec: StreamSpec, data: bytes, row: int) -> bytes:
    """Return `data` if its header is of the stream's encoding and size; pixels are not decoded."""
    from PIL import Image

    wanted = {"jpg": "JPEG", "png": "PNG"}[spec.encoding]
    try:
        with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as picture:
            got, (width, height), orientation = (
                picture.format,
                picture.size,
                picture.getexif().get(_EXIF_ORIENTATION, 1),
            )
    except Exception as err:  # Pillow raises whatever its parsers meet in damaged bytes
        raise ConfigError(f"stream {spec.name!r} row {row} is not a {wanted} picture: {words_of(err)}.") from err
    if got != wanted:
        raise ConfigError(f"stream {spec.name!r} row {row} is a {got} picture: expected {wanted}.")
    if orientation in (5, 6, 7, 8):
        width, height = height, width
    if (height, width) != spec.shape[:2]:
        raise ConfigError(
            f"stream {spec.name!r} row {row} has the wrong size: got {height}x{width}, expected "
            f"{spec.shape[0]}x{spec.shape[1]} (height x width)."
        )
    return data


def encode_video_stream(
    spec: StreamSpec, value: Any, *, rate_hz: Fraction, encode: VideoEncode | None
) -> EncodedStream:
    """Return a video: a file as it is where its packets can be indexed, remuxed where not, or frames encoded.

    Raises:
        ConfigError: Wrong shape or dtype, or a video of another size than the stream's.
        SourceError, DecodeError: The file is no video, or one that cannot be read exactly.
    """
    from trajload.shards.video_encode import VideoEncode, encode_video

    if is_path(value) or isinstance(value, (bytes, bytearray, memoryview)):
        data, extension, index = _existing(spec, value)
    else:
        frames = _frames(spec, value)
        # Frames of one channel become lossless FFV1 whatever the settings: averaged depths invent surfaces.
        data, extension = encode_video(frames, rate_hz=rate_hz, encode=encode or VideoEncode())
        index = _index(data)
        if index.num_frames != len(frames):
            raise DecodeError(
                f"stream {spec.name!r} was encoded with {index.num_frames} frames: expected {len(frames)}. Try another codec."
            )
    height, width = (index.width, index.height) if index.rotation in (90, 270) else (index.height, index.width)
    if (height, width) != spec.shape[:2]:
        raise ConfigError(
            f"stream {spec.name!r} has the wrong size: got a video of {height}x{width}, expected "
            f"{spec.shape[0]}x{spec.shape[1]} (height x width, as shown)."
        )
    return EncodedStream(extension, index.num_frames, False, ((data,),), index)


def _index(data: bytes) -> VideoIndex:
    from trajload.shards.video_index import build_video_index

    return build_video_index(data)


def _container(data: bytes) -> str | None:
    """Return the extension for containers a shard may hold, by their first bytes."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "mkv"
    return None


def _existing(spec: StreamSpec, value: Any) -> tuple[bytes, str, VideoIndex]:
    """Return (bytes, extension, index) of a user's video file."""
    from trajload.shards.video_encode import remux_video

    if is_path(value):
        path = Path(value)
        try:
            data = path.read_bytes()
        except OSError as err:
            raise ConfigError(f"stream {spec.name!r}: file {str(path)!r} cannot be read: {err.strerror}.") from err
    else:
        data = bytes(value)
    extension = _container(data)
    if extension is not None:
        try:
            return data, extension, _index(data)
        except (DecodeError, SourceError):
            pass  # its packets may only be laid out badly; what remuxing cannot cure it refuses itself
    if is_path(value):
        data, extension = remux_video(value)
    else:
        with tempfile.NamedTemporaryFile(suffix=".video") as copy:
            copy.write(data)
            copy.flush()
            data, extension = remux_video(copy.name)
    return data, extension, _index(data)
