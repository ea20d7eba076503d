"""Turns the end that the sandbox reports into the outcome that is stored. Pure."""

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
"""Reasons that are not the bundle's fault: the server may try it again."""

_NOT_ENFORCED: Final = {
    "isolation": "isolation: the bundle ran without a sandbox, as the agent's operator decided",
    "network": "network: the bundle could use the network of the agent's host",
}
"""Limit -> warning in the outcome where that limit was not enforced."""


def of(ended: Ended, timeout_s: float, enforcement: Mapping[str, str]) -> Outcome:
    """The outcome of an attempt, before its result is packed.

    Args:
        timeout_s: its wall time limit, for the message.
        enforcement: limit -> "hard", "soft" or "none".
    """
    if ended.reason is None:
        # A sandbox leaves the message empty unless it was asked to stop without a reason.
        state = PayloadState.KILLED if ended.message else PayloadState.COMPLETED
    else:
        state = PayloadState.FAILED
    message = ended.message
    if ended.reason is Reason.TIMEOUT:
        message = f"stopped after {say_duration(timeout_s)}: the wall time limit of the job"
    warnings = (text for name, text in _NOT_ENFORCED.items() if enforcement.get(name) == NONE)
    return Outcome(
        state=state,
        reason=ended.reason,
        message=message,
        exit_code=ended.exit_code,
        interrupted=ended.reason in NO_FAULT,
        usage=ended.usage,
        warnings=(*ended.warnings, *warnings),
    )


def failed(reason: Reason, message: str) -> Outcome:
    """The outcome of an attempt that never ran, or whose end is not known."""
    return Outcome(
        PayloadState.FAILED, reason=reason, message=message, interrupted=reason in NO_FAULT
    )
