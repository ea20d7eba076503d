"""Disk images: each attempt of a root agent gets a small ext4 of its own as its disk limit.

A file system in a loop-mounted file counts bytes and inodes, also those of deleted files that are
still open, and can be deleted as a whole. Times measured on a virtual machine: copying an empty
template 0.2 ms (mkfs: 10 ms), loop 0.6, mount 0.7, unmount 0.9, unlink 0.8, and some RCU waits.

So an image is used again if it is the same as a new one: all processes of the last attempt are
dead, its directory is deleted, and the kernel counts as many free blocks and inodes as when the
image was new. All other images, and those whose file has grown, are discarded.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import structlog

from client_agent.sandbox.kernel import mounts
from client_agent.sandbox.kernel.loop_ext4 import (
    BLOCK,
    DiskImagesUnavailable,
    attach,
    copy_sparse,
    make_file_system,
    shut_down,
    usable_blocks,
)
from client_agent.storage.open_beneath import DISK_FULL_ERRNOS, SHORTAGE_ERRNOS
from client_agent.storage.remove_tree import remove_tree
from shared.files.opened import closing_fd

log: structlog.stdlib.BoundLogger = structlog.get_logger()

MIB: Final = 1 << 20
FULL_BELOW_BLOCKS: Final = 512
"""An image with fewer free blocks than this is full. The kernel refuses a write if the next piece
of page cache, up to 2 MiB, does not fit as a whole (seen: ENOSPC with 233 blocks free)."""
MAX_REUSED_BYTES: Final = 64 * MIB
"""An image whose file is larger than this is discarded, because files of images never shrink."""
MAX_REUSED_FILES: Final = 2000
"""An image with more files than this is discarded, because deleting them one by one takes long."""

MAX_TEMPLATES: Final = 8
"""Templates kept, one per size. Uploads choose the sizes, so their number must be limited."""

_SAFE_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_OPTIONS: Final = "noinit_itable,errors=remount-ro"


class DiskImage:
    """One mounted image. Its methods block.

    Attributes:
        job: the directory in it for an attempt, made by :meth:`make_job_folder`.
    """

    def __init__(self, file: Path, mount_point: Path, disk: int) -> None:
        self.file, self.mount_point, self.disk = file, mount_point, disk
        self.job = mount_point / "job"
        self._device = mount_point.stat().st_dev
        fs = os.statvfs(mount_point)
        self._free_when_new = (fs.f_bfree, fs.f_ffree)

    def make_job_folder(self, uid: int) -> None:
        """Make an empty directory that belongs to ``uid``. The root of the file system still
        belongs to root."""
        self.job.mkdir(mode=0o700)
        os.chown(self.job, uid, uid)

    def full(self) -> str | None:
        """What is used up according to the kernel, "bytes" or "files"; None: nothing."""
        fs = os.statvfs(self.mount_point)
        if fs.f_ffree == 0:
            return "files"
        threshold = min(FULL_BELOW_BLOCKS, self.disk // BLOCK // 16)
        return "bytes" if fs.f_bavail < threshold else None

    def used(self) -> tuple[int, int]:
        """Bytes and files in use."""
        fs = os.statvfs(self.mount_point)
        blocks, files = self._free_when_new
        return max(0, blocks - fs.f_bfree) * fs.f_frsize, max(0, files - fs.f_ffree)

    def worth_emptying(self) -> bool:
        """Whether deleting its files takes less than a new image."""
        used, files = self.used()
        return (
            files <= MAX_REUSED_FILES
            and used <= MAX_REUSED_BYTES
            and self.file.stat().st_blocks * 512 <= MAX_REUSED_BYTES
        )

    def reset(self) -> bool:
        """Delete the attempt's directory. Returns whether the image is the same as a new one,
        according to the kernel's count."""
        if not self.worth_emptying():
            return False
        try:
            remove_tree(self.job)
            fs = os.statvfs(self.mount_point)
        except OSError:
            return False
        return (fs.f_bfree, fs.f_ffree) == self._free_when_new

    def discard(self) -> None:
        """Unmount the image without writing anything back, and delete it. Raises OSError (EBUSY)
        if a process still uses it."""
        shut_down(self.mount_point, self._device)
        mounts.unmount(self.mount_point)
        self.mount_point.rmdir()
        self.file.unlink()


