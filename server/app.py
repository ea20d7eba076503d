"""The server: opened, connected, and run until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

import structlog
from aiohttp import web

from server.agents.registry import Registry
from server.api.audit import Recorder
from server.api.routes import OPEN_PATHS, ROUTES, add_routes
from server.api.server_status import status_of
from server.domain.errors import Conflict
from server.http.context import Context
from server.http.permits import BrowserSessions, SignedRequests, login_path
from server.http.problems import problems
from server.loops import Loop, Sweep
from server.measures import Measures
from server.metrics import ServerMetrics
from server.settings.load import LiveSettings, check_tokens
from server.settings.tables import ServerSettings
from server.stages.services import Services
from server.stages.stage import Core
from server.stages.tokens import USES_EVERY_S
from server.stages.wakeups import JobWakeups
from server.storage.folder import Storage
from server.storage.scratch import Scratch
from server.store.changes import Listener as StoreListener
from server.store.data_folder import lock_folder, open_data
from server.web import routes as pages
from server.web.site import (
    CsrfTokens,
    LoginTries,
    Site,
    compile_template,
    error_page,
    template_names,
)
from shared import interpreter, probe
from shared.clock import Clock, RealClock
from shared.http import connections
from shared.http.connections import ConnectionLimits
from shared.http.listener import Listener
from shared.http.measured import METRICS
from shared.http.middleware import GATE, Gate, add_middlewares
from shared.http.protocol import Deadlines, UnreadAnswers
from shared.http.rate_limits import RateLimits
from shared.http.sockets import check_exposure, listen, url_of
from shared.principals import Principal, Role
from shared.service_manager import ServiceManager
from shared.units.rates import UNLIMITED, Rate

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
_FORM_BYTES: Final = 256 << 10
"""Of a form of a page without files: to read one takes a millisecond for each 5 KiB."""
_UPLOADS_CHECKED_S: Final = 5.0
"""Between two looks for uploads that are too slow."""
_AGENTS_EVERY_S: Final = 10.0
"""Between two writes of for how long agents were unreachable."""
_AUDIT_EVERY_S: Final = 0.4
"""Between two writes of the audit trail."""
_PROGRESS_EVERY_S: Final = 0.4
"""Between two writes of what running jobs say. An agent reports it twice a second, and it is to be
seen within one."""
_DEPENDENCIES_EVERY_S: Final = 10.0
"""Between two looks for dependencies on jobs that no move has ended."""
_CANCEL_AGAIN_S: Final = 5.0
"""Until a cancel is tried again whose agent could not be reached."""
_AT_LEAST_EVERY_S: Final = 60.0
"""Between two looks for schedules and webhooks where none is due, two samples for charts, and two
writes of the data folder's record."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose parts are connected."""

    context: Context
    application: web.Application

    def start(self) -> None:
        """Start the loops."""
        of = self.context
        followers = [of.data.clock.keep_saved, of.lag.run, of.fleet.run]
        of.supervisor.start(loops(of), followers)

    async def stop(self) -> None:
        """Stop the loops, then in this order what they and requests have begun."""
        of, audit, tokens = (
            self.context.stages,
            self.context.access.audit,
            self.context.access.tokens,
        )
        await self.context.supervisor.stop(
            [
                of.webhooks.stop,
                of.deliver.stop,
                of.cancel.stop,
                of.poll.stop,
                of.get.stop,
                of.agents.run_once,
                of.statistics.write,
                tokens.write_uses,
                audit.write,
            ]
        )


async def compose(
    settings: ServerSettings,
    read: Callable[[], ServerSettings],
    stack: AsyncExitStack,
    limits: ConnectionLimits,
    machine: Clock | None = None,
    *,
    new_database: bool = False,
) -> Server:
    """Open everything in the locked data folder and put it together; the stack closes it again.

    Args:
        new_database: see :func:`server.store.data_folder.open_data`.

    Raises:
        WrongDatabase, DatabaseUnavailable, OSError, ValueError: why it cannot be opened.
    """
    machine = machine or RealClock()
    live, table = LiveSettings(settings), settings.server
    data = await open_data(table, machine, stack, new_database=new_database)
    clock, database = data.clock, data.database
    new_name = functools.partial(secrets.token_hex, 16)
    min_free = table.least_free(shutil.disk_usage(table.data_dir).total)
    scratch = Scratch(table.data_dir / "staging", new_name, min_free)
    wakeups, measures = JobWakeups(clock), Measures()
    database.listener = StoreListener(wakeups.changed, wakeups.noted, measures.jobs.moved)
    services = Services(database, live, clock, wakeups)
    core = Core(
        settings=live,
        database=database,
        clock=clock,
        storage=Storage(table.data_dir, scratch, new_name),
        scratch=scratch,
        registry=Registry([], clock),
        services=services,
        wakeups=wakeups,
        measures=measures,
    )
    context = Context(core, services, data, machine, read)
    stack.push_async_callback(context.close)
    await context.load()
    return Server(context, application(context, limits))


