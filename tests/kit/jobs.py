"""Jobs as the store gives them."""

from __future__ import annotations

from typing import Any

from server.domain.jobs import Bundle, Job, Move
from server.store.jobs import SqlJobs
from shared.wire import JobState, Limits


def job(**fields: Any) -> Job:
    start: dict[str, Any] = {
        "id": 7,
        "state": JobState.RUNNING,
        "user_id": "ann",
        "service": "s",
        "created_at": 0,
        "queued_at": 0,
        "bundle": Bundle("b", 1, "d"),
        "limits": Limits(),
        "timeout_s": 60.0,
        "attempt": 1,
    }
    return Job(**(start | fields))


async def moved(jobs: SqlJobs, move: Move) -> Job:
    """Make a move; the job then."""
    job = await jobs.move(move)
    assert job is not None
    return job
