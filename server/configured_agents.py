"""The agents of the settings: how each is talked to, and what the settings say of it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp

from server.agents.agent_client import AgentClient, Sessions
from server.agents.ferryman_agent import FerrymanAgent
from server.agents.orchestrator_client import OrchestratorClient
from server.domain.agents import Contact
from server.ports import Measures, Storage
from server.settings.agents import AgentTable
from shared.clock import Clock

_TRANSFERS_PER_HOST: Final = 64


def contact(name: str, agent: AgentTable) -> Contact:
    """What the settings say of an agent; passwords in its address are not shown."""
    kind = "job-orchestrator" if agent.url is None else "ferryman"
    address = (agent.url or agent.upload_url or "").rstrip("/")
    parts = urlsplit(address)
    return Contact(name, kind, parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl())


def client(
    name: str,
    agent: AgentTable,
    sessions: Sessions,
    identity: tuple[str, tuple[str, ...]],
    clock: Clock,
) -> AgentClient:
    """Talks to the agent.

    Args:
        identity: of the server, and of those that it was restored in place of.
    """
    more: dict[str, Any] = {
        "token": agent.secret(),
        "services": frozenset(agent.services),
        "tls": agent.tls(),
        "identity": agent.identity(),
    }
    if agent.url is not None:
        server, former = identity
        return FerrymanAgent(
            name,
            agent.url.rstrip("/"),
            sessions,
            clock,
            server=server,
            former=former,
            **more,
        )
    addresses = (agent.upload_url or "", agent.download_url or "", agent.terminate_url or "")
    return OrchestratorClient(name, *addresses, sessions, clock, **more)


async def agent_sessions(storage: Storage, measures: Measures, stack: AsyncExitStack) -> Sessions:
    """The connections to all agents; the stack closes them."""
    return Sessions(
        control=await stack.enter_async_context(_session(0)),
        transfers=await stack.enter_async_context(_session(_TRANSFERS_PER_HOST)),
        storage=storage,
        measures=measures,
    )


def _session(per_host: int) -> aiohttp.ClientSession:
    connector = aiohttp.TCPConnector(limit=0, limit_per_host=per_host, keepalive_timeout=60)
    return aiohttp.ClientSession(connector=connector, read_bufsize=1 << 18)
