"""What ``ferryman doctor`` looks at, and what it finds."""

from __future__ import annotations

import shutil
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ferryman import errors
from ferryman.cli.exits import FAILED, exit_code_for
from ferryman.cli.hints import hint_for
from ferryman.findings import Finding
from ferryman.units import say_duration, say_size

if TYPE_CHECKING:
    from ferryman.agent_models import AgentDoc
    from ferryman.answers import Health, Trouble
    from ferryman.client import Client

MAX_SKEW_S: Final = 5.0
"""Between this clock and the server's; their messages have whole seconds."""
_SOON_S: Final = 7 * 86_400.0
PACKAGED: Final = Path("/var/lib/dpkg/info/ferryman.list")
"""There if the Debian package is installed, in /opt/ferryman."""
_MIN_FREE: Final = 1 << 30
"""Bytes on this disk, for results."""


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
        from ferryman.settings_models import say_gone
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
