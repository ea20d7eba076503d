"""Each protection of the sandbox alone: it works if another one is turned off."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from client_agent.sandbox.bubblewrap import command, seccomp, selftest
from client_agent.sandbox.kernel import devices, start_namespace
from tests.kit.real_sandbox import (
    SETTINGS,
    SandboxHost,
    Started,
    Who,
    bash,
    refusal,
    run,
)


def permit_all_calls() -> None:
    """Let every system call pass, in this process."""
    seccomp.RULES = ()  # type: ignore[misc, assignment]
    seccomp.NAMESPACES = 0  # type: ignore[misc]
    seccomp.program.cache_clear()


def without(option: str, length: int = 1) -> Callable[..., None]:
    """Leaves an option of bwrap and its arguments out, in this process."""

    def change(*_: object) -> None:
        real = command.bwrap_options

        def fewer(*args: Any, **given: Any) -> list[str]:
            options = real(*args, **given)
            at = options.index(option)
            return options[:at] + options[at + length :]

        command.bwrap_options = fewer

    return change


NEST = """
for kind in U m n p i u C; do unshare -$kind true 2>&1 | cut -d: -f3; done
unshare -Ur true 2>&1 | cut -d: -f3
mount -t tmpfs none /tmp 2>&1 | grep -o 'permission denied\\|must be superuser'
chroot / true 2>&1 | cut -d: -f3
"""
FULL, NO = " No space left on device", " Operation not permitted"


def test_without_the_filter_no_namespace_can_be_made_inside(who: Who) -> None:
    """--disable-userns alone: there is no room for another user namespace, and without a capability
    there are no others."""
    lines = run(bash(NEST), who, after=permit_all_calls).stdout.splitlines()
    assert (lines[:8], len(lines), lines[-1]) == ([FULL, *[NO] * 6, FULL], 10, NO)


def test_without_disable_userns_no_namespace_can_be_made_inside(who: Who) -> None:
    """The filter alone."""
    lines = run(bash(NEST), who, after=without("--disable-userns")).stdout.splitlines()
    assert lines[:8] == [NO] * 8


def test_a_sandbox_that_does_not_isolate_fails_its_self_test(who: Who) -> None:
    def pretend_root(_: object) -> None:
        selftest.real_uid = lambda pid: 0

    for change, check in (
        (without("--unshare-net"), "no_network"),
        (pretend_root, "not_root_on_host"),
    ):
        said = f"the sandbox does not hold on this host: {check} "
        assert said in refusal(bash(""), who, change, self_test=True)


def test_without_a_filter_nothing_starts(who: Who) -> None:
    job = bash("echo ran\n", settings=replace(SETTINGS, start_timeout_s=0.3))
    assert "not up within 0.3 s" in refusal(job, who, without("--seccomp", 2))


async def shown(started: Started) -> bool:
    return Path("/proc", str(started.process.pid), "root/usr/bin/bash").exists()


def test_the_end_of_an_agent_removes_its_root_and_nothing_of_the_host(who: Who) -> None:
    """As root, the host's /usr is mounted in it."""
    before = sorted(os.listdir("/usr/bin"))  # noqa: PTH208  # names
    outcome = run(bash("true", before_go=shown), who)
    assert outcome.extra is True or who == "user"
    assert outcome.left == []
    assert sorted(os.listdir("/usr/bin")) == before  # noqa: PTH208


# ---------------------------------------------------------------- where chains are spawned


async def mounts_around(started: Started) -> tuple[list[str], str, str]:
    """Mount points where bwrap was started; the agent's namespace and folder afterwards."""
    lines = Path(f"/proc/{started.outer}/mountinfo").read_text().splitlines()
    own = str(Path("/proc/thread-self/ns/mnt").readlink())
    return [line.split()[4] for line in lines], own, str(Path.cwd())


def test_a_root_agents_chain_is_spawned_where_few_mounts_are(host: SandboxHost) -> None:
    places, own, folder = host.run(bash("true", before_go=mounts_around)).extra
    assert folder == str(Path.cwd())
    if host.who == "root":
        known = ("/usr", "/etc", "/proc", "/dev", "/sys/fs/cgroup", "/run/ferryman", "/lib", "/bin")
        assert [place for place in places if place != "/" and not place.startswith(known)] == []
        assert len(places) < 40
        assert own != str(Path("/proc/self/ns/mnt").readlink())


def test_where_programs_need_more_of_the_host_all_mounts_stay(who: Who) -> None:
    """As on hosts that keep their programs in other folders."""

    def change() -> None:
        start_namespace.PROGRAMS = ()  # type: ignore[misc, assignment]

    outcome = run(bash("echo ran", before_go=mounts_around), who, after=change)
    own = Path("/proc/self/mountinfo").read_text().splitlines()
    assert {line.split()[4] for line in own} <= set(outcome.extra[0])
    assert outcome.stdout == "ran\n"


def test_where_no_device_nodes_can_be_made_bwrap_makes_dev(who: Who) -> None:
    def refuse(folder: Path, host: int) -> None:
        raise PermissionError(1, "no nodes", str(folder))

    def change() -> None:
        devices.make_nodes = refuse  # type: ignore[attr-defined]

    script = "ls /dev/pts; sh -c 'exec 3<>/dev/ptmx; ls /dev/pts'; touch /dev/x || echo read-only"
    said = run(bash(script), who, after=change).stdout
    assert said.splitlines() == ["ptmx", "0", "ptmx", "read-only"]
