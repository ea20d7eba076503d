"""At the start, before anything else: remove what a crash left.

Little is left to do, because every stage can be interrupted at any point. The Sender's first sweep
resumes Processing jobs (it asks their agents). The Getter resumes Submitted and Running jobs when
it reconciles. Cancel has a sweep of its own, and the Cleaner deletes stored files without a row.
Only unfinished uploads and downloads are removed here.
"""

from __future__ import annotations

import structlog

from server.domain import states
from server.ports import RunningServers, Scratch
from server.store.jobs import SqlJobs
from shared.wire import JobState

log = structlog.get_logger()


async def recover(jobs: SqlJobs, scratch: Scratch, running_servers: RunningServers) -> None:
    """Remove the scratch files of earlier runs, and log what is resumed."""
    removed = await scratch.clear(running_servers)
    taken_up = await jobs.in_states(states.HOLDS_SLOT)
    sending = sum(job.state is JobState.PROCESSING for job in taken_up)
    log.info("server.recovered", jobs=len(taken_up), sending=sending, half_files=removed)
