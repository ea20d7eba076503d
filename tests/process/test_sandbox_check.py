"""``ferryman agent check``: the limits that it reports stop the test programs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from client_agent.check.limit_tests import check
from client_agent.check.table import Table
from client_agent.sandbox.base import Grant
from client_agent.sandbox.bubblewrap.command import Tools
from client_agent.sandbox.none import NoSandbox
from tests.kit.real_sandbox import (
    SETTINGS,
    Job,
    Who,
    in_child,
    opened,
)

LIMITS = [
    "isolation",
    "memory",
    "pids",
    "cpu",
    "wall",
    "disk",
    "log",
    "results",
    "files",
    "network",
]


async def checked(
    home: Path, job: Job, missing: str = "", grants: Mapping[str, Grant] | None = None
) -> Table:
    folder = home / "limit-tests"
    folder.mkdir()
    async with opened(job, home) as sandbox:
        if missing:
            tools = Tools("/bin/sh", missing, "/usr/bin/unshare")
            sandbox._tools = tools  # type: ignore[union-attr]
        table = await check(sandbox, folder, grants or {})
    assert list(folder.iterdir()) == []
    return table


def test_every_limit_of_this_host_is_as_claimed(who: Who) -> None:
    job = Job({}, settings=replace(SETTINGS, poll_s=0.1))
    table = in_child(lambda home: asyncio.run(checked(home, job)), who)
    assert [row.limit for row in table.rows] == LIMITS
    assert [row for row in table.rows if not row.passed] == []
    assert table.passed
    soft = [row for row in table.rows if row.enforcement == "soft"]
    assert bool(soft) == bool(table.advice)


def test_without_a_sandbox_the_check_reports_an_open_network(finds: Who) -> None:
    job = Job({}, backend=NoSandbox, settings=replace(SETTINGS, poll_s=0.1))
    table = in_child(lambda home: asyncio.run(checked(home, job)), finds)
    network = table.rows[-1]
    assert (network.enforcement, network.seen) == ("none", "reached a port of this host")
    assert table.rows[0].enforcement == "none"
    assert table.rows[0].seen.startswith("no sandbox: ")
    assert table.passed


def test_a_broken_sandbox_fails_the_check_and_says_why(who: Who, tmp_path: Path) -> None:
    def work(home: Path) -> Table:
        broken = home / "bwrap"
        broken.write_text(
            "#!/bin/sh\n"
            'case "$1" in\n'
            '--help) echo "--disable-userns --bind-fd --json-status-fd";;\n'
            "--version) echo bubblewrap 1.0;;\n"
            '*) echo "bwrap: setting up uid map: Permission denied" >&2; exit 1;;\n'
            "esac\n"
        )
        broken.chmod(0o755)
        home.chmod(0o755)
        return asyncio.run(checked(home, Job({}), str(broken)))

    table = in_child(work, who)
    assert not table.passed
    assert table.report is None
    (advice,) = table.advice
    assert "setting up uid map: Permission denied" in advice
    assert "To fix it: " in advice
