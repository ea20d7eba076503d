"""Disk images, which only root can mount: their size, and when they are used again."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.kernel import disk_images, mounts
from client_agent.sandbox.kernel.disk_images import MAX_TEMPLATES, DiskImage, ImagePool
from client_agent.sandbox.kernel.loop_ext4 import DiskImagesUnavailable
from shared.wire import Reason
from tests.kit.disks import mounted
from tests.kit.real_sandbox import MIB, SETTINGS, SMALL, bash, can, in_child, opened, run

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


def with_images(work: Callable[[Images], Any]) -> Any:
    """Call ``work`` in a child; all of its images can be discarded afterwards."""

    def child(home: Path) -> Any:
        images = Images(home)
        try:
            result = work(images)
        except DiskImagesUnavailable as problem:
            return str(problem), None
        images.pool.close()
        return "", result

    problem, answer = in_child(child, "root")
    if problem:
        pytest.skip(f"{problem}: what disk images promise is not proved")
    return answer


def fill(image: DiskImage, size: int) -> int:
    """Write up to ``size`` bytes; how many fit."""
    written = 0
    with (image.job / "big").open("wb", buffering=0) as file, until_full():
        while written < size:
            written += file.write(bytes(min(MIB, size - written)))
    return written


@contextmanager
def until_full() -> Any:
    try:
        yield
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise


def test_a_job_can_store_what_its_limit_says_and_no_more() -> None:
    """In bytes, whatever the size, and in files."""

    def work(images: Images) -> Any:
        rooms = []
        for disk in (4 * MIB, 64 * MIB, 512 * MIB):
            image = images.make(disk)
            fs = os.statvfs(image.mount_point)
            rooms.append((disk, fs.f_bavail * fs.f_frsize, fs.f_ffree, image.full()))
            image.discard()
        image = images.make()
        written, full, used = fill(image, 64 * MIB), image.full(), image.used()[0]
        image.discard()
        image, made = images.make(), 0
        with until_full():
            for made in range(5000):
                (image.job / str(made)).touch()
        return rooms, written, used, full, made, image.full()

    rooms, written, used, full, made, full_of_files = with_images(work)
    for disk, usable, files, full_at_first in rooms:
        assert abs(usable - disk) <= 256 * 1024
        assert disk // 16_384 <= files <= disk // 16_384 + 1100
        assert full_at_first is None
    assert 7 * MIB < written <= 8 * MIB + 100_000
    assert used >= written
    assert 500 <= made < 1700
    assert (full, full_of_files) == ("bytes", "files")


def test_an_image_is_used_again_only_if_it_is_the_same_as_a_new_one() -> None:
    def work(images: Images) -> dict[str, bool]:
        seen = {"nothing was stored": images.give_back(images.make())}
        image = images.make()
        fill(image, 2 * MIB)
        (image.job / "a/b/c").mkdir(parents=True)
        seen["a little was stored"] = images.give_back(image)
        image = images.make()
        (image.mount_point / "beside").write_text("outside the job's directory")
        seen["something is left"] = images.give_back(image)
        image = images.make()
        with (image.job / "held").open("wb", buffering=0) as held:
            held.write(bytes(MIB))
            (image.job / "held").unlink()
            seen["deleted, but open"] = image.reset()
        seen["no idle image is to be kept"] = images.give_back(image, keep_idle=0)
        return seen

    assert with_images(work) == {
        "nothing was stored": True,
        "a little was stored": True,
        "something is left": False,
        "deleted, but open": False,
        "no idle image is to be kept": False,
    }


@pytest.mark.parametrize("what", ["many files", "much data", "a grown file"])
def test_an_image_that_takes_long_to_reset_is_discarded(what: str) -> None:
    def work(images: Images) -> Any:
        image = images.make(256 * MIB)
        if what == "many files":
            for i in range(disk_images.MAX_REUSED_FILES + 1):
                (image.job / str(i)).touch()
        else:
            fill(image, 80 * MIB)
            os.sync()
            if what == "a grown file":
                (image.job / "big").unlink()
        return images.give_back(image), image.mount_point.exists(), images.names

    assert with_images(work) == (False, False, [])


def test_what_one_job_stored_cannot_be_read_by_the_next() -> None:
    def work(images: Images) -> Any:
        image = images.make()
        with (image.job / "f").open("wb", buffering=0) as file:
            file.write(b"secret" * 200_000)
            os.fsync(file.fileno())
        again = images.give_back(image)
        image.make_job_folder(UID + 1)
        with (image.job / "g").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 7 * MIB)
        seen = (image.job / "g").read_bytes().strip(b"\0")[:20]
        return again, seen, [path.name for path in image.job.iterdir()]

    assert with_images(work) == (True, b"", ["g"])


def test_a_job_cannot_reach_the_root_of_its_image() -> None:
    def work(images: Images) -> tuple[int, int, int]:
        image = images.make()
        top = image.mount_point.stat()
        return top.st_uid, top.st_mode & 0o777, image.job.stat().st_uid

    assert with_images(work) == (0, 0o711, UID)


def test_several_threads_can_make_images_and_no_loop_device_is_left() -> None:
    def work(images: Images) -> Any:
        def loops() -> int:
            texts = []
            for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
                with suppress(OSError):
                    texts.append(backing.read_text())
            return sum(str(images.folder) in text for text in texts)

        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(lambda _: images.make(), range(4)))
        sound, before = [image.full() for image in made], loops()
        for image in made:
            image.discard()
        return sound, before, loops()

    assert with_images(work) == ([None] * 4, 4, 0)


def no_loop_devices(fd: int) -> tuple[int, str]:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/loop8")


def test_idle_images_are_discarded_if_a_new_one_needs_a_loop_device() -> None:
    def work(images: Images) -> list[str]:
        idle = images.make()
        images.pool.give_back(idle, keep_idle=4)
        real = disk_images.attach  # type: ignore[attr-defined]
        disk_images.attach = (  # type: ignore[attr-defined]
            lambda fd: no_loop_devices(fd) if idle.file.exists() else real(fd)
        )
        images.make(16 * MIB).discard()
        return images.names

    assert with_images(work) == []


def test_an_image_that_is_in_use_again_is_not_given_back_twice() -> None:
    """While another image, which should be discarded, is in use."""

    def work(images: Images) -> Any:
        held, image = images.make(), images.make(16 * MIB)
        images.pool.give_back(held, keep_idle=1)
        fd = os.open(held.mount_point, os.O_RDONLY)
        images.pool.give_back(image, keep_idle=1)  # no error: the caller would try again
        again = images.pool.take_idle(16 * MIB) is image
        there = held.mount_point.exists()
        os.close(fd)
        image.make_job_folder(UID)
        images.pool.close()  # also what could not be discarded before
        return again, there, images.names

    assert with_images(work) == (True, True, ["2.img"])


def test_the_hosts_own_file_system_is_never_shut_down() -> None:
    """Should the image not be where it was mounted."""

    def work(images: Images) -> tuple[str, list[int]]:
        image, calls, said = images.make(), list[int](), ""
        mounts.unmount(image.mount_point)
        real, fcntl.ioctl = fcntl.ioctl, lambda _, request, *__: calls.append(request) or 0  # type: ignore[assignment, func-returns-value]
        try:
            image.discard()
        except OSError as problem:
            said = problem.strerror or ""
        fcntl.ioctl = real
        return said, calls

    assert with_images(work) == ("Invalid argument", [])


def test_templates_and_idle_images_are_few_whatever_sizes_are_used() -> None:
    def work(images: Images) -> Any:
        sizes = [(8 + number) * MIB for number in range(MAX_TEMPLATES + 4)]
        for size in sizes:
            images.pool.give_back(images.make(size), keep_idle=2)
        kept = len(images.names)
        templates = len(list(images.folder.glob("template-*")))
        images.make(sizes[0]).discard()  # its template was forgotten, and is made again
        images.pool.close()
        return kept, templates, len(list(images.mount_points.glob("image.*")))

    assert with_images(work) == (2, MAX_TEMPLATES, 0)


# ---------------------------------------------------------------- in a sandbox


def test_without_loop_devices_the_error_says_so() -> None:
    def child(home: Path) -> tuple[str, list[str]]:
        real = os.open

        def without(path: Any, *args: Any, **more: Any) -> int:
            if str(path) == "/dev/loop-control":
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return real(path, *args, **more)

        os.open = without
        with pytest.raises(DiskImagesUnavailable) as caught:
            ImagePool(home / "files", 16_384).make(8 * MIB, home)
        return str(caught.value), [path.name for path in (home / "files").glob("*.img")]

    message, left = in_child(child, "root")
    assert message.startswith("cannot mount a disk image: ")
    assert message.endswith("/dev/loop-control'")
    assert left == []


def test_without_a_free_loop_device_the_sandbox_is_broken_and_the_self_test_fails() -> None:
    """Not only for the size that a job asked for: an idle image must not make the test pass."""

    async def short(home: Path) -> list[str]:
        messages = []
        async with opened(bash(""), home) as sandbox:
            await sandbox.self_test()
            disk_images.attach = no_loop_devices  # type: ignore[attr-defined]
            for attempt in (sandbox.self_test(), sandbox.prepare("a", 0, SMALL)):
                with pytest.raises(SandboxBroken) as caught:
                    await attempt
                messages.append(str(caught.value))
        return messages

    said = in_child(short, "root")
    assert ["cannot mount a disk image" in message for message in said] == [True, True]


def test_images_are_reset_and_discarded_in_a_thread() -> None:
    async def ends(home: Path) -> list[bool]:
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
        return on_loop

    assert in_child(ends, "root") == [False, False]


def test_an_image_that_fills_the_agents_disk_ends_its_job_with_an_agent_error(
    tmp_path: Path,
) -> None:
    script = "for i in $(seq 90); do head -c 1M /dev/zero >$i; sync $i; sleep 0.02; done\n"
    limits = SMALL.model_copy(update={"disk": 200 * MIB, "results": MIB})
    settings = replace(SETTINGS, free_floor=96 * MIB)
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", "size=160m", "none"):
        ended = run(bash(script, limits=limits, settings=settings), "root", tmp_path / "disk").ended
    assert ended.reason is Reason.AGENT_ERROR
    assert "disk has less than" in ended.message
