"""Quarantine of attempts that do not die, and clears that fail."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Ended
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel import cgroup_tree, cgroups, pidfd
from client_agent.sandbox.kernel.work_folders import WorkFolders
from client_agent.sandbox.none import NoSandbox
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import SETTINGS, SMALL, Job, Who, can, in_child, opened, start
from tests.kit.waiting import until

LONG = Job(
    {"run.sh": "echo precious >file; sleep 60\n"},
    settings=replace(SETTINGS, death_timeout_s=0.2),
    timeout_s=0.2,
    grace_s=0.05,
)


def left_of(home: Path) -> list[str]:
    """What there is of an attempt: folders, cgroups, mounts; an idle image belongs to none."""
    agent = home / "agent"
    paths = [str(p) for top in ("work", "quarantine") for p in (agent / top).glob("*")]
    name = WorkFolders(agent, separate_uids=False).name
    paths += map(str, Path("/sys/fs/cgroup").glob(f"*/{name}/*/"))
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return [*paths, *(line for line in mounts if f"/run/ferryman/{name}/attempt" in line)]


def at_work(home: Path) -> list[str]:
    return [path.name for path in (home / "agent/work").iterdir()]


@pytest.mark.parametrize("images", [True, False])
@pytest.mark.parametrize(
    ("who", "backend"), [("root", Bubblewrap), ("user", Bubblewrap), ("root", NoSandbox)]
)
def test_a_quarantined_attempt_is_removed_when_its_processes_are_dead(
    who: Who, images: bool, backend: type[Any]
) -> None:
    """As on a slow disk, for which a killed process may wait longer than the agent does."""
    if not can(who):
        pytest.skip("not root: what holds for an agent that root starts is not proved")
    job = replace(LONG, settings=replace(LONG.settings, disk_images=images), backend=backend)

    async def undying(home: Path) -> tuple[Ended, list[str], bool]:
        async with opened(job, home) as sandbox:
            started = await start(sandbox, job, home)
            real, pidfd.kill = pidfd.kill, lambda *_: None
            init = os.pidfd_open(started.process.pid)
            started.process.go()
            ended = await started.process.wait()
            polled = asyncio.Event()
            sleep = sandbox.clock.sleep

            async def after_a_poll(seconds: float) -> None:
                polled.set()
                await sleep(seconds)

            sandbox.clock.sleep = after_a_poll  # type: ignore[method-assign]
            await started.workspace.destroy()
            (removal,) = sandbox._removals
            poll = asyncio.create_task(polled.wait())
            await asyncio.wait({poll, removal}, return_when=asyncio.FIRST_COMPLETED)
            aside = left_of(home)
            pidfd.kill = real
            pidfd.kill(init)
            os.close(init)
            await until(lambda: not left_of(home))
            pool = sandbox.host.images
            return ended, aside, pool is None or pool.take_idle(SMALL.disk) is not None

    ended, aside, image_is_back = in_child(lambda home: asyncio.run(undying(home)), who)
    assert not ended.certain
    assert any(path.endswith("/quarantine/attempt") for path in aside)
    assert image_is_back


def test_a_clear_that_failed_is_tried_again_before_a_job_starts(who: Who) -> None:
    """Else jobs would run beside what an earlier run left."""

    async def twice(home: Path) -> tuple[list[str], list[str]]:
        (home / "agent/work/old/job").mkdir(parents=True)
        async with opened(LONG, home) as sandbox:
            real = sandbox.work_folders.clear
            failures = [OSError(errno.EIO, "Input/output error")]

            def clear(alive: Collection[Path] = ()) -> None:
                if failures:
                    raise failures.pop()
                real(alive)

            sandbox.work_folders.clear = clear  # type: ignore[method-assign]
            with pytest.raises(OSError, match="Input/output error"):
                await sandbox.prepare("new", 0, SMALL)
            before = at_work(home)
            workspace = await sandbox.prepare("new", 0, SMALL)
            after = at_work(home)
            await workspace.destroy()
            return before, after

    assert in_child(lambda home: asyncio.run(twice(home)), who) == (["old"], ["new"])


def test_no_job_starts_before_a_running_clear_has_ended(who: Who) -> None:
    async def both(home: Path) -> list[list[str]]:
        for i in range(20):
            (home / f"agent/work/old-{i}/job").mkdir(parents=True)

        async def see(sandbox: Any, name: str) -> list[str]:
            workspace = await sandbox.prepare(name, 0, SMALL)
            names = at_work(home)
            await workspace.destroy()
            return [one for one in names if one.startswith("old")]

        async with opened(LONG, home) as sandbox:
            return list(await asyncio.gather(see(sandbox, "a"), see(sandbox, "b")))

    assert in_child(lambda home: asyncio.run(both(home)), who) == [[], []]


def test_a_cgroup_that_is_busy_for_a_moment_does_not_stop_the_clear() -> None:
    """A process leaves its group a moment after its death."""
    if not offers("root", "memory"):
        pytest.skip("no cgroups here: that clear waits for them is not proved")

    async def again(home: Path) -> tuple[int, list[str]]:
        hierarchy = cgroup_tree.find_hierarchy(WorkFolders(home / "agent", separate_uids=True).name)
        group = cgroups.Cgroup(hierarchy, "old", SMALL)
        (home / "agent/work/old").mkdir(parents=True)
        real, tries = cgroups.remove_group, 0

        def busy(folder: Path) -> None:
            nonlocal tries
            tries += 1
            if tries < 4:
                raise OSError(errno.EBUSY, "Device or resource busy")
            real(folder)

        cgroups.remove_group = busy
        async with opened(LONG, home) as sandbox:
            await sandbox.clear()
            left = [str(folder) for folder in group.folders if folder.exists()]
            return tries, left + at_work(home)

    tries, left = in_child(lambda home: asyncio.run(again(home)), "root")
    assert tries > 3
    assert left == []


def test_an_agent_starts_although_a_process_of_its_last_run_does_not_die(who: Who) -> None:
    """It keeps its folder, and everything else goes."""

    async def again(home: Path) -> tuple[int | None, list[str], list[str], list[str]]:
        agent = home / "agent"
        undying = await asyncio.create_subprocess_exec("sleep", "60")
        work_folders = WorkFolders(agent, separate_uids=os.geteuid() == 0)
        for name, pid in (("undying", undying.pid), ("dead", 2**22 - 1)):
            folder = work_folders.make(name)
            work_folders.make_job_folder(folder, None)
            work_folders.record_init(folder, pid)
        work_folders.close()
        real, pidfd.kill = pidfd.kill, lambda *_: None
        job = replace(LONG, bundle={"run.sh": "true\n"}, timeout_s=20.0)
        async with opened(job, home) as sandbox:
            await sandbox.clear()
            kept = [p.name for p in (agent / "quarantine").iterdir()]
            worked = at_work(home)
            pidfd.kill = real
            started = await start(sandbox, job, home)
            started.process.go()
            code = (await started.process.wait()).exit_code
            await started.workspace.destroy()
        async with opened(job, home) as sandbox:
            await sandbox.clear()
        await undying.wait()
        return code, kept, worked, [p.name for p in (agent / "quarantine").iterdir()]

    result = in_child(lambda home: asyncio.run(again(home)), who)
    assert result == (0, ["undying"], [], [])
