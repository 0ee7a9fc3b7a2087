"""Who decodes a window: asked for, or found out; the software twin of the device stands in where there is no device."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from in_threads import in_threads

from trajload.decode import DecodeContext, plan_reads
from trajload.decode.devices import VideoDevices, video_devices
from trajload.decode.nvdec import NvdecStatus
from trajload.decode.plan import Blobs, plan_video
from trajload.errors import ConfigError, DecodeError, MissingDependencyError, ShardCorruptError
from trajload.spec import Image
from trajload.types import Modality

SOFTWARE = NvdecStatus(True, "libav's software decoder", None)
NOTHING = NvdecStatus(False, "torch finds no CUDA device")


@pytest.fixture(scope="module")
def made(tools: Any) -> tuple[bytes, Any, Any]:
    data = tools.make_video(tools.Recipe("h264", "libx264", options=(("bf", "2"),)))
    track = tools.whole_track(data)
    return data, track, tools.video_spec(track)


def test_cpu_needs_no_one_to_decide() -> None:
    """The default mode costs nothing: there is no object, and no device is looked for."""
    assert video_devices("cpu") is None


def test_unknown_mode_is_named() -> None:
    """Allowed modes stand in the message."""
    with pytest.raises(ConfigError, match=r"decode='gpu' is unknown: expected one of 'cpu', 'auto', 'cuda'"):
        video_devices("gpu")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"num_threads=0 is invalid: expected at least 1"):
        VideoDevices("auto", NOTHING, num_threads=0)


def test_cuda_without_a_device_says_what_is_missing() -> None:
    """A device that cannot exist is refused before any data is touched, with what to do."""
    with pytest.raises(
        MissingDependencyError, match=r"decode='cuda' cannot be used here: .+ or use decode='auto' or 'cpu'"
    ):
        video_devices("cuda", device=9999)


@pytest.mark.skipif(torch.cuda.is_available(), reason="checks the words on a machine without a GPU")
def test_cuda_on_this_machine_names_the_missing_part() -> None:
    """Torch's build or the driver: the message says which."""
    with pytest.raises(MissingDependencyError, match=r"built without CUDA|finds no CUDA device"):
        video_devices("cuda")


def test_auto_without_a_device_is_the_cpu_with_a_reason(made: Any, tools: Any) -> None:
    """The same bytes as ever, and the report says why no device was used."""
    data, track, spec = made
    devices = VideoDevices("auto", NOTHING)
    context = DecodeContext(devices=devices)
    for rows in ([0, 5], [7]):
        got = tools.get_rows(track, data, rows, spec, context=context)
        assert np.array_equal(got, tools.get_rows(track, data, rows, spec))
    report = devices.report()
    assert (report["mode"], report["is_available"], report["windows"]) == ("auto", False, {"cpu": 2, "cuda": 0})
    (stream,) = report["streams"]
    assert (stream["device"], stream["reason"]) == ("cpu", "torch finds no CUDA device")
    assert (stream["codec"], stream["pix_fmt"], stream["size"]) == ("h264", "yuv420p", (48, 64))


def test_auto_on_this_machine_gives_the_cpu_paths_bytes(made: Any, tools: Any) -> None:
    """With a GPU or without one: `decode="auto"` changes no byte of 8-bit video."""
    data, track, spec = made
    context = DecodeContext(devices=video_devices("auto"))
    for rows in ([0, 5], [7], [3, 4, 5], [9], [11], [20, 2]):
        assert np.array_equal(
            tools.get_rows(track, data, rows, spec, context=context), tools.get_rows(track, data, rows, spec)
        )
    context.close()


