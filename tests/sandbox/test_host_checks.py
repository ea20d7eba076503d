"""Whether an agent may use its host: self-test, advice, limits, uids, later failures, and
``ferryman agent check``, whose limits stop the test programs."""

import asyncio
import errno
import fcntl
import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest import mock

import pytest

from client_agent.check import limit_tests
from client_agent.check.table import Table
from client_agent.sandbox import host_resources, host_sandbox
from client_agent.sandbox.base import Sandbox, SandboxBroken, SandboxSettings, SelfTestReport
from client_agent.sandbox.bubblewrap import selftest
from client_agent.sandbox.host_resources import Host, probe_host
from client_agent.sandbox.kernel import loop_ext4
from client_agent.sandbox.kernel.cgroup_tree import CgroupsUnavailable, Hierarchy
from client_agent.sandbox.kernel.uids import UidBlock
from client_agent.sandbox.none import NoSandbox
from client_agent.sandbox.watch import RETEST_S, TEST_WAIT_S, SandboxWatch
from shared.wire import Limits
from tests.kit.child import Who, can, descriptors, in_child
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.sandbox.conftest import use_bwrap
from tests.sandbox.real_sandbox import SETTINGS, bash, opened

GOOD = {
    "NoNewPrivs": "1",
    "CapEff": "0000000000000000",
    "Seccomp": "2",
    "interfaces": "lo",
    "core_pattern": "closed",
    "init": "hidden",
}
HOST = ["not_root_on_host"]


@each(
    "seen, uid, allowed, failed",
    [
        ({}, 70_000, None, []),
        ({}, 1000, 1000, []),
        ({"NoNewPrivs": "0"}, 70_000, None, ["no_new_privs"]),
        ({"CapEff": "00000000a80425fb"}, 70_000, None, ["no_capabilities"]),
        ({"Seccomp": "0"}, 70_000, None, ["seccomp"]),
        ({"interfaces": "lo eth0"}, 70_000, None, ["no_network"]),
        ({"interfaces": ""}, 70_000, None, ["no_network"]),
        ({"core_pattern": "open"}, 70_000, None, ["core_pattern_closed"]),
        ({"init": "shown"}, 70_000, None, ["init_hidden"]),
        ({}, 0, None, HOST),
        ({}, 0, 0, HOST),
        ({}, 70_000, 1000, HOST),
    ],
)
def test_each_failed_check_is_named(seen, uid, allowed, failed) -> None:
    checks = selftest.evaluate({**GOOD, **seen}, uid, allowed_uid=allowed)
    assert len(checks) == 7
    assert [name for name, passed in checks.items() if not passed] == failed
    nothing_seen = selftest.evaluate({}, 70_000, allowed_uid=None)
    assert [name for name, passed in nothing_seen.items() if passed] == HOST


NEW = 'if [ $1 = --help ]; then echo "--disable-userns --bind-fd --json-status-fd"; '
NEW += "else echo bubblewrap 0.9.1; fi"


@each(
    "script, mode, said",
    [
        (NEW, 0o755, ""),
        (NEW, 0o4755, "chmod u-s"),
        ("echo --bind-fd --json-status-fd", 0o755, "does not know --disable-userns: install"),
        ("echo cannot open shared object >&2; exit 127", 0o755, "cannot open shared object"),
        ("", 0o644, "does not run"),
    ],
)
def test_a_binary_that_cannot_do_it_is_refused(tmp_path, script, mode, said) -> None:
    path = tmp_path / "bwrap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(mode)
    if not said:
        assert selftest.check_binary(str(path)) == "0.9.1"
        return
    with pytest.raises(SandboxBroken, match=said):
        selftest.check_binary(str(path))
    with pytest.raises(SandboxBroken, match="apt install bubblewrap"):
        host_sandbox.find_program("no-such-bwrap", "bubblewrap")


