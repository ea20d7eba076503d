"""A real server and a real agent, as two processes, started the way a user does."""

import contextlib
import glob
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from client_agent.sandbox.kernel.work_folders import WorkFolders

READY = re.compile(r"ready at (http://\S+)")
_OTHERS = re.compile(r"FERRYMAN_.*|SERVICE_.*|PORT|DB_PATH|DATA_PATH|MAX_AGE")
MARK = "E2E_MARK"
ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LIVE = ("output", "progress")
"""Lines of what a job says while it runs: how many depends on how fast it is."""


def environment(mark: str = "") -> dict[str, str]:
    """This process's, without settings meant for others."""
    plain = {key: value for key, value in os.environ.items() if not _OTHERS.fullmatch(key)}
    return {**plain, MARK: mark, "NO_COLOR": "1"}


def ended(*words: object, status: int | None = 0, **how: Any) -> subprocess.CompletedProcess[str]:
    """A program, once it has ended with this status; None: with any."""
    usual = {"env": environment(), "stdin": subprocess.DEVNULL, "timeout": 600, "text": True}
    output = {} if "stdout" in how else {"capture_output": True}
    command = [str(word) for word in words]
    done = subprocess.run(command, check=False, **usual | output | how)  # type: ignore[call-overload]
    assert status in (None, done.returncode), f"{command[0]}: {done.stdout}\n{done.stderr}"
    return done


@dataclass
class DevProgram:
    process: subprocess.Popen[str]
    folder: Path
    mark: str
    url: str = ""
    output: list[str] = field(default_factory=list)
    """What it printed on stdout."""

    @property
    def log(self) -> str:
        return (self.folder / "log").read_text()

    def said(self, last: str) -> list[str]:
        """What it printed on stdout, once a line with this has come."""
        assert self.process.stdout is not None
        while not any(last in line for line in self.output):
            line = self.process.stdout.readline()
            assert line, f"it never said {last!r} and logged:\n{self.log}"
            self.output.append(line)
        return self.output

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(60)
        assert self.process.stdout is not None
        self.output += self.process.stdout.read().splitlines()
        self.process.stdout.close()
        return code


FERRYMAN = (sys.executable, "-P", "-m", "ferryman")


def launch(
    folder: Path, *words: str, program: tuple[str, ...] = FERRYMAN, **variables: str
) -> DevProgram:
    """Start it; do not wait for it to be ready."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = uuid.uuid4().hex
    with (folder / "log").open("ab") as log:
        process = subprocess.Popen(
            [*program, "dev", *words],
            env={**environment(mark), **variables},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            process_group=0,
        )
    return DevProgram(process, folder, mark)


def ready(system: DevProgram) -> DevProgram:
    match = READY.search(system.said("ready at")[0])
    assert match, f"it said {system.output!r} and logged:\n{system.log}"
    system.url = match[1]
    return system


@contextmanager
def started(
    folder: Path,
    *words: str,
    program: tuple[str, ...] = FERRYMAN,
    stop: signal.Signals = signal.SIGTERM,
    **variables: str,
) -> Iterator[DevProgram]:
    """A system on free ports, ended by the signal ``stop``; afterwards its processes, mounts and
    cgroups must be gone.
    """
    flags = ("--port", "0", "--agent-port", "0", "--data-dir", str(folder / "data"))
    system = launch(folder, *flags, *words, program=program, **variables)
    family: dict[int, str] = {}
    try:
        yield ready(system)
        family = descendants(system.process.pid)
    finally:
        code = system.stop(stop)
    assert code == 0, system.log
    assert [pid for pid, birth in family.items() if born(pid) == birth] == []
    assert marked(system.mark) == []
    assert traces(system) == []


def born(pid: int) -> str | None:
    """When the process started, so that a reused number is not taken for it; None: it is gone."""
    try:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if words[0] == "Z" else words[19]


def descendants(pid: int) -> dict[int, str]:
    processes: dict[int, str] = {}
    for child in _children(pid):
        birth = born(child)
        if birth is not None:
            processes[child] = birth
        processes |= descendants(child)
    return processes


def of_jobs(pid: int) -> dict[int, str]:
    """As :func:`descendants`, without the chains that wait at their gates for a job to come."""
    found = descendants(pid)
    waiting = {one for one in found if _is_at_gate(one)}
    while more := {
        one
        for one in found.keys() - waiting
        if _words(one)[0].endswith(b"bwrap") and _children(one) and _children(one) <= waiting
    }:
        waiting |= more
    return {one: birth for one, birth in found.items() if one not in waiting}


def _is_at_gate(pid: int) -> bool:
    """Whether it is a bash that has the file of its gate open; a job has not."""
    try:
        links = [link.readlink() for link in Path(f"/proc/{pid}/fd").iterdir()]
    except OSError:
        return False
    return _words(pid)[0] == b"bash" and Path("/memfd:gate (deleted)") in links


def pid_of(system: DevProgram, word: str) -> int:
    """The process of the system whose command line has this word."""
    for pid in descendants(system.process.pid):
        if word.encode() in _words(pid):
            return pid
    raise AssertionError(f"no process has {word}")


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return [b""]


def _children(pid: int) -> set[int]:
    found = set[int]()
    for task in glob.glob(f"/proc/{pid}/task/*/children"):  # noqa: PTH207 - nothing, if it has ended
        with contextlib.suppress(OSError):
            found |= {int(word) for word in Path(task).read_text().split()}
    return found


def marked(mark: str) -> list[int]:
    pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):  # it has just ended, or belongs to another user
            if f"{MARK}={mark}".encode() in environ.read_bytes():
                pids.append(int(environ.parent.name))
    return pids


def cgroups_of(name: str) -> list[Path]:
    """Groups of that name in any hierarchy; others may come and go meanwhile."""
    top = "/sys/fs/cgroup"
    return [Path(folder) / name for folder, inside, _ in os.walk(top) if name in inside]


def traces(system: DevProgram) -> list[str]:
    """What the agent has outside its folder. It may while it runs."""
    return outside(system.folder / "data" / "agent")


def outside(data: Path) -> list[str]:
    name = WorkFolders(data, separate_uids=False).name
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    paths = [*Path("/run").glob(f"*/{name}"), *cgroups_of(name)]
    return [line for line in mounts if str(data) in line] + [str(path) for path in paths]
