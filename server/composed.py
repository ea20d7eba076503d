"""A server whose parts are connected, and what can be changed of it while it runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aiohttp import web

from server.agents.agent_client import AgentClient
from server.domain.allowances import Allowances
from server.domain.service import Service
from server.http.context import Context
from server.loops.supervisor import Supervisor
from server.loops.wakeups import JobWakeups
from shared.http.middleware import Gate
from shared.http.tls import TlsFiles


@dataclass(frozen=True, slots=True)
class Server:
    """A composed server.

    Attributes:
        supervisor: its loops, to be started and stopped.
    """

    application: web.Application
    supervisor: Supervisor
    wakeups: JobWakeups
    gate: Gate
    context: Context
    clients: Mapping[str, AgentClient]

    def services(self, services: Mapping[str, Service]) -> None:
        """Use these settings of services for new work."""
        self.context.services.use_file(services)

    def allowances(self, allowances: Allowances) -> None:
        """Use these exceptions for users from now on."""
        self.context.allowances.use(allowances)

    def tls(self, listening: TlsFiles | None) -> list[TlsFiles]:
        """All files of TLS: what we listen with, and what agents are called with."""
        used = [listening, *(one.tls for one in self.clients.values())]
        return [files for files in used if files is not None]

    def drain(self, agent: str, drain: bool) -> None:
        """Give the agent new jobs, or none."""
        if agent in self.clients:
            self.clients[agent].drain = drain
            self.wakeups.agent_changed()
