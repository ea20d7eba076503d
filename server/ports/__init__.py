"""What stages need of storages, of which there are several kinds."""

from __future__ import annotations

from server.domain.agents import AgentError, NoSuchPayload, RefusedByAgent, Unreachable
from server.ports.measures import Measures
from server.storage.base import FileStream, InUse, PendingFiles, Storage
from server.storage.scratch import Scratch, ScratchFile

__all__ = [
    "AgentError",
    "FileStream",
    "InUse",
    "Measures",
    "NoSuchPayload",
    "PendingFiles",
    "RefusedByAgent",
    "Scratch",
    "ScratchFile",
    "Storage",
    "Unreachable",
]
