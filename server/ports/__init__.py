"""What the stages need from outside; ``store``, ``storage``, ``agents``, ``loops`` provide it."""

from __future__ import annotations

from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.ports.agents import Agent, Fetched, Fleet, Inputs
from server.ports.lists import EventsPage, Filter, Held
from server.ports.measures import Disk, LoopState, Measures, Vitals
from server.ports.storage import (
    FileStream,
    InUse,
    NewScratchFile,
    PendingFiles,
    Scratch,
    ScratchFile,
    Storage,
)
from server.ports.watch import Watch

__all__ = [
    "Agent",
    "AgentError",
    "Disk",
    "EventsPage",
    "Fetched",
    "FileStream",
    "Filter",
    "Fleet",
    "Held",
    "InUse",
    "Inputs",
    "LoopState",
    "Measures",
    "NewScratchFile",
    "NoSuchPayload",
    "PendingFiles",
    "RefusedByAgent",
    "Scratch",
    "ScratchFile",
    "Storage",
    "Unreachable",
    "Vitals",
    "Watch",
]
