"""The cgroups of jobs are below the cgroup in which the agent was started."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.kernel import cgroup_tree, cgroups
from shared.clock import RealClock
from shared.wire import Reason
from tests.kit.real_sandbox import (
    MIB,
    SETTINGS,
    SMALL,
    Job,
    Outcome,
    alone,
    can,
    in_child,
    opened,
    uid_base,
)

TOP = Path("/sys/fs/cgroup")
pytestmark = pytest.mark.skipif(
    not (can("root") and (TOP / "memory/memory.limit_in_bytes").exists()),
    reason="no cgroups of version 1: not proved that jobs stay below the agent's own",
)


def own_groups() -> list[Path]:
    """Of this process, in the hierarchies that the sandbox uses."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return [
        TOP / name / path.lstrip("/") for _, name, path in lines if name in cgroup_tree.CONTROLLERS
    ]


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


def test_the_limit_of_the_agents_own_cgroup_holds_for_its_jobs() -> None:
    """It is not reported as the job's own limit, which was not reached."""
    # The child copies pages of this process, which may be large after many tests: its own share
    # has to fit into the limit by far.
    program = "import time\nx = bytearray(b'x') * (1900 << 20)\ntime.sleep(5)\n"
    bundle = {"run.sh": "exec python3 p.py\n", "p.py": program}
    job = Job(bundle, limits=SMALL.model_copy(update={"memory": 3_000 * MIB}))

    def limited(home: Path) -> Outcome:
        with put_into(f"admin-{os.getpid()}", memory=1_800 * MIB):
            return asyncio.run(alone(job, home))

    outcome: Outcome = in_child(limited, "root")
    assert outcome.enforcement["memory"] == "hard"
    assert outcome.ended.reason is Reason.AGENT_ERROR
    assert "ran out of memory" in outcome.ended.message


def test_processes_left_in_another_cgroup_are_killed_and_their_groups_removed() -> None:
    """The agent may be started somewhere else the next time."""

    def two_runs(home: Path) -> tuple[int, list[Path]]:
        with put_into(f"first-{os.getpid()}") as before:
            sandbox = Bubblewrap(
                RealClock(), home / "agent", replace(SETTINGS, uid_base=uid_base())
            )
            asyncio.run(sandbox.clear())
            sandbox.work_folders.close()
            group = cgroups.Cgroup(
                cgroup_tree.find_hierarchy(sandbox.work_folders.name), "old", SMALL
            )
            left = subprocess.Popen(["sleep", "60"])
            for folder in group.folders:
                (folder / "cgroup.procs").write_text(str(left.pid))
            enter(before)

            async def second() -> None:
                async with opened(Job({}), home) as again:
                    await again.clear()

            asyncio.run(second())
            return left.wait(10), [one.parent for one in group.folders if one.parent.exists()]

    assert in_child(two_runs, "root") == (-signal.SIGKILL, [])
