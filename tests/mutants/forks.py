"""Processes that are forked, work side by side and say lines; each is ended with all it started."""

import contextlib
import os
import pickle
import select
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn, TypeVar

T = TypeVar("T")


@dataclass
class Job:
    """What a process said."""

    lines: list[str] = field(default_factory=list)
    killed: bool = False
    seconds: float = 0.0


def say(descriptor: int, line: str) -> None:
    os.write(descriptor, f"{line}\n".encode())


def do(work: Callable[[int], None], limit: Callable[[str], float], budget: float) -> Job:
    """Fork a process for ``work``, which gets the descriptor for what it says, and wait for it.

    ``limit`` says how long it may take after a line before the next one.
    """
    reading, writing = os.pipe()
    sys.stdout.flush()
    pid = os.fork() or _child(work, writing)
    os.close(writing)
    os.set_blocking(reading, False)
    pidfd, job, rest = os.pidfd_open(pid), Job(), b""
    began = heard = time.monotonic()
    allowed, watched = limit(""), [pidfd, reading]
    try:
        while not job.killed and pidfd in watched:
            left = min(heard + allowed, began + budget) - time.monotonic()
            ready = select.select(watched, [], [], max(left, 0))[0]
            job.killed = not ready
            watched = [one for one in watched if one != pidfd or one not in ready]
            with contextlib.suppress(BlockingIOError):
                while some := os.read(reading, 65_536):
                    *lines, rest = (rest + some).split(b"\n")
                    for line in lines:
                        job.lines.append(line.decode())
                        heard, allowed = time.monotonic(), limit(job.lines[-1])
                watched = [one for one in watched if one != reading]
    finally:
        for one in {pid, *_below(pid)}:
            _kill(one)
        os.waitpid(pid, 0)
        for one in _of_session(pid):
            _kill(one)
        os.close(reading)
        os.close(pidfd)
    job.seconds = time.monotonic() - began
    return job


def _child(work: Callable[[int], None], writing: int) -> NoReturn:
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(writing)
        say(writing, "done")
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(0)


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _below(pid: int) -> Iterator[int]:
    for children in Path("/proc").glob(f"{pid}/task/*/children"):
        with contextlib.suppress(OSError):
            for one in map(int, children.read_text().split()):
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


def side_by_side(work: Callable[[int], T], count: int, jobs: int) -> Iterator[tuple[int, T]]:
    """Call ``work`` with each number below the count, in so many processes; yields what they
    return as it comes.
    """
    if not count:
        return
    todo, numbers = os.pipe()
    os.write(numbers, struct.pack(f"{count}i", *range(count)))
    os.close(numbers)
    results, answers = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sys.stdout.flush()
    workers = [os.fork() or _worker(work, todo, answers) for _ in range(jobs)]
    os.close(todo)
    answers.close()
    try:
        for _ in range(count):
            if not (message := results.recv(1 << 20)):
                raise SystemExit("a process has ended early")
            yield pickle.loads(message)
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        for pid in workers:
            os.waitpid(pid, 0)
        results.close()


def _worker(work: Callable[[int], object], todo: int, answers: socket.socket) -> NoReturn:
    try:
        while number := os.read(todo, 4):
            (index,) = struct.unpack("i", number)
            answers.send(pickle.dumps((index, work(index))))
    except Exception:  # noqa: BLE001
        traceback.print_exc()
    finally:
        os._exit(0)
