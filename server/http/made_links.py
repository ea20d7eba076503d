"""Signed links, and those that log in, as they are handed out."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from server.domain import permits
from server.domain.jobs import Job
from server.domain.permits import LOGIN_S, Link, Login, Shows
from server.http.addresses import address
from server.http.context import Context
from server.http.paths import JOB, LOGIN_ONCE
from server.http.route import LINK_PARAMETER
from shared.clock import SECOND, utc
from shared.http.authentication import PRINCIPAL
from shared.principals import Principal
from shared.wire import LinkDoc

_ENDS: Final = {Shows.JOB: "", Shows.RESULT: "/result"}


def made_link(
    request: web.Request, context: Context, job: Job, asked: Mapping[str, Any]
) -> tuple[Link, LinkDoc]:
    """The link that is asked for, and its address in the API.

    Raises:
        BadField
    """
    link = permits.link(asked, job, request[PRINCIPAL], context.clock.now())
    text = context.permits.text(link)
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
    digest = context.sessions.configured_digest(principal)
    if principal.token_id is None and digest is None:
        return "/", {}, None
    login = Login(
        id=secrets.token_hex(8),
        expires_at=context.clock.now() + round(LOGIN_S * SECOND),
        token_id=principal.token_id,
        token_digest=None if principal.token_id else digest,
    )
    return LOGIN_ONCE, {"code": context.permits.text(login)}, utc(login.expires_at)
