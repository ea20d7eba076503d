"""Attempts of a pack run one after the other in one sandbox, each as if it were alone."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from client_agent.sandbox.base import Ended, Launch, Process
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.pack import driver
from client_agent.sandbox.pack.pack import Pack
from shared.wire import Reason
from tests.kit.real_sandbox import (
    MIB,
    SMALL,
    Job,
    Who,
    descriptors,
    in_child,
    opened,
    processes_of,
    unpack,
)
from tests.kit.waiting import until

JOB = Job({})


@dataclass
class Child:
    """One attempt of a pack."""

    script: str
    line: str | None = None
    timeout_s: float = 20.0
    files: dict[str, str] = field(default_factory=dict)
    during: Callable[[Process, Path], Awaitable[Any]] | None = None
    """Gets its process, and its log."""
    new_sandbox: bool = False
    """Open another pack if it finds none."""


@dataclass
class Run:
    """What came of it."""

    ended: Ended
    stdout: str
    stderr: str
    files: list[str]
    """In its directory at its end."""
    init: int
    again: bool
    """The sandbox was kept for the next attempt."""
    alive: list[str]
    """Processes of the job's user that are alive when its end is reported, the driver among
    them."""


def run(children: list[Child], who: Who, job: Job = JOB) -> list[Run]:
    """Run them in one pack; in another one where the sandbox has ended."""
    result = in_child(lambda home: asyncio.run(_run(children, home, job)), who)
    assert isinstance(result, list)
    return result


async def _run(children: list[Child], home: Path, job: Job) -> list[Run]:
    runs, before = [], descriptors()
    (home / "logs").mkdir()
    async with opened(job, home) as sandbox:
        assert isinstance(sandbox, Bubblewrap)
        pack: Pack | None = None
        for number, child in enumerate(children, 1):
            if pack is None or not pack.usable:
                pack = await sandbox.pack(f"pack-{number}", 0, job.limits)
            runs.append(await _attempt(sandbox, pack, child, number, home, job))
        assert pack is not None
        await pack.close()
        assert processes_of(_uid(sandbox)) == []
        assert list((home / "agent/work").iterdir()) == []
    assert descriptors() <= before
    return runs


def _uid(sandbox: Bubblewrap) -> int:
    return sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()


async def _attempt(
    sandbox: Bubblewrap, pack: Pack, child: Child, number: int, home: Path, job: Job
) -> Run:
    workspace = pack.workspace()
    unpack({"run.sh": child.script, **child.files}, workspace)
    own = {
        "FERRYMAN_JOB_ID": str(100 + number),
        "FERRYMAN_ATTEMPT": "1",
        "FERRYMAN_ARRAY_INDEX": str(number),
        **({} if child.line is None else {"FERRYMAN_ARRAY_LINE": child.line}),
    }
    out, err = home / f"logs/{number}.out", home / f"logs/{number}.err"
    launch = Launch(("bash", "run.sh"), {**job.env, **own}, child.timeout_s, job.grace_s, out, err)
    process = await workspace.start(launch)
    process.go()
    if child.during is not None:
        await child.during(process, out)
    ended = await process.wait()
    alive = processes_of(_uid(sandbox))
    files = sorted(os.listdir(workspace.fd))  # noqa: PTH208  # by descriptor
    await workspace.destroy()
    stdout, stderr = out.read_text(errors="replace"), err.read_text(errors="replace")
    return Run(ended, stdout, stderr, files, process.pid, pack.usable, alive)


def test_attempts_have_directories_logs_and_variables_of_their_own(who: Who) -> None:
    show = 'echo "$FERRYMAN_JOB_ID $FERRYMAN_ARRAY_INDEX [$FERRYMAN_ARRAY_LINE] $COMMON $PWD $HOME"'
    first, second, third = run(
        [
            Child(f"{show}; echo oops >&2; echo left >left", "a line", files={"in": "x"}),
            Child(f"{show}; ls; exit 3", 'with $(echo "quotes") and ä \\n', files={"new": ""}),
            Child(f'{show}; [ -z "${{FERRYMAN_ARRAY_LINE+set}}" ] && echo unset'),
        ],
        who,
        replace(JOB, env={"COMMON": "same"}),
    )
    assert first.stdout == "101 1 [a line] same /job /job\n"
    assert first.stderr == "oops\n"
    assert first.files == ["in", "left", "run.sh"]
    assert second.stdout == (
        '102 2 [with $(echo "quotes") and ä \\n] same /job /job\nnew\nrun.sh\n'
    )
    assert (second.ended.exit_code, second.ended.reason) == (3, Reason.EXIT_CODE)
    assert second.stderr == ""
    assert third.stdout == "103 3 [] same /job /job\nunset\n"
    assert (third.ended.exit_code, third.ended.reason) == (0, None)
    assert len({one.init for one in (first, second, third)}) == 1
    assert all(one.again for one in (first, second, third))


def test_each_attempt_is_measured_alone(who: Who) -> None:
    busy, idle = run(
        [
            Child("python3 -c 'b = b\"x\" * (60 << 20); [None for _ in range(4000000)]'"),
            Child("exit 0"),
        ],
        who,
    )
    used, later = busy.ended.usage, idle.ended.usage
    assert used.cpu_s is not None
    assert used.cpu_s >= 0.05
    assert later.cpu_s is not None
    assert later.cpu_s < used.cpu_s / 2
    assert later.wall_s < used.wall_s
    if who == "root":
        assert used.peak_memory_bytes is not None
        assert used.peak_memory_bytes > 60 * MIB
        assert (later.peak_memory_bytes or 0) < 30 * MIB


def test_what_an_attempt_leaves_in_memory_is_gone_before_the_next(who: Who) -> None:
    leaving = "mkdir -p /tmp/a/b; touch /tmp/a/b/c '/tmp/*' /tmp/.h /dev/shm/x; ln -s / /tmp/l"
    look = "find /tmp /dev/shm -mindepth 1"
    first, second = run([Child(leaving), Child(look)], who)
    assert first.again
    assert second.stdout == ""
    assert second.init == first.init


DAEMON = """
(trap '' TERM HUP INT; setsid sh -c 'trap "" TERM HUP INT
while :; do echo mine >>/job/x; echo late; sleep 0.01; done') & disown
echo started
"""


def test_a_daemon_is_dead_when_its_attempt_has_ended_and_writes_into_no_sibling(who: Who) -> None:
    first, second = run([Child(DAEMON), Child("sleep 0.2; ls; ps ax | grep -c [s]etsid")], who)
    assert first.ended.exit_code == 0
    assert len(first.alive) <= (2 if who == "root" else 3), first.alive  # bwrap, driver, ourselves
    assert (first.again, first.init) == (True, second.init)
    assert second.files == ["run.sh"]
    assert "late" not in second.stdout


def test_processes_that_the_driver_did_not_kill_end_the_sandbox(
    who: Who, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent looks for itself."""
    careless = driver.DRIVER.replace("FERRYMAN_kill || FERRYMAN_c=processes; ", "")
    assert careless != driver.DRIVER
    monkeypatch.setattr(driver, "DRIVER", careless)
    first, second = run([Child(DAEMON), Child("ps ax | grep -c [s]etsid")], who)
    assert (first.ended.exit_code, first.again) == (0, False)
    assert second.init != first.init
    assert second.stdout == "0\n"


def test_an_answer_that_is_not_about_the_attempt_ends_the_sandbox(
    who: Who, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = driver.DRIVER.replace('echo "$FERRYMAN_j $FERRYMAN_a', 'echo "999 $FERRYMAN_a')
    assert wrong != driver.DRIVER
    monkeypatch.setattr(driver, "DRIVER", wrong)
    (first,) = run([Child("exit 0")], who)
    assert (first.ended.reason, first.again) == (Reason.SANDBOX_ERROR, False)


def test_no_attempt_reaches_the_driver_or_its_socket(who: Who) -> None:
    attack = """
    kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -HUP 1; kill -QUIT 1
    ls -l /proc/$$/fd; cat /proc/1/environ; ls /proc/1; echo 104 1 0 clean >/proc/1/fd/0
    for fd in 3 4 5 6 7 8 9; do echo "102 1 0 clean" >&$fd; done
    python3 -c 'import socket; socket.socket(fileno=0).send(b"102 1 0 clean\\n")'
    exit 9
    """
    first, second = run([Child(attack), Child("exit 4")], who)
    assert (first.ended.exit_code, second.ended.exit_code) == (9, 4)
    assert "socket:" not in first.stdout
    assert first.init == second.init


def test_a_job_that_changes_the_driver_gets_its_sandbox_ended(who: Who) -> None:
    changes = ["prlimit --pid 1 --nofile=64:64", "taskset -p 1 1"]
    if os.nice(0) < 19:  # `nice -n 19 make test` leaves nothing to change
        changes.append("renice 19 1")
    tests = [Child(f"{one}; exit 0") for one in changes]
    look = "ulimit -n; nice; taskset -p $$ | sed s/.*://"
    before, *changed, after = run([Child(look), *tests, Child(look)], who)
    assert [one.again for one in changed] == [False] * len(tests)
    assert (before.again, after.again) == (True, True)
    assert after.stdout == before.stdout


@pytest.mark.parametrize(
    "leave",
    [
        "ipcmk -M 1000 >/dev/null",
        "ipcmk -Q >/dev/null",
        "mkdir /tmp/a; touch /tmp/a/b; chmod 0 /tmp/a",
        "chmod 0 /tmp",
        "chmod 0711 /tmp",
        "chmod 0711 /dev/shm",
    ],
)
def test_what_cannot_be_cleaned_ends_the_sandbox(leave: str, who: Who) -> None:
    first, second = run([Child(leave), Child("ls /tmp; ipcs -mq | grep -c ^0x")], who)
    assert first.ended.exit_code == 0
    assert not first.again
    assert second.init != first.init
    assert second.stdout == "0\n"


CHANGE_PIPES = """
import fcntl, os
for fd in (1, 2):
    fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 4096)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK | os.O_APPEND | os.O_ASYNC | os.O_DIRECT)
"""
LOOK_AT_PIPES = """
import fcntl
print([(fcntl.fcntl(fd, fcntl.F_GETFL), fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ)) for fd in (1, 2)])
"""


def test_what_a_job_changed_of_its_logs_pipes_is_as_before_for_the_next(who: Who) -> None:
    scripts = (LOOK_AT_PIPES, CHANGE_PIPES, LOOK_AT_PIPES)
    runs = run([Child(f"python3 -c '{script}'") for script in scripts], who)
    assert [one.stderr for one in runs] == [""] * 3
    assert runs[2].stdout == runs[0].stdout
    assert len({one.init for one in runs}) == 1


def test_the_directory_is_as_new_for_the_next(who: Who) -> None:
    first = "mkdir -p a/b; chmod 0 a; chmod 0500 ."
    second = "stat -c %a .; ls -a | wc -l; touch new"
    runs = run([Child(first), Child(second)], who)
    assert runs[1].stdout == "700\n3\n"
    assert runs[1].files == ["new", "run.sh"]


def test_a_timeout_ends_one_attempt_and_its_sandbox_only(who: Who) -> None:
    runs = run([Child("echo 1"), Child("sleep 100", timeout_s=0.2), Child("echo 3")], who)
    assert [one.ended.reason for one in runs] == [None, Reason.TIMEOUT, None]
    assert [one.again for one in runs] == [True, False, True]
    assert runs[2].stdout == "3\n"


def test_a_cancelled_attempt_is_dead_and_the_next_one_runs(who: Who) -> None:
    async def cancel(process: Process, log: Path) -> None:
        await until(lambda: log.stat().st_size > 0)
        process.stop(None, "cancelled", grace=False)

    runs = run([Child("echo 1; sleep 100", during=cancel), Child("echo 2")], who)
    assert (runs[0].ended.reason, runs[0].ended.message) == (None, "cancelled")
    assert len(runs[0].alive) <= (0 if who == "root" else 1)
    assert runs[1].stdout == "2\n"


def test_memory_is_the_attempts_own(who: Who) -> None:
    eat = "python3 -c 'b = bytearray(400 << 20)'"
    runs = run([Child("echo 1"), Child(eat), Child("echo 3; exit 5")], who)
    assert runs[0].ended.reason is None
    assert runs[1].ended.exit_code != 0
    if who == "root":
        assert runs[1].ended.reason is Reason.MEMORY_LIMIT
    assert (runs[2].stdout, runs[2].ended.reason) == ("3\n", Reason.EXIT_CODE)


def test_the_disk_is_the_attempts_own(who: Who) -> None:
    fill = f"head -c {SMALL.disk - 8 * MIB} /dev/zero >big && echo fits"
    runs = run([Child(fill), Child(fill), Child("echo small >x")], who)
    assert [one.stdout for one in runs] == ["fits\n", "fits\n", ""]
    assert [one.ended.reason for one in runs] == [None] * 3


def test_a_flood_of_output_ends_one_attempt_and_is_no_others(who: Who) -> None:
    runs = run([Child("yes flood"), Child("echo calm")], who)
    assert runs[0].ended.reason is Reason.LOG_LIMIT
    assert runs[1].stdout == "calm\n"


def test_all_output_of_an_attempt_is_in_its_log(who: Who) -> None:
    talk = "head -c 200000 /dev/zero | tr '\\0' x; printf end"
    runs = run([Child(talk), Child("printf b"), Child(talk)], who)
    assert [len(one.stdout) for one in runs] == [200_003, 1, 200_003]
    assert runs[2].stdout.endswith("xend")
