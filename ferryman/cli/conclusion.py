"""What is said of a job that has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ferryman.cli import show
from ferryman.cli.options import Server
from ferryman.cli.results import partial_hint

if TYPE_CHECKING:
    from ferryman.models import JobDoc


def conclude(job: JobDoc, server: Server, *, quiet: bool) -> None:
    """Say how it ended. Why it failed is an error, so --quiet does not silence it."""
    if job.status == "Completed":
        if not quiet:
            show.print_message(f"fetch the result: {server.command(f'download {job.id}')}")
        return
    reason = f" ({job.reason})" if job.reason else ""
    show.print_message(f"job {job.id} {job.status}{reason}: {job.message}")
    for line in show.stderr_lines(job):
        show.print_message(line)
    if job.children is not None and job.children.failed:
        failed = server.command(f"list --parent {job.id} --state Failed")
        show.print_message(f"children that failed: {failed}")
    show.print_message(partial_hint(server, job.id))
