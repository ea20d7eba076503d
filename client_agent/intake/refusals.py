"""What is wrong with a bundle or with the disk, in the words of an agent's answers."""

from __future__ import annotations

from client_agent.payloads.errors import Refused
from client_agent.storage.shortage import DISK_FULL_ERRNOS
from shared.multipart.limits import FormRefused


def form_problem(problem: FormRefused) -> Refused:
    """Servers compare one code; the message says what is wrong with the bundle."""
    code = "invalid_bundle" if problem.status == 400 else problem.code
    return Refused(problem.status, code, problem.message)


def disk_problem(problem: OSError) -> Refused:
    if problem.errno in DISK_FULL_ERRNOS:
        return Refused(507, "disk_full", "no space is left on the agent's disk")
    return Refused(503, "disk_broken", f"the bundle could not be stored: {problem.strerror}")
