"""From how a sandbox says that an attempt ended to what is written down about it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from client_agent.payloads.payload import Outcome
from client_agent.sandbox.base import NONE, Ended
from shared.units.durations import say_duration
from shared.wire import PayloadState, Reason

CANCELLED: Final = "cancelled while it ran"
CANCELLED_EARLY: Final = "cancelled before it started"
STOPPED: Final = "the agent was shut down while it ran"
LOST: Final = "the agent was killed while it ran"

NO_FAULT: Final = frozenset({Reason.SANDBOX_ERROR, Reason.AGENT_ERROR, Reason.SHUTDOWN})
"""Reasons that say nothing about the bundle: it may be tried again."""


_OPEN: Final = {
    "isolation": "isolation: the bundle ran without a sandbox, as the agent's operator decided",
    "network": "network: the bundle could use the network of the agent's host",
}
"""What nothing is enforced of, and whoever reads the result should know."""


def of(ended: Ended, timeout_s: float, enforcement: Mapping[str, str]) -> Outcome:
    """How the attempt ended, before its result is collected.

    Args:
        timeout_s: the wall time that it had, for the sentence.
        enforcement: limit -> "hard", "soft" or "none".
    """
    if ended.reason is None:
        # A sandbox leaves the message empty unless it was asked to stop for no reason of its own.
        state = PayloadState.KILLED if ended.message else PayloadState.COMPLETED
    else:
        state = PayloadState.FAILED
    message = ended.message
    if ended.reason is Reason.TIMEOUT:
        message = f"stopped after {say_duration(timeout_s)}: the wall time limit of the job"
    opened = (told for name, told in _OPEN.items() if enforcement.get(name) == NONE)
    return Outcome(
        state=state,
        reason=ended.reason,
        message=message,
        exit_code=ended.exit_code,
        interrupted=ended.reason in NO_FAULT,
        usage=ended.usage,
        warnings=(*ended.warnings, *opened),
    )


def failed(reason: Reason, message: str) -> Outcome:
    """It never ran, or nobody knows how it ended."""
    return Outcome(
        PayloadState.FAILED, reason=reason, message=message, interrupted=reason in NO_FAULT
    )
