"""Cgroups: version 1 for real where there is one, version 2 on a copy of its files."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from client_agent.sandbox.kernel import cgroup_tree, cgroups
from client_agent.sandbox.kernel.cgroup_tree import CgroupsUnavailable, Hierarchy
from client_agent.sandbox.kernel.cgroups import Cgroup
from client_agent.sandbox.process.chain import JOIN
from shared.wire import Limits
from tests.kit.kernel_features import offers

LIMITS = Limits(cpus=1.5, memory=64 << 20, pids=20)


def mountinfo(*mounts: tuple[Path, str, str]) -> str:
    return "".join(
        f"{30 + i} 23 0:{i} / {place} rw - {kind} {kind} {options}\n"
        for i, (place, kind, options) in enumerate(mounts)
    )


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A ``/proc/self`` to be filled."""
    made = tmp_path / "proc"
    made.mkdir()
    return made


def unified(tmp_path: Path, proc: Path, path: str, controllers: str) -> Path:
    """A cgroup2 mount in which the agent is at ``path``; the agent's own group."""
    mount = tmp_path / "cgroup2"
    own = mount / path.lstrip("/")
    (own / "subtree").mkdir(parents=True)
    for folder in {mount, own}:
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text("")
    if path != "/":
        (own / "cgroup.type").write_text("domain\n")
    (proc / "mountinfo").write_text(mountinfo((mount, "cgroup2", "rw")))
    (proc / "cgroup").write_text(f"0::{path}\n")
    return own


def test_v2_limits_forbid_swap_and_kill_the_whole_group() -> None:
    assert cgroups.limit_files(2, LIMITS) == [
        ("memory", "memory.max", str(64 << 20)),
        ("memory", "memory.swap.max?", "0"),
        ("memory", "memory.oom.group", "1"),
        ("pids", "pids.max", "24"),
        ("cpu", "cpu.max", "150000 100000"),
    ]


def test_v1_limits_include_swap() -> None:
    assert cgroups.limit_files(1, LIMITS) == [
        ("memory", "memory.limit_in_bytes", str(64 << 20)),
        ("memory", "memory.memsw.limit_in_bytes?", str(64 << 20)),
        ("memory", "memory.swappiness?", "0"),
        ("pids", "pids.max", "24"),
        ("cpu", "cpu.cfs_period_us", "100000"),
        ("cpu", "cpu.cfs_quota_us", "150000"),
    ]


def test_the_smallest_cpu_quota_is_one_that_the_kernel_accepts() -> None:
    assert ("cpu", "cpu.max", "1000 100000") in cgroups.limit_files(2, Limits(cpus=0.001))


