"""A job's page: where it stands, and what it left. It loads itself again until the end."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from html import escape
from typing import Final

from server.web.frame import page
from shared.wire import JobDoc

_AGAIN_S: Final = 3


def job_page(job: JobDoc, link: str = "") -> str:
    """The page.

    Args:
        link: what signed links end in; given on to the addresses that it leads to.
    """
    rows = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in _rows(job))
    body = f"<p>{escape(job.message)}</p>\n{_progress(job)}<dl>{rows}</dl>\n{_links(job, link)}"
    if job.stderr_tail:
        body += f"\n<p>The last that it wrote to stderr:</p><pre>{escape(job.stderr_tail)}</pre>"
    if not job.ended:
        body += f"\n<p><small>This page loads itself again every {_AGAIN_S} seconds.</small></p>"
    title = f"Job {job.id}: {job.status}"
    return page(title, body, None if job.ended else _AGAIN_S)


def _rows(job: JobDoc) -> Iterator[tuple[str, str]]:
    if job.name:
        yield "Name", job.name
    yield "Service", job.service
    if job.queue is not None:
        yield "Waiting", job.queue.reason
    if job.reason is not None:
        yield "Reason", job.reason
    if job.exit_code is not None:
        yield "Exit code", str(job.exit_code)
    if job.attempt > 1:
        yield "Attempt", str(job.attempt)
    times = (
        ("Uploaded", job.created_at),
        ("Started", job.started_at),
        ("Ended", job.ended_at),
        ("Kept until", job.expires_at),
    )
    for name, at in times:
        if at is not None:
            yield name, _time(at)
    for name, value in job.output.items():
        yield name, value
    for warning in job.warnings:
        yield "Warning", warning


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%d %H:%M:%S UTC")


def _progress(job: JobDoc) -> str:
    progress = job.progress
    if progress is None or not progress.total or job.ended:
        return ""
    return f'<p><progress value="{progress.current}" max="{progress.total}"></progress></p>\n'


def _links(job: JobDoc, link: str) -> str:
    end = f"?link={link}" if link else ""
    there = (("Result (ZIP)", job.links.result), ("Output so far", job.links.logs))
    shown = [
        f'<a href="{escape(address + end)}">{escape(text)}</a>'
        for text, address in there
        if address is not None
    ]
    return f"<p>{' · '.join(shown)}</p>" if shown else ""
