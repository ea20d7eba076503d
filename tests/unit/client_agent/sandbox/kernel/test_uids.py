"""Uids of jobs: a block for each agent, that no account and no other agent has."""

from __future__ import annotations

import os
import pwd

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.kernel.uids import UidBlock

FREE = 3_000_000_000
"""Far above any account."""


def test_two_agents_of_a_host_never_share_a_uid(tmp_path):
    lock_file = tmp_path / "uids"
    first, second = (UidBlock(FREE, 100, 4, lock_file) for _ in range(2))
    assert (first.first, second.first) == (FREE, FREE + 4)
    first.close()
    third = UidBlock(FREE, 100, 2, lock_file)
    assert third.first == FREE
    for uids in (second, third):
        uids.close()


def test_blocks_of_different_sizes_do_not_overlap(tmp_path):
    lock_file = tmp_path / "uids"
    with_three = UidBlock(FREE + 1, 3, 3, lock_file)
    with_two = UidBlock(FREE, 100, 2, lock_file)
    assert with_two.first == FREE + 4
    with_three.close()
    with_two.close()


def test_the_error_for_a_range_in_use_says_so(tmp_path):
    lock_file = tmp_path / "uids"
    taken = UidBlock(FREE, 4, 4, lock_file)
    with pytest.raises(SandboxBroken, match="no other agent uses: set agent"):
        UidBlock(FREE, 4, 3, lock_file)
    taken.close()
    with pytest.raises(SandboxBroken, match=f"from {FREE} to {FREE + 1} there are none"):
        UidBlock(FREE, 2, 3, lock_file)
    UidBlock(FREE, 4, 3, lock_file).close()


def test_the_uid_of_an_account_is_skipped(tmp_path):
    nobody = pwd.getpwnam("nobody")
    uids = UidBlock(nobody.pw_uid - 1, 6, 2, tmp_path / "uids")
    assert uids.first == nobody.pw_uid + 1
    uids.close()
    with pytest.raises(SandboxBroken, match="no account"):
        UidBlock(nobody.pw_uid, 1, 1, tmp_path / "uids")


def test_accounts_are_looked_up_only_for_free_uids(tmp_path, monkeypatch):
    """It may be a slow server."""
    looked_up = []

    def getpwuid(uid):
        looked_up.append(uid)
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    first = UidBlock(FREE, 100, 50, tmp_path / "uids")
    second = UidBlock(FREE, 100, 50, tmp_path / "uids")
    assert looked_up == list(range(FREE, FREE + 100))
    first.close()
    second.close()


def test_a_block_with_an_account_stays_free_for_others(tmp_path):
    nobody = pwd.getpwnam("nobody")
    first = UidBlock(nobody.pw_uid, 4, 2, tmp_path / "uids")
    second = UidBlock(nobody.pw_uid + 1, 1, 1, tmp_path / "uids")
    assert (first.first, second.first) == (nobody.pw_uid + 2, nobody.pw_uid + 1)
    first.close()
    second.close()


def test_a_failed_allocation_leaves_no_descriptor(tmp_path):
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with pytest.raises(SandboxBroken):
        UidBlock(0, 1, 1, tmp_path / "uids")
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_the_error_in_a_container_names_the_uids_that_it_has(tmp_path):
    few = tmp_path / "uid_map"
    few.write_text("         0     100000      65536\n")
    with pytest.raises(SandboxBroken, match="none that this host or container has"):
        UidBlock(70_000, 100, 3, tmp_path / "uids", few)
    uids = UidBlock(60_000, 6, 6, tmp_path / "uids", few)
    assert uids.first == 60_000
    uids.close()


def test_the_error_for_an_unwritable_lock_file_says_so(tmp_path):
    with pytest.raises(SandboxBroken, match="which cannot be written: Is a directory"):
        UidBlock(FREE, 4, 2, tmp_path)
