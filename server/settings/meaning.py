"""What the settings of a server mean, in sentences, and what in them is probably not meant."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from server.settings.tables import ServerSettings, ServiceTable
from shared.findings import exposure
from shared.http.sockets import url_of
from shared.settings.shown import without_password
from shared.units.durations import say_duration
from shared.units.sizes import say_count, say_size


def sentences(settings: ServerSettings) -> list[str]:
    """What it does with them."""
    return [
        _listens(settings),
        _keeps(settings),
        *(_service(name, one) for name, one in settings.services.items()),
        *_agents(settings),
    ]


def warnings(settings: ServerSettings, file: Path | None) -> list[str]:
    """What can be used, and is probably not what somebody wants."""
    return [*_of_services(settings), *_of_access(settings, file)]


def _listens(settings: ServerSettings) -> str:
    table = settings.server
    where = url_of(table.host, table.port, tls=table.tls_cert is not None)
    who = "whoever reaches it needs a token"
    if not table.needs_token:
        who = "everybody on this machine may do everything, without a token"
    return f"It listens at {where}; {who}."


def _keeps(settings: ServerSettings) -> str:
    folder = settings.server.data_dir.absolute()
    there = next(one for one in (folder, *folder.parents) if one.is_dir())
    usage = os.statvfs(there)
    free = usage.f_bavail * usage.f_frsize
    new = "" if there == folder else " (it will be made)"
    least = say_size(settings.server.least_free(usage.f_blocks * usage.f_frsize))
    return f"It keeps everything in {folder}{new}: {say_size(free)} are free, {least} stay so."


def _service(name: str, table: ServiceTable) -> str:
    limits = table.limits
    words = [
        f"at most {table.max_runs} at once, {table.runs_per_user} of one user",
        f"each try at most {say_duration(table.timeout)}" if table.timeout else "no limit of time",
    ]
    if table.queue_timeout:
        words.append(f"waiting at most {say_duration(table.queue_timeout)}")
    if table.queued_per_user:
        words.append(f"{table.queued_per_user} waiting of one user")
    words.append(
        f"{_cpus(limits.cpus)}, {say_size(limits.memory)} of memory, {say_size(limits.disk)} of "
        f"disk, {'the network' if limits.network else 'no network'}"
    )
    if table.retries:
        words.append(
            f"tried again {say_count(table.retries, 'time')} after {', '.join(table.retry_on)}"
        )
    again = f"started again {say_count(table.infra_retries, 'time')} if a host or agent fails"
    words.append(again if table.infra_retries else "never started twice")
    words.append(f"results kept for {say_duration(table.expires_after)}")
    return f"Service {name}: {'; '.join(words)}."


def _cpus(count: float) -> str:
    return f"{count:g} {'CPU' if count == 1 else 'CPUs'}"


def _agents(settings: ServerSettings) -> Iterator[str]:
    for name, table in settings.agents.items():
        kind = "a Ferryman agent" if table.url else "a job-orchestrator client"
        words = [f"{kind} at {without_password(table.url or table.upload_url or '')}"]
        words.append(f"for {', '.join(table.services)}" if table.services else "for every service")
        words += [f"at most {most} of {one} at once" for one, most in table.max_runs.items()]
        words.append("with a token" if table.secret() else "without a token")
        if table.drain:
            words.append("drained: it gets no new jobs")
        yield f"Agent {name}: {', '.join(words)}."


def _of_services(settings: ServerSettings) -> Iterator[str]:
    used = [one for one in settings.agents.values() if not one.drain]
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


def _of_access(settings: ServerSettings, file: Path | None) -> Iterator[str]:
    table = settings.server
    secrets = [("server.tokens_file", table.tokens_file), ("server.tls_key", table.tls_key)]
    secrets.append(("server.metrics_tokens_file", table.metrics_tokens_file))
    agents = settings.agents.items()
    secrets += [(f"agents.{name}.token_file", one.token_file) for name, one in agents]
    if file is not None and (table.tokens or any(one.token for _, one in agents)):
        secrets.append(("tokens are in it", file))
    for key, path in secrets:
        if path is not None and path.is_file() and (seen := exposure(path, table.data_dir)):
            yield f"{path}: {seen[0]} ({key}): {seen[1]}"
    if table.needs_token and table.tls_cert is None and not settings.server.trusted_proxies:
        yield "server: tokens are sent unencrypted: set tls_cert, or put a proxy with TLS before it"
    if not settings.agents:
        yield "agents: there is none, so no job can run"