def loops(context: Context) -> list[Loop]:
    """What is done again and again, beside what requests and agents begin."""
    of, access, core = context.stages, context.access, context.core
    table, wakeups = core.settings.server, core.wakeups

    def loop(name: str, sweep: Sweep, every_s: float, wakeup: asyncio.Event | None = None) -> Loop:
        return Loop(name, sweep, every_s, wakeup or asyncio.Event(), core.clock)

    return [
        loop("sender", of.round, table.sender_interval, wakeups.sender),
        loop("progress", of.get.progress, _PROGRESS_EVERY_S),
        loop("getter", of.poll, table.getter_interval),
        loop("canceller", of.cancel, _CANCEL_AGAIN_S, wakeups.canceller),
        loop("agents", of.agents, _AGENTS_EVERY_S),
        loop("audit", access.audit, _AUDIT_EVERY_S),
        loop("tokens", access.tokens, USES_EVERY_S),
        loop("uploads", context.pools.uploads, _UPLOADS_CHECKED_S),
        loop("dependencies", of.dependencies, _DEPENDENCIES_EVERY_S, wakeups.dependencies),
        loop("webhooks", of.webhooks, _AT_LEAST_EVERY_S, wakeups.webhooks),
        loop("batches", of.batches, table.sender_interval, wakeups.batches),
        loop("cleaner", of.clean, table.cleaner_interval, wakeups.cleaner),
        loop("statistics", of.statistics, _AT_LEAST_EVERY_S),
        loop("record", context.data.record, _AT_LEAST_EVERY_S),
        loop("schedules", of.schedules, _AT_LEAST_EVERY_S, wakeups.schedules),
    ]


def application(context: Context, limits: ConnectionLimits) -> web.Application:
    """What answers requests."""
    table, server_id = context.core.settings.server, context.data.identity.server
    forms = frozenset((route.method, route.path) for route in pages.ROUTES)
    areas = {(route.method, route.path): route.area for route in ROUTES}
    areas |= {(route.method, route.path): route.area for route in pages.ROUTES}
    gate = Gate(
        table,
        limits,
        OPEN_PATHS | pages.OPEN_PATHS,
        open_forms=pages.OPEN_FORMS,
        id_field="job_id",
        origins=table.allowed_origins or (),
        proxies=table.trusted_proxies or (),
        tokens=context.access.known,
        rates=RateLimits(functools.partial(_rate, context.core.settings), context.core.clock),
        signed=[
            SignedRequests(context.access.permits, context.core.clock),
            BrowserSessions(context.access.sessions, server_id, forms),
        ],
        audit=Recorder(context.access.audit, areas, context.core.clock),
        transfers=context.core.measures.transfers,
        unread=UnreadAnswers(),
    )
    made = web.Application(client_max_size=_FORM_BYTES)
    add_middlewares(made, gate, problems(error_page))
    made[METRICS] = ServerMetrics(context, gate.requests.collectors)
    add_routes(made, context)
    csrf, tries = CsrfTokens(context.data.identity.csrf_key), LoginTries(context.core.clock)
    pages.add_routes(made, Site(context, server_id, csrf, tries))
    return made


def _rate(settings: LiveSettings, principal: Principal) -> tuple[str, Rate]:
    """Whose share of requests one is, and how many there may be; a user's tokens are counted
    together.
    """
    if principal.role in (None, Role.OPERATOR, Role.AGENT, Role.METRICS):
        return "", UNLIMITED
    by_ticket = principal.role is Role.TICKET
    whose = (principal.acts_as if by_ticket else principal.user_id) or principal.name
    return f"{principal.role} {whose}", settings.allowances.of(whose).rate


