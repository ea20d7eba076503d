"""Writes ``docs/states.md`` from the table of states: ``python -m scripts.states``."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from server.domain import states
from shared.wire import JobState, Reason

PAGE: Final = Path(__file__).resolve().parent.parent / "docs" / "states.md"
_SETS: Final = (
    ("ended", states.ENDED, "nothing happens to it any more, but for a retry by hand and expiry"),
    ("holds a slot", states.HOLDS_SLOT, "counts against the quotas of its user and service"),
    ("at an agent", states.AT_AGENT, "an agent has taken it"),
)
_HEAD: Final = """# States of a job

Generated from the table in `server/domain/states.py` (`python -m scripts.states`); a test compares.
Every move is a conditional write, made only if the job is still in the state and at the attempt in
which it was seen, and appends a line to the job's history in the same transaction.
"""
_TAIL: Final = """
On job-orchestrator's routes Cancelled is spelled `Killed`.

## Payloads

A payload is what an agent holds for one attempt. Its states are its own: `Prepared` (taken, waits
for a slot), `Running`, then `Completed`, `Failed`, `Invalid` (the bundle cannot be run) or
`Killed`, and `Cleaned` once the server has acknowledged its end.
"""


def page() -> str:
    """The whole text."""
    moves = [
        (before, to, when)
        for before, after in states.TRANSITIONS.items()
        for to, when in after.items()
    ]
    lines = [_HEAD, "```mermaid", "stateDiagram-v2", f"    [*] --> {states.FIRST}"]
    lines += [f"    {before} --> {to}" for before, to, _ in moves]
    lines += [f"    {JobState.CLEANED} --> [*]", "```", "", "| from | to | when |", "|---|---|---|"]
    lines.append(f"| (none) | {states.FIRST} | an upload was accepted |")
    lines += [f"| {before} | {to} | {when} |" for before, to, when in moves]
    lines += ["", "| a job that | in | means |", "|---|---|---|"]
    for name, found, meaning in _SETS:
        members = ", ".join(state for state in JobState if state in found)
        lines.append(f"| {name} | {members} | {meaning} |")
    reasons = ", ".join(f"`{reason}`" for reason in Reason)
    lines += ["", f"A job that failed has a reason: {reasons}."]
    return "\n".join(lines) + "\n" + _TAIL


if __name__ == "__main__":
    PAGE.write_text(page())
