"""Cgroups: version 1 for real where there is one, version 2 on a copy of its files."""

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from client_agent.sandbox.kernel import cgroup_tree, cgroups
from client_agent.sandbox.kernel.cgroup_tree import CgroupsUnavailable, Hierarchy
from client_agent.sandbox.kernel.cgroups import Cgroup
from client_agent.sandbox.process.chain import JOIN
from shared.wire import Limits, Reason
from tests.kit.child import can, child_test
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import MIB, SMALL, alone, bash, opened, python

LIMITS = Limits(cpus=1.5, memory=64 << 20, pids=20)
TOP = Path("/sys/fs/cgroup")


def test_what_is_written_limits_swap_too() -> None:
    assert cgroups.limit_files(2, LIMITS) == [
        ("memory", "memory.max", str(64 << 20)),
        ("memory", "memory.swap.max?", "0"),
        ("memory", "memory.oom.group", "1"),
        ("pids", "pids.max", "24"),
        ("cpu", "cpu.max", "150000 100000"),
    ]
    assert cgroups.limit_files(1, LIMITS) == [
        ("memory", "memory.limit_in_bytes", str(64 << 20)),
        ("memory", "memory.memsw.limit_in_bytes?", str(64 << 20)),
        ("memory", "memory.swappiness?", "0"),
        ("pids", "pids.max", "24"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("cpu", "cpu.cfs_quota_us", "150000"),
    ]
    # the smallest that the kernel accepts
    assert ("cpu", "cpu.max", "1000 100000") in cgroups.limit_files(2, Limits(cpus=0.001))


# ---------------------------------------------------------------- which group is whose


class Copy:
    """A copy of the files of cgroup mounts, and a ``/proc/self`` that shows them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc, self._mounts = folder, folder / "proc", ""
        self.proc.mkdir()
        (self.proc / "cgroup").write_text("0::/\n")

    def mount(self, name: str, kind: str, options: str, root: str = "/") -> Path:
        place = self.folder / name
        place.mkdir(exist_ok=True)
        self._mounts += f"30 23 0:9 {root} {place} rw - {kind} {kind} {options}\n"
        (self.proc / "mountinfo").write_text(self._mounts)
        return place

    def unified(self, path: str, controllers: str, jobs: str = "") -> Path:
        """A cgroup2 mount in which the agent is at ``path``; the agent's own group."""
        mount = self.mount("cgroup2", "cgroup2", "rw")
        own = mount / path.lstrip("/")
        folders = {mount: controllers, own: controllers}
        if jobs:
            folders[own / "ferryman-x"] = jobs
        for folder, offered in folders.items():
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "cgroup.controllers").write_text(offered)
            (folder / "cgroup.subtree_control").write_text("")
        if path != "/":
            (own / "cgroup.type").write_text("domain\n")
        (self.proc / "cgroup").write_text(f"0::{path}\n")
        return own

    def found(self) -> Hierarchy:
        return cgroup_tree.find_hierarchy("ferryman-x", proc=self.proc)


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    return Copy(tmp_path)


def test_a_delegated_v2_group_is_divided_into_a_leaf_and_the_jobs(copy: Copy) -> None:
    offered = "cpu memory pids io"
    own = copy.unified("/system.slice/ferryman.service", offered, offered)
    jobs = own / "ferryman-x"
    expected = Hierarchy(2, {"memory": jobs, "pids": jobs, "cpu": jobs})
    assert copy.found() == expected
    assert (own / "agent/cgroup.procs").read_text() == "0"
    for folder in (own, jobs):  # what is written last: disks are shared fairly, too
        assert (folder / "cgroup.subtree_control").read_text() == "+io"
    # after a restart, in the leaf
    for name, text in (("controllers", "cpu memory pids"), ("subtree_control", "cpu memory pids")):
        (own / "agent" / f"cgroup.{name}").write_text(text)
        (jobs / f"cgroup.{name}").write_text(text)
    (own / "agent/cgroup.type").write_text("domain\n")
    (copy.proc / "cgroup").write_text("0::/system.slice/ferryman.service/agent\n")
    assert copy.found() == expected
    assert not (own / "agent/agent").exists()