def test_a_delegated_v2_group_is_divided_into_a_leaf_and_the_jobs(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = unified(tmp_path, proc, "/system.slice/ferryman.service", "cpu memory pids io")
    jobs = own / "ferryman-x"
    jobs.mkdir()
    (jobs / "cgroup.controllers").write_text("cpu memory pids")
    (jobs / "cgroup.subtree_control").write_text("")
    hierarchy = cgroup_tree.find_hierarchy("ferryman-x", proc=proc)
    assert hierarchy == Hierarchy(2, {"memory": jobs, "pids": jobs, "cpu": jobs})
    assert (own / "agent" / "cgroup.procs").read_text() == "0"
    assert (own / "cgroup.subtree_control").read_text().startswith("+")


def test_after_a_restart_in_the_leaf_the_same_groups_are_found(tmp_path: Path, proc: Path) -> None:
    own = unified(tmp_path, proc, "/a.service", "memory")
    for folder in (own / "agent", own / "ferryman-x"):
        folder.mkdir()
        (folder / "cgroup.controllers").write_text("memory")
        (folder / "cgroup.subtree_control").write_text("memory")
        (folder / "cgroup.type").write_text("domain\n")
    (own / "cgroup.subtree_control").write_text("memory")
    (proc / "cgroup").write_text("0::/a.service/agent\n")
    assert (
        cgroup_tree.find_hierarchy("ferryman-x", proc=proc).folders["memory"] == own / "ferryman-x"
    )
    assert not (own / "agent" / "agent").exists()


def test_the_root_of_v2_may_hold_processes(tmp_path: Path, proc: Path) -> None:
    own = unified(tmp_path, proc, "/", "memory pids")
    jobs = own / "ferryman-x"
    jobs.mkdir()
    (jobs / "cgroup.controllers").write_text("memory pids")
    (jobs / "cgroup.subtree_control").write_text("")
    assert set(cgroup_tree.find_hierarchy("ferryman-x", proc=proc).folders) == {"memory", "pids"}
    assert not (own / "agent").exists()


def test_the_error_for_a_v2_group_of_others_says_how_to_delegate(
    tmp_path: Path, proc: Path
) -> None:
    own = unified(tmp_path, proc, "/user.slice", "memory")
    (own / "agent").write_text("in the way")
    with pytest.raises(CgroupsUnavailable, match="Delegate=memory pids cpu"):
        cgroup_tree.find_hierarchy("ferryman-x", proc=proc)


def test_version_1_is_used_if_v2_has_none_of_the_controllers(tmp_path: Path, proc: Path) -> None:
    """As on hosts with both."""
    unified(tmp_path, proc, "/", "hugetlb")
    both = tmp_path / "cpu,cpuacct"
    memory = tmp_path / "memory"
    both.mkdir()
    memory.mkdir()
    (proc / "mountinfo").write_text(
        mountinfo(
            (tmp_path / "cgroup2", "cgroup2", "rw"),
            (both, "cgroup", "rw,cpu,cpuacct"),
            (memory, "cgroup", "rw,memory"),
        )
    )
    assert cgroup_tree.find_hierarchy("ferryman-x", proc=proc) == Hierarchy(
        1, {"memory": memory / "ferryman-x", "cpu": both / "ferryman-x"}
    )


def test_v1_groups_lie_below_the_agents_own(tmp_path: Path, proc: Path) -> None:
    """Also where a container sees a part of the hierarchy only."""
    for name in ("memory/a/b", "pids", "cpu"):
        (tmp_path / name).mkdir(parents=True)
    memory, pids, cpu = (tmp_path / name for name in ("memory", "pids", "cpu"))
    lines = mountinfo((memory, "cgroup", "rw,memory"), (pids, "cgroup", "rw,pids"))
    lines += f"40 23 0:9 /box {cpu} rw - cgroup cgroup rw,cpu\n"
    (proc / "mountinfo").write_text(lines)
    (proc / "cgroup").write_text("3:memory:/a/b\n2:pids:/\n1:cpu:/box\n0::/x\n")
    assert cgroup_tree.find_hierarchy("ferryman-x", proc=proc).folders == {
        "memory": memory / "a/b/ferryman-x",
        "pids": pids / "ferryman-x",
        "cpu": cpu / "ferryman-x",
    }


def test_version_1_is_used_if_v2_has_fewer_controllers(tmp_path: Path, proc: Path) -> None:
    unified(tmp_path, proc, "/", "pids")
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu").mkdir()
    mounts = (tmp_path / "memory", "cgroup", "rw,memory"), (tmp_path / "cpu", "cgroup", "rw,cpu")
    lines = mountinfo((tmp_path / "cgroup2", "cgroup2", "rw"), *mounts)
    (proc / "mountinfo").write_text(lines)
    hierarchy = cgroup_tree.find_hierarchy("ferryman-x", proc=proc)
    assert (hierarchy.version, set(hierarchy.folders)) == (1, {"memory", "cpu"})


def test_v2_enables_the_io_controller_if_it_is_offered(
    tmp_path: Path, proc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = unified(tmp_path, proc, "/", "memory pids cpu io")
    (own / "ferryman-x").mkdir()
    (own / "ferryman-x" / "cgroup.controllers").write_text("memory pids cpu io")
    written: list[tuple[str, str]] = []
    monkeypatch.setattr(
        Path, "write_text", lambda path, text: written.append((path.parent.name, text))
    )
    assert set(cgroup_tree.find_hierarchy("ferryman-x", proc=proc).folders) == {
        "memory",
        "pids",
        "cpu",
    }
    assert {("cgroup2", "+io"), ("ferryman-x", "+io")} <= set(written)


def test_without_cgroups_the_error_says_so(proc: Path) -> None:
    (proc / "mountinfo").write_text("23 1 0:1 / / rw - ext4 /dev/sda rw\n")
    with pytest.raises(CgroupsUnavailable, match="no cgroup controllers"):
        cgroup_tree.find_hierarchy("ferryman-x", proc=proc)


def test_the_error_for_an_unwritable_v1_says_why(tmp_path: Path, proc: Path) -> None:
    (tmp_path / "memory").write_text("no folder")
    (proc / "mountinfo").write_text(mountinfo((tmp_path / "memory", "cgroup", "rw,memory")))
    with pytest.raises(CgroupsUnavailable, match="cannot make the cgroup"):
        cgroup_tree.find_hierarchy("ferryman-x", proc=proc)


# ---------------------------------------------------------------- counters


@pytest.fixture
def v2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cgroup:
    """A version 2 group; writing makes the files that the kernel would have made."""
    monkeypatch.setattr(
        cgroups,
        "_write_setting",
        lambda file, value: Path(file.rstrip("?")).write_text(value),
    )
    top = tmp_path / "jobs"
    top.mkdir()
    return Cgroup(Hierarchy(2, dict.fromkeys(("memory", "pids", "cpu"), top)), "a-1", LIMITS)


def test_v2_has_one_group_for_everything(v2: Cgroup) -> None:
    (folder,) = v2.folders
    assert v2.join_files == [str(folder / "cgroup.procs")]
    assert (folder / "memory.max").read_text() == str(64 << 20)
    assert (folder / "cpu.max").read_text() == "150000 100000"


def test_v2_counters_are_read(v2: Cgroup) -> None:
    (folder,) = v2.folders
    (folder / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\n")
    (folder / "memory.peak").write_text("4096\n")
    (folder / "pids.events").write_text("max 5\n")
    (folder / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\nnr_throttled 4\n")
    assert (v2.oom_kills(), v2.refused_forks(), v2.throttled()) == (3, 5, 4)
    assert (v2.cpu_s(), v2.peak_memory()) == (2.5, 4096)


def test_v2_distinguishes_its_own_memory_limit_from_that_of_others(v2: Cgroup) -> None:
    (folder,) = v2.folders
    (folder / "memory.events").write_text("low 0\nmax 7\noom 0\noom_kill 3\n")
    assert not v2.at_memory_limit()
    (folder / "memory.events").write_text("low 0\nmax 7\noom 1\noom_kill 3\n")
    assert v2.at_memory_limit()


@pytest.mark.parametrize("file", ["max_usage_in_bytes", "memsw.max_usage_in_bytes"])
def test_v1_distinguishes_its_own_memory_limit_from_that_of_others(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_write_setting", lambda *_: None)
    group = Cgroup(Hierarchy(1, {"memory": tmp_path}), "a-1", LIMITS)
    (group.folders[0] / f"memory.{file}").write_text(f"{LIMITS.memory - (1 << 20)}\n")
    assert not group.at_memory_limit()
    (group.folders[0] / f"memory.{file}").write_text(f"{LIMITS.memory - 4096}\n")
    assert group.at_memory_limit()


def test_counters_that_are_not_there_are_zero_or_unknown(v2: Cgroup) -> None:
    assert (v2.oom_kills(), v2.refused_forks(), v2.peak_memory()) == (0, 0, None)


def test_a_group_that_cannot_be_limited_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(file: str, value: str) -> None:
        raise PermissionError(1, "no", file)

    monkeypatch.setattr(cgroups, "_write_setting", fail)
    with pytest.raises(PermissionError):
        Cgroup(Hierarchy(2, {"memory": tmp_path}), "a-1", LIMITS)
    assert not (tmp_path / "a-1").exists()


def test_optional_files_may_be_missing_and_others_may_not(tmp_path: Path) -> None:
    cgroups._write_setting(f"{tmp_path}/memory.swap.max?", "0")
    with pytest.raises(FileNotFoundError):
        cgroups._write_setting(f"{tmp_path}/memory.max", "0")


def test_killing_a_v2_group_uses_cgroup_kill(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text("1\n")
    (tmp_path / "cgroup.kill").write_text("")
    assert cgroups.kill_group(tmp_path) is True
    assert (tmp_path / "cgroup.kill").read_text() == "1"
    (tmp_path / "cgroup.procs").write_text("")
    assert cgroups.kill_group(tmp_path) is False


# ---------------------------------------------------------------- for real


@pytest.fixture
def real() -> Hierarchy:
    if not any(offers("root", name) for name in cgroup_tree.CONTROLLERS):
        pytest.skip("no cgroups here: that the kernel takes what is written is not proved")
    return cgroup_tree.find_hierarchy(f"ferryman-test-{os.getpid()}")


def test_a_real_group_limits_counts_and_is_removed(real: Hierarchy) -> None:
    group = Cgroup(real, "a-1", Limits(memory=32 << 20, pids=4))
    try:
        script = "for i in 1 2 3 4 5 6 7 8 9 10; do sleep 9 & done; exit 7"
        command = ['for f in "$@"; do echo 0 >"$f"; done', "exec /bin/sh -c '" + script + "'"]
        done = subprocess.run(
            ["/bin/sh", "-c", "; ".join(command), "x", *group.join_files], stderr=subprocess.DEVNULL
        )  # a pipe would stay open for as long as they sleep
        assert done.returncode != 7
        assert group.refused_forks() > 0
        assert group.peak_memory()
        for folder in group.folders:
            while cgroups.kill_group(folder):
                os.sched_yield()
        assert group.oom_kills() == 0
    finally:
        group.remove()
        for folder in dict.fromkeys(real.folders.values()):
            cgroups.remove_group(folder)
    assert not any(folder.exists() for folder in group.folders)


def test_a_removed_group_has_no_subgroups(tmp_path: Path) -> None:
    (tmp_path / "own" / "attempt").mkdir(parents=True)
    (tmp_path / "own" / "cgroup.procs").touch()
    assert cgroups.subgroups(tmp_path / "own") == [tmp_path / "own" / "attempt"]
    assert cgroups.subgroups(tmp_path / "gone") == []


def test_a_process_that_joins_a_group_is_in_all_hierarchies_with_its_children(
    real: Hierarchy,
) -> None:
    group = Cgroup(real, "a-1", LIMITS)
    show = "cat /proc/$$/cgroup /proc/self/cgroup; true"  # the shell's, then its child's
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", JOIN, "join", *group.join_files, "--", "/bin/sh", "-c", show],
            capture_output=True,
            text=True,
            check=True,
        )
    finally:
        group.remove()
        for folder in dict.fromkeys(real.folders.values()):
            cgroups.remove_group(folder)
    own = f"/{next(iter(real.folders.values())).name}/a-1"
    assert sum(line.endswith(own) for line in done.stdout.splitlines()) == 2 * len(group.folders)


def test_v1_is_joined_without_the_lock_that_stops_every_fork_on_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cgroups, "_write_setting", lambda file, value: None)
    folders = {name: tmp_path / name for name in ("memory", "pids", "cpu")}
    for folder in folders.values():
        folder.mkdir()
    group = Cgroup(Hierarchy(1, folders), "a-1", LIMITS)
    assert group.join_files == [str(folder / "a-1" / "tasks") for folder in folders.values()]


def test_empty_groups_of_other_agents_are_removed(tmp_path: Path) -> None:
    for name in ("ferryman-mine", "ferryman-dead", "ferryman-busy/attempt", "system.slice"):
        (tmp_path / name).mkdir(parents=True)
    cgroup_tree.remove_empty_groups(Hierarchy(1, {"memory": tmp_path / "ferryman-mine"}))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["ferryman-busy", "ferryman-mine", "system.slice"]


def test_a_group_whose_parent_was_removed_makes_it_again(real: Hierarchy) -> None:
    for folder in dict.fromkeys(real.folders.values()):
        cgroups.remove_group(folder)
    if real.version == 2:
        pytest.skip("version 2: proved on the copy above, not proved here")
    group = Cgroup(real, "a-1", LIMITS)
    made = [folder.is_dir() for folder in group.folders]
    group.remove()
    for folder in dict.fromkeys(real.folders.values()):
        cgroups.remove_group(folder)
    assert made == [True] * len(real.folders)
