"""``ferryman agent check``: the limits that it reports stop the test programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from client_agent.check.limit_tests import check
from client_agent.check.table import Table
from client_agent.sandbox.none import NoSandbox
from tests.kit.real_sandbox import SETTINGS, Who, bash, can, in_child, opened, use_bwrap

LIMITS = ("isolation", "memory", "pids", "cpu", "wall", "disk", "log", "results", "files")
BROKEN = """#!/bin/sh
case "$1" in
--help) echo "--disable-userns --bind-fd --json-status-fd";;
--version) echo bubblewrap 1.0;;
*) echo "bwrap: setting up uid map: Permission denied" >&2; exit 1;;
esac
"""


def checked(who: Who, *, broken: bool = False, **more: Any) -> Table:
    async def work(home: Path) -> Table:
        folder = home / "limit-tests"
        folder.mkdir()
        async with opened(bash("", settings=replace(SETTINGS, poll_s=0.1), **more), home) as box:
            if broken:
                use_bwrap(box, BROKEN)
            table = await check(box, folder, {})
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


def test_a_broken_sandbox_fails_the_check_and_says_why(who: Who) -> None:
    table = checked(who, broken=True)
    assert (table.passed, table.report) == (False, None)
    (advice,) = table.advice
    assert "setting up uid map: Permission denied" in advice
    assert "To fix it: " in advice
