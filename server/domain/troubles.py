"""What can be wrong with a server and what belongs to it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class TroubleKind(StrEnum):
    """What is wrong."""

    LOOP_STUCK = "loop_stuck"
    DATABASE_DAMAGED = "database_damaged"
    DATABASE_FULL = "database_full"
    DATABASE_UNUSABLE = "database_unusable"
    DISK_FULL = "disk_full"
    RESULTS_WAITING = "results_waiting"
    """For room on the disk."""
    DATA_FOLDER_UNWRITABLE = "data_folder_unwritable"
    DATA_FOLDER_SILENT = "data_folder_silent"
    FILES_UNKNOWN = "files_unknown"
    FILES_MOVED_ASIDE = "files_moved_aside"
    NO_AGENTS = "no_agents"
    AGENT_AWAY = "agent_away"
    AGENT_UNFIT = "agent_unfit"
    """It can be reached, and takes no jobs."""
    AGENT_CLOCK = "agent_clock"
    AGENT_VERSION = "agent_version"
    AGENT_LOST = "agent_lost"
    AGENT_DRAINING = "agent_draining"
    SERVICE_NOT_OFFERED = "service_not_offered"
    SERVICE_PAUSED = "service_paused"
    SERVICE_GONE = "service_gone"
    """It is in no settings any more, and has jobs left."""


DATABASE_TROUBLES: Final = frozenset(
    {TroubleKind.DATABASE_DAMAGED, TroubleKind.DATABASE_FULL, TroubleKind.DATABASE_UNUSABLE}
)
SERVER_TROUBLES: Final = DATABASE_TROUBLES | frozenset(
    {
        TroubleKind.LOOP_STUCK,
        TroubleKind.DISK_FULL,
        TroubleKind.RESULTS_WAITING,
        TroubleKind.DATA_FOLDER_UNWRITABLE,
        TroubleKind.DATA_FOLDER_SILENT,
    }
)
"""With one of these new work is not welcome."""


@dataclass(frozen=True, slots=True)
class Trouble:
    """Attributes:
    text: a sentence for people.
    about: name of the agent or service that it is about.
    """

    kind: TroubleKind
    text: str
    about: str = ""
