"""Without a sandbox everything but the isolation works."""

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import SelfTestReport
from client_agent.sandbox.none import NoSandbox
from shared.wire import Reason
from tests.kit.child import Who, can, child_test, dead_within, uid_base
from tests.sandbox.conftest import started_as
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import (
    SETTINGS,
    Outcome,
    Sandboxes,
    SandboxHost,
    bash,
    beside,
    opened,
    refusal,
)
from tests.sandbox.test_killed_agent import kill_agent


@pytest.fixture(scope="module", params=["root", *(["user"] if offers("user", "memory") else [])])
def plain(request: pytest.FixtureRequest) -> Iterator[SandboxHost]:
    """An agent that finds the processes of its jobs without a sandbox: by uid, or by cgroup."""
    host = SandboxHost(started_as(request.param))
    yield host
    assert host.close() == []


def run(host: SandboxHost, script: str, **more: Any) -> Outcome:
    return host.run(bash(script, backend=NoSandbox, **more))


async def self_test(sandboxes: Sandboxes) -> SelfTestReport:
    return await (await sandboxes.of(bash("", backend=NoSandbox))).self_test()


def test_a_job_runs_in_its_directory_with_its_variables_and_not_as_root(plain: SandboxHost) -> None:
    """It is said that there is no isolation."""
    script = "echo x >file; env | cut -d= -f1 | sort | tr '\\n' ' '; readlink /proc/self/fd/0\n"
    outcome = run(plain, f"id -u; id -G; {script}")
    assert (outcome.ended.reason, outcome.files["file"]) == (None, b"x\n")
    uid, groups, rest = outcome.stdout.split("\n", 2)
    assert "0" not in {uid, *groups.split()}
    names, stdin = rest.split(" /")
    allowed = {"FERRYMAN_JOB_ID", "HOME", "LANG", "PATH", "PWD", "SHLVL", "TMPDIR", "_"}
    assert (set(names.split()), stdin) == (allowed, "dev/null\n")
    report = plain.do(self_test)
    assert report.backend == "none"
    assert report.enforcement["network"] == outcome.enforcement["network"] == "none"
    assert "without isolation" in report.advice[0]


TERM = "trap 'echo t >term' TERM; echo up; while :; do sleep 0.05; done\n"
EAT = "head -c 400M /dev/zero | tail -c 390M >/dev/null; exit ${PIPESTATUS[1]}\n"
FILL = "for i in $(seq 20); do head -c 8M /dev/zero >$i || break; done; sleep 0.3\n"


def test_jobs_end_as_in_a_sandbox(plain: SandboxHost) -> None:
    for script, code in (("exit 3", 3), ("exit 137", 137), ("kill -9 $$", 137), ("/none", 127)):
        ended = run(plain, script + "\n").ended
        assert (ended.reason, ended.exit_code) == (Reason.EXIT_CODE, code)
    late = run(plain, TERM, over="up", grace_s=0.2)
    assert (late.ended.reason, late.ended.exit_code) == (Reason.TIMEOUT, None)
    assert late.files["term"] == b"t\n"
    hungry = run(plain, EAT).ended
    if offers(plain.who, "memory"):
        assert hungry.reason is Reason.MEMORY_LIMIT
    else:
        assert hungry.exit_code == 1
    assert run(plain, FILL).ended.reason is Reason.DISK_LIMIT
    assert run(plain, "yes\n").ended.reason is Reason.LOG_LIMIT


def test_processes_that_leave_the_session_are_killed_with_the_job(plain: SandboxHost) -> None:
    for escape in (
        "sleep 50 &",
        "(setsid sleep 50 &)",
        "(setsid setsid sleep 50 & ) ; setsid -f sleep 50",
        "(env -i /usr/bin/setsid -f /bin/sleep 50)",
    ):
        outcome = run(plain, f"({escape}) >/dev/null 2>&1\nsleep 0.1\nexit 0\n")
        assert (outcome.ended.exit_code, outcome.ended.certain) == (0, True)
        assert outcome.survivors == []


def test_two_jobs_do_not_kill_each_other(plain: SandboxHost) -> None:
    waits = "echo up; while [ ! -e stop ]; do sleep 0.02; done; echo unharmed\n"
    one = bash(waits, backend=NoSandbox)
    two = bash("(setsid sleep 50 &) >/dev/null 2>&1\n", backend=NoSandbox)
    _, stdout, ended, *_ = plain.do(beside, one, two)
    assert (stdout, ended.exit_code) == ("up\nunharmed\n", 0)


@child_test
def test_a_job_dies_with_its_agent(home: Path, root: Who) -> None:
    init, _ = kill_agent(bash("echo up; exec sleep 60\n", backend=NoSandbox), home, go=True)
    assert dead_within(init)


@child_test
async def test_processes_of_an_earlier_run_are_found_by_their_uids(home: Path, root: Who) -> None:
    own = range(uid_base(), uid_base() + 4)
    job = bash("true\n", backend=NoSandbox, settings=replace(SETTINGS, own_uids=own))
    left, others = (subprocess.Popen(["/bin/sleep", "60"], user=u) for u in (own[2], own.stop))  # noqa: ASYNC220
    async with opened(job, home) as sandbox:
        await sandbox.clear()
    assert (left.wait(10), others.poll()) == (-9, None)
    others.kill()
    others.wait()


def test_what_needs_a_sandbox_or_root_is_refused_without() -> None:
    def take(sandbox: Any) -> None:
        sandbox._host = replace(sandbox.host, hierarchy=None)

    job = bash("true\n", backend=NoSandbox, read_only=((Path("/usr"), "/opt/x"),))
    assert "need a sandbox" in refusal(job, "root" if can("root") else "user")
    said = refusal(bash("", backend=NoSandbox), "user", take, self_test=True)
    assert "this agent has neither: start it as root" in said


def test_what_the_operator_requires_and_the_host_has_not_is_said(who: Who) -> None:
    settings = replace(SETTINGS, require_hard_limits=True, disk_images=False)
    said = refusal(bash("true\n", settings=settings), who, self_test=True)
    assert said.startswith("require_hard_limits is set, but soft here are ")
    assert "disk: " in said
    job = bash("true\n", settings=replace(SETTINGS, free_floor=1 << 60))
    assert "bytes are free" in refusal(job, who)
