"""How each bundle of tests/hostile must end, whichever way it is run."""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from client_agent.sandbox.kernel import pidfd
from shared.wire import Reason
from tests.kit.child import Who
from tests.kit.waiting import until
from tests.sandbox.kernel_features import offers
from tests.sandbox.real_sandbox import HOSTILE, MIB, SETTINGS, SMALL, Job, Outcome, Started

Check = Callable[[Outcome, Who], None]
EXPECT: dict[str, tuple[Job, Check]] = {}
LOUD = SMALL.model_copy(update={"log": 16 * MIB})
SLOW = SMALL.model_copy(update={"cpus": 0.05})
PROMISED = ("JOB_ID", "ATTEMPT", "SERVICE", "CPUS", "MEMORY_BYTES")
OURS = {"stdout.log", "stderr.log", "ferryman.json"}


def expect(
    name: str,
    *,
    reason: Any = None,
    exit_code: Any = 0,
    says: str = "",
    lines: Any = None,
    denied: int = 0,
    files: Mapping[str, bytes] | None = None,
    at_least_s: float = 0.0,
    **job: Any,
) -> Callable[[Check], Check]:
    """Register what is expected of a bundle.

    Args:
        reason, exit_code: how it ends.
        says, lines, denied: all that it says, or how many lines end with what, or are about paths
            that are denied.
        files: some of its results.
        at_least_s: how long it runs.
    """

    def register(check: Check) -> Check:
        def whole(outcome: Outcome, who: Who) -> None:
            ended = outcome.ended
            for found, wanted in ((ended.reason, reason), (ended.exit_code, exit_code)):
                assert found in (wanted if isinstance(wanted, tuple) else (wanted,)), ended
            assert outcome.stdout == says or not says
            if lines is not None:
                said = outcome.stdout.splitlines()
                assert len(said) == lines[0]
                assert [line for line in said if not line.endswith(lines[1])] == []
            if denied:
                assert len(re.findall("^denied /.*$", outcome.stdout, re.M)) == denied
            assert outcome.files.items() >= (files or {}).items()
            assert ended.usage.wall_s >= at_least_s
            check(outcome, who)

        EXPECT[name] = (replace(Job(HOSTILE / name), **job), whole)
        return check

    return register


ANY = (*range(256), None)
LATE = {"timeout_s": 0.5, "over": "ready", "reason": Reason.TIMEOUT, "exit_code": None}


def warned(outcome: Outcome, start: str) -> bool:
    return any(warning.startswith(start) for warning in outcome.ended.warnings)


SYSTEM = "kernel/core_pattern kernel/panic vm/swappiness fs/protected_symlinks "
SYSTEM += "kernel/modprobe kernel/hostname vm/overcommit_memory"
REFUSED, NO_FAMILY = "refused Operation not permitted", "Address family not supported by protocol"
_PLAIN: dict[str, dict[str, Any]] = {
    "proc-sys-write": {"says": "".join(f"denied /proc/sys/{name}\n" for name in SYSTEM.split())},
    "cmdline-leak": {"says": "\n"},  # its init is not there
    "fd-leak": {"says": "0 1 2 3 "},  # 3: the listing itself
    "userns-nest": {"says": "".join(f"denied -{o}\n" for o in ("U", "Ur", *"mnpiuC"))},
    "net-own-loopback": {"says": "ok 127.0.0.1\nok ::1\n"},
    "mount-api": {"lines": (8, REFUSED)},
    "socket-families": {"lines": (7, NO_FAMILY)},
    "net-agent-port": {"lines": (26, "Connection refused")},
    "disk-bomb": {"reason": Reason.DISK_LIMIT, "exit_code": ANY},
    "exit-137": {"reason": Reason.EXIT_CODE, "exit_code": 137},
    "exec-missing": {"reason": Reason.EXIT_CODE, "exit_code": 127},
    "fs-read-secrets": {"denied": 19},
    "res-unreadable": {"files": {"g": b"2\n", "a/b/c/f": b"1\n"}},
    "res-mtime": {"files": {name: name.encode() for name in ("epoch", "neg", "far", "y2038")}},
    # and then a time of grace
    "wall-sleep": {**LATE, "files": {"term": b"t\n"}, "at_least_s": 0.5},
    "sigterm-ignore": {**LATE, "at_least_s": 0.5},
}
for _name, _expected in _PLAIN.items():
    expect(_name, **_expected)(lambda outcome, who: None)