def test_the_root_of_v2_may_hold_processes(copy: Copy) -> None:
    own = copy.unified("/", "memory pids", "memory pids")
    assert set(copy.found().folders) == {"memory", "pids"}
    assert not (own / "agent").exists()


def test_v1_groups_lie_below_the_agents_own(copy: Copy) -> None:
    """Also where a container sees a part of the hierarchy only."""
    memory, pids = (copy.mount(name, "cgroup", f"rw,{name}") for name in ("memory", "pids"))
    (memory / "a/b").mkdir(parents=True)
    cpu = copy.mount("cpu", "cgroup", "rw,cpu", "/box")
    (copy.proc / "cgroup").write_text("3:memory:/a/b\n2:pids:/\n1:cpu:/box\n0::/x\n")
    folders = {"memory": memory / "a/b", "pids": pids, "cpu": cpu}
    assert copy.found() == Hierarchy(1, {n: one / "ferryman-x" for n, one in folders.items()})


@pytest.mark.parametrize("offered", ["hugetlb", "pids"])
def test_version_1_is_used_if_v2_has_fewer_controllers(copy: Copy, offered: str) -> None:
    """As on hosts with both."""
    copy.unified("/", offered)
    both = copy.mount("cpu,cpuacct", "cgroup", "rw,cpu,cpuacct")
    memory = copy.mount("memory", "cgroup", "rw,memory")
    folders = {"memory": memory / "ferryman-x", "cpu": both / "ferryman-x"}
    assert copy.found() == Hierarchy(1, folders)


def test_the_error_says_why_there_are_no_cgroups(copy: Copy) -> None:
    (copy.proc / "mountinfo").write_text("23 1 0:1 / / rw - ext4 /dev/sda rw\n")
    with pytest.raises(CgroupsUnavailable, match="no cgroup controllers"):
        copy.found()
    own = copy.unified("/user.slice", "memory")
    (own / "agent").write_text("in the way")
    with pytest.raises(CgroupsUnavailable, match="Delegate=memory pids cpu"):
        copy.found()
    (copy.folder / "other").mkdir()
    other = Copy(copy.folder / "other")
    other.mount("memory", "cgroup", "rw,memory").rmdir()
    (other.folder / "memory").write_text("no folder")
    with pytest.raises(CgroupsUnavailable, match="cannot make the cgroup"):
        other.found()


def test_empty_groups_of_other_agents_are_removed(tmp_path: Path) -> None:
    for name in ("ferryman-mine", "ferryman-dead", "ferryman-busy/attempt", "system.slice"):
        (tmp_path / name).mkdir(parents=True)
    cgroup_tree.remove_empty_groups(Hierarchy(1, {"memory": tmp_path / "ferryman-mine"}))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["ferryman-busy", "ferryman-mine", "system.slice"]
    assert cgroups.subgroups(tmp_path / "gone") == []


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroup:
    """A version 2 group; writing makes the files that the kernel would have made."""

    def write(file: str, value: str) -> None:
        Path(file.rstrip("?")).write_text(value)

    monkeypatch.setattr(cgroups, "_write_setting", write)
    top = tmp_path / "jobs"
    top.mkdir()
    return Cgroup(Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), top)), "a-1", LIMITS)


def test_v2_has_one_group_whose_counters_are_read(v2: Cgroup) -> None:
    (folder,) = v2.folders
    assert v2.join_files == [str(folder / "cgroup.procs")]
    assert (folder / "memory.max").read_text() == str(64 << 20)
    assert (folder / "cpu.max").read_text() == "150000 100000"
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n")
    (folder / "memory.peak").write_text("4096\n")
    (folder / "pids.events").write_text("max 5\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nnr_throttled 4\n")
    assert (v2.oom_kills(), v2.refused_forks(), v2.throttled()) == (3, 5, 4)
    assert (v2.cpu_s(), v2.peak_memory()) == (2.5, 4096)
    assert v2.at_memory_limit()
    (folder / "memory.events").write_text("low 0\nmax 7\noom 0\noom_kill 3\n")
    assert not v2.at_memory_limit(), "it was the limit of a group above"


# ---------------------------------------------------------------- for real


