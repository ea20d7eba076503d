"""Composition root: the only file that knows everything."""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from importlib import metadata
from socket import socket
from typing import Final

import aiohttp
import structlog
from aiohttp import web

from server.agents.follow import follow
from server.agents.link import Address, Link
from server.agents.registry import Registry
from server.api.context import CONTEXT, Context
from server.api.flights import Flights
from server.api.problems import Refusal, answer_problems
from server.api.routes import add_routes
from server.loops.bells import Bells
from server.loops.runner import Loop
from server.loops.supervisor import Supervisor
from server.settings import AgentTable, ServerSettings, tokens
from server.stages.accept import Accept
from server.stages.cancel import Cancel
from server.stages.clean import Clean
from server.stages.get import Get
from server.stages.poll import Poll
from server.stages.recover import recover
from server.stages.send import Send
from server.storage.files import FolderFiles
from server.store.identity import server_identity
from server.store.jobs import SqlJobs
from server.store.migrations import MIGRATIONS
from shared.clock import Clock, RealClock
from shared.database import Database
from shared.lockfile import FolderLock
from shared.multipart import FormLimits
from shared.steady_clock import KeptClock
from shared.web import Handler, bearer, check_exposure, listen

log = structlog.get_logger()
ANSWER_S: Final = 1.0
"""For the last bytes of answers, once every request has been dealt with."""
CANCEL_AGAIN_S: Final = 5.0
"""Until a cancel is tried again whose agent could not be reached."""


@dataclass(frozen=True, slots=True)
class Server:
    """A composed server.

    Attributes:
        supervisor: its loops, to be started and stopped.
    """

    application: web.Application
    supervisor: Supervisor
    bells: Bells
    send: Send
    jobs: SqlJobs
    registry: Registry
    flights: Flights
    clock: Clock


async def compose(
    settings: ServerSettings, stack: AsyncExitStack, machine: Clock | None = None
) -> Server:
    """Open everything and put it together; the stack closes it again.

    Args:
        machine: the clocks of the machine.

    Raises:
        FolderInUse, DatabaseUnavailable, OSError, ValueError: why it cannot be opened.
    """
    table = settings.server
    table.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    stack.callback(FolderLock(table.data_dir).close)
    clock = KeptClock(table.data_dir, machine or RealClock())
    path = table.db_path or table.data_dir / "ferryman.sqlite"
    path.parent.mkdir(parents=True, exist_ok=True)
    database = await Database.open(path, MIGRATIONS)
    stack.push_async_callback(database.close)
    if database.upgraded_from is not None:
        log.info("database.upgraded", copy=str(database.upgraded_from))
    identity = await server_identity(database, secrets.token_hex(16))
    session = await stack.enter_async_context(
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, limit_per_host=64, keepalive_timeout=60)
        )
    )

    bells = Bells()
    jobs = SqlJobs(database, bells.changed)
    files = FolderFiles(table.data_dir, functools.partial(secrets.token_hex, 16))
    services = {name: one.service(name) for name, one in settings.services.items()}
    links = [_link(name, one, session, identity) for name, one in settings.agents.items()]
    registry = Registry(links, clock)
    accept = Accept(jobs, files, services, clock)
    get = Get(jobs, files, services, clock)
    poll = Poll(
        jobs,
        files,
        registry,
        services,
        clock,
        get,
        unreachable_after_s=table.agent_unreachable_after,
        lost_after_s=table.agent_lost_after,
    )
    send = Send(
        jobs, files, registry, services, clock, get.told, lost_after_s=table.agent_lost_after
    )
    cancel = Cancel(jobs, registry, services, clock, get.told)
    clean = Clean(jobs, files, clock)
    await recover(jobs, files)

    supervisor = Supervisor(
        bells,
        [
            Loop("sender", send, table.sender_interval, bells.sender, clock),
            Loop("getter", poll, table.getter_interval, bells.getter, clock),
            Loop("canceller", cancel, CANCEL_AGAIN_S, bells.canceller, clock),
            Loop("cleaner", clean, table.cleaner_interval, bells.cleaner, clock),
        ],
        [
            clock.keep,
            *(
                functools.partial(follow, link, registry, get, clock, back=bells.sender.set)
                for link in links
            ),
        ],
        [send.stop, cancel.stop, poll.stop, get.stop],
    )

    def troubles() -> list[str]:
        found = [f"the {name} loop is stuck" for name in supervisor.ill()]
        if database.trouble is not None:
            found.append(str(database.trouble))
        try:
            if files.free_bytes() < table.min_free:
                found.append("the disk is full")
            files.check_writable()
        except OSError as problem:
            found.append(f"the data folder cannot be written: {problem.strerror}")
        return found

    flights = Flights()
    application = web.Application(
        middlewares=[
            flights.middleware,
            answer_problems,
            _guard(tokens(table.tokens, table.tokens_file)),
        ]
    )
    application[CONTEXT] = Context(
        jobs=jobs,
        files=files,
        fleet=registry,
        services=services,
        watch=bells,
        clock=clock,
        accept=accept,
        cancel=cancel,
        form_limits=FormLimits(max_bytes=table.max_upload, max_files=table.max_files),
        min_free=table.min_free,
        cancel_patience_s=table.cancel_patience,
        troubles=troubles,
        version=metadata.version("ferryman"),
    )
    add_routes(application)
    return Server(application, supervisor, bells, send, jobs, registry, flights, clock)


