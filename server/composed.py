"""A server whose parts are connected, and what can be changed of it while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from server.agents.agent_client import AgentClient
from server.fleet import Fleet
from server.http.context import Context
from server.loops.supervisor import Supervisor
from server.loops.wakeups import JobWakeups
from server.settings.agents import AgentTable
from server.settings.tables import ServerSettings
from shared.http.middleware import Gate
from shared.http.tls import TlsFiles
from shared.live import Live


@dataclass(frozen=True, slots=True)
class Server:
    """A composed server.

    Attributes:
        live: the settings that it uses.
        supervisor: its loops, to be started and stopped.
    """

    live: Live[ServerSettings]
    application: web.Application
    supervisor: Supervisor
    wakeups: JobWakeups
    gate: Gate
    context: Context
    fleet: Fleet

    def tls(self, listening: TlsFiles | None) -> list[TlsFiles]:
        """All files of TLS: what we listen with, and what agents are called with."""
        used = [listening, *(one.tls for one in self.clients.values())]
        return [files for files in used if files is not None]

    @property
    def clients(self) -> Mapping[str, AgentClient]:
        """Agent -> what calls it."""
        return self.fleet.clients

    async def agents(self, agents: Mapping[str, AgentTable]) -> None:
        """Talk to these agents from now on, in this way."""
        await self.fleet.apply(agents)
