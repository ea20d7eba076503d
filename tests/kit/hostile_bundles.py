"""How each bundle of tests/hostile must end, whichever way it is run."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from shared.wire import Reason
from tests.kit.kernel_features import offers
from tests.kit.real_sandbox import HOSTILE, MIB, SETTINGS, SMALL, Job, Outcome, Who

Check = Callable[[Outcome, Who], None]
EXPECT: dict[str, tuple[Job, Check]] = {}


def expect(name: str, **job: object) -> Callable[[Check], Check]:
    """Register what is expected of a bundle."""

    def register(check: Check) -> Check:
        EXPECT[name] = (replace(Job(HOSTILE / name), **job), check)  # type: ignore[arg-type]
        return check

    return register


def completed(outcome: Outcome) -> None:
    assert (outcome.ended.reason, outcome.ended.exit_code) == (None, 0), outcome.ended


@expect("fs-read-secrets")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    lines = outcome.stdout.splitlines()
    assert len(lines) == 19
    assert all(line.startswith("denied /") for line in lines)


@expect("fs-write-system")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    lines = outcome.stdout.splitlines()
    assert len(lines) == 13
    assert all(line.startswith("denied /") for line in lines)
    places = ("/", "/usr", "/usr/bin", "/etc", "/dev", "/var", "/home", "/root", "/opt")
    assert not [probe for place in places for probe in Path(place).glob(".hostile-probe-*")]


@expect("proc-sys-write")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert re.findall(r"^denied /proc/sys/(.*)$", outcome.stdout, re.M) == [
        "kernel/core_pattern",
        "kernel/panic",
        "vm/swappiness",
        "fs/protected_symlinks",
        "kernel/modprobe",
        "kernel/hostname",
        "vm/overcommit_memory",
    ]


@expect("env-secrets")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    own = outcome.stdout.splitlines()[0].removeprefix("own: ").split()
    assert set(own) - {"PWD", "SHLVL", "_"} - PROMISED == {"HOME", "LANG", "PATH", "TMPDIR"}
    assert outcome.stdout.splitlines()[1:] == []


PROMISED = {
    *("FERRYMAN_JOB_ID", "FERRYMAN_ATTEMPT", "FERRYMAN_SERVICE"),
    *("FERRYMAN_CPUS", "FERRYMAN_MEMORY_BYTES"),
}


@expect("cmdline-leak")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout == "\n"  # its init is not there


@expect("fd-leak")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout.split() == ["0", "1", "2", "3"]  # 3: the listing itself


@expect("spoof-status")
def _(outcome: Outcome, who: Who) -> None:
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, 9)
    assert '{ "exit-code": 0 }' in outcome.stdout


@expect("other-jobs-read")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    lines = outcome.stdout.splitlines()
    headings = {"/tmp:", "/var/tmp:", "/dev/shm:", "/tmp", "/var/tmp", "/dev/shm", ""}
    top = {f"/job/../{name}" for name in (*TOP_OF_SANDBOX, "lib32", "libx32")}
    assert set(lines) - headings - top == set()


TOP_OF_SANDBOX = (
    *("bin", "dev", "etc", "job", "lib", "lib64", "proc", "sbin", "tmp", "usr", "var"),
)


@expect("pid-visibility")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    seen = re.fullmatch(r"procs=(\d+)\nsignalable=(\d+)\n", outcome.stdout)
    assert seen is not None
    assert max(int(seen[1]), int(seen[2])) <= 5


@expect("userns-nest")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout.split("\n")[:-1] == [
        f"denied {option}" for option in ("-U", "-Ur", "-m", "-n", "-p", "-i", "-u", "-C")
    ]


@expect("mount-api")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout.count("refused Operation not permitted") == 8


@expect("socket-families")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    lines = outcome.stdout.splitlines()
    assert len(lines) == 7
    assert all(line.endswith("Address family not supported by protocol") for line in lines)


@expect("net-agent-port")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    lines = outcome.stdout.splitlines()
    assert len(lines) == 26
    assert all(line.endswith("Connection refused") for line in lines)


@expect("net-own-loopback")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout.splitlines() == ["ok 127.0.0.1", "ok ::1"]


@expect("fork-bomb", timeout_s=2.0)
def _(outcome: Outcome, who: Who) -> None:
    if offers(who, "pids"):
        assert any(warning.startswith("pids_limit: ") for warning in outcome.ended.warnings)
    assert outcome.ended.reason in (None, Reason.EXIT_CODE, Reason.TIMEOUT)
    assert outcome.ended.usage.wall_s < 10


@expect("thread-bomb", timeout_s=2.0)
def _(outcome: Outcome, who: Who) -> None:
    started = re.search(r"stopped at (\d+)", outcome.stdout)
    assert started is not None
    assert int(started[1]) < SMALL.pids + 8
    if offers(who, "pids"):
        assert any(warning.startswith("pids_limit: ") for warning in outcome.ended.warnings)


@expect("mem-bomb")
def _(outcome: Outcome, who: Who) -> None:
    touched = [int(line.split()[0]) for line in outcome.stdout.splitlines()]
    assert max(touched, default=0) <= SMALL.memory // MIB
    if offers(who, "memory"):
        assert outcome.ended.reason is Reason.MEMORY_LIMIT
        assert outcome.ended.usage.peak_memory_bytes == SMALL.memory
    else:
        assert outcome.ended.reason in (Reason.MEMORY_LIMIT, Reason.EXIT_CODE)


@expect("tmpfs-bomb")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    sizes = dict(line.split() for line in outcome.stdout.splitlines())
    assert int(sizes.pop("/tmp")) in range(SETTINGS.scratch - MIB, SETTINGS.scratch + 1)
    assert int(sizes.pop("/dev/shm")) in range(SETTINGS.scratch - MIB, SETTINGS.scratch + 1)
    assert sizes == {"/": "0", "/dev": "0", "/var": "0", "/etc": "0"}


@expect("disk-bomb")
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason is Reason.DISK_LIMIT


@expect("inode-bomb")
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason is Reason.DISK_LIMIT
    made = re.search(r"stopped (\d+) No space left", outcome.stdout)
    if offers(who, "disk"):
        assert made is not None
        assert int(made[1]) < 2 * SMALL.disk // SETTINGS.inode_every


@expect("cpu-spin", timeout_s=1.0)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason in (Reason.TIMEOUT, Reason.CPU_LIMIT)
    assert outcome.ended.usage.cpu_s is not None
    if offers(who, "cpu"):
        assert outcome.ended.usage.cpu_s < 1.3 * outcome.ended.usage.wall_s * SMALL.cpus + 0.2


@expect("wall-sleep", timeout_s=0.3)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason is Reason.TIMEOUT
    assert outcome.ended.exit_code is None
    assert outcome.files["term"] == b"t\n"
    assert 0.8 <= outcome.ended.usage.wall_s < 5


@expect("sigterm-ignore", timeout_s=0.3)
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason is Reason.TIMEOUT
    assert 0.8 <= outcome.ended.usage.wall_s < 5


@expect("log-flood")
def _(outcome: Outcome, who: Who) -> None:
    assert outcome.ended.reason is Reason.LOG_LIMIT
    assert outcome.stdout_bytes < SMALL.log + 100
    assert "bytes are left out here]" in outcome.stdout


LOUD = SMALL.model_copy(update={"log": 16 * MIB})


@expect("log-one-line", limits=LOUD)
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout_bytes < LOUD.log + 100
    assert f"{200_000_000 - LOUD.log} bytes are left out here]" in outcome.stdout
    assert any(warning.startswith("log_truncated: stdout") for warning in outcome.ended.warnings)


@expect("log-binary")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    stored = outcome.files["stdout.log"]
    assert stored.startswith(
        b"\x00\xff\xfe\x1b[2J\x1b]0;title\x07\rfake\n<script>alert(1)</script>\n"
    )
    assert len(stored) == stored.index(b"evil\n") + 5 + 100_000


@expect("daemon-double-fork")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.ended.usage.wall_s < 5
    assert len(outcome.files["late.txt"].splitlines()) < 40


@expect("exit-137")
def _(outcome: Outcome, who: Who) -> None:
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, 137)


@expect("exec-missing")
def _(outcome: Outcome, who: Who) -> None:
    assert (outcome.ended.reason, outcome.ended.exit_code) == (Reason.EXIT_CODE, 127)


@expect("self-modify")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.stdout == "done\n"
    assert "run.sh" not in outcome.files


@expect("root-replace")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert set(outcome.files) == {"ok/", "stdout.log", "stderr.log", "ferryman.json"}
    assert "/job" in outcome.stdout  # rmdir and mv complained


@expect("res-symlinks")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert set(outcome.files) == {
        *("run.sh", "good.txt", "d/", "stdout.log", "stderr.log", "ferryman.json")
    }
    links = {"a", "root", "e", "up", "loop", "d/parent", "z"}
    assert {(one.path, one.why) for one in outcome.skipped} == {(x, "a symlink") for x in links}
    passwd = Path("/etc/passwd").read_bytes()
    assert not any(passwd[:200] in content for content in outcome.files.values())


@expect("res-hardlinks", timeout_s=60.0)  # it starts 3,000 programs
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert "the files add up to at least" in str(outcome.results_limit)
    assert set(outcome.files) == {"stdout.log", "stderr.log", "ferryman.json"}


@expect("res-special")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.files["good.txt"] == b"good"
    skipped = {one.path: one.why for one in outcome.skipped}
    assert skipped.pop("fifo") == "a FIFO"
    assert skipped.pop("sock") == "a socket"
    assert set(skipped.items()) <= {("white", "a device")}  # 0/0 is no device, and may be made
    assert outcome.stdout.count("refused") + outcome.stdout.count("made white") == 3


@expect("res-sparse")
def _(outcome: Outcome, who: Who) -> None:
    if offers(who, "disk"):
        completed(outcome)
        found = re.search(r"at least (\d+) bytes", str(outcome.results_limit))
        assert found is not None
        assert int(found[1]) >= 8 << 30
    else:  # RLIMIT_FSIZE did not let it grow so far
        assert outcome.files["good.txt"] == b"good\n"


@expect("res-names")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    good = {"-rf", "--help", "a b", "q'uote", 'dq"x', "$(id)", "`id`", ";id", "*", " lead"}
    good |= {"x" * 255, "\u00e9", "Case", "case", "%2e%2e%2f", "~"}
    good |= {"C:evil", "CON", "aux.txt", "dot.", "space ", "..."}  # with a warning
    assert good <= set(outcome.files)
    ours = {"run.sh", "stdout.log", "stderr.log", "ferryman.json"}
    assert set(outcome.files) - ours == good
    assert all(one.path.isprintable() for one in outcome.skipped)
    assert len(outcome.skipped) == 31 - len(good) + 1  # and the folder


@expect("res-unreadable")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert outcome.files["g"] == b"2\n"
    assert outcome.files["a/b/c/f"] == b"1\n"


@expect("res-mtime")
def _(outcome: Outcome, who: Who) -> None:
    completed(outcome)
    assert {name: outcome.files[name] for name in ("epoch", "neg", "far", "y2038")} == {
        name: name.encode() for name in ("epoch", "neg", "far", "y2038")
    }
