"""Writes ``docs/states.md``, and the diagram of ``docs/lifecycle.md``, from the table of states:
``python -m scripts.states``.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from server.domain import states
from shared.wire import JobState, Reason

_DOCS: Final = Path(__file__).resolve().parent.parent / "docs"
PAGE: Final = _DOCS / "states.md"
LIFECYCLE: Final = _DOCS / "lifecycle.md"
_SETS: Final = (
    ("ended", states.ENDED, "nothing happens to it any more, but for a retry by hand and expiry"),
    (
        "holds a slot",
        states.HOLDS_SLOT,
        "counts against the quotas of its user and service; not a parent that waits for children",
    ),
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


def diagram() -> str:
    """Every edge, as a Mermaid block."""
    lines = ["```mermaid", "stateDiagram-v2", f"    [*] --> {states.FIRST}"]
    lines += [
        f"    {before} --> {to}" for before, after in states.TRANSITIONS.items() for to in after
    ]
    return "\n".join([*lines, f"    {JobState.CLEANED} --> [*]", "```"])


def lifecycle() -> str:
    """The page about the life of a job, with the diagram as it is now."""
    return re.sub(
        r"```mermaid\n.*?```", lambda _: diagram(), LIFECYCLE.read_text(), flags=re.DOTALL
    )


def page() -> str:
    """The page about the states."""
    moves = [
        (before, to, when)
        for before, after in states.TRANSITIONS.items()
        for to, when in after.items()
    ]
    lines = [_HEAD, diagram(), "", "| from | to | when |", "|---|---|---|"]
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
    LIFECYCLE.write_text(lifecycle())
