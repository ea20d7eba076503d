"""Without a sandbox everything but the isolation works."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.none import NoSandbox
from shared.wire import Reason
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import (
    SETTINGS,
    SMALL,
    Job,
    Outcome,
    Who,
    can,
    in_child,
    opened,
    processes_of,
    run,
    start,
    uid_base,
)
from tests.kit.waiting import until


def run_unsandboxed(script: str, who: Who, **more: object) -> Outcome:
    return run(replace(Job({"run.sh": script}, backend=NoSandbox), **more), who)  # type: ignore[arg-type]


def test_a_job_runs_in_its_directory_with_its_variables_only(finds: Who) -> None:
    outcome = run_unsandboxed(
        "echo x >file; env | cut -d= -f1 | sort | tr '\\n' ' '; readlink /proc/self/fd/0\n", finds
    )
    assert (outcome.ended.reason, outcome.ended.exit_code) == (None, 0)
    assert outcome.files["file"] == b"x\n"
    names, stdin = outcome.stdout.split(" /")
    allowed = {"FERRYMAN_JOB_ID", "HOME", "LANG", "PATH", "PWD", "SHLVL", "TMPDIR", "_"}
    assert set(names.split()) == allowed
    assert stdin == "dev/null\n"


def test_reports_say_that_there_is_no_isolation(finds: Who) -> None:
    outcome = run_unsandboxed("true\n", finds)
    assert outcome.report.backend == "none"
    assert outcome.report.enforcement["network"] == outcome.enforcement["network"] == "none"
    assert "without isolation" in outcome.report.advice[0]


def test_jobs_of_a_root_agent_do_not_run_as_root() -> None:
    if not can("root"):
        pytest.skip("not root: that a root agent drops its rights is not proved")
    assert run_unsandboxed("id -u; id -G\n", "root").stdout.split() not in (["0", "0"], [])
    assert "0" not in run_unsandboxed("id -u; id -G\n", "root").stdout.split()


@pytest.mark.parametrize(
    ("script", "code"), [("exit 3", 3), ("exit 137", 137), ("kill -9 $$", 137), ("/none", 127)]
)
def test_exit_codes_are_those_of_run_sh(finds: Who, script: str, code: int) -> None:
    outcome = run_unsandboxed(script + "\n", finds)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, code)


def test_after_the_timeout_sigterm_is_sent_and_then_sigkill(finds: Who) -> None:
    script = "trap 'echo t >term' TERM; echo up; while :; do sleep 0.05; done\n"
    outcome = run_unsandboxed(script, finds, timeout_s=0.3, grace_s=0.3)
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.TIMEOUT, None)
    assert outcome.files["term"] == b"t\n"


@pytest.mark.parametrize(
    "escape",
    [
        "sleep 50 &",
        "(setsid sleep 50 &)",
        "(setsid setsid sleep 50 & ) ; setsid -f sleep 50",
        "(env -i /usr/bin/setsid -f /bin/sleep 50)",
    ],
)
def test_processes_that_leave_the_session_are_killed_with_the_job(finds: Who, escape: str) -> None:
    outcome = run_unsandboxed(f"({escape}) >/dev/null 2>&1\nsleep 0.1\nexit 0\n", finds)
    assert (outcome.ended.exit_code, outcome.ended.certain) == (0, True)
    assert outcome.survivors == []


def test_limits_work_if_the_host_supports_them(finds: Who) -> None:
    script = "head -c 400M /dev/zero | tail -c 390M >/dev/null; exit ${PIPESTATUS[1]}\n"
    outcome = run_unsandboxed(script, finds)
    if offers(finds, "memory"):
        assert outcome.ended.reason is Reason.MEMORY_LIMIT
    else:
        assert outcome.ended.exit_code == 1
    script = "for i in $(seq 20); do head -c 8M /dev/zero >$i || break; done; sleep 0.3\n"
    assert run_unsandboxed(script, finds).ended.reason is Reason.DISK_LIMIT
    assert run_unsandboxed("yes\n", finds).ended.reason is Reason.LOG_LIMIT


def test_two_jobs_do_not_kill_each_other(finds: Who) -> None:
    async def both(home: Path) -> tuple[str, list[str]]:
        job = Job({"run.sh": "echo up; while [ ! -e stop ]; do sleep 0.02; done; echo unharmed\n"})
        job = replace(job, backend=NoSandbox)
        async with opened(job, home) as sandbox:
            first = await start(sandbox, job, home, "a-0", 0)
            first.process.go()
            await until(lambda: bool(first.stdout))
            daemon = replace(job, bundle={"run.sh": "(setsid sleep 50 &) >/dev/null 2>&1\n"})
            second = await start(sandbox, daemon, home, "a-1", 1)
            second.process.go()
            await second.process.wait()
            await second.workspace.destroy()
            os.close(os.open("stop", os.O_CREAT | os.O_WRONLY, dir_fd=first.workspace.fd))
            await first.process.wait()
            await first.workspace.destroy()
            uid = sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()
            return first.stdout, processes_of(uid) + processes_of(uid + 1)

    stdout, alive = in_child(lambda home: asyncio.run(both(home)), finds)
    assert stdout == "up\nunharmed\n"
    assert [command for command in alive if "sleep 50" in command] == []


def test_read_only_binds_to_other_paths_need_a_sandbox(finds: Who) -> None:
    async def bound(home: Path) -> str:
        job = Job({"run.sh": "true\n"}, backend=NoSandbox, read_only=((Path("/usr"), "/opt/x"),))
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await start(sandbox, job, home)
            return str(caught.value)

    assert "need a sandbox" in in_child(lambda home: asyncio.run(bound(home)), finds)


def test_processes_of_an_earlier_run_are_found_by_their_uids() -> None:
    if not can("root"):
        pytest.skip("not root: jobs have no uids of their own")

    async def second_run(home: Path) -> int | None:
        own = range(uid_base(), uid_base() + 4)
        job = Job({"run.sh": "true\n"}, backend=NoSandbox, settings=replace(SETTINGS, own_uids=own))
        left = await asyncio.create_subprocess_exec("/bin/sleep", "60", user=own[2])
        other_agents = await asyncio.create_subprocess_exec("/bin/sleep", "60", user=own.stop)
        async with opened(job, home) as sandbox:
            await sandbox.clear()
        code = await asyncio.wait_for(left.wait(), 10)
        assert other_agents.returncode is None
        other_agents.kill()
        await other_agents.wait()
        return code

    assert in_child(lambda home: asyncio.run(second_run(home)), "root") == -9


def test_an_agent_that_could_not_find_the_processes_of_its_jobs_does_not_start() -> None:
    async def test(home: Path) -> str:
        async with opened(Job({"run.sh": ""}, backend=NoSandbox), home) as sandbox:
            sandbox._host = replace(sandbox.host, hierarchy=None)
            with pytest.raises(SandboxBroken) as why:
                await sandbox.self_test()
            return str(why.value)

    message = in_child(lambda home: asyncio.run(test(home)), "user")
    assert "this agent has neither: start it as root" in message


def test_hard_limits_can_be_required(who: Who) -> None:
    async def required(home: Path) -> str:
        settings = replace(SETTINGS, require_hard_limits=True, disk_images=False)
        job = Job({"run.sh": "true\n"}, settings=settings)
        async with opened(job, home) as sandbox:
            with pytest.raises(SandboxBroken) as caught:
                await sandbox.self_test()
            return str(caught.value)

    message = in_child(lambda home: asyncio.run(required(home)), who)
    assert message.startswith("require_hard_limits is set, but soft here are ")
    assert "disk: " in message


def test_no_job_starts_with_too_little_free_disk_space(who: Who) -> None:
    async def full(home: Path) -> str:
        job = Job({"run.sh": "true\n"}, settings=replace(SETTINGS, free_floor=1 << 60))
        async with opened(job, home) as sandbox:
            with pytest.raises(OSError, match="must stay free") as caught:
                await sandbox.prepare("a", 0, SMALL)
            return str(caught.value)

    assert "bytes are free" in in_child(lambda home: asyncio.run(full(home)), who)