def test_auto_stays_with_the_cpu_where_its_threads_are_faster(made: Any, tools: Any) -> None:
    """After one warm and three timed windows the figures decide; a million threads beat anything."""
    data, track, spec = made
    devices = VideoDevices("auto", SOFTWARE, num_threads=1_000_000)
    context = DecodeContext(devices=devices)
    for i in range(6):
        assert devices.report()["streams"] == [] or devices.report()["streams"][0]["num_compared"] == min(i, 4)
        tools.get_rows(track, data, [i, i + 3], spec, context=context)
    (stream,) = devices.report()["streams"]
    assert stream["device"] == "cpu" and stream["num_compared"] == 4 and stream["parity"]["max_abs"] == 0
    assert stream["cpu_s"] > 0 and stream["cuda_s"] > 0
    assert "ms a window on the device" in stream["reason"] and "1000000 CPU threads" in stream["reason"]
    assert devices.report()["windows"] == {"cpu": 6, "cuda": 4}


def decode_by_hand(
    devices: VideoDevices, context: DecodeContext, made: Any, rows: list[int], delay_s: float, tools: Any
) -> np.ndarray:
    """Decode a window with a CPU path that sleeps on top."""
    data, track, spec = made
    store = tools.MemoryStore(data)
    reads = plan_video(track, np.asarray(rows))
    source = Blobs(reads, [store.read(r) for r in reads])
    out = np.full((len(rows), 3, 48, 64), 9, np.uint8)

    def on_cpu(target: np.ndarray) -> None:
        time.sleep(delay_s)
        target[...] = tools.get_rows(track, data, rows, spec)

    devices.decode(track, reads, source, out, spec=spec, on_cpu=on_cpu, decoders=context.device_decoder)
    return out


def test_auto_moves_to_a_device_that_is_faster_and_equal(made: Any, tools: Any) -> None:
    """A CPU path made slow loses the calibration; bytes are the same before, during and after."""
    data, track, spec = made
    devices = VideoDevices("auto", SOFTWARE)
    context = DecodeContext(devices=devices)
    for i in range(7):
        rows = [i, i + 9]
        got = decode_by_hand(devices, context, made, rows, 0.25, tools)
        assert np.array_equal(got, tools.get_rows(track, data, rows, spec)), i
    (stream,) = devices.report()["streams"]
    assert stream["device"] == "cuda" and stream["cuda_s"] < stream["cpu_s"]
    assert devices.report()["windows"] == {"cpu": 4, "cuda": 7}


def test_auto_refuses_a_device_with_other_bytes(tools: Any) -> None:
    """10-bit pictures are near, not equal: under "auto" the CPU keeps them, so a batch does not depend on the machine."""
    data = tools.make_video(tools.Recipe("h264", "libx264", pix_fmt="yuv420p10le"))
    track = tools.whole_track(data)
    devices = VideoDevices("auto", SOFTWARE)
    context = DecodeContext(devices=devices)
    for _ in range(3):
        got = tools.get_rows(track, data, [4, 5], tools.video_spec(track), context=context)
        assert np.array_equal(got, tools.get_rows(track, data, [4, 5], tools.video_spec(track)))
    (stream,) = devices.report()["streams"]
    assert stream["device"] == "cpu" and "bytes differ from the CPU's: mean difference 0." in stream["reason"]


def test_cuda_mode_delivers_the_devices_pictures_once_compared(tools: Any) -> None:
    """Each kind of stream is compared once; near is enough where the device was asked for."""
    data = tools.make_video(tools.Recipe("h264", "libx264", pix_fmt="yuv420p10le"))
    track = tools.whole_track(data)
    devices = VideoDevices("cuda", SOFTWARE)
    context = DecodeContext(devices=devices)
    first, second = (tools.get_rows(track, data, [4, 5, 4], tools.video_spec(track), context=context) for _ in range(2))
    wanted = tools.get_rows(track, data, [4, 5, 4], tools.video_spec(track))
    assert np.array_equal(first, second) and not np.array_equal(first, wanted)
    assert np.array_equal(first[0], first[2]) and np.abs(first.astype(int) - wanted).mean() <= 1
    (stream,) = devices.report()["streams"]
    assert stream["device"] == "cuda" and stream["num_compared"] == 1
    assert devices.report()["windows"] == {"cpu": 1, "cuda": 2}


