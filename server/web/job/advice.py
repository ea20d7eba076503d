"""What somebody whose job failed can do about it."""

from __future__ import annotations

from typing import Final

from shared.wire import Reason

_NOT_THE_BUNDLE: Final = (
    "It failed through no fault of its bundle, and no tries were left. Retry it; if that does not "
    "help, tell the operator."
)
ADVICE: Final[dict[Reason, str]] = {
    Reason.EXIT_CODE: "Read the last lines of stderr below and the log. Exit code 127 means that "
    "a program was not found, 126 that it could not be executed.",
    Reason.TIMEOUT: "If the upload asked for less time than the service allows, run it again with "
    "a longer timeout. Otherwise make the work smaller, or ask the operator.",
    Reason.HEARTBEAT_TIMEOUT: "It wrote nothing for longer than it may. Print progress or "
    "::heartbeat:: now and then; the end of the log shows where it stood.",
    Reason.QUEUE_TIMEOUT: "It was not started in time. Upload it again when fewer jobs wait, or "
    "with a longer queue timeout.",
    Reason.MEMORY_LIMIT: "The bars below show what it needed. If the upload asked for less memory "
    "than the service allows, run it again with more. Otherwise make the work smaller.",
    Reason.CPU_LIMIT: "Start fewer processes and threads at once: FERRYMAN_CPUS says how many "
    "processors there are.",
    Reason.PIDS_LIMIT: "Start fewer processes at once.",
    Reason.DISK_LIMIT: "Bundle, files and results together need more disk than it may use. Delete "
    "what is not needed before the end.",
    Reason.LOG_LIMIT: "It printed too much. Print less, or write to a file.",
    Reason.RESULTS_LIMIT: "What it left is too large. Delete what nobody needs before the end, or "
    "name the files that you want (outputs) at the upload.",
    Reason.INVALID_BUNDLE: "The message names the file that is wrong. Correct it, and upload the "
    "bundle again.",
    Reason.CHILD_FAILED: "Look at the children that failed. Retry those while the parent runs; "
    "once it has ended, retry the parent: children that completed keep their results.",
    Reason.DEPENDENCY_FAILED: "A job that it was to start after did not complete. Retry that one, "
    "then this one.",
    Reason.NOT_OFFERED: "No agent offers this service now. Ask the operator.",
    Reason.SANDBOX_ERROR: _NOT_THE_BUNDLE,
    Reason.AGENT_ERROR: _NOT_THE_BUNDLE,
    Reason.AGENT_UNREACHABLE: _NOT_THE_BUNDLE,
    Reason.AGENT_LOST: _NOT_THE_BUNDLE,
    Reason.SHUTDOWN: _NOT_THE_BUNDLE,
}
"""For every reason."""
