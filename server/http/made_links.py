"""Signed links, as they are handed out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from aiohttp import web

from server.domain import permit_requests
from server.domain.jobs import Job
from server.domain.permits import Link, Shows
from server.http.addresses import address
from server.http.context import Context
from server.http.paths import JOB
from server.http.route import LINK_PARAMETER
from shared.clock import utc
from shared.http.authentication import PRINCIPAL
from shared.wire import LinkDoc

_ENDS: Final = {Shows.JOB: "", Shows.RESULT: "/result"}


def made_link(
    request: web.Request, context: Context, job: Job, asked: Mapping[str, Any]
) -> tuple[Link, LinkDoc]:
    """The link that is asked for, and its address in the API.

    Raises:
        BadField
    """
    link = permit_requests.link(asked, job, request[PRINCIPAL], context.clock.now())
    text = context.permits.text(link)
    here = JOB.replace("{id}", str(job.id))
    end = f"/files/{quote(link.path)}" if link.shows is Shows.FILE else _ENDS[link.shows]
    url = address(request, context, here + end, **{LINK_PARAMETER: text})
    return link, LinkDoc(url=url, link=text, expires_at=utc(link.expires_at))
