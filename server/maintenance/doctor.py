"""``ferryman server doctor``: looks at the host of a server, its data folder and its agents."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Final

import aiohttp

from server.agents.connection_errors import say_connection
from server.data_folder import UNKNOWN, look
from server.domain.troubles import TroubleKind
from server.http.status import ADVICE
from server.maintenance.backup import DATABASE
from server.settings.agents import AgentTable
from server.settings.tables import ServerSettings
from server.store.migrations import MIGRATIONS
from shared import findings
from shared.clock import SECOND, Clock
from shared.findings import DAMAGED, UNAVAILABLE, Finding
from shared.sqlite.copies import check_structure
from shared.sqlite.migrations import schema_version
from shared.units.sizes import say_size

_ANSWER_S: Final = 5.0
_MAX_SKEW_S: Final = 5.0


def examine(settings: ServerSettings, file: Path | None, clock: Clock) -> Iterator[Finding]:
    """All findings; nothing is changed.

    Args:
        file: of the settings, to name it.
    """
    table = settings.server
    yield findings.of_settings(file, f"version {metadata.version('ferryman')}")
    size = 0
    with contextlib.suppress(OSError):  # of_folder says so
        size = shutil.disk_usage(table.data_dir).total
    yield from findings.of_folder(table.data_dir, table.least_free(size))
    pid = findings.holder(table.data_dir)
    running = f"process {pid} works with it" if pid else "nobody works with it now"
    yield Finding("lock", "ok", running)
    database = table.db_path or table.data_dir / DATABASE
    both = list(of_both(table.data_dir, database))
    for one in of_database(database, len(MIGRATIONS)):
        if not both or one.level != "ok":  # what is good about the wrong one helps nobody
            yield one
    yield from both
    if (aside := table.data_dir / UNKNOWN).is_dir():
        hint = ADVICE[TroubleKind.FILES_MOVED_ASIDE]
        yield Finding("files", "warning", f"files were moved aside to {aside}", hint)
    yield findings.of_port(table.host, table.port, pid)
    yield findings.of_open_files()
    agents = settings.agents.values()
    more = [path for one in agents for path in (one.token_file, one.identity_secret_file)]
    yield from findings.of_secrets(
        [table.tokens_file, table.metrics_tokens_file, table.tls_key, *more], table.data_dir
    )
    for file in (table.tls_cert, *(one.client_cert for one in agents)):
        yield from findings.of_certificate(file, clock)
    yield from asyncio.run(_agents(settings, clock))


def of_database(path: Path, newest: int) -> Iterator[Finding]:
    """Whether the database opens, is whole, and is of this version."""
    if not path.exists():
        yield Finding("database", "ok", f"{path} will be made at the first start")
        return
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=5)
        try:
            check_structure(connection)
            version = schema_version(connection)
        finally:
            connection.close()
    except (sqlite3.Error, OSError) as problem:
        hint = "stop the server, keep a copy of the file, and restore the latest backup"
        yield Finding("database", "problem", f"{path}: {problem}", hint, DAMAGED)
        return
    size = say_size(path.stat().st_size)
    if version > newest:
        text = f"its schema {version} is of a newer version than this one, which knows {newest}"
        yield Finding("database", "problem", text, "install the newer version again", DAMAGED)
    elif version < newest:
        text = f"{size}, whole; schema {version} becomes {newest} at the next start, with a copy"
        yield Finding("database", "ok", text)
    else:
        yield Finding("database", "ok", f"{size}, whole, schema {version}")


def of_both(folder: Path, database: Path) -> Iterator[Finding]:
    """Whether they are of one server; nothing where the other findings say what is wrong."""
    with contextlib.suppress(sqlite3.Error, OSError):
        if (wrong := look(folder, database)) is not None:
            yield Finding("folder and database", "problem", wrong.text, wrong.advice, DAMAGED)


async def _agents(settings: ServerSettings, clock: Clock) -> list[Finding]:
    if not settings.agents:
        hint = "an agent is a table [agents.NAME] of the settings"
        return [Finding("agents", "problem", "there are none, so no job can run", hint)]
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        asked = [_asked(session, name, one, clock) for name, one in settings.agents.items()]
        return [one for found in await asyncio.gather(*asked) for one in found]


async def _asked(
    session: aiohttp.ClientSession, name: str, table: AgentTable, clock: Clock
) -> list[Finding]:
    return [one async for one in _of_agent(session, name, table, clock)]


async def _of_agent(
    session: aiohttp.ClientSession, name: str, table: AgentTable, clock: Clock
) -> AsyncIterator[Finding]:
    about = f"agent {name}"
    url = table.url.rstrip("/") + "/load" if table.url else str(table.upload_url)
    token, tls = table.secret(), table.tls()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    ssl = tls.context if tls else True
    try:
        async with session.get(url, headers=headers, ssl=ssl) as answer:
            status, date = answer.status, answer.headers.get("Date")
            health = {}
            if table.url and status == 200:
                async with session.get(
                    table.url.rstrip("/") + "/health", headers=headers, ssl=ssl
                ) as told:
                    health = await told.json()
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
        text = f"it cannot be reached: {say_connection(problem, f'agents.{name}.ca_file')}"
        hint = "on its host: systemctl status ferryman-agent, ferryman agent doctor"
        yield Finding(about, "problem", text, hint, UNAVAILABLE)
        return
    if status in (401, 403):
        text = "it does not take the token of the settings"
        hint = f"token_file of [agents.{name}] has to be one of the agent's tokens"
        yield Finding(about, "problem", text, hint, 77)
        return
    if table.url and (status != 200 or not health.get("agent")):
        text = f"what answers at its address is no Ferryman agent (status {status})"
        yield Finding(about, "problem", text, f"url of [agents.{name}]", 76)
        return
    ours, theirs = metadata.version("ferryman"), health.get("version")
    if health.get("message"):
        text = f"it answers, and says: {health['message']}"
        yield Finding(about, "warning", text, "on its host: ferryman agent doctor")
    else:
        yield Finding(about, "ok", "it answers, and takes our token" if token else "it answers")
    if theirs and theirs.split(".")[:2] != ours.split(".")[:2]:
        text = f"it has version {theirs}, this is {ours}"
        yield Finding(about, "warning", text, "upgrade agents first, then the server")
    if date is not None:
        skew = abs(parsedate_to_datetime(date).timestamp() - clock.now() / SECOND)
        if skew > _MAX_SKEW_S + 1:  # its time is cut to a whole second
            text = f"its clock and this one differ by {skew:.0f} s"
            yield Finding(about, "warning", text, "on the one that is wrong: timedatectl status")
