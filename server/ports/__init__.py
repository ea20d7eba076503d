"""What the stages need from outside; ``store``, ``storage``, ``agents``, ``loops`` provide it."""

from __future__ import annotations

from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.ports.agents import Agent, Fetched, Fleet, Inputs
from server.ports.lists import EventsPage, Filter, Held
from server.ports.measures import Disk, LoopState, Measures, Vitals
from server.storage.base import FileStream, InUse, PendingFiles, Storage
from server.storage.scratch import Scratch, ScratchFile

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
    "NoSuchPayload",
    "PendingFiles",
    "RefusedByAgent",
    "Scratch",
    "ScratchFile",
    "Storage",
    "Unreachable",
    "Vitals",
]
