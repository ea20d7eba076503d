"""What ``ferryman check`` finds in a server's settings, and ``ferryman doctor`` on its host."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import grp
import os
import pwd
import re
import resource
import shutil
import socket
import sqlite3
import ssl
import stat
from collections.abc import Iterable, Iterator, Set
from email.utils import parsedate_to_datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import aiohttp
from pydantic import BaseModel, ValidationError

from ferryman.findings import Finding
from server.agents.agent import say_connection
from server.api.server_status import ADVICE
from server.domain.troubles import TroubleKind
from server.settings.tables import AgentTable, ServerSettings
from server.store.data_folder import UNKNOWN, look
from server.store.migrations import MIGRATIONS
from shared.clock import SECOND, Clock
from shared.command_line import CANNOT_CREATE, DAMAGED, UNAVAILABLE
from shared.settings.secrets import FileSecret, secret_files
from shared.sqlite.files import check_structure, connected, schema_version
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import AgentHealth

_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "fuse.sshfs", "9p", "afs", "ceph"})
_MIN_INODES: Final = 10_000
_MIN_FILES: Final = 1_024
_SOON_S: Final = 14 * 86_400
_ANSWER_S: Final = 5.0
_MAX_SKEW_S: Final = 5.0


def warnings(settings: ServerSettings, file: Path | None) -> list[str]:
    """What can be used, and is probably not what somebody wants."""
    return [*_of_services(settings), *_of_access(settings, file)]


def _of_services(settings: ServerSettings) -> Iterator[str]:
    used = settings.agents.values()
    for name, table in settings.services.items():
        if table.runs_per_user > table.max_runs:
            yield (
                f"services.{name}: runs_per_user is {table.runs_per_user}, and max_runs only "
                f"{table.max_runs}: one user can take all"
            )
        if not any(not one.services or name in one.services for one in used):
            yield f"services.{name}: no agent that gets jobs has it; its jobs would wait"
        delays = table.retry_delays if table.backoff is None else (table.retry_delay,)
        if table.retries and table.queue_timeout and delays and table.queue_timeout < max(delays):
            yield (
                f"services.{name}: queue_timeout is {say_duration(table.queue_timeout)}, less than "
                f"the delay of a retry, {say_duration(max(delays))}"
            )
        if 0 < table.timeout < table.heartbeat_timeout:
            yield f"services.{name}: heartbeat_timeout is longer than timeout, and does nothing"


def _secrets(settings: ServerSettings) -> list[tuple[str, Path]]:
    """Where they stand in the settings, and their files, each once."""
    tables: list[tuple[str, BaseModel]] = [("server", settings.server)]
    tables += ((f"agents.{name}", one) for name, one in settings.agents.items())
    tables += ((f"services.{name}", one) for name, one in settings.services.items())
    found = {file: f"{name}.{key}" for name, one in tables for key, file in secret_files(one)}
    return [(key, file) for file, key in found.items()]


def _of_access(settings: ServerSettings, file: Path | None) -> Iterator[str]:
    table = settings.server
    agents = settings.agents.items()
    secrets = _secrets(settings)
    if table.tls_key is not None:
        secrets.append(("server.tls_key", table.tls_key))
    known = [*(table.tokens or ()), *(one.token for _, one in agents if one.token)]
    if file is not None and not all(isinstance(one, FileSecret) for one in known):
        secrets.append(("tokens are in it", file))
    for key, path in secrets:
        if path.is_file() and (seen := exposure(path, table.data_dir)):
            yield f"{path}: {seen[0]} ({key}): {seen[1]}"
    if table.needs_token and table.tls_cert is None and not settings.server.trusted_proxies:
        yield "server: tokens are sent unencrypted: set tls_cert, or put a proxy with TLS before it"
    if table.needs_token and not table.tokens:
        yield "server: no tokens: it starts only where an operator's is in its database already"
    if not settings.agents:
        yield "agents: there is none, so no job can run"


def examine(settings: ServerSettings, file: Path | None, clock: Clock) -> Iterator[Finding]:
    """All findings; nothing is changed.

    Args:
        file: of the settings, to name it.
    """
    table = settings.server
    # A look at another folder than the program's finds nothing.
    of = f"{file or 'no file, defaults and variables'}; {metadata.version('ferryman')}"
    yield Finding("settings", "ok", of)
    size = 0
    with contextlib.suppress(OSError):  # of_folder says so
        size = shutil.disk_usage(table.data_dir).total
    yield from of_folder(table.data_dir, table.least_free(size))
    pid = holder(table.data_dir)
    running = f"process {pid} works with it" if pid else "nobody works with it now"
    yield Finding("lock", "ok", running)
    database = table.database
    both = list(of_both(table.data_dir, database))
    for one in of_database(database, len(MIGRATIONS)):
        if not both or one.level != "ok":  # what is good about the wrong one helps nobody
            yield one
    yield from both
    if (aside := table.data_dir / UNKNOWN).is_dir():
        hint = ADVICE[TroubleKind.FILES_MOVED_ASIDE]
        yield Finding("files", "warning", f"files were moved aside to {aside}", hint)
    yield of_port(table.host, table.port, pid)
    yield of_open_files()
    agents = settings.agents.values()
    files = [file for _, file in _secrets(settings)]
    yield from of_secrets([*files, table.tls_key], table.data_dir)
    for certificate in (table.tls_cert, *(one.client_cert for one in agents)):
        yield from of_certificate(certificate, clock)
    yield from asyncio.run(_agents(settings, clock))


def of_database(path: Path, newest: int) -> Iterator[Finding]:
    """Whether the database opens, is whole, and is of this version."""
    if not path.exists():
        yield Finding("database", "ok", f"{path} will be made at the first start")
        return
    try:
        with connected(path, "ro", timeout_s=5) as connection:
            check_structure(connection)
            version = schema_version(connection)
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
        asked = [_of_agent(session, name, one, clock) for name, one in settings.agents.items()]
        return [one for found in await asyncio.gather(*asked) for one in found]


async def _of_agent(
    session: aiohttp.ClientSession, name: str, table: AgentTable, clock: Clock
) -> list[Finding]:
    about = f"agent {name}"
    url = table.url.rstrip("/") + "/load" if table.url else str(table.upload_url)
    token, tls = table.secret(), table.tls()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    ssl = tls.context if tls else True
    try:
        async with session.get(url, headers=headers, ssl=ssl) as answer:
            status, date, health = answer.status, answer.headers.get("Date"), AgentHealth(status="")
            if table.url and status == 200:
                async with session.get(
                    table.url.rstrip("/") + "/health", headers=headers, ssl=ssl
                ) as told:
                    with contextlib.suppress(ValidationError):
                        health = AgentHealth.model_validate_json(await told.read())
    except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as problem:
        text = f"it cannot be reached: {say_connection(problem, f'agents.{name}.ca_file')}"
        hint = "on its host: systemctl status ferryman-agent, ferryman doctor"
        return [Finding(about, "problem", text, hint, UNAVAILABLE)]
    if status in (401, 403):
        text = "it does not take the token of the settings"
        hint = f"token of [agents.{name}] has to be one of the agent's tokens"
        return [Finding(about, "problem", text, hint, 77)]
    if table.url and (status != 200 or not health.agent):
        text = f"what answers at its address is no Ferryman agent (status {status})"
        return [Finding(about, "problem", text, f"url of [agents.{name}]", 76)]
    ours, theirs = metadata.version("ferryman"), health.version
    found = [Finding(about, "ok", "it answers, and takes our token" if token else "it answers")]
    if health.message:
        text = f"it answers, and says: {health.message}"
        found = [Finding(about, "warning", text, "on its host: ferryman doctor")]
    if theirs and theirs.split(".")[:2] != ours.split(".")[:2]:
        text = f"it has version {theirs}, this is {ours}"
        hint = "bring both to the same version, in any order"
        found.append(Finding(about, "warning", text, hint))
    with contextlib.suppress(ValueError, OverflowError):  # it is malformed, or there is none
        skew = abs(parsedate_to_datetime(date or "").timestamp() - clock.now() / SECOND)
        if skew > _MAX_SKEW_S + 1:  # its time is cut to a whole second
            text = f"its clock and this one differ by {skew:.0f} s"
            hint = "on the one that is wrong: timedatectl status"
            found.append(Finding(about, "warning", text, hint))
    return found


def of_folder(folder: Path, min_free: int) -> Iterator[Finding]:
    """The data folder: its owner, mode, disk and kind of filesystem."""
    try:
        about = folder.stat()
    except OSError as problem:
        hint = f"the unit makes it; or, for the program's user: install -d -m 0700 -o USER {folder}"
        text = f"{folder}: {problem.strerror}"
        missing = problem.errno == errno.ENOENT
        yield Finding("folder", "warning" if missing else "problem", text, hint, CANNOT_CREATE)
        return
    if about.st_uid not in (os.geteuid(), 0):
        text = f"{folder} belongs to user {about.st_uid}, this is user {os.geteuid()}"
        yield Finding("folder", "warning", text, "run this as the user of the program")
    elif not os.access(folder, os.W_OK | os.X_OK):
        text = f"{folder} cannot be written by user {os.geteuid()}"
        yield Finding("folder", "problem", text, f"chown it: ls -ld {folder}", CANNOT_CREATE)
    elif about.st_mode & 0o022:
        yield Finding("folder", "warning", f"others may write {folder}", f"chmod go-w {folder}")
    else:
        yield Finding("folder", "ok", f"{folder} is the program's own")
    kind, options = _mount(folder)
    if kind in _NETWORK:
        text = f"{folder} is on {kind}: a database on a network share is damaged sooner or later"
        hint = "use a local disk; db_path (server) and database (agent) move the database alone"
        yield Finding("filesystem", "problem", text, hint, DAMAGED)
    elif "ro" in options:
        text = f"{folder} is mounted for reading only"
        yield Finding("filesystem", "problem", text, "dmesg says why", CANNOT_CREATE)
    else:
        yield Finding("filesystem", "ok", kind or "unknown")
    yield from _space(folder, min_free)


def _space(folder: Path, min_free: int) -> Iterator[Finding]:
    free = shutil.disk_usage(folder).free
    if free < min_free:
        text = f"{say_size(free)} are free, {say_size(min_free)} must stay free (min_free)"
        yield Finding("disk", "problem", text, "make room, or keep results for less long", 75)
    elif free < 2 * min_free:
        text = f"{say_size(free)} are free, not much above min_free ({say_size(min_free)})"
        yield Finding("disk", "warning", text, "make room soon")
    else:
        yield Finding("disk", "ok", f"{say_size(free)} are free")
    about = os.statvfs(folder)
    if about.f_files and about.f_favail < _MIN_INODES:
        text = f"{about.f_favail} inodes are free: no more files can be made soon"
        yield Finding("inodes", "warning", text, f"df -i {folder}")


def _mount(folder: Path) -> tuple[str, frozenset[str]]:
    best, kind, options = "", "", frozenset[str]()
    whole = str(folder.resolve())
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/mountinfo").read_text().splitlines():
            left, _, right = line.partition(" - ")
            parts = left.split()
            point = re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), parts[4])
            inside = whole == point or whole.startswith(point.rstrip("/") + "/")
            if inside and len(point) >= len(best):
                best, kind, options = point, right.split()[0], frozenset(parts[5].split(","))
    return kind, options


def holder(folder: Path) -> str | None:
    """Pid of the process that holds the lock of a data folder; None: nobody does."""
    try:
        fd = os.open(folder / "lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return os.pread(fd, 32, 0).decode(errors="replace").strip() or "unknown"
    finally:
        os.close(fd)
    return None


def of_port(host: str, port: int, pid: str | None) -> Finding:
    """Whether the address can be listened on, or the program does."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind((host, port))
    except OSError as problem:
        if problem.errno == errno.EADDRINUSE and pid is not None:
            return Finding("port", "ok", f"{port} is in use; the program runs (pid {pid})")
        hint = f"ss -ltnp 'sport = :{port}' says who has it"
        text = f"{host}:{port}: {problem.strerror}"
        return Finding("port", "problem", text, hint, UNAVAILABLE)
    if pid is not None:
        text = f"the program runs (pid {pid}) and does not listen on {host}:{port}"
        return Finding("port", "warning", text, "it was started with other settings")
    return Finding("port", "ok", f"{port} is free")


