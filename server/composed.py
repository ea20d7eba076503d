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
from server.reload import Reload
from shared.http.middleware import Gate


@dataclass(frozen=True, slots=True)
class Server:
    """A composed server.

    Attributes:
        reload: has the settings that it uses, and reads them again.
        supervisor: its loops, to be started and stopped.
    """

    reload: Reload
    application: web.Application
    supervisor: Supervisor
    wakeups: JobWakeups
    gate: Gate
    context: Context
    fleet: Fleet

    @property
    def clients(self) -> Mapping[str, AgentClient]:
        """Agent -> what calls it."""
        return self.fleet.clients
