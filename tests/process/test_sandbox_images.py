"""Disk images, which only root can mount: their size, and when they are used again."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.kernel import disk_images, mounts
from client_agent.sandbox.kernel.disk_images import MAX_TEMPLATES, DiskImage, ImagePool
from client_agent.sandbox.kernel.loop_ext4 import DiskImagesUnavailable
from shared.wire import Reason
from tests.kit.disks import mounted as mounted_at
from tests.kit.real_sandbox import MIB, SETTINGS, SMALL, Job, can, in_child, run
from tests.kit.real_sandbox import opened as sandbox_of

pytestmark = pytest.mark.skipif(not can("root"), reason="not root: disk images are not proved")

UID = 420_000


def mounted(work: Any) -> Any:
    """Call ``work(images, mount_points)`` in a child with mounts of its own."""

    def child(home: Path) -> Any:
        mount_points = home / "mount_points"
        mount_points.mkdir()
        mounts.enter_private_namespace(mount_points)
        pool = ImagePool(home / "files", 16_384)
        try:
            return work(pool, mount_points)
        except DiskImagesUnavailable as problem:
            return str(problem)
        finally:
            pool.close()

    answer = in_child(child, "root")
    if isinstance(answer, str):
        pytest.skip(f"{answer}: what disk images promise is not proved")
    return answer


def fill(image: DiskImage, size: int) -> int:
    """Write up to ``size`` bytes; how many fit."""
    written = 0
    with (image.job / "big").open("wb", buffering=0) as file, suppress_no_space():
        while written < size:
            written += file.write(bytes(min(MIB, size - written)))
    return written


@contextmanager
def suppress_no_space() -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        if problem.errno != errno.ENOSPC:
            raise


@pytest.mark.parametrize("disk", [4 * MIB, 64 * MIB, 512 * MIB])
def test_a_job_can_store_what_its_limit_says(disk: int) -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[int, int, str | None]:
        image = pool.make(disk, mount_points)
        image.make_job_folder(UID)
        fs = os.statvfs(image.mount_point)
        usable = fs.f_bavail * fs.f_frsize
        full = image.full()
        image.discard()
        return usable, fs.f_ffree, full

    usable, files, full = mounted(work)
    assert abs(usable - disk) <= 256 * 1024
    assert disk // 16_384 <= files <= disk // 16_384 + 1100
    assert full is None


def test_beyond_the_limit_writes_fail_and_the_image_is_full() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[int, str | None, int]:
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        written, full, used = fill(image, 64 * MIB), image.full(), image.used()[0]
        image.discard()
        return written, full, used

    written, full, used = mounted(work)
    assert 7 * MIB < written <= 8 * MIB + 100_000
    assert full == "bytes"
    assert used >= written


def test_the_number_of_files_is_limited() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[int, str | None]:
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        made = 0
        with suppress_no_space():
            for made in range(5000):
                (image.job / str(made)).touch()
        full = image.full()
        image.discard()
        return made, full

    made, full = mounted(work)
    assert 500 <= made < 1700
    assert full == "files"


def test_an_image_is_used_again_only_if_it_is_the_same_as_a_new_one() -> None:
    def work(pool: ImagePool, mount_points: Path) -> list[tuple[str, bool]]:
        seen = []

        def after(what: str) -> None:
            pool.give_back(image, keep_idle=2)
            again = pool.take_idle(8 * MIB)
            seen.append((what, again is image))
            if again is not None:
                again.discard()

        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        after("nothing was stored")
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        fill(image, 2 * MIB)
        (image.job / "a/b/c").mkdir(parents=True)
        after("a little was stored")
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        (image.mount_point / "beside").write_text("outside the job's directory")
        after("something is left")
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        held = (image.job / "held").open("wb")
        held.write(bytes(MIB))
        held.flush()
        (image.job / "held").unlink()
        seen.append(("deleted, but open", image.reset()))
        held.close()
        image.discard()
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        pool.give_back(image, keep_idle=0)
        seen.append(("no idle image is to be kept", pool.take_idle(8 * MIB) is image))
        return seen

    assert dict(mounted(work)) == {
        "nothing was stored": True,
        "a little was stored": True,
        "something is left": False,
        "deleted, but open": False,
        "no idle image is to be kept": False,
    }


@pytest.mark.parametrize("what", ["many files", "much data", "a grown file"])
def test_an_image_that_takes_long_to_reset_is_discarded(what: str) -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[bool, list[str]]:
        image = pool.make(256 * MIB, mount_points)
        image.make_job_folder(UID)
        if what == "many files":
            for i in range(disk_images.MAX_REUSED_FILES + 1):
                (image.job / str(i)).touch()
        else:
            fill(image, 80 * MIB)
            os.sync()
            if what == "a grown file":
                (image.job / "big").unlink()
        pool.give_back(image, keep_idle=2)
        left = [path.name for path in (image.file.parent).iterdir()]
        return image.mount_point.exists(), left

    there, left = mounted(work)
    assert not there
    assert [name for name in left if name.endswith(".img")] == []


def test_images_are_reset_and_discarded_in_a_thread() -> None:
    async def ends(home: Path) -> list[bool]:
        on_loop = []
        async with sandbox_of(Job({}), home) as sandbox:
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

    assert in_child(lambda home: asyncio.run(ends(home)), "root") == [False, False]


def test_what_one_job_stored_cannot_be_read_by_the_next() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[bool, bytes]:
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        with (image.job / "f").open("wb") as file:
            file.write(b"secret" * 200_000)
            file.flush()
            os.fsync(file.fileno())
        pool.give_back(image, keep_idle=1)
        again = pool.take_idle(8 * MIB)
        assert again is image
        again.make_job_folder(UID + 1)
        seen = b""
        with (again.job / "g").open("wb") as file:
            os.posix_fallocate(file.fileno(), 0, 7 * MIB)
        seen = (again.job / "g").read_bytes()
        empty = sorted(p.name for p in again.job.iterdir()) == ["g"]
        again.discard()
        return empty, seen.strip(b"\0")[:20]

    assert mounted(work) == (True, b"")


def test_a_job_cannot_reach_the_root_of_its_image() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[int, int, int]:
        image = pool.make(8 * MIB, mount_points)
        image.make_job_folder(UID)
        top, job = image.mount_point.stat(), image.job.stat()
        image.discard()
        return top.st_uid, top.st_mode & 0o777, job.st_uid

    assert mounted(work) == (0, 0o711, UID)


def test_images_leave_no_loop_device_behind() -> None:
    def loops(files: Path) -> list[str]:
        devices = []
        for backing in Path("/sys/block").glob("loop*/loop/backing_file"):
            text = backing.read_text()
            if str(files) in text:
                devices.append(text)
        return devices

    def work(pool: ImagePool, mount_points: Path) -> tuple[int, int]:
        made = [pool.make(8 * MIB, mount_points) for _ in range(3)]
        before = len(loops(mount_points.parent / "files"))
        for image in made:
            image.discard()
        return before, len(loops(mount_points.parent / "files"))

    assert mounted(work) == (3, 0)


def test_an_image_that_fills_the_agents_disk_ends_its_job_with_an_agent_error(
    tmp_path: Path,
) -> None:
    script = "for i in $(seq 90); do head -c 1M /dev/zero >$i; sync $i; sleep 0.02; done\n"
    limits = SMALL.model_copy(update={"disk": 200 * MIB, "results": MIB})
    settings = replace(SETTINGS, free_floor=96 * MIB)
    with mounted_at(tmp_path / "disk", "-t", "tmpfs", "-o", "size=160m", "none"):
        home = tmp_path / "disk"
        outcome = run(Job({"run.sh": script}, limits=limits, settings=settings), "root", home)
    assert outcome.ended.reason is Reason.AGENT_ERROR
    assert "disk has less than" in outcome.ended.message


def no_loop_devices(fd: int) -> tuple[int, str]:
    raise FileNotFoundError(errno.ENOENT, "No such file or directory", "/dev/loop8")


def test_without_a_free_loop_device_the_sandbox_is_broken_and_the_self_test_fails() -> None:
    """Not only for the size that a job asked for: an idle image must not make the test pass."""

    async def short(home: Path) -> list[str]:
        messages = []
        async with sandbox_of(Job({}), home) as sandbox:
            await sandbox.self_test()
            disk_images.attach = no_loop_devices  # type: ignore[attr-defined]
            for attempt in (sandbox.self_test(), sandbox.prepare("a", 0, SMALL)):
                with pytest.raises(SandboxBroken) as caught:
                    await attempt
                messages.append(str(caught.value))
        return messages

    for message in in_child(lambda home: asyncio.run(short(home)), "root"):
        assert "cannot mount a disk image" in message


def test_idle_images_are_discarded_if_a_new_one_needs_a_loop_device() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[int, bool]:
        idle = pool.make(8 * MIB, mount_points)
        idle.make_job_folder(UID)
        pool.give_back(idle, keep_idle=4)
        real = disk_images.attach  # type: ignore[attr-defined]

        def attach(fd: int) -> tuple[int, str]:
            return real(fd) if not idle.file.exists() else no_loop_devices(fd)

        disk_images.attach = attach  # type: ignore[attr-defined]
        pool.make(16 * MIB, mount_points).discard()
        return len(list((mount_points.parent / "files").glob("*.img"))), idle.file.exists()

    assert mounted(work) == (0, False)


def test_an_image_that_is_in_use_again_is_not_given_back_twice() -> None:
    """While another image, which should be discarded, is in use."""

    def work(pool: ImagePool, mount_points: Path) -> tuple[bool, bool, list[str]]:
        held, image = (opened(pool.make(size * MIB, mount_points)) for size in (8, 16))
        pool.give_back(held, keep_idle=1)
        fd = os.open(held.mount_point, os.O_RDONLY)
        pool.give_back(image, keep_idle=1)  # no error: the caller would try again
        again = pool.take_idle(16 * MIB) is image
        still_there = held.mount_point.exists()
        os.close(fd)
        image.make_job_folder(UID)
        pool.close()  # also what could not be discarded before
        names = sorted(path.name for path in (mount_points.parent / "files").glob("*.img"))
        image.discard()
        return again, still_there, names

    assert mounted(work) == (True, True, ["2.img"])


def test_the_hosts_own_file_system_is_never_shut_down() -> None:
    """Should the image not be where it was mounted."""

    def work(pool: ImagePool, mount_points: Path) -> tuple[str, list[int]]:
        image = pool.make(8 * MIB, mount_points)
        mounts.unmount(image.mount_point)
        calls: list[int] = []
        real = fcntl.ioctl

        def noted(fd: int, request: int, *_: Any) -> int:
            calls.append(request)
            return 0

        fcntl.ioctl = noted  # type: ignore[assignment]
        try:
            image.discard()
        except OSError as problem:
            return problem.strerror or "", calls
        finally:
            fcntl.ioctl = real
        return "discarded", calls

    assert mounted(work) == ("Invalid argument", [])


def test_without_loop_devices_the_error_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def child(home: Path) -> str:
        real = os.open

        def without(path: Any, *args: Any, **more: Any) -> int:
            if str(path) == "/dev/loop-control":
                raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
            return real(path, *args, **more)

        os.open = without
        try:
            ImagePool(home / "files", 16_384).make(8 * MIB, home)
        except DiskImagesUnavailable as problem:
            return f"{problem} {[p.name for p in (home / 'files').glob('*.img')]}"
        return "made"

    message = in_child(child, "root")
    assert message.startswith("cannot mount a disk image: ")
    assert message.endswith("/dev/loop-control' []")


def test_several_threads_can_make_images_at_once() -> None:
    def work(pool: ImagePool, mount_points: Path) -> int:
        with ThreadPoolExecutor(4) as threads:
            made = list(threads.map(lambda _: pool.make(8 * MIB, mount_points), range(4)))
        sound = sum(image.full() is None for image in made)
        for image in made:
            image.discard()
        return sound

    assert mounted(work) == 4


def test_templates_and_idle_images_are_few_whatever_sizes_are_used() -> None:
    def work(pool: ImagePool, mount_points: Path) -> tuple[list[int], int, int]:
        files = mount_points.parent / "files"
        for number in range(MAX_TEMPLATES + 4):
            pool.give_back(opened(pool.make((8 + number) * MIB, mount_points)), keep_idle=2)
        kept = sorted(image.disk // MIB for image in pool._idle)
        templates = len(list(files.glob("template-*")))
        pool.make(8 * MIB, mount_points).discard()  # its template was forgotten, and is made again
        pool.close()
        return kept, templates, len(list(mount_points.glob("image.*")))

    kept, templates, left = mounted(work)
    assert (kept, templates, left) == (
        [8 + MAX_TEMPLATES + 2, 8 + MAX_TEMPLATES + 3],
        MAX_TEMPLATES,
        0,
    )


def opened(image: DiskImage) -> DiskImage:
    image.make_job_folder(UID)
    return image
