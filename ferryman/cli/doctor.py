"""``ferryman check`` and ``ferryman doctor``: what is wrong, before a start and after it."""

from __future__ import annotations

import asyncio
import json as json_
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ferryman import errors
from ferryman.cli import show
from ferryman.cli.exits import FAILED, UNAVAILABLE, USAGE, exit_code_for, hint_for
from ferryman.cli.options import Json, Server, on_server
from ferryman.cli.programs import missing_packages, require_server_extra
from ferryman.defaults import DEFAULT_URL
from ferryman.errors import BadArgument
from ferryman.findings import Finding, exit_code, lines
from ferryman.units import say_duration, say_size

if TYPE_CHECKING:
    from ferryman.client import Client
    from ferryman.models.operators import AgentDoc, Health, Trouble

MAX_SKEW_S: Final = 5.0
"""Between this clock and the server's; their messages have whole seconds."""
_SOON_S: Final = 7 * 86_400.0
PACKAGED: Final = Path("/var/lib/dpkg/info/ferryman.list")
"""There if the Debian package is installed, in /opt/ferryman."""
INSTALLED: Final = Path("/etc/ferryman")
"""Where a package has the settings of both programs."""
_MIN_FREE: Final = 1 << 30
"""Bytes on this disk, for results."""


# ------------------------------------------------------------------ check


@dataclass(frozen=True, slots=True)
class Checked:
    """What one of the programs says of its settings."""

    program: str
    ok: bool
    problems: list[str] = field(default_factory=list)
    """Each names the file and the key."""
    warnings: list[str] = field(default_factory=list)
    """What can be used, and is probably not meant."""


def check(
    file: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)], json: Json = False
) -> None:
    """Check a settings file before its programs start.

    FILE (TOML) may have the tables of a server, of an agent, or of both. Warnings name what can be
    used and is probably not meant, such as a database that is not that of its folder. The exit code
    is 2 where something is wrong. A server reads its file again at `ferryman config reload`.
    """
    require_server_extra()
    checked = [_checked(program, file) for program in _programs_of(file)]
    if json:
        show.print_documents([{"programs": [asdict(one) for one in checked]}])
    for one in () if json else checked:
        if one.ok:
            typer.echo(f"{one.program}: fine")
        for line in one.problems:
            show.print_message(f"{one.program}: {line}")
        for line in one.warnings:
            show.print_message(f"{one.program}: warning: {line}")
    if not all(one.ok for one in checked):
        raise typer.Exit(USAGE)


def _programs_of(file: Path) -> list[str]:
    """The programs that the file has tables for."""
    try:
        tables = tomllib.loads(file.read_text()).keys()
    except OSError as problem:
        raise BadArgument(f"{file}: {problem.strerror}") from problem
    except ValueError:  # the program says where
        return ["server"]
    return [*(["server"] if tables != {"agent"} else []), *(["agent"] if "agent" in tables else [])]


def _checked(program: str, file: Path) -> Checked:
    if program == "server":
        done = _run("server.maintenance", "check", "--config", str(file))
    else:
        done = _run("client_agent", "--config", str(file), "--print-config", "--json")
    if done.returncode != 0:
        return Checked(program, False, problems=_complaint(done))
    warnings = json_.loads(done.stdout)["warnings"] if program == "server" else []
    return Checked(program, True, warnings=warnings)


def _run(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", module, *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def _complaint(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The lines in which a program says why it has ended."""
    said = done.stderr.strip().splitlines() or [f"it ended with exit code {done.returncode}"]
    for prefix in ("ferryman server: ", "ferryman agent: ", "ferryman: "):
        said[0] = said[0].removeprefix(prefix)
    return said


# ------------------------------------------------------------------ doctor


@on_server
async def doctor(
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            envvar="FERRYMAN_CONFIG",
            help="Look at the host of this program, too [those in /etc/ferryman].",
        ),
    ] = None,
    json: Json = False,
    *,
    server: Server,
    client: Client,
) -> int:
    """Find what is wrong: server, token, agents, versions, host.

    Looks at what a job needs, from this machine on: whether the server answers and takes work, what
    the token is good for, whether clocks and versions agree, whether agents offer the services, and
    for operators, how the agents and their sandboxes are. On the host of a server it then looks at
    its folder, database, port, limits, secrets, certificates and agents; on that of an agent it
    tests the sandbox as `ferryman agent check` does. The programs may run. The exit code is 0
    without a problem, and otherwise that of the first one.
    """
    from ferryman import __version__
    from ferryman.clock import wall_clock

    programs = _programs_here() if config is None else _programs_of(config)
    found = []

    def say(finding: Finding) -> None:
        found.append(finding)
        for line in () if json else lines(finding):
            typer.echo(show.printable(line))

    has_token = server.token is not None
    looked_at = Examination(client, server.command, has_token, __version__, wall_clock)
    async for finding in looked_at.findings():
        if programs == ["agent"] and server.url == DEFAULT_URL and finding.exit_code == UNAVAILABLE:
            finding = replace(finding, level="warning")  # nobody said that one should be here
        say(finding)
    if config is None and (closed := _closed_files()):
        text = f"{' and '.join(closed)} cannot be read by this user, so this host was not looked at"
        say(Finding("settings", "ok", text))
    if programs and config is not None:
        require_server_extra()
    for program in programs:
        for finding in await asyncio.to_thread(_of_host, program, config):
            say(finding)
    if json:
        show.print_documents([{"findings": [asdict(one) for one in found]}])
    return exit_code(found)