class ImagePool:
    """The images of one agent.

    Args:
        files: folder for the files, which only root may read.
        inode_every: bytes per inode.
    """

    def __init__(self, files: Path, inode_every: int) -> None:
        self._files, self._inode_every = files, inode_every
        self._idle: list[DiskImage] = []
        self._undiscarded: list[DiskImage] = []
        """Idle images that could not be discarded yet."""
        self._serial = 0
        self._make_lock = threading.Lock()
        self._idle_lock = threading.Lock()
        self._templates: dict[int, Path] = {}

    def take_idle(self, disk: int) -> DiskImage | None:
        """An idle image of that size, if there is one."""
        with self._idle_lock:
            for image in self._idle:
                if image.disk == disk:
                    self._idle.remove(image)
                    return image
        return None

    def make(self, disk: int, mount_points: Path) -> DiskImage:
        """Make an image of ``disk`` usable bytes. Blocking.

        Args:
            mount_points: folder in which to mount it.

        Raises:
            DiskImagesUnavailable: this host has no disk images, or no free loop device.
            OSError: no space is left.
        """
        try:
            return self._make(disk, mount_points)
        except DiskImagesUnavailable:
            if not self._discard_idle():  # they may use the last loop devices
                raise
            return self._make(disk, mount_points)

    def _make(self, disk: int, mount_points: Path) -> DiskImage:
        with self._make_lock:  # several threads may call this, and one mkfs is enough
            template = self._open_template(disk)
            self._serial += 1
            serial = self._serial
        mount_point = mount_points / f"image.{serial}"
        file = self._files / f"{serial}.img"
        try:
            with closing_fd(template):
                fd = copy_sparse(template, file)
            with closing_fd(fd):
                loop, device = attach(fd)
            with closing_fd(loop):  # from now on the mount keeps it
                mount_point.mkdir(mode=0o711)
                mounts.mount(device, mount_point, "ext4", mounts.NOSUID | mounts.NODEV, _OPTIONS)
                mount_point.chmod(0o711)
        except OSError as problem:
            with suppress(OSError):
                mount_point.rmdir()
            file.unlink(missing_ok=True)
            if problem.errno in SHORTAGE_ERRNOS | DISK_FULL_ERRNOS:
                raise
            raise DiskImagesUnavailable(f"cannot mount a disk image: {problem}") from problem
        return DiskImage(file, mount_point, disk)

    def give_back(self, image: DiskImage, *, keep_idle: int) -> None:
        """Give an image back after its attempt: keep it if that is safe, or discard it. Blocking.

        Args:
            keep_idle: keep at most so many idle images.
        """
        if not keep_idle or not image.reset():
            image.discard()
            return
        with self._idle_lock:
            self._idle.append(image)
            # The oldest is discarded, because its size may not be used any more.
            oldest = self._idle.pop(0) if len(self._idle) > keep_idle else None
        # No error is raised here: the caller would give back the image again, which the next
        # attempt may use already.
        if oldest is not None and not self._discard(oldest):
            log.warning("image.not_discarded", image=str(oldest.mount_point))

    def close(self) -> None:
        """Discard the idle images."""
        self._discard_idle()

    def _discard_idle(self) -> bool:
        """Discard the idle images; whether there were any."""
        with self._idle_lock:
            idle, self._idle, self._undiscarded = [*self._undiscarded, *self._idle], [], []
        return sum(self._discard(image) for image in idle) > 0

    def _discard(self, image: DiskImage) -> bool:
        """Discard an idle image. If that fails, it is tried again later."""
        try:
            image.discard()
        except OSError:
            with self._idle_lock:
                self._undiscarded.append(image)
            return False
        return True

    def _open_template(self, disk: int) -> int:
        """Open the template, an empty file system of that size."""
        file = self._templates.pop(disk, None) or self._make_template(disk)
        self._templates[disk] = file  # the last one is the most recently used
        fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        while len(self._templates) > MAX_TEMPLATES:
            self._templates.pop(next(iter(self._templates))).unlink(missing_ok=True)
        return fd

    def _make_template(self, disk: int) -> Path:
        mkfs = shutil.which("mkfs.ext4", path=_SAFE_PATH)
        if mkfs is None:
            raise DiskImagesUnavailable("mkfs.ext4 is not installed: apt install e2fsprogs")
        self._files.mkdir(mode=0o700, exist_ok=True)
        inodes = max(256, disk // self._inode_every + 16)  # ext4 uses a dozen itself
        file = self._files / f"template-{disk}.ext4"
        # The first one shows how many blocks mkfs needs for its tables.
        blocks = disk // BLOCK + inodes * 256 // BLOCK + 1024
        for _ in range(2):
            make_file_system(mkfs, file, blocks, inodes)
            blocks += disk // BLOCK - usable_blocks(file)
        return file
