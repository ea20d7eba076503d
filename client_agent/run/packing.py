"""Packs the result of an attempt that ended, also while the agent is short of something."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from client_agent.collect import result
from client_agent.collect.selection import Known
from client_agent.payloads.payload import Outcome, Payload
from client_agent.run.context import RETRY_S, AgentContext
from client_agent.sandbox.base import Workspace
from client_agent.storage.open_beneath import SHORTAGE_ERRNOS
from shared.wire import PayloadState, Reason

log: structlog.stdlib.BoundLogger = structlog.get_logger()

PACK_TRIES: Final = 30
"""Tries during a shortage; then the result is lost."""


async def packed(
    context: AgentContext, payload: Payload, given: Known, workspace: Workspace, outcome: Outcome
) -> Outcome:
    """The outcome with its result; without it where it could not be stored."""
    source, tries = context.receipt_source(payload, given), 0
    while True:
        try:
            with context.measures.phase("pack"):
                return await context.in_thread(
                    result.pack, source, outcome, context.folders, workspace.fd
                )
        except OSError as problem:
            log.warning("payload.not_packed", payload_id=payload.id, error=str(problem))
            tries += 1
            if tries == PACK_TRIES or problem.errno not in SHORTAGE_ERRNOS:
                return _without_result(outcome, problem)
        await context.clock.sleep(RETRY_S)


def _without_result(outcome: Outcome, problem: OSError) -> Outcome:
    """The outcome of an attempt whose result is lost."""
    message = f"the result could not be stored: {problem.strerror or problem}"
    if outcome.state is not PayloadState.COMPLETED:
        return replace(outcome, warnings=(*outcome.warnings, message))
    return replace(
        outcome,
        state=PayloadState.FAILED,
        reason=Reason.AGENT_ERROR,
        message=message,
        interrupted=True,
    )