def _programs_here() -> list[str]:
    """The programs that are installed on this host with settings that may be read."""
    found = [one for one in ("server", "agent") if os.access(INSTALLED / f"{one}.toml", os.R_OK)]
    return [] if found and missing_packages() else found


def _closed_files() -> list[str]:
    names = (INSTALLED / f"{one}.toml" for one in ("server", "agent"))
    return [str(one) for one in names if os.path.isfile(one) and not os.access(one, os.R_OK)]  # noqa: PTH113 - closed folder: False


def _of_host(program: str, config: Path | None) -> list[Finding]:
    """What a program finds on its host."""
    given = [] if config is None else ["--config", str(config)]
    if program == "server":
        done = _run("server.maintenance", "doctor", *given)
    else:
        done = _run("client_agent", "check", *given, "--json")
    if not done.stdout:
        text = "\n".join(_complaint(done))
        return [Finding(program, "problem", text, exit_code=done.returncode)]
    document = json_.loads(done.stdout)
    if program == "server":
        return [Finding(**one) for one in document["findings"]]
    return list(_of_sandbox(document))


def _of_sandbox(table: dict[str, Any]) -> Iterator[Finding]:
    advice = "; ".join(table["advice"]) or "ferryman agent check"
    if table["report"] is None:
        yield Finding("sandbox", "problem", "it cannot be used", advice, UNAVAILABLE)
        return
    yield Finding("sandbox", "ok", "{backend} {version}".format(**table["report"]).strip())
    broken = [row for row in table["rows"] if not row["passed"]]
    for row in broken:
        text = f"it does not hold: {row['seen']}"
        yield Finding(f"limit {row['limit']}", "problem", text, advice, FAILED)
    weak = [row["limit"] for row in table["rows"] if row["enforcement"] in ("soft", "none")]
    if weak:
        text = f"a job can get around these: {', '.join(weak)}"
        yield Finding("limits", "warning", text, advice)
    elif not broken:
        yield Finding("limits", "ok", "each one holds")


