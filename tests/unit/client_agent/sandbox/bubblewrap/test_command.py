"""The command lines, rule by rule."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from client_agent.sandbox.base import SandboxBroken
from client_agent.sandbox.bubblewrap import command

FDS = command.Descriptors(args=10, job=11, status=12, passwd=13, group=14, hosts=15, seccomp=16)
TOOLS = command.Tools(sh="/bin/sh", bwrap="/b/bwrap", setpriv="/b/setpriv")


def bwrap(**more: object) -> list[str]:
    given: dict[str, object] = {"env": {"A": "1"}, "scratch": 1000, "shm": 2000, **more}
    return command.bwrap_options(FDS, **given)  # type: ignore[arg-type]


def test_a_root_agent_changes_its_uid_before_bwrap_starts() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=70_003)
    assert chain[:5] == ["/bin/sh", "-c", command.JOIN, "join", "--"]
    assert chain[5:11] == [
        *("/b/setpriv", "--reuid=70003", "--regid=70003", "--clear-groups", "--", "/b/bwrap"),
    ]


def test_bwrap_never_runs_as_root() -> None:
    with pytest.raises(ValueError, match="never run as the host's root"):
        command.chain(TOOLS, 10, ["x"], uid=0)


def test_cgroups_are_joined_first_while_there_is_a_right_to() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=7, join=["/a", "/b"])
    assert chain[:7] == ["/bin/sh", "-c", command.JOIN, "join", "/a", "/b", "--"]
    assert chain.index("/b/setpriv") == 7


def test_a_cgroup_that_cannot_be_joined_stops_the_chain(tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "cgroup.procs")
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["/bin/sh", "-c", command.JOIN, "join", missing, "--", "/bin/touch", str(ran)],
        capture_output=True,
    )
    assert done.returncode == 126
    assert not ran.exists()


@pytest.mark.parametrize(
    ("own", "jobs"), [(300, "500\n"), (499, "500\n"), (500, "1000\n"), (1000, "1000\n")]
)
def test_an_agent_that_the_kernel_takes_early_raises_its_jobs_and_lowers_nothing(
    own: int, jobs: str
) -> None:
    """A container's runtime may have set what only CAP_SYS_RESOURCE could lower."""
    agent = f'echo {own} >/proc/self/oom_score_adj; exec "$@"'
    start = ["/bin/sh", "-c", command.JOIN, "join", "--", "/bin/cat", "/proc/self/oom_score_adj"]
    done = subprocess.run(["/bin/sh", "-c", agent, "agent", *start], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, jobs, "")


