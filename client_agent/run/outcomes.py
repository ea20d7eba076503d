"""Turns the end that the sandbox reports into the outcome that is stored. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from client_agent.output.live import LiveOutput
from client_agent.payloads.payload import Outcome
from client_agent.sandbox.base import NONE, Ended
from shared.units.durations import say_duration
from shared.wire import PayloadState, Reason, RetryLater

CANCELLED: Final = "cancelled while it ran"
CANCELLED_EARLY: Final = "cancelled before it started"
STOPPED: Final = "the agent was shut down while it ran"
LOST: Final = "the agent was killed while it ran"

NO_FAULT: Final = frozenset({Reason.SANDBOX_ERROR, Reason.AGENT_ERROR, Reason.SHUTDOWN})
"""Reasons that are not the bundle's fault: the server may try it again."""

LATER: Final = 75
"""Exit code with which run.sh asks to be tried again later (EX_TEMPFAIL)."""
_BY_ITSELF: Final = (PayloadState.COMPLETED, PayloadState.FAILED)

_NOT_ENFORCED: Final = {
    "isolation": "isolation: the bundle ran without a sandbox, as the agent's operator decided",
    "network": "network: the bundle could use the network of the agent's host",
}
"""Limit -> warning in the outcome where that limit was not enforced."""


def of(
    ended: Ended, timeout_s: float, enforcement: Mapping[str, str], entry: str = "run.sh"
) -> Outcome:
    """The outcome of an attempt, before its result is packed.

    Args:
        timeout_s: its wall time limit, for the message.
        entry: the script that ran, for the message.
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
    elif ended.reason is Reason.EXIT_CODE:
        message = f"{entry} ended with exit code {ended.exit_code}"
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


def with_output(outcome: Outcome, output: LiveOutput) -> Outcome:
    """The outcome with what run.sh said. If it asked to be tried later and then ended by itself,
    whatever its exit code, that is what becomes of it; exit code 75 asks for it, too."""
    outcome = replace(outcome, live=output.doc_if_any())
    by_itself = outcome.reason in (None, Reason.EXIT_CODE) and outcome.state in _BY_ITSELF
    asked = output.retry_later or (RetryLater() if outcome.exit_code == LATER else None)
    if asked is None or not by_itself:
        return outcome
    message = "run.sh asked to be tried again later" + (asked.message and f": {asked.message}")
    return replace(
        outcome,
        state=PayloadState.FAILED,
        reason=Reason.EXIT_CODE,
        message=message,
        retry_later=asked,
    )


def failed(reason: Reason, message: str) -> Outcome:
    """The outcome of an attempt that never ran, or whose end is not known."""
    return Outcome(
        PayloadState.FAILED, reason=reason, message=message, interrupted=reason in NO_FAULT
    )
