"""A file system whose power can be cut: a loop device that is shut down without writing its journal back.

`FS_IOC_SHUTDOWN` with the flag "no log flush" stops an ext4 or xfs file system where it stands: what has not reached the
device by an fsync, or by the kernel's own write-back, is gone. Mounting again replays the journal as after a power cut.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from pathlib import Path
from types import TracebackType

__all__ = ["FILE_SYSTEMS", "PowerCutDisk", "why_not"]

FILE_SYSTEMS = {
    "ext4": (["mkfs.ext4", "-q", "-F"], "64M", "noatime"),
    "xfs": (["mkfs.xfs", "-q", "-f"], "320M", "noatime,nouuid"),
}
"""How each is made, the smallest image it can be made in, and mount options."""

_SHUTDOWN, _NO_LOG_FLUSH = 0x8004587D, struct.pack("I", 2)


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip()


class PowerCutDisk:
    """A mounted loop device in a folder; use as a context manager.

    Args:
        folder: Empty folder for the image and the mount point.
        kind: A key of `FILE_SYSTEMS`.
    """

    def __init__(self, folder: Path, kind: str) -> None:
        make, size, self._options = FILE_SYSTEMS[kind]
        self._kind, self.mount_point = kind, folder / "mnt"
        self.mount_point.mkdir(parents=True)
        image = folder / "image"
        _run("truncate", "-s", size, str(image))
        _run(*make, str(image))
        self._device = _run("losetup", "--find", "--show", str(image))
        self._mounted = False

    def _mount(self) -> None:
        _run("mount", "-t", self._kind, "-o", self._options, self._device, str(self.mount_point))
        self._mounted = True

    def cut(self) -> None:
        """Cut the power, and come back."""
        fd = os.open(self.mount_point, os.O_RDONLY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(fd)
        _run("umount", str(self.mount_point))
        self._mounted = False
        self._mount()

    def __enter__(self) -> PowerCutDisk:
        try:
            self._mount()
        except BaseException:
            _run("losetup", "--detach", self._device)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._mounted:
            try:
                _run("umount", str(self.mount_point))
            except OSError:
                _run("umount", "--lazy", str(self.mount_point))
        _run("losetup", "--detach", self._device)


def why_not(kind: str, folder: Path) -> str | None:
    """Return why the power of a file system cannot be cut here, or None; tries it in `folder`."""
    for program in (FILE_SYSTEMS[kind][0][0], "losetup", "mount"):
        if shutil.which(program) is None:
            return f"{program} is not installed"
    if os.geteuid() != 0:
        return "only root may mount"
    try:
        with PowerCutDisk(folder / kind, kind) as disk:
            (disk.mount_point / "written").write_bytes(b"x" * 5000)
            disk.cut()
            if (disk.mount_point / "written").exists() and (disk.mount_point / "written").stat().st_size:
                return "a cut does not lose what was only written: it would prove nothing"
    except OSError as error:
        return f"mounting is not allowed here: {error}"
    return None