def test_cuda_mode_names_colour_video_a_device_cannot_decode(tools: Any) -> None:
    """Asked for and impossible is an error with the reason; depth stays with the CPU without one."""
    devices = VideoDevices("cuda", SOFTWARE)
    context = DecodeContext(devices=devices)
    data = tools.make_video(tools.Recipe("h264", "libx264", pix_fmt="yuv444p"))
    track = tools.whole_track(data)
    with pytest.raises(
        ConfigError, match=r"decode='cuda' cannot decode stream 'cam': pixel format 'yuv444p' .*Use decode='auto'"
    ):
        tools.get_rows(track, data, [0], tools.video_spec(track), context=context)
    depth = tools.make_video(tools.Recipe("depth", "ffv1", container="matroska", pix_fmt="gray16le", gop=1))
    track = tools.whole_track(depth)
    spec = tools.video_spec(track, Modality.DEPTH, "uint16")
    assert np.array_equal(
        tools.get_rows(track, depth, [3], spec, context=context), tools.get_rows(track, depth, [3], spec)
    )


@pytest.mark.parametrize("mode", ["auto", "cuda"])
def test_device_that_cannot_be_opened_is_told_from_bad_data(mode: Any, made: Any, tools: Any) -> None:
    """PyAV is asked for a CUDA device that does not exist: "auto" goes on with the CPU, "cuda" says what failed."""
    data, track, spec = made
    devices = VideoDevices(mode, NvdecStatus(True, "claimed", 9999))
    context = DecodeContext(devices=devices)
    if mode == "cuda":
        with pytest.raises(
            DecodeError, match=r"CUDA device 9999 cannot decode h264 64x48 yuv420p, the CPU can: .*Use decode='auto'"
        ):
            tools.get_rows(track, data, [1], spec, context=context)
        return
    for _ in range(2):
        assert np.array_equal(
            tools.get_rows(track, data, [1], spec, context=context), tools.get_rows(track, data, [1], spec)
        )
    (stream,) = devices.report()["streams"]
    assert stream["device"] == "cpu" and stream["reason"].startswith("the device failed where the CPU did not: ")


def test_damaged_bytes_stay_the_datas_fault(made: Any, tools: Any) -> None:
    """A checksum that fails is reported as ever, and no device is given up for it."""
    data, track, spec = made
    devices = VideoDevices("cuda", SOFTWARE)
    context = DecodeContext(devices=devices)
    tools.get_rows(track, data, [1], spec, context=context)
    place = int(track.index.offset_P[2]) + 3
    with pytest.raises(ShardCorruptError):
        tools.get_rows(track, data[:place] + b"\x99" + data[place + 1 :], [1], spec, context=context)
    assert devices.report()["streams"][0]["device"] == "cuda"


def test_threads_share_one_choice(made: Any, tools: Any) -> None:
    """Eight threads decode at once while one of them calibrates: right bytes everywhere, one entry, four comparisons."""
    data, track, spec = made
    devices = VideoDevices("auto", SOFTWARE, num_threads=8)
    wanted = tools.get_rows(track, data, range(36), spec, Image(size=(30, 30)))
    failures: list[Any] = []

    def work(k: int) -> None:
        context = DecodeContext(devices=devices)
        for i in range(12):
            row = (7 * k + 5 * i) % 36
            if not np.array_equal(
                tools.get_rows(track, data, [row], spec, Image(size=(30, 30)), context)[0], wanted[row]
            ):
                failures.append((k, row))
        context.close()

    in_threads(work, range(8))
    assert not failures
    (stream,) = devices.report()["streams"]
    assert stream["num_compared"] == 4 and stream["device"] in ("cpu", "cuda")
    assert plan_reads(track, np.array([0]))
