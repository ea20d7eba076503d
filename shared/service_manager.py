"""``sd_notify``: messages to systemd, and its watchdog.

The protocol is a datagram with lines ``NAME=value`` to the socket that ``NOTIFY_SOCKET`` names
(sd_notify(3)). Without that variable everything here does nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import os
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Final

import structlog

from shared.clock import Clock

log: structlog.stdlib.BoundLogger = structlog.get_logger()

SAY_EVERY_S: Final = 5.0
"""Between two sentences for ``systemctl status``, at the least."""
EXTEND_EVERY_S: Final = 5.0
EXTEND_BY_S: Final = 30.0
_SENTENCE_LEN: Final = 400


class ServiceManager:
    """Tells systemd how the program is.

    Args:
        environ: its variables for this process are taken out of it, so that no child has them.
    """

    def __init__(self, environ: MutableMapping[str, str] | None = None) -> None:
        environ = os.environ if environ is None else environ
        address = environ.pop("NOTIFY_SOCKET", "")
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        self.watchdog_s: float | None = None
        """Within so long the watchdog has to be fed; None: there is none."""
        self._address = b""
        self._socket: socket.socket | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._saying: asyncio.Task[None] | None = None
        self._is_ready = False
        if not address.startswith(("/", "@")):
            return
        self._address = os.fsencode(address)
        if self._address.startswith(b"@"):  # a name in the kernel, not a file
            self._address = b"\0" + self._address[1:]
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)
        if usec.isdecimal() and int(usec) and pid in ("", str(os.getpid())):
            self.watchdog_s = int(usec) / 1e6
            faulthandler.enable()  # SIGABRT, by which the watchdog ends us: says where we were

    @property
    def present(self) -> bool:
        return self._socket is not None

    def send(self, **lines: str | int) -> None:
        """Send it, if somebody takes it now: the program does not depend on that."""
        if self._socket is None:
            return
        data = "\n".join(f"{name}={value}" for name, value in lines.items())
        with contextlib.suppress(OSError):
            self._socket.sendto(data.encode(), self._address)

    def starting(self, clock: Clock) -> None:
        """The start may take long: a large database is brought up to date, a sandbox tested."""
        self._tasks.append(asyncio.create_task(self._extend(clock, lambda: not self._is_ready)))

    def ready(
        self,
        clock: Clock,
        alive: Callable[[], Awaitable[bool]],
        sentence: Callable[[], Awaitable[str]],
    ) -> None:
        """Requests are answered from now on.

        Args:
            alive: whether the watchdog is to be fed.
            sentence: for ``systemctl status``.
        """
        self._is_ready = True
        self.send(READY=1)
        self._tasks.append(asyncio.create_task(self._feed(clock, alive)))
        self._saying = asyncio.create_task(self._say(clock, sentence))
        self._tasks.append(self._saying)

    def stopping(self, clock: Clock, still: Callable[[], bool]) -> None:
        """The program ends, and may take longer than the unit says for as long as ``still``."""
        if self._saying is not None:
            self._saying.cancel()
        self.send(STOPPING=1, STATUS="stopping: what is under way may end")
        self._tasks.append(asyncio.create_task(self._extend(clock, still)))

    async def reload_at(
        self, hangup: asyncio.Event, reload: Callable[[], Awaitable[object]], clock: Clock
    ) -> None:
        """Reload each time that the event is set.

        Args:
            clock: the machine's, as systemd wants it.
        """
        while True:
            await hangup.wait()
            hangup.clear()
            self.send(RELOADING=1, MONOTONIC_USEC=round(clock.monotonic() * 1e6))
            try:
                await reload()
            except Exception:  # a defect must not end what reloads
                log.exception("settings.reload_failed")
            finally:
                self.send(READY=1)

    async def _extend(self, clock: Clock, still: Callable[[], bool]) -> None:
        while self.present and still():
            self.send(EXTEND_TIMEOUT_USEC=round(EXTEND_BY_S * 1e6))
            await clock.sleep(EXTEND_EVERY_S)

    async def _feed(self, clock: Clock, alive: Callable[[], Awaitable[bool]]) -> None:
        """This runs on the event loop: when that is blocked, nothing feeds the watchdog either."""
        while self.watchdog_s is not None:
            if await alive():
                self.send(WATCHDOG=1)
            await clock.sleep(self.watchdog_s / 2)

    async def _say(self, clock: Clock, sentence: Callable[[], Awaitable[str]]) -> None:
        said = None
        while self.present:
            try:
                text = " ".join((await sentence()).split())[:_SENTENCE_LEN]
            except Exception as problem:  # noqa: BLE001 - what is wrong is logged elsewhere
                text = f"running; how it is cannot be read: {type(problem).__name__}"
            if text != said:
                self.send(STATUS=text)
                said = text
            await clock.sleep(SAY_EVERY_S)

    async def close(self) -> None:
        """Say nothing any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._socket is not None:
            self._socket.close()
        self._socket = None
