"""Forks of the test, as root or as another user: what changes a process for good is done there.

A fork needs no new interpreter. The agent changes its process (subreaper, mount namespace, uid).
"""

from __future__ import annotations

import asyncio
import codecs
import ctypes
import functools
import inspect
import itertools
import multiprocessing
import os
import select
import signal
import traceback
import warnings
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Literal, TypeAlias

from client_agent.sandbox.kernel import pidfd
from client_agent.storage.remove_tree import remove_tree
from tests.kit.memory_folder import new_folder

PATIENCE_S: Final = 90.0
Who: TypeAlias = Literal["root", "user"]
_serial = itertools.count()


def can(who: Who) -> bool:
    return os.geteuid() == 0 or who == "user"


class Child:
    """A fork of the test with that uid, with an empty home in memory: a sandbox writes hundreds of
    small files, which on a disk cost five times as much."""

    def __init__(
        self, body: Callable[[Child], object], uid: int | None, folder: Path | None = None
    ) -> None:
        self.home, self._own_folder = folder or new_folder(), folder is None
        if uid is not None:
            os.chown(self.home, uid, uid)
        self.line, theirs = multiprocessing.Pipe()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # threads of other tests: the child touches none
            self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                self.line.close()
                self.line = theirs
                become(uid)
                os.setsid()
                os.environ["HOSTILE_TOKEN"] = "the agent's own secret"
                warnings.simplefilter("ignore")
                body(self)
                code = 0
            finally:
                os._exit(code)
        theirs.close()

    def answer(self, work: Callable[[], Any]) -> None:
        """In the child: tell the test what ``work`` returned or raised."""
        try:
            self.line.send(("returned", work()))
        except BaseException:  # noqa: BLE001  # the parent reports it
            self.line.send(("raised", traceback.format_exc()))

    def returned(self) -> Any:
        """In the test: the next answer."""
        if not self.line.poll(PATIENCE_S):
            os.kill(self.pid, signal.SIGKILL)
            raise AssertionError(f"the child did not end within {PATIENCE_S} s")
        try:
            kind, value = self.line.recv()
        except EOFError:
            raise AssertionError("the child died without a word") from None
        assert kind == "returned", value
        return value

    def close(self) -> None:
        self.line.close()
        os.waitpid(self.pid, 0)
        if self._own_folder:
            remove_tree(self.home)


def in_child(work: Callable[[Path], Any], who: Who, folder: Path | None = None) -> Any:
    """Call ``work`` with an empty home, in a child that is ``who``; its result, or its exception.
    What it returns may be a coroutine."""

    def whole(home: Path) -> Any:
        result = work(home)
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    uid = unprivileged_uid(who)
    child = Child(lambda child: child.answer(lambda: whole(child.home)), uid, folder)
    try:
        return child.returned()
    finally:
        child.close()


def child_test(work: Callable[..., Any]) -> Callable[..., None]:
    """A test that runs as a whole in a child, with the empty ``home`` that it asks for, as the
    fixture ``who`` says, or else as root."""

    @functools.wraps(work)
    def test(**fixtures: Any) -> None:
        in_child(lambda home: work(home=home, **fixtures), fixtures.get("who", "root"))

    signature = inspect.signature(work)
    rest = [one for name, one in signature.parameters.items() if name != "home"]
    del test.__wrapped__  # pytest reads its signature
    test.__signature__ = signature.replace(parameters=rest)  # type: ignore[attr-defined]
    return test


def kill_after_report(
    agent: Callable[[Callable[[str], object]], Awaitable[None]],
) -> tuple[int, str]:
    """Run ``agent`` in a fork of this process, and kill it once it has made its report: the pid of
    a sandbox's init, a space, any text. A pidfd of the init, which is a child of ours now, and the
    text."""
    pidfd.become_subreaper()  # to reap what the agent leaves, as the host's init would
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:

        async def run() -> None:
            await agent(lambda report: os.write(write, report.encode()))

        with suppress(BaseException):
            asyncio.run(run())
        os._exit(1)
    os.close(write)
    init, _, text = os.read(read, 200).decode().partition(" ")
    os.close(read)
    fd = os.pidfd_open(int(init))
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return fd, text


def unprivileged_uid(who: Who) -> int | None:
    """Nobody else's, so that what is left of it can be found; None: the test's own."""
    if os.geteuid() != 0 or who == "root":
        return None
    return 300_000 + os.getpid() % 1000 * 100 + next(_serial) % 100


def uid_base() -> int:
    """Uids of nobody else's, so that what is left of them can be found."""
    return 400_000 + (os.getpid() % 100_000) * 16


def become(uid: int | None) -> None:
    """Make a fresh child that uid, and mortal: it dies with the test."""
    # the interpreter may lie where the child may not read: what is imported late comes now
    for encoding in ("ascii", "latin-1", "utf-8", "idna", "cp437"):
        codecs.lookup(encoding)
    libc = ctypes.CDLL(None)
    if uid is not None:
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
        libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE, as after an exec
    libc.prctl(1, int(signal.SIGKILL), 0, 0, 0)  # PR_SET_PDEATHSIG, which a change of uid clears


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def processes_of(uid: int) -> list[str]:
    """Command lines of the living processes of a uid, ourselves left out."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        with suppress(OSError):
            status = (entry / "status").read_text(errors="replace")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if f"\nUid:\t{uid}\t" in status and "\nState:\tZ" not in status:
                found.append(command or entry.name)
    return found


def dead_within(pidfd: int, seconds: float = 20.0) -> bool:
    return bool(select.select([pidfd], [], [], seconds)[0])
