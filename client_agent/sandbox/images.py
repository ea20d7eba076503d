"""Disk limits by the kernel: each attempt of a root agent gets a small ext4 of its own.

A file system in a loop-mounted file counts bytes and inodes, deleted-but-open files included, and
can be thrown away whole. What it costs, measured on the machine of SANDBOX.md: copying an empty
template 0.2 ms (mkfs: 10 ms), loop 0.6, mount 0.7, unmount 0.9, unlink 0.8, and some RCU waits
between. So an image is used again where that is provably the same as a new one: nobody of the
last attempt is alive, its directory is deleted, and the kernel's own count of free blocks and
inodes is what it was when the image was new. Anything else, and every image that has grown, is
discarded.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import struct
import subprocess
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

from client_agent.remove import remove_tree
from client_agent.sandbox import mounts

MIB: Final = 1 << 20
BLOCK: Final = 4096
ROOM: Final = 512
"""An image with fewer free blocks than this is full: the kernel refuses a write whose next piece of
page cache, up to 2 MiB, does not fit as a whole (seen: ENOSPC with 233 blocks free)."""
KEEP: Final = 64 * MIB
"""An image whose file has grown beyond this is discarded: blocks do not go back by themselves."""
FEW: Final = 2000
"""More files than this are discarded with their image rather than deleted one by one."""

LIGHT: Final = 64
LIGHT_BYTES: Final = 4 * MIB

_CTL_GET_FREE: Final = 0x4C82
_CONFIGURE: Final = 0x4C0A
_AUTOCLEAR: Final = 4
_DIRECT_IO: Final = 16
"""Without it every page of a job is cached twice, and unmounting has to write the second copy."""
_SHUTDOWN: Final = 0x8004587D
_NO_FLUSH: Final = struct.pack("<I", 2)
_SAFE_PATH: Final = "/usr/sbin:/sbin:/usr/bin:/bin"
_OPTIONS: Final = "noinit_itable,errors=remount-ro"


class NoImages(Exception):
    """This host has no loop-mounted images for us. The text says why."""


class Image:
    """One mounted image. Blocking methods.

    Attributes:
        job: the directory inside for an attempt; made by :meth:`open_for`.
    """

    def __init__(self, file: Path, place: Path, disk: int) -> None:
        self.file, self.place, self.disk = file, place, disk
        self.job = place / "job"
        self._device = place.stat().st_dev
        found = os.statvfs(place)
        self._pristine = (found.f_bfree, found.f_ffree)

    def open_for(self, uid: int) -> None:
        """An empty directory that belongs to ``uid``; the root of the file system stays
        root's."""
        self.job.mkdir(mode=0o700)
        os.chown(self.job, uid, uid)

    def full(self) -> str | None:
        """What has run out, "bytes" or "files", as the kernel counts; None: nothing."""
        found = os.statvfs(self.place)
        if found.f_ffree == 0:
            return "files"
        most = min(ROOM, self.disk // BLOCK // 16)
        return "bytes" if found.f_bavail < most else None

    def used(self) -> tuple[int, int]:
        """Bytes and files in use."""
        found = os.statvfs(self.place)
        blocks, files = self._pristine
        return max(0, blocks - found.f_bfree) * found.f_frsize, max(0, files - found.f_ffree)

    @property
    def light(self) -> bool:
        """So little is in it that wiping takes no longer than handing the work to a thread."""
        used, files = self.used()
        grown = self.file.stat().st_blocks * 512
        return files <= LIGHT and used <= LIGHT_BYTES and grown <= KEEP

    def wipe(self) -> bool:
        """Delete what the attempt left.

        Returns:
            Whether the image is as good as new, by the kernel's own count.
        """
        used, files = self.used()
        if files > FEW or used > KEEP or self.file.stat().st_blocks * 512 > KEEP:
            return False
        try:
            remove_tree(self.job)
            found = os.statvfs(self.place)
        except OSError:
            return False
        return (found.f_bfree, found.f_ffree) == self._pristine

    def discard(self) -> None:
        """Unmount without writing anything back, and delete.

        Raises:
            OSError: EBUSY: something still uses it.
        """
        _shut_down(self.place, self._device)
        mounts.unmount(self.place)
        self.place.rmdir()
        self.file.unlink()


class Images:
    """The images of one agent.

    Args:
        files: folder for the files, closed to everybody else.
        inode_every: one inode for so many bytes.
    """

    def __init__(self, files: Path, inode_every: int) -> None:
        self._files, self._inode_every = files, inode_every
        self._idle: list[Image] = []
        self._serial = 0
        self._making = threading.Lock()
        self._template: dict[int, Path] = {}

    def idle(self, disk: int) -> Image | None:
        """An image that is as good as new, if there is one."""
        for image in self._idle:
            if image.disk == disk:
                self._idle.remove(image)
                return image
        return None

    def make(self, disk: int, places: Path) -> Image:
        """A new image of ``disk`` usable bytes. Blocking.

        Args:
            places: folder in which to mount it.

        Raises:
            NoImages: this host cannot.
            OSError: no space.
        """
        with self._making:  # slots come from threads of their own, and one mkfs is enough
            template = self._template.get(disk) or self._make_template(disk)
            self._serial += 1
            serial = self._serial
        place = places / f"image.{serial}"
        file = self._files / f"{serial}.img"
        try:
            fd = _copy_sparse(template, file)
            try:
                loop, device = _attach(fd)
            finally:
                os.close(fd)
            try:
                place.mkdir(mode=0o711)
                mounts.mount(device, place, "ext4", mounts.NOSUID | mounts.NODEV, _OPTIONS)
                place.chmod(0o711)
            finally:
                os.close(loop)  # from now on the mount alone holds it
        except OSError as problem:
            with suppress(OSError):
                place.rmdir()
            file.unlink(missing_ok=True)
            if problem.errno in (errno.ENOSPC, errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            raise NoImages(f"cannot mount a disk image: {problem}") from problem
        return Image(file, place, disk)

    def put_back(self, image: Image, *, spare: int) -> None:
        """Take an image after its attempt: keep it where that is safe, else discard it. Blocking.

        Args:
            spare: how many idle images are worth keeping.
        """
        if image.wipe() and len(self._idle) < spare:
            self._idle.append(image)
        else:
            image.discard()

    def close(self) -> None:
        """Discard what is idle."""
        for image in self._idle:
            image.discard()
        self._idle.clear()

    def remove_left_over(self) -> None:
        """Delete the files that a former life left; they must not be mounted any more."""
        if self._files.is_dir():
            for entry in self._files.iterdir():
                entry.unlink()

    def _make_template(self, disk: int) -> Path:
        mkfs = shutil.which("mkfs.ext4", path=_SAFE_PATH)
        if mkfs is None:
            raise NoImages("mkfs.ext4 is not installed: apt install e2fsprogs")
        self._files.mkdir(mode=0o700, exist_ok=True)
        inodes = max(256, disk // self._inode_every + 16)  # ext4 keeps a dozen for itself
        file = self._files / f"template-{disk}.ext4"
        # a first guess, then what mkfs really took for its tables is known
        blocks = disk // BLOCK + inodes * 256 // BLOCK + 1024
        for _ in range(2):
            _make_file_system(mkfs, file, blocks, inodes)
            blocks += disk // BLOCK - usable_blocks(file)
        self._template[disk] = file
        return file


def _make_file_system(mkfs: str, file: Path, blocks: int, inodes: int) -> None:
    file.unlink(missing_ok=True)
    with file.open("wb") as out:
        out.truncate(blocks * BLOCK)
    # no journal: what a crash leaves is deleted anyway
    features = ["-O", "^has_journal,^resize_inode", "-E", "lazy_itable_init=1,nodiscard"]
    size = ["-m", "0", "-b", str(BLOCK), "-N", str(inodes)]
    command = [mkfs, "-q", "-F", *size, *features, str(file)]
    done = subprocess.run(command, capture_output=True, text=True, env={}, check=False)
    if done.returncode != 0:
        file.unlink()
        raise NoImages(f"mkfs.ext4 failed: {done.stderr.strip()}")


def usable_blocks(file: Path) -> int:
    """Blocks that a job can fill, from the superblock of an image that is not mounted."""
    with file.open("rb") as image:
        image.seek(1024)
        superblock = image.read(256)
    blocks, _, free = struct.unpack_from("<III", superblock, 4)
    reserved: int = min(blocks // 50, 4096)  # ext4's own, for metadata (reserved_clusters)
    return int(free) - reserved


def _shut_down(place: Path, device: int) -> None:
    """Make the file system forget what it has not written: unmounting 500 MB took 1.6 s else.

    Args:
        device: of the image. Where something else lies on ``place``, nothing is done: it would be
            the host's own file system that is shut down.
    """
    with suppress(OSError):
        beside = place.parent.stat().st_dev
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            found = os.fstat(fd).st_dev
            if found == device and found != beside:
                fcntl.ioctl(fd, _SHUTDOWN, _NO_FLUSH)
        finally:
            os.close(fd)


def _copy_sparse(source: Path, dest: Path) -> int:
    """Copy data, leave holes; a read-write descriptor of the copy."""
    out = os.open(dest, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        into = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(into).st_size
            os.ftruncate(out, size)
            at = 0
            while at < size:
                try:
                    at = os.lseek(into, at, os.SEEK_DATA)
                except OSError:
                    break  # only a hole is left
                end = os.lseek(into, at, os.SEEK_HOLE)
                while at < end:
                    copied = os.copy_file_range(into, out, end - at, at, at)
                    if copied == 0:
                        raise OSError(errno.EIO, "the template became shorter")
                    at += copied
        finally:
            os.close(into)
    except BaseException:
        os.close(out)
        raise
    return out


def _attach(fd: int) -> tuple[int, str]:
    """Attach a file to a free loop device, which detaches itself after its last user.

    Returns:
        A descriptor that keeps it until it is mounted, and its path.
    """
    control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
    try:
        for flags in (_AUTOCLEAR | _DIRECT_IO, _AUTOCLEAR):
            for _ in range(64):
                device = f"/dev/loop{fcntl.ioctl(control, _CTL_GET_FREE)}"
                loop = os.open(device, os.O_RDWR | os.O_CLOEXEC)
                info = struct.pack("<5Q4I", 0, 0, 0, 0, 0, 0, 0, 0, flags).ljust(232, b"\0")
                config = struct.pack("<II", fd, 4096) + info
                try:
                    fcntl.ioctl(loop, _CONFIGURE, config.ljust(304, b"\0"))
                except OSError as problem:
                    os.close(loop)
                    if problem.errno == errno.EBUSY:
                        continue  # somebody else was faster
                    if problem.errno == errno.EINVAL:
                        break  # no direct I/O on that disk
                    raise
                return loop, device
    finally:
        os.close(control)
    raise OSError(errno.EBUSY, "no free loop device")
