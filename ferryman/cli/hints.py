"""What to do next after an error, as a command."""

from __future__ import annotations

from collections.abc import Callable

from ferryman import errors


def hint_for(
    problem: errors.FerrymanError, command: Callable[[str], str], *, has_token: bool
) -> str | None:
    """A line with a command; None: the error says it all, or has its own.

    Args:
        command: the words of a command -> a command line that reaches the same server.
    """
    if getattr(problem, "__notes__", None):
        return None
    match problem:
        case errors.Unreachable() | errors.NotUnderstood():
            return f"--url or FERRYMAN_URL says which server; to find out more: {command('doctor')}"
        case errors.NotAllowed(status=401) if not has_token:
            return (
                "a token comes from --token-file FILE or FERRYMAN_TOKEN; "
                "the server's operator makes one: ferryman token create"
            )
        case errors.NotAllowed(status=401):
            return "the server's operator makes a new one: ferryman token create"
        case errors.NotAllowed():
            return f"what your token is good for: {command('whoami')}"
        case errors.NotFound(code="job_not_found"):
            return f"the jobs that you may see: {command('list')}"
        case errors.NotFound(code="agent_not_found"):
            return f"the agents: {command('agents')}"
        case errors.NotFound(code="service_not_found"):
            return f"the services: {command('services')}"
        case errors.NotFound(code="schedule_not_found"):
            return f"the schedules: {command('schedule')}"
        case errors.NotFound(code="token_not_found"):
            return f"the tokens: {command('token')}"
        case errors.Refused(part="service"):
            return f"the services: {command('services')}"
        case errors.TryLater(retry_after=seconds) if seconds:
            return f"try again in {seconds:g} s"
    return None