def test_the_advice_names_what_forbids_bwrap(tmp_path: Path) -> None:
    denied, proc = "setting up uid map: Permission denied", tmp_path / "proc"
    for switch, value, words in (
        ("user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces"),
        ("kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
        ("kernel/apparmor_restrict_unprivileged_userns", "1", "/etc/apparmor.d/bwrap"),
    ):
        (proc / switch).parent.mkdir(parents=True, exist_ok=True)
        (proc / switch).write_text(value + "\n")
        assert words in selftest.advise(denied, proc)
        (proc / switch).unlink()
    assert "bubblewrap's own" in selftest.advise("bwrap: something new", proc)
    mount = "bwrap: Can't mount proc on /newroot/proc: Operation not permitted"
    assert "container" not in selftest.advise(mount, proc, tmp_path, {})
    in_containers = [
        selftest.advise(mount, proc, tmp_path, {name: "1"})
        for name in ("container", "KUBERNETES_SERVICE_HOST")
    ]
    for number, name in enumerate((".dockerenv", "run/.containerenv", "run/systemd/container")):
        root = tmp_path / str(number)
        (root / name).parent.mkdir(parents=True)
        (root / name).touch()
        in_containers.append(selftest.advise(mount, proc, root, {}))
    for advice in in_containers:
        assert "seccomp=unconfined" in advice
        assert "procMount: Unmasked" in advice


def probed(home: Path) -> Host:
    return probe_host("name", home / "images", home / "work", SandboxSettings(), root=False)


def test_the_advice_says_why_limits_are_soft(tmp_path, monkeypatch) -> None:
    memory = Hierarchy(2, {"memory": tmp_path})
    monkeypatch.setattr(host_resources, "find_hierarchy", lambda _: memory)
    host = probed(tmp_path)
    assert host.soft_limits == ["pids", "cpu", "disk"]
    assert host.advice[0].startswith("pids, cpu: the cgroup of this agent does not offer")

    none = mock.Mock(side_effect=CgroupsUnavailable("mount cgroup2"))
    monkeypatch.setattr(host_resources, "find_hierarchy", none)
    assert probed(tmp_path).advice[0] == "memory, pids, cpu: mount cgroup2"
    for flags in (0, os.ST_NOEXEC):
        monkeypatch.setattr(os, "statvfs", lambda _, flags=flags: SimpleNamespace(f_flag=flags))
        assert any("noexec" in line for line in probed(tmp_path).advice) == bool(flags)


@each("number, said", [(errno.EINVAL, "Linux 5.8"), (errno.EBUSY, "no free loop device")])
def test_the_advice_contains_why_loop_devices_are_unavailable(number, said, monkeypatch) -> None:
    """A kernel before 5.8, or another process that is always faster."""

    def ioctl(fd: int, request: int, argument: object = 0) -> int:
        if argument == 0:
            return 7  # a free one
        raise OSError(number, "no")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(os, "open", lambda *_: os.dup(0))
    with pytest.raises(OSError, match=said):
        loop_ext4.attach(0)


# ---------------------------------------------------------------- uids of jobs

FREE = 3_000_000_000
"""Far above any account."""


@pytest.fixture
def blocks(tmp_path: Path) -> Iterator[list[UidBlock]]:
    """Those that are held, of one host."""
    held = list[UidBlock]()
    yield held
    for block in held:
        block.close()


def take(blocks: list[UidBlock], folder: Path, first: int, count: int, size: int) -> int:
    """Hold one more; its first uid."""
    blocks.append(UidBlock(first, count, size, folder / "uids"))
    return blocks[-1].first


def test_two_agents_of_a_host_never_share_a_uid(blocks: list[UidBlock], tmp_path: Path) -> None:
    assert [take(blocks, tmp_path, FREE, 100, 4) for _ in range(2)] == [FREE, FREE + 4]
    blocks.pop(0).close()
    assert take(blocks, tmp_path, FREE + 1, 3, 3) == FREE + 1
    assert take(blocks, tmp_path, FREE, 100, 2) == FREE + 8, "whatever the sizes"
    before = descriptors()
    for match, given in (
        ("no other agent uses: set agent", (FREE + 4, 4, 3)),
        (f"from {FREE} to {FREE + 1} there are none", (FREE, 2, 3)),
        ("no account", (0, 1, 1)),
    ):
        with pytest.raises(SandboxBroken, match=match):
            take(blocks, tmp_path, *given)
    assert descriptors() == before


def test_no_account_has_the_uid_of_a_job(blocks, tmp_path, monkeypatch) -> None:
    """Accounts are looked up for free uids only: it may be a slow server."""
    nobody = pwd.getpwnam("nobody").pw_uid
    assert take(blocks, tmp_path, nobody - 1, 6, 2) == nobody + 1
    assert take(blocks, tmp_path, nobody - 1, 1, 1) == nobody - 1, "free for others"
    with pytest.raises(SandboxBroken, match="no account"):
        take(blocks, tmp_path, nobody, 1, 1)
    getpwuid = mock.Mock(side_effect=KeyError)
    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    for _ in range(2):
        take(blocks, tmp_path, FREE, 100, 50)
    assert getpwuid.mock_calls == [mock.call(uid) for uid in range(FREE, FREE + 100)]


def test_the_errors_about_uids_say_what_is_wrong(tmp_path: Path) -> None:
    few = tmp_path / "uid_map"
    few.write_text("         0     100000      65536\n")
    with pytest.raises(SandboxBroken, match="none that this host or container has"):
        UidBlock(70_000, 100, 3, tmp_path / "uids", few)
    UidBlock(60_000, 6, 6, tmp_path / "uids", few).close()
    with pytest.raises(SandboxBroken, match="which cannot be written: Is a directory"):
        UidBlock(FREE, 4, 2, tmp_path)


# ---------------------------------------------------------------- while an agent runs


class Watched:
    """A sandbox whose self-test has a given result, and its watch. ``hold`` delays its end."""

    def __init__(self) -> None:
        self.tests, self.clock = 0, SimClock()
        self.problem: Exception | None = None
        self.hold = asyncio.Event()
        self.hold.set()
        self.watch = SandboxWatch(cast("Sandbox", self), self.clock)

    async def self_test(self) -> SelfTestReport:
        self.tests += 1
        await self.hold.wait()
        if self.problem is not None:
            raise self.problem
        return SelfTestReport("fake", "1", {})


@each("number", [errno.ENOSYS, errno.EPERM, errno.EACCES, errno.ENOENT])
async def test_a_self_test_that_cannot_be_run_keeps_the_agent_from_starting(number: int) -> None:
    sandbox = Watched()
    sandbox.problem = OSError(number, "no")
    with pytest.raises(SandboxBroken, match="the sandbox could not be tested: no"):
        await sandbox.watch.self_test()


@each("number", [errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENOMEM])
async def test_a_host_that_is_short_of_something_starts_and_takes_no_work(number: int) -> None:
    sandbox = Watched()
    sandbox.problem = OSError(number, "short")
    await sandbox.watch.self_test()
    assert await sandbox.watch.problem() == "the sandbox could not be tested: short"
    sandbox.problem = None
    assert (await sandbox.watch.problem(), sandbox.tests) != (None, 1), "not before another test"
    await sandbox.clock.advance(RETEST_S)
    assert await sandbox.watch.problem() is None


async def test_a_broken_sandbox_is_tested_from_time_to_time_by_one_test_for_all() -> None:
    """While it is tested it is still broken, and nobody waits long. A start that fails meanwhile is
    not forgotten."""
    sandbox = Watched()
    sandbox.problem = SandboxBroken("still gone")
    sandbox.watch.mark_broken(SandboxBroken("gone"))
    for tests in (1, 2):
        assert [await sandbox.watch.problem() for _ in range(5)] == ["still gone"] * 5
        assert sandbox.tests == tests
        await sandbox.clock.advance(RETEST_S)
    sandbox.problem = None
    sandbox.hold.clear()
    questions = [asyncio.create_task(sandbox.watch.problem()) for _ in range(3)]
    await sandbox.clock.advance(TEST_WAIT_S / 2)
    assert not any(question.done() for question in questions)
    await sandbox.clock.advance(TEST_WAIT_S)
    assert [await question for question in questions] == ["still gone"] * 3
    sandbox.watch.mark_broken(SandboxBroken("second"))
    sandbox.hold.set()
    assert (await sandbox.watch.problem(), sandbox.tests) == ("second", 3)
    assert (await sandbox.watch.problem(), sandbox.tests) == (None, 4)


async def test_closing_cancels_a_running_test() -> None:
    sandbox = Watched()
    sandbox.watch.mark_broken(SandboxBroken("gone"))
    sandbox.hold.clear()
    question = asyncio.create_task(sandbox.watch.problem())
    await sandbox.clock.advance(TEST_WAIT_S)
    await question
    await sandbox.watch.close()
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "sandbox self-test"]


