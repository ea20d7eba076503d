"""Why a job waits."""

from __future__ import annotations

from collections import Counter

from server.domain.jobs import Job
from server.domain.service import Service
from server.ports import Fleet, Jobs
from shared.clock import Micros, iso
from shared.units.sizes import say_count
from shared.wire import JobState, QueueInfo


async def why_waiting(
    job: Job, service: Service | None, jobs: Jobs, fleet: Fleet, now: Micros
) -> QueueInfo | None:
    """Position in the queue and reason of a job that waits; None: it does not wait."""
    if job.state is JobState.SUBMITTED:
        reason = f"agent {job.agent} has it and starts it when a slot is free"
        return QueueInfo(position=1, reason=reason)
    if job.state is not JobState.QUEUED:
        return None
    position = 1 + await jobs.queued_before(job)
    if service is None:
        reason = f"the server has no service {job.service} in its settings"
        return QueueInfo(position=position, reason=reason)
    held = await jobs.held()
    load = Counter[str]()
    for one in held:
        load[one.agent] += one.slots
    mine = sum(
        one.slots for one in held if (one.service, one.user_id) == (job.service, job.user_id)
    )
    all_users = sum(one.slots for one in held if one.service == job.service)
    if job.not_before > now:
        reason = f"to be tried again at {iso(job.not_before)}: {job.message}"
    elif why := fleet.why_none(job.service, {}):
        reason = why
    elif mine >= service.runs_per_user:
        reason = (
            f"user {job.user_id} has {say_count(mine, 'job')} under way, "
            "the most the service allows one user"
        )
    elif all_users >= service.max_runs:
        reason = f"the service has {say_count(all_users, 'job')} under way, the most it may have"
    elif why := fleet.why_none(job.service, load):
        reason = why
    elif position > 1:
        reason = "earlier jobs of the same user come first"
    else:
        reason = "next in turn"
    return QueueInfo(position=position, reason=reason)
