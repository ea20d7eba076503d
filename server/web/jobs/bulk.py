"""One action on many jobs of a list: first a page that says how many and which, then the action.

A request acts on so many jobs as the API allows one; where there are more, its page has a button
that goes on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from aiohttp import web
from multidict import MultiDictProxy

from server.domain.access import Area
from server.domain.bulk import AMONG, BulkAction
from server.domain.errors import BadField, NoSuchJob
from server.domain.jobs import Job
from server.http.context import Context
from server.http.problems import Refusal
from server.stages.read import read_job
from server.web.jobs.chosen import Chosen, chosen, sent_query
from server.web.jobs.page import JOBS, LISTINGS, Listing
from server.web.site.page_route import PageRoute
from server.web.site.site import Site
from shared.http.authentication import PRINCIPAL
from shared.http.numbers import whole_number
from shared.http.request_log import TARGET
from shared.principals import Principal

Form: TypeAlias = MultiDictProxy[Any]
_MOST: Final = 1_000
"""Jobs that one request acts on, as the API has it."""
_COUNTED: Final = 10_000
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

    listing: Listing
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
        ids, following = await context.bulk.choose(
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
        batches=len(ids) > _NAMED or bool(await context.jobs.batches_of([job.id for job in named])),
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
        ids, following = await context.bulk.choose(
            principal, asked.action, asked.which.where, asked.before, _MOST
        )
    done = await context.bulk(principal, asked.action, ids)
    request[TARGET] = f"{asked.action} {' '.join(str(one.job_id) for one in done)}"
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
    """Read a form of the list, or of one of the pages here.

    Raises:
        BadField, Refusal
    """
    listing = LISTINGS.get(str(form.get("list", JOBS.path)), JOBS)
    try:
        action = BulkAction(str(form.get("action", "")))
    except ValueError:
        action = BulkAction.TAG
    if action not in listing.actions:
        words = ", ".join(listing.actions)
        raise BadField("action", "invalid_action", f"Invalid action: it is none of {words}")
    which = chosen(
        sent_query(str(form.get("query", ""))),
        context.clock.now(),
        dead_letters=listing.dead_letters,
    )
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
    return _Asked(listing, action, known, every, which, before)


def _number(form: Form, name: str) -> int:
    return whole_number(str(form.get(name, "0")), most=_MAX_NUMBER) or 0


def _back(site: Site, asked: _Asked, done: str, number: int) -> web.Response:
    query = {**asked.which.given, "done": done, "number": str(number)}
    return site.go_to(asked.listing.path, **query)


async def _read(context: Context, principal: Principal, ids: Sequence[int]) -> list[Job]:
    """Those of the jobs that the principal may see."""
    found = []
    for job_id in ids:
        try:
            found.append(await read_job(context.jobs, principal, job_id))
        except NoSuchJob:
            continue
    return found


def _unfit(action: BulkAction, named: Sequence[Job]) -> list[int]:
    """Those that the action does not change as they are now."""
    among = AMONG.get(action)
    return [] if among is None else [job.id for job in named if job.state not in among]


ROUTES: Final = (
    PageRoute("POST", "/jobs/bulk", Area.JOBS, confirm),
    PageRoute("POST", "/jobs/bulk/now", Area.JOBS, act),
)
