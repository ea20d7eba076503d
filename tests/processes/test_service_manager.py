"""What systemd gets, on a real socket: of the class, and of both programs."""

import asyncio
import contextlib
import os
import signal
import socket
import threading
import uuid
from collections.abc import Iterator, MutableMapping
from pathlib import Path

import pytest

from shared.clock import RealClock
from shared.service_manager import EXTEND_EVERY_S, SAY_EVERY_S, ServiceManager
from tests.kit.clock import SimClock
from tests.kit.programs import Program


class Systemd:
    """The other end."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address.replace("@", "\0", 1))
        self.socket.setblocking(False)

    def environ(self, **more: str) -> MutableMapping[str, str]:
        return {"NOTIFY_SOCKET": self.address, "PATH": "/bin"} | more

    def told(self) -> list[str]:
        """Each message since the last look."""
        found = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found.append(self.socket.recv(4096).decode())
        return found


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[Systemd]:
    found = Systemd(str(tmp_path / "notify"))
    with found.socket:
        yield found


async def yes() -> bool:
    return True


async def fine() -> str:
    return "all is\nwell"


async def test_the_variables_are_for_this_process_and_no_child(notify: Systemd) -> None:
    environ = notify.environ(WATCHDOG_USEC="2000000", WATCHDOG_PID=str(os.getpid()))
    manager = ServiceManager(environ)
    assert (manager.present, manager.watchdog_s, environ) == (True, 2.0, {"PATH": "/bin"})
    await manager.close()
    # A watchdog that is none, or another's, is not fed.
    another = {"WATCHDOG_USEC": "9", "WATCHDOG_PID": "1"}
    for more in ({}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, another):
        manager, clock = ServiceManager(notify.environ(**more)), SimClock()
        manager.ready(clock, yes, fine)
        await clock.advance(600)
        assert notify.told() == ["READY=1", "STATUS=all is well"], more
        await manager.close()
    # Without anybody to tell nothing happens.
    for address in ("", "relative", "/nowhere/at/all"):
        manager, clock = ServiceManager({"NOTIFY_SOCKET": address}), SimClock()
        manager.starting(clock)
        manager.ready(clock, yes, fine)
        await clock.advance(60)
        manager.stopping(clock, lambda: False)
        await manager.close()


async def test_the_watchdog_is_fed_twice_in_its_time_while_all_is_alive(notify: Systemd) -> None:
    manager, clock = ServiceManager(notify.environ(WATCHDOG_USEC="10000000")), SimClock()
    is_alive = True

    async def alive() -> bool:
        return is_alive

    manager.ready(clock, alive, fine)
    await clock.advance(10)
    assert notify.told().count("WATCHDOG=1") == 3  # at once, and after 5 and 10 seconds
    is_alive = False
    await clock.advance(600)
    assert "WATCHDOG=1" not in notify.told()
    is_alive = True
    await clock.advance(5)
    assert notify.told() == ["WATCHDOG=1"]
    await manager.close()


def test_a_blocked_event_loop_does_not_feed_it(notify: Systemd) -> None:
    manager = ServiceManager(notify.environ(WATCHDOG_USEC="100000"))
    block, blocked, release = threading.Event(), threading.Event(), threading.Event()

    async def main() -> None:
        manager.ready(RealClock(), yes, fine)
        await asyncio.get_running_loop().run_in_executor(None, block.wait, 30)
        blocked.set()
        release.wait(30)  # the loop does nothing else meanwhile
        await manager.close()

    thread = threading.Thread(target=asyncio.run, args=(main(),))
    thread.start()
    try:
        notify.socket.settimeout(30)
        while notify.socket.recv(4096) != b"WATCHDOG=1":
            pass
        block.set()
        assert blocked.wait(30)
        notify.socket.setblocking(False)
        notify.told()
        notify.socket.settimeout(0.5)  # five times the watchdog's
        with pytest.raises(TimeoutError):
            notify.socket.recv(4096)
    finally:
        block.set()
        release.set()
        thread.join(30)


async def test_the_sentence_is_said_when_it_changes_at_an_abstract_address_too() -> None:
    notify = Systemd(f"@ferryman-{uuid.uuid4().hex}")
    manager, clock = ServiceManager(notify.environ()), SimClock()
    said = ["a", "a", "b"]

    async def sentence() -> str:
        return said.pop(0)  # fails in the end

    manager.ready(clock, yes, sentence)
    await clock.advance(3 * SAY_EVERY_S)
    unknown = "STATUS=running; how it is cannot be read: IndexError"
    assert notify.told() == ["READY=1", "STATUS=a", "STATUS=b", unknown]
    await manager.close()
    notify.socket.close()


async def test_more_time_is_asked_for_while_it_starts_and_while_it_may_stop(notify) -> None:
    manager, clock = ServiceManager(notify.environ()), SimClock()
    manager.starting(clock)
    await clock.advance(2 * EXTEND_EVERY_S)
    assert notify.told() == ["EXTEND_TIMEOUT_USEC=30000000"] * 3
    manager.ready(clock, yes, fine)
    await clock.advance(60)
    assert notify.told() == ["READY=1", "STATUS=all is well"]
    ends = clock.monotonic() + 12
    manager.stopping(clock, lambda: clock.monotonic() < ends)
    await clock.advance(60)
    stopping, *more = notify.told()
    assert stopping.startswith("STOPPING=1\nSTATUS=stopping")
    assert more == ["EXTEND_TIMEOUT_USEC=30000000"] * 3
    await manager.close()


async def test_a_reload_has_a_beginning_by_the_machines_clock_and_an_end(notify: Systemd) -> None:
    manager, clock = ServiceManager(notify.environ()), SimClock()
    await clock.advance(7)
    hangup, seen = asyncio.Event(), list[list[str]]()

    async def reload() -> None:
        seen.append(notify.told())
        raise ValueError("a defect")

    reloading = asyncio.create_task(manager.reload_at(hangup, reload, clock))
    for _ in range(2):  # what fails once is tried at the next signal
        hangup.set()
        await clock.advance(0)
        assert seen.pop() == ["RELOADING=1\nMONOTONIC_USEC=7000000"]
        assert notify.told() == ["READY=1"]
    reloading.cancel()
    await manager.close()


async def test_a_queue_that_is_full_delays_nothing(notify: Systemd) -> None:
    manager = ServiceManager(notify.environ())
    for _ in range(10_000):
        manager.send(STATUS="x" * 300)
    assert notify.told()
    await manager.close()


@pytest.mark.parametrize("name", ["server", "client_agent"])
def test_it_says_when_it_is_ready_how_it_is_and_when_it_stops(tmp_path, notify, name) -> None:
    notify.socket.settimeout(60)

    def until(line: str) -> str:
        while True:
            message: str = notify.socket.recv(4096).decode()
            if any(one.startswith(line) for one in message.splitlines()):
                return message

    program = Program(name, tmp_path, uuid.uuid4().hex)
    program.prefix = ("env", f"NOTIFY_SOCKET={notify.address}", "WATCHDOG_USEC=2000000")
    program.begin()
    until("READY=1")
    with socket.create_connection(("127.0.0.1", program.port), 20):  # it listens already
        pass
    assert "slots in use" in until("STATUS=")
    until("WATCHDOG=1")
    program.send(signal.SIGHUP)
    assert "MONOTONIC_USEC=" in until("RELOADING=1")
    until("READY=1")
    program.send(signal.SIGTERM)
    until("STOPPING=1")
    assert program.wait() == 0
