"""Disk images, which only root can mount: their size, and when they are used again."""

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.kernel import disk_images, mounts
from client_agent.sandbox.kernel.disk_images import MAX_TEMPLATES, DiskImage, ImagePool
from client_agent.sandbox.kernel.loop_ext4 import DiskImagesUnavailable
from shared.wire import Reason
from tests.kit.child import can, child_test, in_child
from tests.kit.disks import mounted
from tests.sandbox.real_sandbox import MIB, SETTINGS, SMALL, bash, opened, run

pytestmark = pytest.mark.skipif(not can("root"), reason="not root: disk images are not proved")

UID = 420_000


class Images:
    """A pool of images, in a child with mounts of its own."""

    def __init__(self, home: Path) -> None:
        self.mount_points, self.folder = home / "mount_points", home / "files"
        self.mount_points.mkdir()
        mounts.enter_private_namespace(self.mount_points)
        self.pool = ImagePool(self.folder, 16_384)

    def make(self, size: int = 8 * MIB) -> DiskImage:
        """One that a job may use."""
        image = self.pool.make(size, self.mount_points)
        image.make_job_folder(UID)
        return image

    def give_back(self, image: DiskImage, keep_idle: int = 2) -> bool:
        """Whether the next job of its size gets it."""
        self.pool.give_back(image, keep_idle=keep_idle)
        return self.pool.take_idle(image.disk) is image

    @property
    def names(self) -> list[str]:
        return sorted(path.name for path in self.folder.glob("*.img"))


def with_images(work: Callable[[Images], None]) -> Callable[[], None]:
    """A test in a child; all of its images can be discarded afterwards."""

    def child(home: Path) -> str:
        images = Images(home)
        try:
            work(images)
        except DiskImagesUnavailable as problem:
            return str(problem)
        images.pool.close()
        return ""

    def test() -> None:
        if problem := in_child(child, "root"):
            pytest.skip(f"{problem}: what disk images promise is not proved")

    return test


def fill(image: DiskImage, size: int) -> int:
    """Write up to ``size`` bytes; how many fit."""
    written = 0
    with (image.job / "big").open("wb", buffering=0) as file, suppress(OSError):
        while written < size:
            written += file.write(bytes(min(MIB, size - written)))
    return written


@with_images
def test_a_job_can_store_what_its_limit_says_and_no_more(images: Images) -> None:
    """In bytes, whatever the size, and in files."""
    for disk in (4 * MIB, 64 * MIB, 512 * MIB):
        image = images.make(disk)
        fs = os.statvfs(image.mount_point)
        assert abs(fs.f_bavail * fs.f_frsize - disk) <= 256 * 1024
        assert disk // 16_384 <= fs.f_ffree <= disk // 16_384 + 1100
        assert image.full() is None
        image.discard()
    image = images.make()
    written = fill(image, 64 * MIB)
    assert 7 * MIB < written <= 8 * MIB + 100_000
    assert image.used()[0] >= written
    assert image.full() == "bytes"
    image.discard()
    image, made = images.make(), 0
    with suppress(OSError):
        for made in range(5000):
            (image.job / str(made)).touch()
    assert 500 <= made < 1700
    assert image.full() == "files"


@with_images
def test_an_image_is_used_again_only_if_it_is_as_a_new_one_and_quickly(images: Images) -> None:
    def touch_many(image: DiskImage) -> None:
        for i in range(disk_images.MAX_REUSED_FILES + 1):
            (image.job / str(i)).touch()

    def store_much(image: DiskImage) -> None:
        fill(image, 80 * MIB)
        os.sync()

    def grow(image: DiskImage) -> None:
        store_much(image)
        (image.job / "big").unlink()

    leave: Callable[[DiskImage], object]
    for what, size, again, leave in (
        ("nothing", 8, True, lambda image: None),
        ("a little", 8, True, lambda image: fill(image, 2 * MIB)),
        ("folders", 8, True, lambda image: (image.job / "a/b/c").mkdir(parents=True)),
        ("what is beside", 8, False, lambda image: (image.mount_point / "beside").touch()),
        ("many files", 256, False, touch_many),
        ("much data", 256, False, store_much),
        ("a grown file", 256, False, grow),
    ):
        image = images.make(size * MIB)
        leave(image)
        assert images.give_back(image) == image.mount_point.exists() == again, what
        if again:
            image.discard()
        assert images.names == []
    image = images.make()
    with (image.job / "held").open("wb", buffering=0) as held:
        held.write(bytes(MIB))
        (image.job / "held").unlink()
        assert image.reset() is False, "deleted, but open"
    assert images.give_back(image, keep_idle=0) is False, "none is to be kept"


@with_images
def test_what_one_job_stored_cannot_be_read_by_the_next(images: Images) -> None:
    """Nor can a job reach the root of its image."""
    image = images.make()
    top = image.mount_point.stat()
    assert (top.st_uid, top.st_mode & 0o777, image.job.stat().st_uid) == (0, 0o711, UID)
    with (image.job / "f").open("wb", buffering=0) as file:
        file.write(b"secret" * 200_000)
        os.fsync(file.fileno())
    assert images.give_back(image)
    image.make_job_folder(UID + 1)
    with (image.job / "g").open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 7 * MIB)
    assert (image.job / "g").read_bytes().strip(b"\0")[:20] == b""
    assert [path.name for path in image.job.iterdir()] == ["g"]