# ---------------------------------------------------------------- the host


@expect("fs-write-system", denied=13)
def _(outcome: Outcome, who: Who) -> None:
    places = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var", "/home", "/root", "/opt")
    assert not [probe for place in places for probe in Path(place).glob(".hostile-probe-*")]


@expect("env-secrets")
def _(outcome: Outcome, who: Who) -> None:
    own, *others = outcome.stdout.splitlines()
    promised = {f"FERRYMAN_{name}" for name in PROMISED}
    names = set(own.removeprefix("own: ").split()) - {"PWD", "SHLVL", "_"} - promised
    assert (names, others) == ({"HOME", "LANG", "PATH", "TMPDIR"}, [])


@expect("spoof-status", reason=Reason.EXIT_CODE, exit_code=9)
def _(outcome: Outcome, who: Who) -> None:
    assert '{ "exit-code": 0 }' in outcome.stdout


@expect("other-jobs-read")
def _(outcome: Outcome, who: Who) -> None:
    headings = {"/tmp:", "/var/tmp:", "/dev/shm:", "/tmp", "/var/tmp", "/dev/shm", ""}
    names = "bin dev etc job lib lib32 lib64 libx32 proc sbin tmp usr var"
    top = {f"/job/../{name}" for name in names.split()}
    assert set(outcome.stdout.splitlines()) - headings - top == set()


@expect("pid-visibility")
def _(outcome: Outcome, who: Who) -> None:
    seen = re.fullmatch(r"procs=(\d+)\nsignalable=(\d+)\n", outcome.stdout)
    assert seen is not None
    assert max(int(seen[1]), int(seen[2])) <= 5


# ---------------------------------------------------------------- limits


async def is_full(started: Started) -> None:
    """The kernel refused it a process; without a cgroup, it has nearly as many as it may have."""
    group, init = started.workspace.group, started.process.pid
    if group is not None:
        await until(lambda: group.refused_forks() > 0)
    else:
        await until(lambda: len(pidfd.descendants(init)) >= SMALL.pids - 4)


@expect("fork-bomb", timeout_s=2.0, over=is_full, reason=Reason.TIMEOUT, exit_code=ANY)
def _(outcome: Outcome, who: Who) -> None:
    assert warned(outcome, "pids_limit: ") or not offers(who, "pids")


@expect("thread-bomb", timeout_s=10.0, reason=(None, Reason.EXIT_CODE), exit_code=ANY)
def _(outcome: Outcome, who: Who) -> None:
    started = re.search(r"stopped at (\d+)", outcome.stdout)
    assert started is not None
    assert int(started[1]) < SMALL.pids + 8
    assert warned(outcome, "pids_limit: ") or not offers(who, "pids")


@expect("mem-bomb", reason=(Reason.MEMORY_LIMIT, Reason.EXIT_CODE), exit_code=ANY)
def _(outcome: Outcome, who: Who) -> None:
    touched = [int(line.split()[0]) for line in outcome.stdout.splitlines()]
    assert max(touched, default=0) <= SMALL.memory // MIB
    if offers(who, "memory"):
        assert outcome.ended.reason is Reason.MEMORY_LIMIT
        assert outcome.ended.usage.peak_memory_bytes == SMALL.memory


@expect("tmpfs-bomb")
def _(outcome: Outcome, who: Who) -> None:
    sizes = dict(line.split() for line in outcome.stdout.splitlines())
    for place in ("/tmp", "/dev/shm"):
        assert SETTINGS.scratch - MIB <= int(sizes.pop(place)) <= SETTINGS.scratch
    assert sizes == {"/": "0", "/dev": "0", "/var": "0", "/etc": "0"}


@expect("inode-bomb", reason=Reason.DISK_LIMIT, exit_code=ANY)
def _(outcome: Outcome, who: Who) -> None:
    made = re.search(r"stopped (\d+) No space left", outcome.stdout)
    if offers(who, "disk"):
        assert made is not None
        assert int(made[1]) < 2 * SMALL.disk // SETTINGS.inode_every


