"""Attempts of a pack run one after the other in one sandbox, each as if it were alone."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client_agent.sandbox.base import Ended, Launch
from client_agent.sandbox.bubblewrap.backend import Bubblewrap
from client_agent.sandbox.pack import driver
from client_agent.sandbox.pack.pack import Pack
from shared.wire import Reason
from tests.kit.child import Who, descriptors, in_child, processes_of
from tests.kit.each import each
from tests.kit.waiting import until
from tests.sandbox.real_sandbox import MIB, OVER_S, SMALL, Sandboxes, SandboxHost, bash, unpack


@dataclass
class Task:
    """One attempt of a pack."""

    script: str
    line: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    timeout_s: float = 60.0
    end: str = ""
    """How it is ended once it has said something: "late" or "cancelled"."""


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


async def packed(sandboxes: Sandboxes, tasks: list[Task], env: dict[str, str]) -> list[Run]:
    """Run them in one pack; in another one where the sandbox has ended."""
    sandbox = await sandboxes.of(bash(""))
    assert isinstance(sandbox, Bubblewrap)
    clock: Any = sandbox.clock
    uid = sandbox.settings.uid_base if sandbox.separate_uids else os.geteuid()
    runs, before = list[Run](), descriptors()
    pack: Pack | None = None
    for number, task in enumerate(tasks, 1):
        if pack is None or not pack.usable:
            pack = await sandbox.pack(sandboxes.name(), 0, SMALL)
        workspace = pack.workspace()
        unpack({"run.sh": task.script, **task.files}, workspace)
        own = {"FERRYMAN_JOB_ID": f"{100 + number}", "FERRYMAN_ATTEMPT": "1"}
        own |= {"FERRYMAN_ARRAY_INDEX": f"{number}"}
        own |= {} if task.line is None else {"FERRYMAN_ARRAY_LINE": task.line}
        out, err = (sandboxes.home / f"{number}.{name}" for name in ("out", "err"))
        launch = Launch(("bash", "run.sh"), {**env, **own}, task.timeout_s, 0.1, out, err)
        process = await workspace.start(launch)
        clock.over.clear()
        process.go()
        if task.end:
            await until(lambda out=out: out.stat().st_size > 0)  # type: ignore[misc]
            if task.end == "cancelled":
                process.stop(None, "cancelled", grace=False)
            clock.over.set()
        ended, alive = await process.wait(), processes_of(uid)
        files = sorted(os.listdir(workspace.fd))  # noqa: PTH208  # by descriptor
        await workspace.destroy()
        stdout, stderr = (file.read_text(errors="replace") for file in (out, err))
        for file in (out, err):
            file.unlink()
        runs.append(Run(ended, stdout, stderr, files, process.pid, pack.usable, alive))
    assert pack is not None
    await pack.close()
    assert processes_of(uid) == []
    assert list(sandboxes.home.glob("*/agent/work/*")) == []
    assert descriptors() <= before + 4, "what a sandbox keeps"
    return runs


def run(host: SandboxHost, *tasks: Task | str, env: dict[str, str] | None = None) -> list[Run]:
    all_of_them = [Task(one) if isinstance(one, str) else one for one in tasks]
    result = host.do(packed, all_of_them, env or {})
    assert isinstance(result, list)
    return result


def test_attempts_have_directories_logs_and_variables_of_their_own(host: SandboxHost) -> None:
    show = 'echo "$FERRYMAN_JOB_ID $FERRYMAN_ARRAY_INDEX [$FERRYMAN_ARRAY_LINE] $COMMON $PWD $HOME"'
    odd = 'with $(echo "quotes") and ä \\n'
    first, second, third = run(
        host,
        Task(f"{show}; echo oops >&2; echo left >left", "a line", {"in": "x"}),
        Task(f"{show}; ls; exit 3", odd, {"new": ""}),
        f'{show}; [ -z "${{FERRYMAN_ARRAY_LINE+set}}" ] && echo unset',
        env={"COMMON": "same"},
    )
    assert first.stdout == "101 1 [a line] same /job /job\n"
    assert (first.stderr, first.files) == ("oops\n", ["in", "left", "run.sh"])
    assert second.stdout == f"102 2 [{odd}] same /job /job\nnew\nrun.sh\n"
    assert (second.ended.exit_code, second.ended.reason) == (3, Reason.EXIT_CODE)
    assert second.stderr == ""
    assert third.stdout == "103 3 [] same /job /job\nunset\n"
    assert (third.ended.exit_code, third.ended.reason) == (0, None)
    assert len({one.init for one in (first, second, third)}) == 1
    assert first.again
    assert second.again


def test_each_attempt_is_measured_alone(host: SandboxHost) -> None:
    program = "python3 -c 'b = b\"x\" * (60 << 20); [None for _ in range(4000000)]'"
    used, later = (one.ended.usage for one in run(host, program, "exit 0"))
    assert used.cpu_s is not None
    assert later.cpu_s is not None
    assert used.cpu_s >= 0.05
    assert later.cpu_s < used.cpu_s / 2
    if host.who == "root":
        forks = 'import os\nfor _ in range(99): os.fork() or os.execlp("sleep", "sleep", "9")'
        refused, after = run(host, f"python3 -c '{forks}' 2>/dev/null", "exit 0")
        warned = [[one[:10] for one in which.ended.warnings] for which in (refused, after)]
        assert warned == [["pids_limit"], []]
        assert used.peak_memory_bytes is not None
        assert used.peak_memory_bytes > 60 * MIB
        assert (later.peak_memory_bytes or 0) < 30 * MIB


def test_memory_disk_and_output_are_the_attempts_own(host: SandboxHost) -> None:
    fill = f"head -c {SMALL.disk - 8 * MIB} /dev/zero >big && echo fits"
    eat = "python3 -c 'b = bytearray(400 << 20)'"
    first, second, eating, flooding, calm = run(
        host, fill, fill, eat, "yes flood", "echo 5; exit 5"
    )
    assert [(one.stdout, one.ended.reason) for one in (first, second)] == [("fits\n", None)] * 2
    assert eating.ended.exit_code != 0
    if host.who == "root":
        assert eating.ended.reason is Reason.MEMORY_LIMIT
    assert flooding.ended.reason is Reason.LOG_LIMIT
    assert (calm.stdout, calm.ended.reason) == ("5\n", Reason.EXIT_CODE)


def test_what_an_attempt_leaves_is_gone_before_the_next(host: SandboxHost) -> None:
    leaving = "mkdir -p /tmp/a/b; touch /tmp/a/b/c '/tmp/*' /tmp/.h /dev/shm/x; ln -s / /tmp/l; "
    leaving += "mkdir -p a/b; chmod 0 a; chmod 0500 ."
    look = "find /tmp /dev/shm -mindepth 1; stat -c %a .; ls -A; touch new"
    first, second = run(host, leaving, look)
    assert (first.again, second.init) == (True, first.init)
    assert (second.stdout, second.files) == ("700\nrun.sh\n", ["new", "run.sh"])


DAEMON = """
(trap '' TERM HUP INT; setsid sh -c 'trap "" TERM HUP INT
while :; do echo mine >>/job/x; echo late; sleep 0.01; done') & disown
echo started
"""


def test_a_daemon_is_dead_when_its_attempt_has_ended_and_writes_into_no_sibling(host) -> None:
    first, second = run(host, DAEMON, "sleep 0.1; ls; ps ax | grep -c [s]etsid")
    assert first.ended.exit_code == 0
    assert len(first.alive) <= (2 if host.who == "root" else 3), "bwrap, driver, ourselves"
    # Where its death takes too long the next child has another sandbox.
    assert first.again == (first.init == second.init)
    assert second.files == ["run.sh"]
    assert "late" not in second.stdout


@each(
    "old, new, script",
    [
        ("FERRYMAN_kill || FERRYMAN_c=processes; ", "", DAEMON),  # what it did not kill
        # an answer about another attempt
        ('echo "$FERRYMAN_j $FERRYMAN_a', 'echo "999 $FERRYMAN_a', "exit 0"),
    ],
)
def test_a_driver_that_fails_ends_the_sandbox(who: Who, old: str, new: str, script: str) -> None:
    """The agent looks for itself."""
    assert driver.DRIVER.count(old) == 1

    def work(home: Path) -> Any:
        driver.DRIVER = driver.DRIVER.replace(old, new)  # type: ignore[misc]
        return packed(Sandboxes(home), [Task(script), Task("ps ax | grep -c [s]etsid")], {})

    first, second = in_child(work, who)
    assert not first.again
    assert second.init != first.init
    if new:
        assert first.ended.reason is Reason.SANDBOX_ERROR
    else:
        assert (first.ended.exit_code, second.stdout) == (0, "0\n")


def test_no_attempt_reaches_the_driver_or_its_socket(host: SandboxHost) -> None:
    attack = """
    kill -9 1; kill -STOP 1; kill -INT 1; kill -TERM 1; kill -HUP 1; kill -QUIT 1
    ls -l /proc/$$/fd; cat /proc/1/environ; ls /proc/1; echo 104 1 0 clean >/proc/1/fd/0
    for fd in 3 4 5 6 7 8 9; do echo "102 1 0 clean" >&$fd; done
    python3 -c 'import socket; socket.socket(fileno=0).send(b"102 1 0 clean\\n")'
    exit 9
    """
    first, second = run(host, attack, "exit 4")
    assert (first.ended.exit_code, second.ended.exit_code) == (9, 4)
    assert "socket:" not in first.stdout
    assert first.init == second.init


DIRT = (
    "ipcmk -M 1000 >/dev/null",
    "ipcmk -Q >/dev/null",
    "mkdir /tmp/a; touch /tmp/a/b; chmod 0 /tmp/a",
    "chmod 0 /tmp",
    "chmod 0711 /tmp",
    "chmod 0711 /dev/shm",
    "prlimit --pid 1 --nofile=64:64 >/dev/null",
    "taskset -p 1 1 >/dev/null",
)


def test_what_cannot_be_cleaned_and_a_changed_driver_end_the_sandbox(host: SandboxHost) -> None:
    changes = [f"{one}; exit 0" for one in DIRT]
    if os.nice(0) < 19:  # `nice -n 19 make test` leaves nothing to change
        changes.append("renice 19 1 >/dev/null; exit 0")
    look = "ls /tmp; ipcs -mq | grep -c ^0x; ulimit -n; nice; taskset -p $$ | sed s/.*://"
    before, *runs = run(host, look, *(word for change in changes for word in (change, look)))
    assert before.again
    assert before.stdout.startswith("0\n")
    dirty, clean = runs[::2], runs[1::2]
    assert [(one.ended.exit_code, one.again) for one in dirty] == [(0, False)] * len(changes)
    assert [(one.stdout, one.again) for one in clean] == [(before.stdout, True)] * len(changes)


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


def test_what_a_job_changed_of_its_logs_pipes_is_as_before_for_the_next(host: SandboxHost) -> None:
    scripts = (LOOK_AT_PIPES, CHANGE_PIPES, LOOK_AT_PIPES)
    runs = run(host, *(f"python3 -c '{script}'" for script in scripts))
    assert [one.stderr for one in runs] == [""] * 3
    assert runs[2].stdout == runs[0].stdout
    assert len({one.init for one in runs}) == 1


def test_a_timeout_or_a_cancel_ends_one_attempt_and_its_sandbox_only(host: SandboxHost) -> None:
    first, late, third, cancelled, last = run(
        host,
        "echo 1",
        Task("echo 2; sleep 100", timeout_s=OVER_S, end="late"),
        "echo 3",
        Task("echo 4; sleep 100", end="cancelled"),
        "echo 5",
    )
    runs = (first, late, third, cancelled, last)
    assert [one.stdout for one in runs] == [f"{n}\n" for n in range(1, 6)]
    assert [one.ended.reason for one in runs] == [None, Reason.TIMEOUT, None, None, None]
    assert [one.again for one in runs] == [True, False, True, False, True]
    assert cancelled.ended.message == "cancelled"
    assert len(cancelled.alive) <= (0 if host.who == "root" else 1)


def test_all_output_of_an_attempt_is_in_its_log(host: SandboxHost) -> None:
    talk = "head -c 200000 /dev/zero | tr '\\0' x; printf end"
    runs = run(host, talk, "printf b", talk)
    assert [len(one.stdout) for one in runs] == [200_003, 1, 200_003]
    assert runs[2].stdout.endswith("xend")
