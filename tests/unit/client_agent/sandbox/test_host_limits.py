"""The advice to an operator whose host cannot enforce some limits."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from client_agent.sandbox import host_resources
from client_agent.sandbox.base import SandboxSettings
from client_agent.sandbox.host_resources import Host, probe_host
from client_agent.sandbox.kernel import loop_ext4
from client_agent.sandbox.kernel.cgroup_tree import CgroupsUnavailable, Hierarchy


def probed(home: Path) -> Host:
    return probe_host("name", home / "images", home / "work", SandboxSettings(), root=False)


@pytest.mark.parametrize("flags", [0, os.ST_NOEXEC])
def test_a_data_folder_mounted_noexec_is_noticed(
    flags: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=flags))
    advice = [line for line in probed(tmp_path).advice if "noexec" in line]
    assert bool(advice) == bool(flags)


def test_controllers_that_are_missing_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        host_resources, "find_hierarchy", lambda _: Hierarchy(2, {"memory": tmp_path})
    )
    support = probed(tmp_path)
    assert support.soft_limits == ["pids", "cpu", "disk"]
    assert support.advice[0].startswith("pids, cpu: the cgroup of this agent does not offer")


def test_the_advice_contains_why_cgroups_are_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find(name: str) -> Hierarchy:
        raise CgroupsUnavailable("mount cgroup2")

    monkeypatch.setattr(host_resources, "find_hierarchy", find)
    assert probed(tmp_path).advice[0] == "memory, pids, cpu: mount cgroup2"


@pytest.mark.parametrize(
    ("number", "said"), [(errno.EINVAL, "Linux 5.8"), (errno.EBUSY, "no free loop device")]
)
def test_the_advice_contains_why_loop_devices_are_unavailable(
    number: int, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kernel before 5.8, or another process that is always faster."""

    def ioctl(fd: int, request: int, argument: object = 0) -> int:
        if argument == 0:
            return 7  # a free one
        raise OSError(number, "no")

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(os, "open", lambda *_: os.dup(0))
    with pytest.raises(OSError, match=said):
        loop_ext4.attach(0)