async def serve(
    settings: ServerSettings,
    read: Callable[[], ServerSettings],
    ready: int | None = None,
    *,
    new_database: bool = False,
) -> None:
    """Run until SIGTERM or SIGINT. Raises CannotListen, WrongDatabase, FolderInUse,
    DatabaseUnavailable, OSError, ValueError.

    Args:
        ready: descriptor that gets the port and a newline once the server listens, and then a
            line of JSON for ``ferryman dev``.
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
        limits = connections.connection_limits(
            connections.raise_open_file_limit(), own=OWN_FILES * min(16, len(settings.agents))
        )
        stack.push_async_callback(manager.close)
        manager.starting(RealClock())
        server = await compose(settings, read, stack, limits, new_database=new_database)
        context, clock = server.context, server.context.core.clock
        check_tokens(table, others=bool(context.access.tokens.operators))
        tls = context.reload.listening = table.tls()
        listener = Listener(server.application, sock, limits, Deadlines(), ANSWER_S, tls)
        stack.push_async_callback(listener.close)
        await listener.start()
        server.start()
        log.info(
            "server.listening",
            url=url_of(table.host, port, tls=tls is not None),
            data_dir=str(table.data_dir),
            connections=limits.connections,
        )
        for work in (
            manager.reload_at(hangup, functools.partial(_reload, context), RealClock()),
            _prepare_pages(clock),
            probe.watch(context.health.unready, stopping, clock),
        ):
            stack.callback(asyncio.create_task(work).cancel)
        manager.ready(clock, context.health.alive, functools.partial(_sentence, context))
        interpreter.ready()
        if ready is not None:
            os.write(ready, f"{port}\n{json.dumps(_welcome(context))}\n".encode())
            os.close(ready)
        await stopping.wait()
        for number in (signal.SIGTERM, signal.SIGINT):
            # A second one ends us at once; nothing is lost by that.
            loop.remove_signal_handler(number)
        await _drain(server, listener, manager)
    log.info("server.stopped")


async def _drain(server: Server, listener: Listener, manager: ServiceManager) -> None:
    """Let requests that are under way end, and then what the server does by itself."""
    log.info("server.stopping")
    clock, grace_s = server.context.core.clock, server.context.core.settings.server.shutdown_grace
    until = clock.monotonic() + grace_s + _STOP_S
    manager.stopping(clock, lambda: clock.monotonic() < until)
    server.context.core.wakeups.close()
    listener.stop_accepting()  # no new connections; open requests may finish
    if not await server.application[GATE].drain(grace_s, clock):
        log.warning("server.cut_off", why="requests did not end within shutdown_grace")
    await listener.close()
    await server.stop()


def _welcome(context: Context) -> dict[str, Any]:
    """What ``ferryman dev`` shows: where the dashboard is, logged in if that is needed, and a
    service.
    """
    first = context.access.sessions.first_configured()
    path, query = ("/", {}) if first is None else login_path(context, first)[:2]
    table = context.core.settings.server
    there = f"{table.origin or ''}{table.url_prefix}{path}"
    return {
        "dashboard": f"{there}?{urlencode(query)}" if query else there,
        "behind_proxy": bool(table.url_prefix),
        "asks": first is not None,
        "service": next(iter(context.core.services), "example"),
    }


async def _prepare_pages(clock: Clock) -> None:
    """Compile the templates of pages one by one, when the start is over: half a second of work that
    those who look at the first pages would wait for, and all jobs if it were done at once.
    """
    await clock.sleep(_PREPARE_AFTER_S)
    for name in await asyncio.to_thread(template_names):
        await asyncio.to_thread(compile_template, name)
        await clock.sleep(_PREPARE_EVERY_S)


async def _reload(context: Context) -> None:
    with contextlib.suppress(Conflict):  # the log says why
        await context.reload()


async def _sentence(context: Context) -> str:
    """How it is, for ``systemctl status``."""
    found = await status_of(context)
    jobs = "jobs cannot be counted"
    if found.queued is not None and found.in_work is not None:
        jobs = f"{found.in_work} of {found.slots} slots in use, {found.queued} jobs queued"
    wrong = "; ".join(one.message for one in found.troubles) or "all is well"
    return f"{jobs}; {wrong}"
