"""What all pages of one job have around them: its name and state, what can be done, the tabs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from aiohttp import web

from server.domain import states
from server.domain.access import Area, may_use
from server.domain.jobs import Job
from server.http.requested_job import requested_job
from server.store import events, jobs
from server.web.site import Site
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Principal, Role, Scope
from shared.wire import JobDoc, JobState

REFRESH_S: Final = 3
"""Until a page without scripts loads itself again."""


TABS: Final[Mapping[str, tuple[str, str]]] = {
    "overview": ("Overview", ""),
    "log": ("Log", "/log"),
    "files": ("Files", "/files"),
    "children": ("Children", "/children"),
}
"""Name, also of the template -> the word, and what its address has behind the job's."""
_DONE: Final = {
    "cancel": "the cancel was asked for",
    "ended": "it had ended before it could be cancelled",
    "retry": "it was queued again",
    "tags": "its tags are changed",
}
"""After a form: what was done, whatever has become of the job since."""


@dataclass(frozen=True, slots=True)
class JobFrame:
    """A job as its pages show it to one principal.

    Attributes:
        actions: what the principal may do with the job in its state: ``cancel``, ``retry``,
            ``delete``, ``tag``, ``again`` (upload it with changes), ``share``.
        newest: the event from which on the page is to be told what happens.
    """

    record: Job
    job: JobDoc
    tabs: tuple[str, ...]
    actions: frozenset[str]
    newest: int

    @property
    def notice(self) -> tuple[str, str] | None:
        """A sentence about what was asked for and has not happened yet, and its kind."""
        job = self.record
        if job.ended:
            return None
        if job.delete_requested_at is not None:
            return "it is deleted as soon as none of its processes is alive", "doubt"
        if job.cancel_requested_at is not None:
            waits = f": agent {job.agent} is asked to kill them" if job.agent else ""
            if job.state is JobState.UNKNOWN:  # its message says why it cannot be asked now
                waits = f". That they are dead cannot be confirmed now: {job.message}"
            return f"it is being cancelled; its processes may still be alive{waits}", "doubt"
        return None

    @property
    def address(self) -> str:
        """Of the job's first page, for ``url()``."""
        return f"/jobs/{self.job.id}"


async def job_frame(request: web.Request, site: Site) -> JobFrame:
    """The job that the path names, for whoever asks. Raises NotAllowed, NoSuchJob, Refusal."""
    context, principal = site.context, request[PRINCIPAL]
    newest = await context.core.database.read(events.newest_seq)
    job = await requested_job(request, context)
    if principal.role is Role.LINK:
        # Whoever has a link is anybody, and such an address may hold a secret of the portal.
        job = replace(job, callback_url=None)
    queue = (await context.stages.waiting([job])).get(job.id)
    batch = (await context.children_of([job])).get(job.id)
    document = context.document(job, queue, batch)
    actions = possible_actions(job, principal)
    if "retry" in actions and job.parent_id is not None:
        parent = await context.core.database.read(jobs.get, job.parent_id)
        if parent.ended:  # it would not hear of a new run: the parent itself is retried
            actions -= {"retry"}
    return JobFrame(job, document, _tabs(document, principal), actions, newest)


def frame_page(
    request: web.Request, site: Site, frame: JobFrame, tab: str, template: str = "", **values: Any
) -> web.Response:
    """A tab: its template ``job/TAB.html`` extends ``job/frame.html`` and fills its block ``tab``.

    Args:
        template: of a page below the tab, without ``.html``; empty: the tab's own.
        values: what the template shows, beside ``job`` (the document) and ``frame``. ``query`` has
            those parameters of its address that a live page loads itself again with.
    """
    shown: Mapping[str, Any] = {
        "title": _title(frame, tab),
        "refresh_s": None if frame.job.ended else REFRESH_S,
        "frame": frame,
        "job": frame.job,
        "tab": tab,
        "texts": TABS,
        "query": {},
        "at": utc,
        "notice": _DONE.get(request.query.get("done", "")),
    }
    return site.page(request, f"job/{template or tab}.html", **{**shown, **values})


def _title(frame: JobFrame, tab: str) -> str:
    """Which job, how it stands, and which of its pages: what tells many windows apart."""
    page = "" if tab == "overview" else TABS[tab][0]
    parts = (f"Job {frame.job.id}: {frame.job.status.value}", frame.job.name, page)
    return " · ".join(one for one in parts if one)


def _tabs(job: JobDoc, principal: Principal) -> tuple[str, ...]:
    # A link shows one job: its children are others.
    with_children = job.children is not None and principal.role is not Role.LINK
    return tuple(one for one in TABS if one != "children" or with_children)


def possible_actions(job: Job, principal: Principal) -> frozenset[str]:
    """What is possible. The stages check again: the job may have moved on since."""
    possible = {"share"} if may_use(principal, Area.JOBS) else set()
    if may_use(principal, Area.JOBS) and principal.may(Scope.SUBMIT) and job.bundle is not None:
        possible.add("again")
    if not may_use(principal, Area.JOBS, "POST") or job.delete_requested_at is not None:
        return frozenset(possible)
    possible.add("tag")
    if not job.ended:
        possible |= {"cancel"} if job.cancel_requested_at is None else set()
    elif job.state in states.RETRIED_BY_HAND and job.bundle is not None:
        possible.add("retry")
    if job.ended and job.parent_id is None:
        possible.add("delete")
    return frozenset(possible)
