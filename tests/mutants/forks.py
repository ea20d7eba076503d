"""Processes that work side by side and tell lines; each is ended with all that it started."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

T = TypeVar("T")
Tell = Callable[[str], None]


@dataclass
class Job:
    """What one process does; not forked, a module gets where its lines go, and its arguments."""

    work: Callable[[Tell], None] | None
    command: tuple[str, ...] = ()
    environ: dict[str, str] = field(default_factory=dict)
    limit: Callable[[str], float] = lambda _: 60.0
    """How long it may take after a line before the next one."""
    budget: float = 600.0
    lines: list[str] = field(default_factory=list)
    killed: bool = False
    seconds: float = 0.0


Work = Generator[Job, Job, T]
"""Hands out jobs, is sent each when it is done, and returns what came of it."""


class _Running(Generic[T]):
    def __init__(self, job: Job, work: Work[T]) -> None:
        self.job, self.work = job, work
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        self.pipe, self._rest = reading, b""
        self._began = self._heard = time.monotonic()
        self._limit = job.limit("")
        self._program: subprocess.Popen[bytes] | None = None
        if job.work is None:
            os.set_inheritable(writing, True)
            words = [*job.command[:1], str(writing), *job.command[1:]]
            command = [sys.executable, "-P", "-m", *words]
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "pass_fds": (writing,)}
            how["env"] = {**os.environ, **job.environ}
            self._program = subprocess.Popen(command, start_new_session=True, **how)
            self.pid = self._program.pid
        else:
            sys.stdout.flush()
            self.pid = os.fork() or _child(job.work, writing)
        os.close(writing)
        self.pidfd = os.pidfd_open(self.pid)

    def read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while some := os.read(self.pipe, 65_536):
                *lines, self._rest = (self._rest + some).split(b"\n")
                for line in lines:
                    self.job.lines.append(line.decode())
                    self._heard = time.monotonic()
                    self._limit = self.job.limit(self.job.lines[-1])

    def kill(self) -> None:
        for pid in {self.pid, *_below(self.pid)}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def is_over(self) -> bool:
        """Whether it has ended, by itself or because its time was over."""
        now = time.monotonic()
        late = now - self._heard > self._limit or now - self._began > self.job.budget
        if late and not self.job.killed:
            self.job.killed = True
            self.kill()
        if not select.select([self.pidfd], [], [], 0)[0]:
            return False
        _, code = os.waitpid(self.pid, 0)
        if self._program is not None:
            self._program.returncode = os.waitstatus_to_exitcode(code)
        self.read()
        self.job.seconds = now - self._began
        for pid in _of_session(self.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        os.close(self.pipe)
        os.close(self.pidfd)
        return True


def _child(work: Callable[[Tell], None], writing: int) -> int:
    def tell(line: str) -> None:
        os.write(writing, f"{line}\n".encode())

    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(tell)
        tell("done")
        code = 0
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(code)


def _below(pid: int) -> Iterator[int]:
    for children in Path("/proc").glob(f"{pid}/task/*/children"):
        try:
            found = [int(word) for word in children.read_text().split()]
        except OSError:
            continue
        for one in found:
            yield one
            yield from _below(one)


def _of_session(leader: int) -> Iterator[int]:
    """What it has left: programs that tests started without a session of their own."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(path.read_text().rpartition(")")[2].split()[3]) == leader:
                yield int(path.parent.name)


def end_with_this_process() -> None:
    """SIGTERM ends what runs side by side, too."""

    def end(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)


def side_by_side(works: Iterable[Work[T]], jobs: int) -> Iterator[T]:
    """Do them all, so many at a time; yields what they return as it comes."""
    coming = iter(works)
    running: list[_Running[T]] = []
    try:
        while True:
            while len(running) < jobs and (work := next(coming, None)) is not None:
                try:
                    running.append(_Running(next(work), work))
                except StopIteration as stop:
                    yield stop.value
            if not running:
                return
            select.select([fd for one in running for fd in (one.pidfd, one.pipe)], [], [], 0.5)
            for one in [*running]:
                one.read()
                if one.is_over():
                    running.remove(one)
                    try:
                        running.append(_Running(one.work.send(one.job), one.work))
                    except StopIteration as stop:
                        yield stop.value
    finally:
        for one in running:
            one.kill()