@dataclass(frozen=True, slots=True)
class Examination:
    """Looks at a server, and at this machine.

    Args:
        command: the words of a command -> a command line that reaches the same server.
        now: the wall clock.
    """

    client: Client
    command: Callable[[str], str]
    has_token: bool
    version: str
    now: Callable[[], datetime]

    async def findings(self) -> AsyncIterator[Finding]:
        """All of them; the first ones only where the server cannot be asked."""
        yield Finding("client", "ok", f"version {self.version}")
        yield _free(Path.cwd())
        try:
            asked_at = self.now()
            health = await self.client.health()
        except errors.TryLater as problem:
            code = exit_code_for(problem)
            serious = [one for one in await self._troubles() if one.is_serious]
            for one in serious:
                yield Finding("server", "problem", one.message, one.advice, code)
            if not serious:  # it says more to operators only
                yield Finding("server", "problem", str(problem), None, code)
            return
        except errors.FerrymanError as problem:
            yield self._problem("server", problem)
            return
        if health.is_agents:
            text = f"{self.client.url} is an agent: commands are for the server that uses it"
            yield Finding("server", "problem", text, "--url or FERRYMAN_URL says which server", 76)
            return
        yield Finding("server", "ok", f"{self.client.url} answers, and takes work")
        if health.version:
            yield self._versions(health.version)
        if health.date is not None:
            yield self._clock(asked_at, health)
        async for finding in self._what_may_be_seen():
            yield finding

    def _problem(self, about: str, problem: errors.FerrymanError) -> Finding:
        hint = hint_for(problem, self.command, has_token=self.has_token)
        if isinstance(problem, errors.Unreachable | errors.NotUnderstood):
            hint = "--url or FERRYMAN_URL says which server; is it running there?"
        return Finding(about, "problem", str(problem), hint, exit_code_for(problem))

    def _versions(self, servers: str) -> Finding:
        if servers.split(".")[:2] == self.version.split(".")[:2]:
            return Finding("version", "ok", f"the server has version {servers}")
        text = f"the server has version {servers}, this is {self.version}"
        by_package = PACKAGED.is_file() and sys.prefix == "/opt/ferryman"
        package = f"apt-get install ./ferryman_{servers}_*.deb"
        hint = package if by_package else f"pip install 'ferryman=={servers}'"
        return Finding("version", "warning", text, hint)

    def _clock(self, asked_at: datetime, health: Health) -> Finding:
        assert health.date is not None
        # The answer was made between the two; its time is cut to a whole second.
        early = (asked_at - health.date).total_seconds() - 1
        late = (health.date - self.now()).total_seconds()
        skew = max(early, late, 0.0)
        if skew <= MAX_SKEW_S:
            return Finding("clock", "ok", "this clock and the server's agree")
        which = "behind" if early > late else "ahead of"
        text = f"the server's clock is {say_duration(skew)} {which} this one"
        return Finding("clock", "warning", text, "on the one that is wrong: timedatectl status")

    async def _troubles(self) -> list[Trouble]:
        """Of the server; none for whoever may not see them."""
        try:
            return await self.client.troubles()
        except errors.FerrymanError:
            return []

    async def _what_may_be_seen(self) -> AsyncIterator[Finding]:
        try:
            who = await self.client.whoami()
        except errors.FerrymanError as problem:
            yield self._problem("token", problem)
            return
        if not who.token_needed:
            yield Finding("token", "ok", "the server asks for none")
        else:
            ends = who.expires_at
            left = None if ends is None else (ends - self.now()).total_seconds()
            text = f"{who.name}, {who.role}: {', '.join(sorted(who.scopes))}"
            if left is not None and left < _SOON_S:
                yield Finding(
                    "token",
                    "warning",
                    f"{text}; it expires in {say_duration(max(left, 1))}",
                    f"an operator renews it: {self.command(f'token rotate {who.token_id}')}",
                )
            else:
                yield Finding("token", "ok", text)
        async for finding in self._services():
            yield finding
        if who.role == "operator":
            for one in await self._troubles():
                if one.kind.startswith("files_"):  # what else there is has a line of its own
                    yield Finding("files", "warning", one.message, one.advice)
            agents = await self.client.agents()
            for agent in agents:
                for finding in self._agent(agent):
                    yield finding
            if not agents:
                hint = "an agent is a table [agents.NAME] of the server's settings"
                yield Finding("agents", "problem", "the server has no agents", hint, FAILED)

    async def _services(self) -> AsyncIterator[Finding]:
        from ferryman.models.operators import say_gone
        from ferryman.states import JobState

        for service in await self.client.services():
            about = f"service {service.name}"
            if service.source == "none":
                queued = service.counts.get(JobState.QUEUED, 0)
                said = say_gone(service.name, queued, service.in_work)
                hint = self.command(f"services move {service.name} NAME")
                yield Finding(about, "problem", said.replace(about, "it", 1), hint, FAILED)
            elif service.paused:
                why = f": {service.paused_message}" if service.paused_message else ""
                hint = self.command(f"services resume {service.name}")
                yield Finding(about, "warning", f"it is paused{why}", hint)
            elif not service.offered:
                yield Finding(about, "warning", "no agent offers it", self.command("agents"))
            elif service.trouble:
                text = f"no agent takes its jobs now: {service.trouble}"
                yield Finding(about, "problem", text, self.command("agents"), FAILED)
            else:
                yield Finding(about, "ok", "an agent takes its jobs")

    def _agent(self, agent: AgentDoc) -> Iterator[Finding]:
        about, show = f"agent {agent.name}", self.command(f"agents show {agent.name}")
        trouble = agent.trouble
        if trouble.startswith(f"{about} "):
            trouble = trouble.replace(about, "it", 1)
        why = f": {agent.message}" if agent.message else ""
        if agent.state == "retired":
            yield Finding(about, "ok", f"it is retired{why}")
        elif agent.state == "lost":
            hint = "start the agent on its host: it becomes active again by itself"
            yield Finding(about, "warning", f"it is lost{why}", hint)
        elif agent.state == "draining" and agent.reachable:
            hint = self.command(f"agents resume {agent.name}")
            yield Finding(about, "warning", f"it is draining{why}", hint)
        elif trouble:
            yield Finding(about, "problem", trouble, show, FAILED)
        else:
            yield Finding(about, "ok", "it gets jobs")
        for text in agent.warnings:
            hint = "on its host: ferryman agent check"
            if text.startswith("its clock"):
                hint = "on the one that is wrong: timedatectl status"
            elif text.startswith("it has version"):
                hint = "bring both to the same version, in any order: jobs go on meanwhile"
            yield Finding(about, "warning", text, hint)


def _free(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    if free < _MIN_FREE:
        return Finding("disk", "warning", f"{say_size(free)} are free here, for results")
    return Finding("disk", "ok", f"{say_size(free)} are free here")