def _link(name: str, agent: AgentTable, session: aiohttp.ClientSession, identity: str) -> Link:
    if agent.url is not None:
        address = Address.of(agent.url)
    else:
        address = Address.separate(
            agent.upload_url or "", agent.download_url or "", agent.terminate_url or ""
        )
    found = tokens((agent.token,) if agent.token else (), agent.token_file)
    return Link(
        name,
        address,
        session,
        identity,
        token=found[0] if found else None,
        services=frozenset(agent.services),
    )


def _guard(given: Sequence[str]) -> web.middlewares.Middleware:  # type: ignore[name-defined]
    allowed = bearer(given)

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not allowed(request):
            raise Refusal(
                HTTPStatus.UNAUTHORIZED,
                "not_allowed",
                "a valid token is needed: Authorization: Bearer TOKEN",
            )
        return await handler(request)

    return guard


async def serve(settings: ServerSettings, ready: int | None) -> None:
    """Run until SIGTERM or SIGINT.

    Args:
        ready: descriptor that gets the port and a newline once the server listens.

    Raises:
        CannotListen, FolderInUse, DatabaseUnavailable, OSError, ValueError
    """
    table = settings.server
    check_exposure(table.host, tokens(table.tokens, table.tokens_file), "server")
    sock: socket = listen(table.host, table.port)
    port = sock.getsockname()[1]
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    async with AsyncExitStack() as stack:
        stack.callback(sock.close)
        server = await compose(settings, stack)
        runner = web.AppRunner(server.application, access_log=None, shutdown_timeout=ANSWER_S)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.SockSite(runner, sock, backlog=1024)
        await site.start()
        server.supervisor.start()
        log.info(
            "server.listening", url=f"http://{table.host}:{port}", data_dir=str(table.data_dir)
        )
        if ready is not None:
            os.write(ready, f"{port}\n".encode())
            os.close(ready)
        await stopping.wait()
        log.info("server.stopping")
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(
                number
            )  # a second one ends us at once; nothing is lost by that
        server.bells.close()
        await site.stop()  # nobody new; who is here may finish
        if not await server.flights.all_landed(table.shutdown_grace, server.clock):
            log.warning("server.cut_off", why="requests did not end within shutdown_grace")
        await runner.cleanup()
        await server.supervisor.stop()
    log.info("server.stopped")
