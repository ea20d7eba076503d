"""The scripts JOIN and GATE: they join cgroups, set limits and wait for ``go``."""

from __future__ import annotations

import os
import resource
import select
import subprocess
from pathlib import Path

import pytest

from client_agent.sandbox.process.chain import GATE, JOIN, gated, opening


def test_a_cgroup_that_cannot_be_joined_stops_the_chain(tmp_path: Path) -> None:
    missing = str(tmp_path / "no" / "cgroup.procs")
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["/bin/sh", "-c", JOIN, "join", missing, "--", "/bin/touch", str(ran)],
        capture_output=True,
    )
    assert done.returncode == 126
    assert not ran.exists()


@pytest.mark.parametrize(
    ("own", "jobs"), [(300, "500\n"), (499, "500\n"), (500, "1000\n"), (1000, "1000\n")]
)
def test_the_oom_score_of_a_job_is_raised_and_never_lowered(own: int, jobs: str) -> None:
    """A container's runtime may have set what only CAP_SYS_RESOURCE could lower."""
    agent = f'echo {own} >/proc/self/oom_score_adj; exec "$@"'
    start = ["/bin/sh", "-c", JOIN, "join", "--", "/bin/cat", "/proc/self/oom_score_adj"]
    done = subprocess.run(["/bin/sh", "-c", agent, "agent", *start], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, jobs, "")


def test_all_cgroups_are_joined_before_the_program_runs(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("a b", "$(x)", "--")][:2]
    done = subprocess.run(
        ["/bin/sh", "-c", JOIN, "join", *map(str, files), "--", "/bin/echo", "--", "ran"],
        capture_output=True,
        text=True,
    )
    assert done.stdout == "-- ran\n"
    assert [file.read_text() for file in files] == ["0\n", "0\n"]


def test_rlimits_are_set_inside() -> None:
    inside = gated(["bash", "run.sh"], {"nproc": 64, "core": 0})
    assert inside == [
        *("/bin/sh", "-c", GATE, "gate", "-u", "64", "-c", "0", "--", "bash", "run.sh")
    ]


@pytest.mark.parametrize("shell", ["sh", "bash --posix", "dash"])
def test_limits_are_hard_and_set_before_the_ready_byte(shell: str) -> None:
    limits = {"nproc": 64, "nofile": 99, "core": 0, "as": 1 << 28, "fsize": 1 << 20, "cpu": 7}
    read, write = os.pipe()
    gate = gated(["true"], limits)[1:]
    with subprocess.Popen([*shell.split(), *gate], stdin=read, stdout=subprocess.PIPE) as shell_:
        assert shell_.stdout is not None
        assert shell_.stdout.readline() == b"\n"
        rlimits = {
            name: resource.prlimit(shell_.pid, getattr(resource, f"RLIMIT_{name.upper()}"))
            for name in limits
        }
        os.close(write)
    os.close(read)
    assert rlimits == {name: (value, value) for name, value in limits.items()}


def test_without_its_limits_the_gate_writes_no_ready_byte(tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["bash", *gated(["/bin/touch", str(ran)], {"nofile": 1 << 40})[1:]],
        input="go\n",
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout, ran.exists()) == (124, "", False)
    assert "ulimit -n 1099511627776 cannot be set" in done.stderr


@pytest.mark.parametrize("word", ["", "stop\n", "go", "GO\n", " go x\n", "\ngo\n"])
def test_the_gate_stays_closed_without_go(tmp_path: Path, word: str) -> None:
    ran = tmp_path / "ran"
    done = subprocess.run(
        ["/bin/sh", "-c", GATE, "gate", "--", "/bin/touch", str(ran)],
        input=word,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (125, "\n")
    assert not ran.exists()


def test_the_gate_opens_at_go_and_gives_an_empty_stdin() -> None:
    done = subprocess.run(
        gated(["/bin/sh", "-c", 'cat; echo "$@"', "x", "a b", "c"], {}),
        input="go\nmore\n",
        capture_output=True,
        text=True,
    )
    assert done.stdout == "\na b c\n"


VALUES = {
    "FERRYMAN_JOB_ID": "17",
    "FERRYMAN_ARRAY_LINE": 'it\'s $(touch ran) `touch ran` \\ "x" ; touch ran\t é  ',
    "FERRYMAN_SERVICE": "",
    "FERRYMAN_X": "\udcff",
}


@pytest.mark.parametrize("shell", ["sh", "bash --posix", "bash", "dash"])
def test_variables_arrive_through_the_gate_as_they_are(tmp_path: Path, shell: str) -> None:
    line = opening(VALUES)
    assert line is not None
    done = subprocess.run(
        [*shell.split(), *gated(["/usr/bin/env", "-0"], {})[1:]],
        input=line,
        capture_output=True,
        env={"LANG": "C.UTF-8", "word": "kept"},
        cwd=tmp_path,
        check=True,
    )
    got = dict(one.split(b"=", 1) for one in done.stdout[1:].split(b"\0") if one)
    for name, value in VALUES.items():
        assert got[name.encode()] == os.fsencode(value)
    assert got[b"word"] == b"kept"
    assert {name for name in got if name.startswith(b"ferryman")} == set()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("PATH", "/x"), ("FERRYMAN_A B", "x"), ("FERRYMAN_$(id)", "x"), ("ferryman_x", "x")),
        *(("FERRYMAN_X", "two\nlines"), ("FERRYMAN_X", "\0"), ("FERRYMAN_X", "x" * 4096)),
    ],
)
def test_what_a_shell_might_take_otherwise_is_not_given_so(name: str, value: str) -> None:
    assert opening({name: value}) is None


def test_the_line_that_opens_the_gate_arrives_at_once() -> None:
    longest = opening({"FERRYMAN_X": "x" * (select.PIPE_BUF - len("go FERRYMAN_X=\n"))})
    assert longest is not None
    assert len(longest) == select.PIPE_BUF
    assert opening({}) == b"go\n"