@with_images
def test_several_threads_can_make_images_and_no_loop_device_is_left(images: Images) -> None:
    def loops() -> int:
        texts = []
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            with suppress(OSError):
                texts.append(backing.read_text())
        return sum(str(images.folder) in text for text in texts)

    with ThreadPoolExecutor(4) as threads:
        made = list(threads.map(lambda _: images.make(), range(4)))
    assert ([image.full() for image in made], loops()) == ([None] * 4, 4)
    for image in made:
        image.discard()
    assert loops() == 0


def no_loop_devices(fd: int) -> tuple[int, str]:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/loop8")


@with_images
def test_idle_images_are_discarded_if_a_new_one_needs_a_loop_device(images: Images) -> None:
    idle = images.make()
    images.pool.give_back(idle, keep_idle=4)
    real = disk_images.attach  # type: ignore[attr-defined]
    disk_images.attach = (  # type: ignore[attr-defined]
        lambda fd: no_loop_devices(fd) if idle.file.exists() else real(fd)
    )
    images.make(16 * MIB).discard()
    assert images.names == []


@with_images
def test_an_image_that_is_in_use_again_is_not_given_back_twice(images: Images) -> None:
    """While another image, which should be discarded, is in use."""
    held, image = images.make(), images.make(16 * MIB)
    images.pool.give_back(held, keep_idle=1)
    fd = os.open(held.mount_point, os.O_RDONLY)
    images.pool.give_back(image, keep_idle=1)  # no error: the caller would try again
    assert images.pool.take_idle(8 * MIB) is None, "it has another size"
    assert images.pool.take_idle(16 * MIB) is image
    assert held.mount_point.exists()
    os.close(fd)
    image.make_job_folder(UID)
    images.pool.close()  # also what could not be discarded before
    assert images.names == ["2.img"]


@with_images
def test_the_hosts_own_file_system_is_never_shut_down(images: Images) -> None:
    """Should the image not be where it was mounted."""
    image, calls = images.make(), list[int]()
    mounts.unmount(image.mount_point)
    real, fcntl.ioctl = fcntl.ioctl, lambda _, request, *__: calls.append(request) or 0  # type: ignore[assignment, func-returns-value]
    with pytest.raises(OSError, match="Invalid argument"):
        image.discard()
    fcntl.ioctl = real
    assert calls == []


@with_images
def test_templates_and_idle_images_are_few_whatever_sizes_are_used(images: Images) -> None:
    sizes = [(8 + number) * MIB for number in range(MAX_TEMPLATES + 4)]
    for size in sizes:
        images.pool.give_back(images.make(size), keep_idle=2)
    assert len(images.names) == 2
    assert len(list(images.folder.glob("template-*"))) == MAX_TEMPLATES
    images.make(sizes[0]).discard()  # its template was forgotten, and is made again
    images.pool.close()
    assert list(images.mount_points.glob("image.*")) == []


@child_test
async def test_without_a_free_loop_device_the_sandbox_is_broken(home: Path) -> None:
    """Also for other sizes than a job's: an idle image must not make the self-test pass."""
    async with opened(bash(""), home) as sandbox:
        await sandbox.self_test()
        disk_images.attach = no_loop_devices  # type: ignore[attr-defined]
        for attempt in (sandbox.self_test(), sandbox.prepare("a", 0, SMALL)):
            with pytest.raises(SandboxBroken, match=r"cannot mount a disk image: .*/dev/loop8"):
                await attempt
    assert list(home.rglob("*.img")) == []


@child_test
async def test_images_are_reset_and_discarded_in_a_thread(home: Path) -> None:
    on_loop = []
    async with opened(bash(""), home) as sandbox:
        workspaces = [await sandbox.prepare(f"a-{i}", 0, SMALL) for i in range(2)]
        pool = sandbox.host.images
        assert pool is not None
        real = pool.give_back

        def give_back(image: DiskImage, *, keep_idle: int) -> None:
            on_loop.append(threading.current_thread() is threading.main_thread())
            real(image, keep_idle=keep_idle)

        pool.give_back = give_back  # type: ignore[method-assign]
        for workspace in workspaces:
            await workspace.destroy()
    assert on_loop == [False, False]


def test_an_image_that_fills_the_agents_disk_ends_its_job_with_an_agent_error(tmp_path) -> None:
    script = "for i in $(seq 90); do head -c 1M /dev/zero >$i; sync $i; sleep 0.02; done\n"
    limits = SMALL.model_copy(update={"disk": 200 * MIB, "results": MIB})
    settings = replace(SETTINGS, free_floor=96 * MIB)
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=160m", "none"):
        ended = run(bash(script, limits=limits, settings=settings), "root", tmp_path / "disk").ended
    assert ended.reason is Reason.AGENT_ERROR
    assert "disk has less than" in ended.message