@pytest.fixture
def real() -> Iterator[Cgroup]:
    if not any(offers("root", name) for name in cgroup_tree.CONTROLLERS):
        pytest.skip("no cgroups here: that the kernel takes what is written is not proved")
    hierarchy = cgroup_tree.find_hierarchy(f"ferryman-test-{os.getpid()}")
    tops = list(dict.fromkeys(hierarchy.folders.values()))
    if hierarchy.version == 1:
        for folder in tops:  # another agent may remove what is empty
            cgroups.remove_group(folder)
    group = Cgroup(hierarchy, "a-1", Limits(memory=32 << 20, pids=4))
    yield group
    group.remove()
    for folder in tops:
        cgroups.remove_group(folder)
    assert not any(folder.exists() for folder in group.folders)


def test_a_process_that_joins_a_group_is_in_all_hierarchies_with_its_children(real: Cgroup) -> None:
    show = "cat /proc/$$/cgroup /proc/self/cgroup; true"  # the shell's, then its child's
    words = ["/bin/sh", "-c", JOIN, "join", *real.join_files, "--", "/bin/sh", "-c", show]
    said = subprocess.run(words, text=True, check=False, capture_output=True).stdout
    own = f"/{real.folders[0].parent.name}/a-1"
    assert sum(line.endswith(own) for line in said.splitlines()) == 2 * len(real.folders)
    # without the lock of cgroup.procs, which stops every fork on the host
    if (TOP / "memory/memory.limit_in_bytes").exists():
        assert {Path(file).name for file in real.join_files} == {"tasks"}


version_1_only = pytest.mark.skipif(
    not (can("root") and (TOP / "memory/memory.limit_in_bytes").exists()),
    reason="no cgroups of version 1: not proved that jobs stay below the agent's own",
)


def own_groups() -> list[Path]:
    """Of this process, in the hierarchies that the sandbox uses."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    used = cgroup_tree.CONTROLLERS
    return [TOP / name / path.lstrip("/") for _, name, path in lines if name in used]


def enter(groups: list[Path]) -> None:
    for group in groups:
        (group / "cgroup.procs").write_text("0")


@contextmanager
def put_into(name: str, memory: int | None = None) -> Iterator[list[Path]]:
    """Put this process into groups below its own, as an administrator would."""
    before = own_groups()
    made = [group / name for group in before]
    try:
        for group in made:
            group.mkdir()
            if memory is not None and (group / "memory.limit_in_bytes").exists():
                (group / "memory.limit_in_bytes").write_text(str(memory))
        enter(made)
        yield before
    finally:
        enter(before)
        for group in made:
            group.rmdir()


@version_1_only
@child_test
def test_the_limit_of_the_agents_own_cgroup_holds_for_its_jobs(home: Path) -> None:
    """It is not reported as the job's own limit, which was not reached."""
    # The child copies pages of this process, which may be large after many tests: its own share
    # has to fit into the limit by far.
    program = "import time\nx = bytearray(b'x') * (1900 << 20)\ntime.sleep(5)\n"
    job = python(program, limits=SMALL.model_copy(update={"memory": 3_000 * MIB}))
    with put_into(f"admin-{os.getpid()}", memory=1_800 * MIB):
        outcome = asyncio.run(alone(job, home))
    assert (outcome.enforcement["memory"], outcome.ended.reason) == ("hard", Reason.AGENT_ERROR)
    assert "ran out of memory" in outcome.ended.message


@version_1_only
@child_test
def test_processes_left_in_another_cgroup_are_killed_and_their_groups_removed(home: Path) -> None:
    """The agent may be started somewhere else the next time."""

    async def cleared() -> str:
        async with opened(bash(""), home) as sandbox:
            await sandbox.clear()
            return sandbox.work_folders.name

    with put_into(f"first-{os.getpid()}") as before:
        found = cgroup_tree.find_hierarchy(asyncio.run(cleared()))
        group = Cgroup(found, "old", SMALL)
        left = subprocess.Popen(["sleep", "60"])
        for folder in group.folders:
            (folder / "cgroup.procs").write_text(str(left.pid))
        enter(before)
        asyncio.run(cleared())
        assert left.wait(10) == -signal.SIGKILL
        assert [one.parent for one in group.folders if one.parent.exists()] == []