def test_all_cgroups_are_joined_before_the_program_runs(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a b", "$(x)", "--")][:2]
    done = subprocess.run(
        ["/bin/sh", "-c", command.JOIN, "join", *map(str, files), "--", "/bin/echo", "--", "ran"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "-- ran\n"
    assert [file.read_text() for file in files] == ["0\n", "0\n"]


def test_options_travel_by_descriptor_and_not_on_the_command_line() -> None:
    chain = command.chain(TOOLS, 10, ["x"], uid=None)
    assert chain[4:] == ["--", "/b/bwrap", "--args", "10", "--", "x"]
    assert command.encode_args(["--bind", "/a b", "\udcff"]) == b"--bind\0/a b\0\xff\0"


def test_the_jobs_directory_is_the_last_mount_and_nothing_lies_below_it() -> None:
    args = bwrap(read_only=[(Path("/opt/tools"), "/opt/tools")])
    at = args.index("--bind-fd")
    assert args[at : at + 3] == ["--bind-fd", "11", "/job"]
    mounting = {"--ro-bind", "--ro-bind-try", "--bind", "--tmpfs", "--file", "--dir", "--symlink"}
    mounting |= {"--proc", "--dev", "--ro-bind-data", "--bind-data", "--mqueue", "--dev-bind"}
    assert not mounting & set(args[at + 3 :])
    assert not [arg for arg in args if arg.startswith("/job/")]


def test_root_and_dev_are_made_read_only_after_the_last_mount() -> None:
    args = bwrap()
    at = args.index("--bind-fd")
    places = ("/proc/fs", "/proc/1", "/dev", "/")
    assert args[at + 3 : at + 11] == [word for p in places for word in ("--remount-ro", p)]


def test_scratch_is_sized() -> None:
    args = bwrap()
    at = args.index("/tmp", args.index("--tmpfs") - 4)
    assert args[at - 3 : at + 1] == ["--size", "1000", "--tmpfs", "/tmp"]
    at = args.index("/dev/shm")
    assert args[at - 3 : at + 1] == ["--size", "2000", "--tmpfs", "/dev/shm"]
    for place in ("/proc/1", "/proc/fs"):
        at = args.index(place)
        assert args[at - 3 : at + 1] == ["--size", "4096", "--tmpfs", place]
    assert args.count("--tmpfs") == 4


def test_every_namespace_is_new_and_none_can_be_made_inside() -> None:
    args = bwrap()
    for option in ("user", "ipc", "pid", "net", "uts", "cgroup-try"):
        assert f"--unshare-{option}" in args
    for option in ("--disable-userns", "--new-session", "--die-with-parent", "--clearenv"):
        assert option in args
    assert args[args.index("--cap-drop") + 1] == "ALL"
    assert args[args.index("--seccomp") + 1] == "16"
    assert "--block-fd" not in args  # it fails open
    assert "--share-net" not in args


def test_only_the_operators_switch_shares_the_network() -> None:
    assert "--unshare-net" not in bwrap(network=True)
    assert "/etc/resolv.conf" in bwrap(network=True)
    assert "/etc/resolv.conf" not in bwrap()


def test_the_environment_is_what_is_given_and_nothing_else() -> None:
    args = bwrap(env={"A": "1", "PATH": "/mine"})
    names = [args[i + 1] for i, arg in enumerate(args) if arg == "--setenv"]
    assert names == ["PATH", "HOME", "LANG", "TMPDIR", "A"]
    assert args[args.index("PATH") + 1] == "/mine"


@pytest.mark.parametrize(("name", "value"), [("", "x"), ("A=B", "x"), ("A\0", "x"), ("A", "x\0")])
def test_variables_cannot_smuggle_options(name: str, value: str) -> None:
    with pytest.raises(ValueError, match="not a variable"):
        bwrap(env={name: value})


@pytest.mark.parametrize("value", ["--bind", "a\nb", "$(id)", "--"])
def test_values_are_taken_as_they_are(value: str) -> None:
    args = bwrap(env={"A": value})
    assert args[args.index("A") + 1] == value


@pytest.mark.parametrize(
    "place",
    [
        *("/job", "/job/data", "/job/../job/x", "/tmp", "/tmp/x", "/var/tmp/x", "/proc/1", "/dev"),
        *("/dev/shm/x", "/sys", "/etc/passwd", "/", "//", "relative", "../x", ""),
    ],
)
def test_operators_binds_stay_away_from_what_the_job_can_write(place: str) -> None:
    with pytest.raises(SandboxBroken, match="cannot mount on"):
        bwrap(read_only=[(Path("/opt"), place)])


@pytest.mark.parametrize("place", ["/opt/tools", "/data", "/job2", "/tmpfoo", "/usr/share/x"])
def test_operators_binds_are_read_only(place: str) -> None:
    args = bwrap(read_only=[(Path("/src"), place)])
    at = args.index("/src")
    assert args[at - 1 : at + 2] == ["--ro-bind", "/src", place]


def test_rlimits_are_set_inside() -> None:
    inside = command.gated(["bash", "run.sh"], {"nproc": 64, "core": 0})
    assert inside == [
        *("/bin/sh", "-c", command.GATE, "gate", "-u", "64", "-c", "0", "--", "bash", "run.sh")
    ]


@pytest.mark.parametrize("shell", ["sh", "bash --posix", "dash"])
def test_limits_are_hard_and_in_force_before_the_gate_speaks(shell: str) -> None:
    limits = {"nproc": 64, "nofile": 99, "core": 0, "as": 1 << 28, "fsize": 1 << 20, "cpu": 7}
    read, write = os.pipe()
    gate = command.gated(["true"], limits)[1:]
    with subprocess.Popen([*shell.split(), *gate], stdin=read, stdout=subprocess.PIPE) as shell_:
        assert shell_.stdout is not None
        assert shell_.stdout.readline() == b"\n"
        found = {
            name: resource.prlimit(shell_.pid, getattr(resource, f"RLIMIT_{name.upper()}"))
            for name in limits
        }
        os.close(write)
    os.close(read)
    assert found == {name: (value, value) for name, value in limits.items()}


def test_a_limit_that_cannot_be_set_keeps_the_gate_from_speaking(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["bash", *command.gated(["/bin/touch", str(ran)], {"nofile": 1 << 40})[1:]],
        input="go\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, ran.exists()) == (124, "", False)
    assert "ulimit -n 1099511627776 cannot be set" in done.stderr


@pytest.mark.parametrize("word", ["", "stop\n", "go", "GO\n", " go x\n", "\ngo\n"])
def test_the_gate_stays_closed_without_the_word(tmp_path: Path, word: str) -> None:
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["/bin/sh", "-c", command.GATE, "gate", "--", "/bin/touch", str(ran)],
        input=word,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (125, "\n")
    assert not ran.exists()


def test_the_gate_opens_at_the_word_and_gives_an_empty_stdin() -> None:
    done = subprocess.run(
        command.gated(["/bin/sh", "-c", 'cat; echo "$@"', "x", "a b", "c"], {}),
        input="go\nmore\n",
        capture_output=True,
        text=True,
    )
    assert done.stdout == "\na b c\n"
