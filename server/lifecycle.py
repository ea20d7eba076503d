"""The life of the server's process: listen, serve, stop in order."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlencode

import structlog

from server.api.server_status import status_of
from server.app import Server, compose
from server.data_folder import lock_folder
from server.domain.errors import NotReloaded
from server.domain.troubles import TroubleKind
from server.http.context import Context
from server.http.permits import login_path
from server.settings.load import check_tokens
from server.settings.tables import ServerSettings
from server.web.site import compile_template, template_names
from shared import interpreter, probe
from shared.clock import Clock, RealClock
from shared.http import connections
from shared.http.listener import Listener
from shared.http.protocol import Deadlines
from shared.http.sockets import check_exposure, listen, url_of
from shared.service_manager import ServiceManager

log: structlog.stdlib.BoundLogger = structlog.get_logger()
ANSWER_S: Final = 1.0
"""For the last bytes of answers, once every request has been dealt with."""
OWN_FILES: Final = 64
"""Descriptors for each agent: its event stream, transfers and their files, control calls."""
_PREPARE_AFTER_S: Final = 1.0
_PREPARE_EVERY_S: Final = 0.05
"""Between two templates: compiling one takes 10 to 40 ms of the interpreter from requests."""
_STOP_S: Final = 30.0
"""For loops to end, after the requests."""


async def serve(
    settings: ServerSettings,
    ready: int | None,
    read: Callable[[], ServerSettings] | None = None,
    *,
    new_database: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        read: reads the settings again, at SIGHUP; None: SIGHUP changes nothing.
        ready: descriptor that gets the port and a newline once the server listens, and then a
            line of JSON for ``ferryman dev``.
        new_database: see :func:`server.data_folder.open_data`.

    Raises:
        CannotListen, WrongDatabase, FolderInUse, DatabaseUnavailable, OSError, ValueError
    """
    table = settings.server
    check_exposure(table.host, table.needs_token, "server")
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    hangup = asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, hangup.set)
    manager = ServiceManager()
    async with AsyncExitStack() as stack:
        lock_folder(table, stack)  # first: a second server then says that the first runs
        sock = listen(table.host, table.port)  # from here on clients can connect
        stack.callback(sock.close)
        port = sock.getsockname()[1]
        limits = functools.partial(_limits, connections.raise_open_file_limit())
        stack.push_async_callback(manager.close)
        manager.starting(RealClock())
        server = await compose(
            settings, stack, limits=limits, read=read, locked=True, new_database=new_database
        )
        check_tokens(table, others=bool(server.context.tokens.operators))
        tls = server.reload.listening = table.tls()
        listener = Listener(server.application, sock, limits(settings), Deadlines(), ANSWER_S, tls)
        stack.push_async_callback(listener.close)
        await listener.start()
        server.supervisor.start()
        log.info(
            "server.listening",
            url=url_of(table.host, port, tls=tls is not None),
            data_dir=str(table.data_dir),
            connections=limits(settings).connections,
        )
        reloading = asyncio.create_task(
            manager.reload_at(hangup, functools.partial(_reload, server.context), RealClock())
        )
        stack.callback(reloading.cancel)
        preparing = asyncio.create_task(_prepare_pages(server.context.clock))
        stack.callback(preparing.cancel)
        clock, supervision = server.context.clock, Supervision(server)
        watching = asyncio.create_task(probe.watch(supervision.unready, stopping, clock))
        stack.callback(watching.cancel)
        manager.ready(clock, supervision.alive, supervision.sentence)
        interpreter.ready()
        if ready is not None:
            os.write(ready, f"{port}\n{json.dumps(_welcome(server.context))}\n".encode())
            os.close(ready)
        await stopping.wait()
        log.info("server.stopping")
        until = clock.monotonic() + table.shutdown_grace + _STOP_S
        manager.stopping(clock, lambda: clock.monotonic() < until)
        for number in (signal.SIGTERM, signal.SIGINT):
            # A second one ends us at once; nothing is lost by that.
            loop.remove_signal_handler(number)
        server.wakeups.close()
        listener.stop_accepting()  # no new connections; open requests may finish
        if not await server.gate.drain(table.shutdown_grace, server.context.clock):
            log.warning("server.cut_off", why="requests did not end within shutdown_grace")
        await listener.close()
        await server.supervisor.stop()
    log.info("server.stopped")


def _welcome(context: Context) -> dict[str, Any]:
    """What ``ferryman dev`` shows: where the dashboard is, logged in if that is needed, and a
    service.
    """
    first = context.sessions.first_configured()
    path, query = ("/", {}) if first is None else login_path(context, first)[:2]
    there = f"{context.public_url or ''}{context.url_prefix}{path}"
    return {
        "dashboard": f"{there}?{urlencode(query)}" if query else there,
        "behind_proxy": bool(context.url_prefix),
        "asks": first is not None,
        "service": next(iter(context.services), "example"),
    }


def _limits(open_files: int, settings: ServerSettings) -> connections.ConnectionLimits:
    return connections.connection_limits(
        open_files,
        own=OWN_FILES * min(16, len(settings.agents)),
    )


async def _prepare_pages(clock: Clock) -> None:
    """Compile the templates of pages one by one, when the start is over: half a second of work that
    those who look at the first pages would wait for, and all jobs if it were done at once.
    """
    await clock.sleep(_PREPARE_AFTER_S)
    for name in await asyncio.to_thread(template_names):
        await asyncio.to_thread(compile_template, name)
        await clock.sleep(_PREPARE_EVERY_S)


async def _reload(context: Context) -> None:
    with contextlib.suppress(NotReloaded):  # the log says why
        await context.reload()


class Supervision:
    """Says from time to time whether a server is alive, and how it is: to systemd and the log."""

    def __init__(self, server: Server) -> None:
        self._context, self._supervisor = server.context, server.supervisor
        self._stuck: list[str] = []

    async def alive(self) -> bool:
        """Whether a restart would not help: every loop goes round, or waits for a disk that does
        not answer, for which a new process would wait, too.
        """
        stuck = self._supervisor.stuck()
        if stuck and stuck != self._stuck:
            log.error("loop.stuck", loops=stuck)
        self._stuck = stuck
        if not stuck:
            return True
        troubles = await self._context.troubles()
        return any(one.kind is TroubleKind.DATA_FOLDER_SILENT for one in troubles)

    async def sentence(self) -> str:
        """For ``systemctl status``."""
        found = await status_of(self._context)
        jobs = "jobs cannot be counted"
        if found.queued is not None and found.in_work is not None:
            jobs = f"{found.in_work} of {found.slots} slots in use, {found.queued} jobs queued"
        wrong = "; ".join(one.message for one in found.troubles) or "all is well"
        return f"{jobs}; {wrong}"

    async def unready(self) -> dict[str, str]:
        """Why no uploads are taken: kind of trouble -> sentence."""
        return {one.kind.value: one.text for one in await self._context.troubles()}
