"""What parts of the agent are given of the settings in use."""

from __future__ import annotations

from client_agent.intake.admission import Identity
from client_agent.intake.submission import Defaults
from client_agent.settings.agent import AgentSection
from shared.http import connections
from shared.http.protocol import Deadlines


def describe(identity: Identity, settings: AgentSection) -> None:
    """Say of the agent what these settings say."""
    identity.slots, identity.labels = settings.slots, settings.labels
    identity.services, identity.min_free = settings.services, settings.min_free


def defaults(settings: AgentSection) -> Defaults:
    """For bundles of a job-orchestrator server."""
    limits = settings.default_limits.limits()
    return Defaults(settings.default_service, settings.default_timeout, limits)


def connection_limits(
    open_files: int, own: int, settings: AgentSection
) -> connections.ConnectionLimits:
    """Args:
    own: descriptors that the agent needs for itself.
    """
    most, per_peer = settings.max_connections, settings.connections_per_peer
    return connections.connection_limits(open_files, most=most, per_peer=per_peer, own=own)


def deadlines(settings: AgentSection) -> Deadlines:
    """Of its connections."""
    return Deadlines(settings.head_timeout, settings.keepalive_timeout, settings.send_timeout)
