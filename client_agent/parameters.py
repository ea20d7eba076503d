"""What parts of the agent are given of the settings in use."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Final

from client_agent.intake.submission import Defaults
from client_agent.sandbox.settings import SandboxSettings
from client_agent.settings.agent import AgentSection
from shared.http import connections
from shared.settings.limits import LimitsTable

_MAX_EXTRA_WORKERS: Final = 8
"""At most so many attempts are prepared or packed besides those that run."""
_MIN_SPARE_IMAGES: Final = 4
_AGENT_FDS: Final = 48
_FDS_PER_WORKER: Final = 32
"""Descriptors that connections must leave free: for pipes, pidfds, folders and files of jobs."""


def worker_count(settings: AgentSection) -> int:
    """Attempts that are handled at once: as many run as there are slots, a few are prepared."""
    return settings.slots + min(settings.slots, _MAX_EXTRA_WORKERS)


def _prepared_starts(settings: AgentSection) -> int:
    return settings.slots if settings.sandbox != "none" else 0


def uid_count(settings: AgentSection, workers: int) -> int:
    """Uids of a root agent: one for the self-test, one for each worker, and those of prepared
    starts, of which some wait and each worker may have one."""
    waiting = _prepared_starts(settings)
    return 1 + workers + (waiting + workers if waiting else 0)


def free_floor(settings: AgentSection) -> int:
    """With fewer free bytes on the disk, jobs that run are ended."""
    return settings.min_free // 2


def sandbox_settings(
    settings: AgentSection, workers: int, first_uid: int | None
) -> SandboxSettings:
    """What the sandbox is given.

    Args:
        first_uid: of the jobs of a root agent; None: they have the agent's.
    """
    first = 0 if first_uid is None else first_uid
    return replace(
        settings.sandboxing.settings(free_floor(settings), first_uid),
        own_uids=range(max(0, first - 1), first - 1 + uid_count(settings, workers)),
        prepared_starts=_prepared_starts(settings),
        prepared_uids=range(first + workers, first + uid_count(settings, workers) - 1),
        spare_images=max(_MIN_SPARE_IMAGES, settings.slots),
    )


def defaults(settings: AgentSection) -> Defaults:
    """For bundles of a job-orchestrator server, which sends no limits: none of time, each slot's
    share of the host, and otherwise what a service has.
    """
    service, usual = settings.default_service, LimitsTable()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    share = {
        "cpus": max(usual.cpus, len(os.sched_getaffinity(0)) / settings.slots),
        "memory": max(usual.memory, memory // settings.slots),
        "network": settings.sandboxing.grants().for_service(service).network,
    }
    return Defaults(service, 0.0, usual.limits().model_copy(update=share))


def connection_limits(open_files: int, settings: AgentSection) -> connections.ConnectionLimits:
    """As many as the open files that are left allow."""
    return connections.connection_limits(
        open_files,
        own=_AGENT_FDS + _FDS_PER_WORKER * worker_count(settings),
    )