async def is_throttled(started: Started) -> None:
    """The kernel makes its processes wait for their share, however small the host's is; without a
    cgroup, they are there."""
    group, init = started.workspace.group, started.process.pid
    await until(lambda: len(pidfd.descendants(init)) > 4)
    if group is not None:
        before = group.throttled()
        await until(lambda: group.throttled() > before + 2)


@expect(
    "cpu-spin", limits=SLOW, timeout_s=1.0, over=is_throttled, reason=Reason.TIMEOUT, exit_code=ANY
)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.usage.cpu_s is not None


@expect("log-flood", reason=Reason.LOG_LIMIT, exit_code=ANY)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.stdout_bytes < SMALL.log + 100
    assert "bytes are left out here]" in outcome.stdout


@expect("log-one-line", limits=LOUD)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.stdout_bytes < LOUD.log + 100
    assert f"{200_000_000 - LOUD.log} bytes are left out here]" in outcome.stdout
    assert warned(outcome, "log_truncated: stdout")


@expect("log-binary")
def _(outcome: Outcome, who: Who) -> None:
    stored = outcome.files["stdout.log"]
    forged = b"\x00\xff\xfe\x1b[2J\x1b]0;title\x07\rfake\n<script>alert(1)</script>\n"
    assert stored.startswith(forged)
    assert len(stored) == stored.index(b"evil\n") + 5 + 100_000


@expect("daemon-double-fork")
def _(outcome: Outcome, who: Who) -> None:
    assert len(outcome.files["late.txt"].splitlines()) < 40


# ---------------------------------------------------------------- the directory, and results


@expect("self-modify", says="done\n")
def _(outcome: Outcome, who: Who) -> None:
    assert "run.sh" not in outcome.files


@expect("root-replace")
def _(outcome: Outcome, who: Who) -> None:
    assert set(outcome.files) == {"ok/", *OURS}
    assert "/job" in outcome.stdout  # rmdir and mv complained


@expect("res-symlinks")
def _(outcome: Outcome, who: Who) -> None:
    assert set(outcome.files) == {"run.sh", "good.txt", "d/", *OURS}
    links = {"a", "root", "e", "up", "loop", "d/parent", "z"}
    assert {(one.path, one.why) for one in outcome.skipped} == {(x, "a symlink") for x in links}
    passwd = Path("/etc/passwd").read_bytes()
    assert not any(passwd[:200] in content for content in outcome.files.values())


@expect("res-hardlinks")
def _(outcome: Outcome, who: Who) -> None:
    assert "the files add up to at least" in str(outcome.results_limit)
    assert set(outcome.files) == OURS


@expect("res-special", files={"good.txt": b"good"})
def _(outcome: Outcome, who: Who) -> None:
    skipped = {one.path: one.why for one in outcome.skipped}
    assert (skipped.pop("fifo"), skipped.pop("sock")) == ("a FIFO", "a socket")
    assert set(skipped.items()) <= {("white", "a device")}  # 0/0 is no device, and may be made
    assert outcome.stdout.count("refused") + outcome.stdout.count("made white") == 3


@expect("res-sparse")
def _(outcome: Outcome, who: Who) -> None:
    if offers(who, "disk"):
        found = re.search(r"at least (\d+) bytes", str(outcome.results_limit))
        assert found is not None
        assert int(found[1]) >= 8 << 30
    else:  # RLIMIT_FSIZE did not let it grow so far
        assert outcome.files["good.txt"] == b"good\n"


@expect("res-names")
def _(outcome: Outcome, who: Who) -> None:
    good = {"-rf", "--help", "a b", "q'uote", 'dq"x', "$(id)", "`id`", ";id", "*", " lead"}
    good |= {"x" * 255, "\u00e9", "Case", "case", "%2e%2e%2f", "~"}
    good |= {"C:evil", "CON", "aux.txt", "dot.", "space ", "..."}  # with a warning
    assert set(outcome.files) - OURS - {"run.sh"} == good
    assert all(one.path.isprintable() for one in outcome.skipped)
    assert len(outcome.skipped) == 31 - len(good) + 1  # and the folder
