"""Whole addresses, for browsers on other origins and for people."""

from __future__ import annotations

from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from aiohttp import web

from server.domain.permits import Link
from server.http.context import Context
from server.http.paths import JOB, JOB_PAGE
from server.http.route import LINK_PARAMETER
from shared.wire import UploadLinks


def address(request: web.Request, context: Context, path: str, **query: str) -> str:
    """The address of a path here, as browsers know it."""
    base = context.public_url or f"{request.scheme}://{request.host}"
    return f"{base}{context.url_prefix}{path}" + (f"?{urlencode(query)}" if query else "")


def with_query(page: str, **query: str) -> str:
    """The address with more parameters."""
    parts = urlsplit(page)
    known = parse_qsl(parts.query, keep_blank_values=True)
    return urlunsplit(parts._replace(query=urlencode([*known, *query.items()])))


def links_by(request: web.Request, context: Context, link: Link) -> UploadLinks:
    """Where somebody who has nothing but this link follows its job."""
    query = {LINK_PARAMETER: context.permits.text(link)}
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
