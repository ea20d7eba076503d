"""The database that the store's tests run on."""

from server.domain.jobs import Job
from tests.kit.store import Jobs, claim, clock, database, jobs, new

__all__ = ["added", "claim", "clock", "database", "jobs", "new"]


async def added(jobs: Jobs, *users: str, service: str = "s") -> list[Job]:
    return [(await jobs.insert(new(user, service), "queued"))[0] for user in users]
