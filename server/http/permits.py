"""Requests with upload tickets, signed links and sessions of browsers."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from contextlib import suppress
from datetime import datetime
from typing import Annotated, Any, Final
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

from aiohttp import hdrs, web
from pydantic import (
    Field,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    field_validator,
)

from server.domain.errors import NotAllowed
from server.domain.jobs import Job
from server.domain.permits import (
    LOGIN_S,
    MAX_LINK_S,
    Link,
    Login,
    PermitRefused,
    Permits,
    Shows,
    Ticket,
)
from server.http.context import Context
from server.http.params import SparseBody
from server.http.problems import BACK
from server.http.route import JOB, JOB_PAGE, LINK_PARAMETER, LOGIN_ONCE, TICKET_PARAMETER
from server.stages.sessions import Sessions
from shared.clock import SECOND, Clock, utc
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import peer_address
from shared.principals import Principal, Role
from shared.units.durations import Duration, say_duration
from shared.wire import LinkDoc, UploadLinks


def address(request: web.Request, context: Context, path: str, **query: str) -> str:
    """The address of a path here, as browsers know it."""
    table = context.core.settings.server
    base = table.origin or f"{request.scheme}://{request.host}"
    return f"{base}{table.url_prefix}{path}" + (f"?{urlencode(query)}" if query else "")


def with_query(page: str, **query: str) -> str:
    """The address with more parameters."""
    parts = urlsplit(page)
    known = parse_qsl(parts.query, keep_blank_values=True)
    return urlunsplit(parts._replace(query=urlencode([*known, *query.items()])))


def links_by(request: web.Request, context: Context, link: Link) -> UploadLinks:
    """Where somebody who has nothing but this link follows its job."""
    query = {LINK_PARAMETER: context.access.permits.text(link)}
    job = JOB.replace("{id}", str(link.job_id))
    page = JOB_PAGE.replace("{id}", str(link.job_id))

    def to(path: str) -> str:
        return address(request, context, path, **query)

    return UploadLinks(
        job=to(job),
        page=to(page),
        events=to(f"{job}/events"),
        logs=to(f"{job}/logs"),
        files=to(f"{job}/files"),
        result=to(f"{job}/result"),
    )


TICKET: Final = web.RequestKey("ticket", Ticket)
"""The ticket of a request, which is good."""
_LINK: Final = web.RequestKey("link", Link)
BY_PERMIT: Final = frozenset({Role.TICKET, Role.LINK})


class SignedRequests:
    """Knows who asks by a ticket or link."""

    def __init__(self, permits: Permits, clock: Clock) -> None:
        self._permits, self._clock = permits, clock

    def principal(self, request: web.Request) -> Principal | None:
        """None: it shows neither. Without a role, and with the reason, if it is not good."""
        query = request.query_string
        if TICKET_PARAMETER not in query and LINK_PARAMETER not in query:
            return None
        now = self._clock.now()
        try:
            if (text := request.query.get(TICKET_PARAMETER)) is not None:
                ticket = self._permits.read(Ticket, text, now)
                request[TICKET] = ticket
                if ticket.return_to is not None:
                    request[BACK] = ticket.return_to
                return ticket.principal()
            if (text := request.query.get(LINK_PARAMETER)) is not None:
                link = self._permits.read(Link, text, now)
                request[_LINK] = link
                return link.principal()
        except PermitRefused as problem:
            return Principal("anonymous", None, why=str(problem), code=problem.code)
        return None


def check_permit(
    request: web.Request, *, by_link: Collection[Shows], by_ticket: bool = False
) -> None:
    """Refuse a ticket or link where the route does not say that it is good for it.

    Args:
        by_link: links to these are good for it.

    Raises:
        NotAllowed
    """
    if request[PRINCIPAL].role is Role.TICKET:
        if not by_ticket:
            raise NotAllowed("an upload ticket is for POST /upload, and for nothing else")
        return
    link = request[_LINK]
    what = f"job {link.job_id}"
    if link.shows is Shows.FILE:
        what = f"the file {link.path} of {what}"
    elif link.shows is Shows.RESULT:
        what = f"the result of {what}"
    path = request.match_info
    same_file = link.shows is not Shows.FILE or path.get("path") == link.path
    if link.shows not in by_link or path.get("id") != str(link.job_id) or not same_file:
        raise NotAllowed(f"this link shows {what}, and nothing else")


SESSION: Final = "session"
_SAFE: Final = frozenset({hdrs.METH_GET, hdrs.METH_HEAD})


def cookie_name(server_id: str, name: str) -> str:
    """What a cookie of this server is called: those of several servers of one host must not meet.

    Args:
        server_id: of the database.
    """
    return f"ferryman_{server_id[:8]}_{name}"


class BrowserSessions:
    """Knows who asks by a session.

    A browser sends the cookie whoever makes it send the request, so it is good for what changes
    nothing, and for the forms of pages, whose router wants a proof that a page of ours sent them.

    Args:
        forms: method and path of every page.
    """

    def __init__(
        self, sessions: Sessions, server_id: str, forms: Collection[tuple[str, str]]
    ) -> None:
        self._sessions, self._forms = sessions, forms
        self._cookie = cookie_name(server_id, SESSION)

    def principal(self, request: web.Request) -> Principal | None:
        """None: it shows no session, or one that is not good, or not for this."""
        headers = request.headers
        if hdrs.COOKIE not in headers or hdrs.AUTHORIZATION in headers:
            return None
        if request.method not in _SAFE:
            resource = request.match_info.route.resource
            if resource is None or (request.method, resource.canonical) not in self._forms:
                return None
        text = request.cookies.get(self._cookie)
        return self._sessions.principal_of(text, peer_address(request)) if text else None


_ENDS: Final = {Shows.JOB: "", Shows.RESULT: "/result"}


def valid_for(most_s: float) -> WrapValidator:
    """Of a duration: how long a permit may be good for."""

    def check(value: Any, parse: ValidatorFunctionWrapHandler) -> Any:
        with suppress(ValueError):
            if 0 < (seconds := parse(value)) <= most_s:
                return seconds
        wanted = f"it should be a duration up to {say_duration(most_s)}, as in 15m, or seconds"
        raise ValueError(wanted)

    return WrapValidator(check)


class LinkBody(SparseBody):
    """What ``POST /api/v1/jobs/{id}/links`` takes."""

    what: Shows = Shows.JOB
    """What it shows."""
    path: str = Field("", max_length=2_000, validate_default=True)
    """Of the file, with what: file."""
    expires_in: Annotated[Duration, valid_for(MAX_LINK_S)] = 86_400.0
    """A duration of up to 30d, or seconds; 1d without it."""

    @field_validator("path")
    @classmethod
    def _of_a_file(cls, path: str, info: ValidationInfo) -> str:
        is_file = info.data.get("what") == Shows.FILE
        if is_file and not path:
            raise ValueError("a link with what: file needs the path of one")
        if path and not is_file:
            raise ValueError("only a file has one")
        return path


def made_link(
    request: web.Request, context: Context, job: Job, asked: LinkBody
) -> tuple[Link, LinkDoc]:
    """The link that is asked for, and its address in the API."""
    principal = request[PRINCIPAL]
    link = Link(
        issued_by=principal.name,
        job_id=job.id,
        shows=asked.what,
        expires_at=context.core.clock.now() + round(asked.expires_in * SECOND),
        token_id=principal.token_id,
        path=asked.path,
        issuer=principal.caller,
    )
    text = context.access.permits.text(link)
    here = JOB.replace("{id}", str(job.id))
    end = f"/files/{quote(link.path)}" if link.shows is Shows.FILE else _ENDS[link.shows]
    url = address(request, context, here + end, **{LINK_PARAMETER: text})
    return link, LinkDoc(url=url, link=text, expires_at=utc(link.expires_at))


def login_path(
    context: Context, principal: Principal
) -> tuple[str, dict[str, str], datetime | None]:
    """Path and query that log a browser in once, and until when; the first page where nobody needs
    to log in.
    """
    digest = context.access.sessions.configured_digest(principal)
    if principal.token_id is None and digest is None:
        return "/", {}, None
    login = Login(
        id=secrets.token_hex(8),
        expires_at=context.core.clock.now() + round(LOGIN_S * SECOND),
        token_id=principal.token_id,
        token_digest=None if principal.token_id else digest,
    )
    return LOGIN_ONCE, {"code": context.access.permits.text(login)}, utc(login.expires_at)
