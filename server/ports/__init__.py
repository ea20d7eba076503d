"""What the stages need from outside; ``store``, ``storage``, ``agents``, ``loops`` provide it."""

from __future__ import annotations

from server.ports.agent_records import AgentRecords
from server.ports.agents import (
    Agent,
    AgentError,
    Fetched,
    Fleet,
    NoSuchPayload,
    RefusedByAgent,
    Unreachable,
)
from server.ports.jobs import Filter, Held, Jobs
from server.ports.leases import HeldLeases, LeaseLost, Leases
from server.ports.scratch import Scratch, ScratchFile
from server.ports.storage import FileStream, InUse, PendingFiles, RunningServers, Storage
from server.ports.wakeups import Watch

__all__ = [
    "Agent",
    "AgentError",
    "AgentRecords",
    "Fetched",
    "FileStream",
    "Filter",
    "Fleet",
    "Held",
    "HeldLeases",
    "InUse",
    "Jobs",
    "LeaseLost",
    "Leases",
    "NoSuchPayload",
    "PendingFiles",
    "RefusedByAgent",
    "RunningServers",
    "Scratch",
    "ScratchFile",
    "Storage",
    "Unreachable",
    "Watch",
]
