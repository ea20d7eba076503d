"""Times that an agent says, in terms of the server's clock.

The clocks of two hosts may differ by any amount, so a time of an agent is never compared with one
of the server. What an agent is believed is how long after its intake of the attempt something was.
"""

from __future__ import annotations

from server.domain.jobs import Job
from shared.clock import Micros, from_iso
from shared.wire import PayloadDoc


def started_at(job: Job, payload: PayloadDoc, now: Micros) -> Micros:
    """When run.sh started: never before the job was sent, nor in the future."""
    if payload.started_at is None:
        return now
    at = from_iso(payload.started_at)
    if job.submitted_at is not None and payload.created_at is not None:
        at = job.submitted_at + at - from_iso(payload.created_at)
    since = job.queued_at if job.submitted_at is None else job.submitted_at
    return min(now, max(since, at))
