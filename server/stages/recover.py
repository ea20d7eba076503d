"""At start, before anything else: put right what a crash left.

Little is left to do, because every stage can be broken off at any point: Processing jobs are taken
up by the Sender's first sweep (it asks their agents), Submitted and Running ones by the Getter's
reconciling, cancels by their sweep, stored files without a row by the Cleaner. Only half uploads
and half downloads have no owner any more.
"""

from __future__ import annotations

import structlog

from server.domain import states
from server.ports import Jobs, RunningServers, Scratch
from shared.wire import JobState

log = structlog.get_logger()


async def recover(jobs: Jobs, scratch: Scratch, running_servers: RunningServers) -> None:
    """Remove the scratch files of earlier runs, and log what is resumed."""
    removed = await scratch.clear(running_servers)
    taken_up = await jobs.in_states(states.HOLDS_SLOT)
    sending = sum(job.state is JobState.PROCESSING for job in taken_up)
    log.info("server.recovered", jobs=len(taken_up), sending=sending, half_files=removed)