def of_open_files() -> Finding:
    """What this user may open; a service has the limit of its unit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < _MIN_FILES:
        text = f"only {hard} files may be open at once"
        return Finding("open files", "warning", text, "LimitNOFILE= in the unit, or ulimit -n")
    return Finding("open files", "ok", f"{'any number' if hard < 0 else hard} may be open at once")


def of_secrets(files: Iterable[Path | None], data_dir: Path) -> Iterator[Finding]:
    """Files with tokens and keys: nobody but the program may read them.

    Args:
        data_dir: belongs to the program's user, once it is made.
    """
    for file in files:
        if file is None:
            continue
        try:
            seen = exposure(file, data_dir)
        except OSError as problem:
            hint = "name the right file in the settings"
            yield Finding("secret", "problem", f"{file}: {problem.strerror}", hint, 2)
            continue
        if seen is not None:
            yield Finding("secret", "warning", f"{file}: {seen[0]}", seen[1])
        else:
            yield Finding("secret", "ok", f"{file} is closed to others")


def exposure(file: Path, data_dir: Path) -> tuple[str, str] | None:
    """Who may read a secret and need not, and what to do; None: nobody.

    The program can still read the file when that is done.

    Raises:
        OSError
    """
    about = file.stat()
    user = data_dir.stat().st_uid if data_dir.is_dir() else 0
    if about.st_mode & stat.S_IRWXO:
        closed = f"chown root:GROUP {file} && chmod 640 {file} (GROUP: of the program's user)"
        hint = f"chmod 600 {file}" if user and user == about.st_uid else closed
        return "everybody on this machine can read it", hint
    if about.st_mode & stat.S_IRWXG:
        group, members = _group(about.st_gid, {0, user})
        if members - {group} or len(members) > 1:  # the group of one user has that user's name
            hint = f"the group needs no member but the program's user: getent group {group}"
            return f"its group has members who can read it: {', '.join(sorted(members))}", hint
    return None


def _group(gid: int, known: Set[int]) -> tuple[str, set[str]]:
    """Name and members of a group, without these users."""
    users = {one.pw_name: one for one in pwd.getpwall()}
    try:
        name, listed = grp.getgrgid(gid)[0], grp.getgrgid(gid).gr_mem
    except KeyError:
        name, listed = str(gid), []
    members = {one for one, about in users.items() if about.pw_gid == gid} | set(listed)
    return name, {one for one in members if one not in users or users[one].pw_uid not in known}


def of_certificate(file: Path | None, clock: Clock) -> Iterator[Finding]:
    if file is None:
        return
    try:
        # The one place in the standard library that reads a certificate without a connection.
        decoded: dict[str, Any] = ssl._ssl._test_decode_cert(str(file))  # type: ignore[attr-defined]
        left_s = ssl.cert_time_to_seconds(decoded["notAfter"]) - clock.now() / SECOND
    except (OSError, ssl.SSLError, ValueError, KeyError, AttributeError) as problem:
        yield Finding("certificate", "problem", f"{file}: {problem}", "openssl x509 -text", 2)
        return
    days = round(left_s / 86_400)
    if left_s <= 0:
        text = f"{file} has expired on {decoded['notAfter']}"
        yield Finding("certificate", "problem", text, "renew it, then reload (SIGHUP)", 77)
    elif left_s < _SOON_S:
        text = f"{file} expires in {days} days"
        yield Finding("certificate", "warning", text, "renew it, then reload (SIGHUP)")
    else:
        yield Finding("certificate", "ok", f"{file} is good for {days} days")
