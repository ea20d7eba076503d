"""The times that hold for a job: its own where its upload gave one, else its service's.

An upload may ask for less than its service allows, never for more: what the operator sets later
holds for jobs that wait already.
"""

from __future__ import annotations

from server.domain.jobs import Job
from server.domain.service import Service
from shared.clock import SECOND, Micros


def queue_timeout_s(job: Job, service: Service) -> float:
    """Longest time from ``queued_at`` to the start of an attempt; 0: any."""
    return _least(job.queue_timeout_s, service.queue_timeout_s)


def heartbeat_timeout_s(job: Job, service: Service) -> float:
    """Longest time that an attempt may be silent; 0: any."""
    return _least(job.heartbeat_timeout_s, service.heartbeat_timeout_s)


def expires_at(job: Job, service: Service, ended_at: Micros) -> Micros | None:
    """When the files of a job that ends now are removed; None: they are kept, or go with those of
    its parent.
    """
    kept_s = expires_after_s(job, service)
    return ended_at + round(kept_s * SECOND) if kept_s else None


def expires_after_s(job: Job, service: Service) -> float:
    """How long its files are kept after its end; 0: for ever, or as long as those of its parent."""
    if job.parent_id is not None:
        return 0.0
    return service.expires_after_s if job.expires_after_s is None else job.expires_after_s


def _least(own: float | None, most: float) -> float:
    """0 is no limit."""
    return min(own, most) if own and most else own or most