LIMITS = ("isolation", "memory", "pids", "cpu", "wall", "disk", "log", "results", "files")
BROKEN = """#!/bin/sh
case "$1" in
--help) echo "--disable-userns --bind-fd --json-status-fd";;
--version) echo bubblewrap 1.0;;
*) echo "bwrap: setting up uid map: Permission denied" >&2; exit 1;;
esac
"""


def checked(who: Who, *, broken: bool = False, limits: Any = None, **more: Any) -> Table:
    """What the check says; ``limits``: those that jobs get, whatever it asks for."""

    async def work(home: Path) -> Table:
        folder = home / "limit-tests"
        folder.mkdir()
        async with opened(bash("", settings=replace(SETTINGS, poll_s=0.1), **more), home) as box:
            if broken:
                use_bwrap(box, BROKEN)
            real: Any = box.prepare
            with mock.patch.object(box, "prepare", lambda *how: real(*how[:2], limits or how[2])):
                table = await limit_tests.check(box, folder, {})
        assert list(folder.iterdir()) == []
        return table

    table = in_child(work, who)
    assert isinstance(table, Table)
    return table


def test_every_limit_of_this_host_is_as_claimed(who: Who) -> None:
    table = checked(who)
    assert [row.limit for row in table.rows] == [*LIMITS, "network"]
    assert [row for row in table.rows if not row.passed] == []
    assert table.passed
    assert any(row.enforcement == "soft" for row in table.rows) == bool(table.advice)


def test_without_a_sandbox_the_check_reports_an_open_network() -> None:
    table = checked("root" if can("root") else "user", backend=NoSandbox)
    isolation, network = table.rows[0], table.rows[-1]
    assert (network.enforcement, network.seen) == ("none", "reached a port of this host")
    assert isolation.enforcement == "none"
    assert isolation.seen.startswith("no sandbox: ")
    assert table.passed


def test_a_limit_that_does_not_hold_fails_the_check(who: Who, monkeypatch) -> None:
    (log,) = (one for one in limit_tests._LIMIT_TESTS if one.limit == "log")
    monkeypatch.setattr(limit_tests, "_LIMIT_TESTS", (log,))
    table = checked(who, limits=Limits(log=8 << 20))
    assert [(row.limit, row.passed) for row in table.rows[1:2]] == [("log", False)]
    assert not table.passed


def test_a_broken_sandbox_fails_the_check_and_says_why(who: Who) -> None:
    table = checked(who, broken=True)
    assert (table.passed, table.report) == (False, None)
    (advice,) = table.advice
    assert "setting up uid map: Permission denied" in advice
    assert "To fix it: " in advice
