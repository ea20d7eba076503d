"""Isolation between jobs, and what an earlier run of the agent left."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.base import Ended
from client_agent.sandbox.kernel import cgroup_tree, cgroups
from client_agent.sandbox.kernel.work_folders import WorkFolders
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import (
    SETTINGS,
    SMALL,
    Started,
    Who,
    bash,
    can,
    in_child,
    opened,
    python,
    run,
    start,
)
from tests.kit.waiting import until

VICTIM = """
import os, socket, time
open("/tmp/secret", "w").write("secret"); open("secret", "w").write("secret")
s = socket.socket(socket.AF_UNIX); s.bind("\\0ferryman-victim"); s.listen()
t = socket.socket(); t.bind(("127.0.0.1", 18765)); t.listen()
print("up", flush=True)
end = time.monotonic() + 10
while time.monotonic() < end and not os.path.exists("stop"): time.sleep(0.01)
print("unharmed", flush=True)
"""
ATTACKER = """
import glob, os, signal, socket
found = []
for pid in range(2, 5000):
    try: os.kill(pid, 0)
    except OSError: continue
    if pid not in (os.getpid(), os.getppid()): found.append(pid)
print("pids", found)
try: os.kill(-1, signal.SIGTERM)
except OSError as problem: print(problem)
for address in ("\\0ferryman-victim",):
    try: socket.socket(socket.AF_UNIX).connect(address); print("LEAK unix")
    except OSError as problem: print(problem.strerror)
try: socket.create_connection(("127.0.0.1", 18765), 1); print("LEAK tcp")
except OSError as problem: print(problem.strerror)
print("files", *(glob.glob(f"{place}/*") for place in ("/tmp", "/dev/shm", "/run", "/job")))
"""


def test_two_jobs_cannot_reach_each_other(who: Who) -> None:
    async def both(home: Path) -> tuple[str, str, Ended]:
        one, two = (
            python(VICTIM),
            python("import signal; signal.signal(15, signal.SIG_IGN)\n" + ATTACKER),
        )
        async with opened(one, home) as sandbox:
            victim = await start(sandbox, one, home, "victim", 0)
            victim.process.go()
            await until(lambda: "up" in victim.stdout)
            attacker = await start(sandbox, two, home, "attacker", 1)
            attacker.process.go()
            await attacker.process.wait()
            os.close(os.open("stop", os.O_CREAT | os.O_WRONLY, dir_fd=victim.workspace.fd))
            ended = await victim.process.wait()
            for started in (victim, attacker):
                await started.workspace.destroy()
            return victim.stdout, attacker.stdout, ended

    victim, attacker, ended = in_child(lambda home: asyncio.run(both(home)), who)
    assert victim == "up\nunharmed\n"
    assert ended.reason is None
    lines = attacker.splitlines()
    assert lines[0] == "pids []"
    assert lines[-1].startswith("files [] [] [] ['/job/")
    assert "secret" not in attacker
    assert attacker.count("Connection refused") == 2


def test_the_agents_mounts_are_not_visible_on_the_host() -> None:
    """And so a killed agent leaves none."""
    if not can("root"):
        pytest.skip("not root: that mounts are not visible on the host is not proved")
    test = os.getpid()

    async def read_mounts(started: Started) -> tuple[str, str]:
        mounts = (Path("/proc/self/mountinfo"), Path(f"/proc/{test}/mountinfo"))
        own, hosts = (path.read_text() for path in mounts)
        return own, hosts

    outcome = run(bash("sleep 0.1\n", during=read_mounts), "root")
    own, hosts = outcome.extra
    assert "/run/ferryman/" in own
    assert "/run/ferryman/" not in hosts


def test_a_restart_in_the_middle_clears_everything(who: Who) -> None:
    """An earlier run left records, directories and an image. A process of another program is not
    killed."""

    async def second_run(home: Path) -> tuple[bool, bool, list[str]]:

        job = bash("sleep 30\n", settings=replace(SETTINGS, disk_images=False))
        recorded = await asyncio.create_subprocess_exec("sleep", "60")
        unrelated = await asyncio.create_subprocess_exec("sleep", "60")
        work_folders = WorkFolders(home / "agent", separate_uids=os.geteuid() == 0)
        (home / "agent" / "images").mkdir(parents=True)
        (home / "agent" / "images" / "7.img").write_bytes(bytes(100))
        for name, pid in (("old-1", recorded.pid), ("old-2", unrelated.pid)):
            folder = work_folders.make(name)
            work_folders.make_job_folder(folder, None)
            work_folders.record_init(folder, pid)
        record = home / "agent/work/old-2/init"
        boot, pid_text, started = record.read_text().split()
        record.write_text(f"{boot} {pid_text} {int(started) + 1}\n")  # the pid was used again
        (home / "agent/work/old-3.removing.4").mkdir()
        work_folders.close()
        async with opened(job, home) as sandbox:
            await sandbox.clear()
            left = sorted(path.name for path in (home / "agent").rglob("*"))
        killed = await asyncio.wait_for(recorded.wait(), 10) == -signal.SIGKILL
        alive = unrelated.returncode is None
        unrelated.kill()
        await unrelated.wait()
        return killed, alive, left

    killed, alive, left = in_child(lambda home: asyncio.run(second_run(home)), who)
    assert killed
    assert alive
    assert set(left) <= {"work", "images", "cgroups"}


def test_a_process_left_in_a_cgroup_is_killed_at_the_next_start() -> None:
    if not offers("root", "memory"):
        pytest.skip("no cgroups here: that a restart kills what is left in them is not proved")

    async def second_run(home: Path) -> tuple[int, list[str]]:

        name = WorkFolders(home / "agent", separate_uids=True).name
        hierarchy = cgroup_tree.find_hierarchy(name)
        group = cgroups.Cgroup(hierarchy, "old", SMALL)
        left = await asyncio.create_subprocess_exec("sleep", "60")
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(left.pid))
        async with opened(bash("true\n"), home) as sandbox:
            await sandbox.clear()
            kept = [str(folder) for folder in group.folders if folder.exists()]
        return await asyncio.wait_for(left.wait(), 10), kept

    code, kept = in_child(lambda home: asyncio.run(second_run(home)), "root")
    assert (code, kept) == (-signal.SIGKILL, [])
