"""The lists of jobs and of schedules, and one action on many jobs: first a page that says how many
and which, then the action.

A request acts on so many jobs as the API allows one; where there are more, its page has a button
that goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from http import HTTPStatus
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, urlencode

from aiohttp import web
from multidict import MultiDictProxy

from server.domain.access import Area, visible
from server.domain.errors import BadField, NoSuchJob
from server.domain.jobs import Job
from server.http.context import Context
from server.http.params import FILTERS, MAX_ID, int_param, job_filter
from server.http.permits import address
from server.http.problems import Refusal
from server.stages.bulk import AMONG, BulkAction
from server.stages.read import read_job, read_list
from server.store import batches, events, pages
from server.store.pages import Filter
from server.web.site import PageRoute, Site
from shared.clock import Micros, utc
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.http.request_log import TARGET
from shared.principals import Principal, Scope
from shared.wire import JobDoc, JobState

_SAME: Final = {"user_id": "user", "status": "state"}
"""Other names that the API has for a filter."""
CHILDREN: Final = "children"
"""Whether the children of batches are listed, too; otherwise a batch is one row."""
_MAX_QUERY: Final = 8_192
"""Characters of a query in a form: of an address there can be no more."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """The filters of a list.

    Attributes:
        given: filter -> what was typed; empty ones are left out, as forms send them.
        problem: what is wrong with one of them; ``where`` then means nothing.
    """

    given: Mapping[str, str]
    where: Filter
    problem: BadField | None = None

    @property
    def filters(self) -> dict[str, str]:
        """What is given without what shows more."""
        return {name: text for name, text in self.given.items() if name != CHILDREN}

    @property
    def query(self) -> str:
        """As in an address."""
        return urlencode(dict(self.given))

    def with_(self, **more: str) -> dict[str, str]:
        """The filters with some others; empty: without it."""
        return {name: text for name, text in {**self.given, **more}.items() if text}


def chosen(query: Mapping[str, str], now: Micros) -> Chosen:
    """Read the filters of an address; what is no filter is ignored."""
    given = {
        _SAME.get(name, name): text.strip()
        for name, text in query.items()
        if text.strip() and (name == CHILDREN or (name in FILTERS and name != "top_level"))
    }
    try:
        where = job_filter(given, now)
        children = _children(given)
    except BadField as problem:
        return Chosen(given, Filter(), problem)
    hidden = not (children or where.dead_letter or where.parent_id is not None)
    return Chosen(given, replace(where, top_level=hidden))


def _children(given: Mapping[str, str]) -> bool:
    text = given.get(CHILDREN)
    if text not in (None, "true", "1"):
        message = f"Invalid children: {text[:32]!r} is not true; leave it out to hide them"
        raise BadField(CHILDREN, "invalid_children", message)
    return text is not None


ROWS: Final = 50
_COUNTED: Final = 10_000
_SLICES: Final = 4
"""Parts of the list that one page looks through for jobs that fit."""
_SEARCH_S: Final = 0.02
"""After which no further part is looked through."""
_ALWAYS: Final = frozenset(
    {JobState.QUEUED, JobState.RUNNING, JobState.COMPLETED, JobState.FAILED, JobState.CANCELLED}
)
"""States that have a tab even where no job is in them."""


ACTIONS: Final = (BulkAction.CANCEL, BulkAction.RETRY, BulkAction.DELETE)
PATH: Final = "/jobs"


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """All jobs, newest first."""
    context, principal = site.context, request[PRINCIPAL]
    cursor = int_param(request, "cursor", 0, 0, 2**63 - 1) or None
    which = chosen(request.query, context.core.clock.now())
    newest = await context.core.database.read(events.newest_seq)
    found: list[Job] = []
    following, counts, exact = None, None, None
    if which.problem is None:
        found, following = await _search(context, principal, which.where, cursor)
        counts = await read_list(
            context.core.database, principal, pages.counts, which.where, _COUNTED
        )
        exact = await _exact(context, principal, which, found)
    return site.page(
        request,
        "jobs/list.html",
        status=HTTPStatus.OK if which.problem is None else HTTPStatus.BAD_REQUEST,
        title="Jobs",
        newest=newest,
        notice=_notice(request),
        jobs=await context.documents(found),
        exact=exact,
        cursor=cursor,
        following=following,
        searched_back=following if len(found) < ROWS else None,
        chosen=which,
        states=_tabs(which, counts),
        total=None if counts is None else sum(counts.values()),
        counted=_COUNTED,
        most_counted=counts is not None and _COUNTED in counts.values(),
        all_states=[str(state) for state in JobState],
        actions=ACTIONS,
        Scope=Scope,
        run_time=lambda job: _run_time_s(job, site.now()),
        services=sorted(one.name for one in context.core.services.values() if not one.retired),
        show_user=visible(principal).user_id is None,
        may_change=principal.may(Scope.MANAGE),
        here=address(request, context, ""),
    )


async def _search(
    context: Context, principal: Principal, where: Filter, before: int | None
) -> tuple[list[Job], int | None]:
    """A page of the list. Where few jobs fit, some parts of the list are looked through for it."""
    found: list[Job] = []
    until = context.core.clock.monotonic() + _SEARCH_S
    for _ in range(_SLICES):
        some, before = await read_list(
            context.core.database, principal, pages.page, where, before, ROWS - len(found)
        )
        found += some
        if before is None or len(found) >= ROWS or context.core.clock.monotonic() >= until:
            break
    return found, before


async def _exact(
    context: Context, principal: Principal, which: Chosen, found: list[Job]
) -> JobDoc | None:
    """The job whose number was searched for, wherever it is; None: it is in the list already."""
    number = whole_number((which.where.text or "").removeprefix("#"))
    if number is None or any(job.id == number for job in found):
        return None
    try:
        return context.document(await read_job(context.core.database, principal, number))
    except NoSuchJob:
        return None


def _tabs(which: Chosen, counts: dict[JobState, int] | None) -> list[tuple[JobState, int | None]]:
    """The states that one can choose at a click, with their numbers where those are known."""
    return [
        (state, None if counts is None else counts[state])
        for state in JobState
        if state in _ALWAYS or state is which.where.state or (counts is not None and counts[state])
    ]


def _run_time_s(job: JobDoc, now: datetime) -> float:
    """From its first start to its end, or so far."""
    if job.started_at is None:
        return 0.0
    return max(0.0, ((job.ended_at or now) - job.started_at).total_seconds())


_DONE: Final = {
    "cancel": "{jobs}: each ends as soon as its processes are dead",
    "retry": "{jobs} queued again",
    "deleted": "The job is deleted",
    "delete": "{jobs} deleted; what had not ended is cancelled, and kept",
    "nothing": "No job was chosen: tick some rows first, or all that match",
}


def _notice(request: web.Request) -> str | None:
    number = whole_number(request.query.get("number", ""), most=10**9) or 0
    text = _DONE.get(request.query.get("done", ""))
    return text and text.format(jobs="1 job" if number == 1 else f"{number:,} jobs")


# -- many at once

Form: TypeAlias = MultiDictProxy[Any]
_MOST: Final = 1_000
"""Jobs that one request acts on, as the API has it."""
_NAMED: Final = 20
"""Jobs that the page names before the action, and refusals that it names after it."""
_MAX_NUMBER: Final = 10**9


@dataclass(frozen=True, slots=True)
class _Asked:
    """What the form says.

    Attributes:
        ids: the jobs that were ticked.
        every: all that fit the filters, in place of these.
        before: only those with a lower number; None: all of them.
    """

    action: BulkAction
    ids: Sequence[int]
    every: bool
    which: Chosen
    before: int | None


async def confirm(request: web.Request, site: Site) -> web.StreamResponse:
    """Say how many jobs, and which; nothing is done yet."""
    context, principal = site.context, request[PRINCIPAL]
    asked = _asked(await request.post(), context)
    ids, more = asked.ids, False
    if asked.every:
        ids, following = await context.stages.bulk.choose(
            principal, asked.action, asked.which.where, None, _COUNTED
        )
        more = following is not None
    if not ids:
        return _back(site, asked, "nothing", 0)
    named = await _read(context, principal, ids[:_NAMED])
    return site.page(
        request,
        "jobs/confirm.html",
        title=f"{asked.action.capitalize()} jobs",
        asked=asked,
        number=len(ids),
        more=more,
        named=named,
        unfit=_unfit(asked.action, named),
        batches=len(ids) > _NAMED
        or bool(await context.core.database.read(batches.several, [job.id for job in named])),
        # Jobs that are uploaded from now on were not meant.
        before=max(ids) + 1 if asked.every else None,
    )


async def act(request: web.Request, site: Site) -> web.StreamResponse:
    """Do it with the next jobs; then back to the list, or on to what is left."""
    context, principal = site.context, request[PRINCIPAL]
    form = await request.post()
    asked = _asked(form, context)
    ids, following = asked.ids, None
    if asked.every:
        ids, following = await context.stages.bulk.choose(
            principal, asked.action, asked.which.where, asked.before, _MOST
        )
    done = await context.stages.bulk(principal, asked.action, ids)
    request[TARGET] = f"{asked.action} {' '.join(str(one.id) for one in done)}"
    refused = [one for one in done if not one.ok]
    number = len(done) - len(refused) + _number(form, "done")
    failed = len(refused) + _number(form, "failed")
    if following is None and not failed:
        return _back(site, asked, str(asked.action), number)
    return site.page(
        request,
        "jobs/done.html",
        title=f"{asked.action.capitalize()} jobs",
        asked=asked,
        number=number,
        failed=failed,
        refused=refused[:_NAMED],
        codes=Counter(one.code for one in refused),
        before=following,
    )


def _asked(form: Form, context: Context) -> _Asked:
    """Read a form of the list, or of one of the pages here. Raises BadField, Refusal."""
    try:
        action = BulkAction(str(form.get("action", "")))
    except ValueError:
        action = BulkAction.TAG
    if action not in ACTIONS:
        words = ", ".join(ACTIONS)
        raise BadField("action", "invalid_action", f"Invalid action: it is none of {words}")
    query = dict(parse_qsl(str(form.get("query", ""))[:_MAX_QUERY]))
    which = chosen(query, context.core.clock.now())
    every = form.get("all") == "1"
    if every and which.problem is not None:
        raise which.problem
    # Rows of the page are fields of their own; others are in one, because a form has 1,000 at most.
    others = str(form.get("ids", "")).split(",", _MOST + 1)
    texts = [] if every else [str(one) for one in (*form.getall("id", []), *others) if one]
    ids = [whole_number(text, 1) for text in dict.fromkeys(texts)]
    known = [one for one in ids if one is not None]
    if len(known) != len(ids):
        raise BadField("id", "invalid_id", "Invalid id: it is not the number of a job")
    if len(known) > _MOST:
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "too_many_jobs",
            f"{len(known)} jobs were ticked, and one form takes {_MOST}: choose them by filters, "
            "then all that match",
        )
    before = whole_number(str(form.get("before", "")))
    return _Asked(action, known, every, which, before)


def _number(form: Form, name: str) -> int:
    return whole_number(str(form.get(name, "0")), most=_MAX_NUMBER) or 0


def _back(site: Site, asked: _Asked, done: str, number: int) -> web.Response:
    query = {**asked.which.given, "done": done, "number": str(number)}
    return site.go_to(PATH, **query)


async def _read(context: Context, principal: Principal, ids: Sequence[int]) -> list[Job]:
    """Those of the jobs that the principal may see."""
    found = []
    for job_id in ids:
        try:
            found.append(await read_job(context.core.database, principal, job_id))
        except NoSuchJob:
            continue
    return found


def _unfit(action: BulkAction, named: Sequence[Job]) -> list[int]:
    """Those that the action does not change as they are now."""
    among = AMONG.get(action)
    return [] if among is None else [job.id for job in named if job.state not in among]


async def schedules(request: web.Request, site: Site) -> web.StreamResponse:
    """The schedules, newest first."""
    context, principal = site.context, request[PRINCIPAL]
    cursor = int_param(request, "cursor", 0, 0, MAX_ID) or None
    found, following = context.stages.schedules.page(principal, None, cursor or MAX_ID, ROWS)
    return site.page(
        request,
        "jobs/schedules.html",
        title="Schedules",
        schedules=found,
        following=following,
        cursor=cursor,
        utc=utc,
        show_user=visible(principal).user_id is None,
        here=address(request, context, ""),
        service=next(
            (one.name for one in context.core.services.values() if not one.retired), "example"
        ),
    )


ROUTES: Final = (
    PageRoute("GET", PATH, Area.JOBS, page),
    PageRoute("POST", "/jobs/bulk", Area.JOBS, confirm),
    PageRoute("POST", "/jobs/bulk/now", Area.JOBS, act),
    PageRoute("GET", "/schedules", Area.JOBS, schedules),
)
