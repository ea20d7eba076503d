"""One file of a job, shown without running anything of it."""

from __future__ import annotations

from contextlib import aclosing
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from aiohttp import hdrs, web

from server.domain.access import Area
from server.domain.errors import BadField
from server.domain.jobs import Attempt, Job
from server.domain.permits import Shows
from server.http.context import Context
from server.http.files import OpenedFile, files_beside, opened_file, requested_attempt
from server.http.logs import FILES, live_agent
from server.http.media_types import media_type, shown_as
from server.http.params import int_param
from server.http.problems import Refusal
from server.http.route import JOB_PAGE, LINK_PARAMETER
from server.web.job.content import (
    WIDE,
    WINDOW,
    decode,
    hex_rows,
    is_binary,
    read_table,
    read_text,
    spelled,
    visible,
)
from server.web.job.files import crumbs, folder_of, quoted, running_page
from server.web.job.frame import frame_page, job_frame
from server.web.site import PageRoute, Site
from shared.http.file_response import Part, send_chunks

_TABLE_WINDOW: Final = 128 << 10
_MOST_IMAGE: Final = 20 << 20
"""Bytes of an image that a page shows by itself."""
_MOST_RENDERED: Final = 8 << 20
_END: Final = 16 << 10
"""Bytes that are shown of the end of a text."""
_MOST_POSITION: Final = 2**62
_RENDERED: Final = f"{JOB_PAGE}/rendered/{{path}}"
_RENDERED_HEADERS: Final = {
    hdrs.CONTENT_TYPE: "text/html",
    # A document of nobody: no script, no form, no window, no navigation, nothing from elsewhere.
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; font-src data:; "
    "style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'; frame-ancestors 'self'",
    "X-Content-Type-Options": "nosniff",
    "X-DNS-Prefetch-Control": "off",
    "Referrer-Policy": "no-referrer",
    hdrs.CACHE_CONTROL: "no-store",
}
_VIEWS: Final = {
    "table": "Table",
    "image": "Image",
    "text": "Text",
    "rendered": "Rendered",
    "hex": "Bytes",
    "pdf": "PDF",
    "empty": "Empty",
}


_Window: TypeAlias = tuple[int, int | None, str]
"""Where a part of a file begins, the number of its first line, and its encoding."""


def _window(request: web.Request) -> _Window:
    """Raises BadField."""
    start = int_param(request, "from", 0, 0, _MOST_POSITION)
    line = int_param(request, "line", 0, 0, _MOST_POSITION) or None
    encoding = request.query.get("encoding", "")
    if encoding not in WIDE | {""}:
        raise BadField("encoding", "invalid_encoding", "encoding should be that of a page")
    return start, line if start else 1, encoding


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A file, as far as it can be shown: text, a table, an image, or its first bytes."""
    context, path = site.context, request.match_info["path"]
    frame = await job_frame(request, site)
    job = frame.record
    attempt = await requested_attempt(request, context, job)
    window = _window(request)
    async with opened_file(context, job, attempt, path) as file:
        start = min(window[0], file.size)
        data = await _read(file, start, min(file.size, start + _TABLE_WINDOW))
        size, crc, running = file.size, file.crc, file.etag is None
    before, behind = await _beside(context, job, attempt, path)
    views = _views(path, size, data, start)
    asked = request.query.get("view", "")
    view = asked if asked in views else views[0]
    prefix = path[: path.rfind("/") + 1]
    chosen = {"attempt": request.query["attempt"]} if "attempt" in request.query else {}
    return frame_page(
        request,
        site,
        frame,
        "files",
        "files_preview",
        title=f"{spelled(path.rpartition('/')[2])} · Job {job.id}",
        refresh_s=None,
        query={**chosen, "folder": folder_of(prefix)},
        chosen=chosen,
        file=path,
        size=size,
        type=media_type(path),
        crc=crc,
        running=running,
        attempt=attempt,
        before=before,
        behind=behind,
        views=[(one, _VIEWS[one]) for one in views],
        view=view,
        crumbs=crumbs(prefix),
        folder_of=folder_of,
        quoted=quoted,
        visible=visible,
        spelled=spelled,
        inline=shown_as(path) is not None,
        **_content(view, data, start, size, window),
    )


def _content(view: str, data: bytes, start: int, size: int, window: _Window) -> dict[str, Any]:
    """What the template shows of the view."""
    at_end = start + len(data) >= size
    match view:
        case "table":
            decoded = decode(data, 0, at_end=at_end)
            return {"note": decoded.note, "table": read_table(decoded.text, at_end=at_end)}
        case "text":
            data = data[:WINDOW]
            at_end = start + len(data) >= size
            text = read_text(data, start, at_end=at_end, encoding=window[2])
            behind = None
            if text.stop < size:
                line = window[1] and window[1] + len(text.lines)
                behind = {"from": text.stop, "line": line, "encoding": text.encoding or None}
            return {
                "text": text,
                "note": text.note,
                "first_line": window[1],
                "start": start,
                "stop": text.stop,
                "following": behind,
                "last": max(0, size - _END) if text.stop < size else None,
            }
        case "hex":
            return {"rows": hex_rows(data)}
    return {}


def _views(path: str, size: int, data: bytes, start: int) -> list[str]:
    """How a file may be shown, the best way first."""
    kind, ending = media_type(path), path.lower().rpartition(".")[2]
    if not size:
        return ["empty"]
    svg = kind == "image/svg+xml"
    image = svg or (kind.startswith("image/") and shown_as(path) is not None)
    views = ["image"] if image and size <= _MOST_IMAGE else []
    if image and not svg:
        return [*views, "hex"]
    if kind == "application/pdf":
        return ["pdf", "hex"]
    if not start and is_binary(data):
        return [*views, "hex"]
    if ending in ("csv", "tsv", "tab") and not start:
        views.append("table")
    views.append("text")
    if kind == "text/html" and size <= _MOST_RENDERED:
        views.append("rendered")
    return views


async def _read(file: OpenedFile, start: int, stop: int) -> bytes:
    data = bytearray()
    if start < stop:
        async with aclosing(file.chunks(start, stop)) as chunks:
            async for chunk in chunks:
                data += chunk
    return bytes(data)


async def _beside(
    context: Context, job: Job, attempt: Attempt, path: str
) -> tuple[str | None, str | None]:
    """The files before and behind it in its folder, where that is known."""
    agent = live_agent(context, job, attempt, FILES)
    if agent is None:
        return await files_beside(context, job, attempt, path)
    found = await running_page(agent, job, attempt, path[: path.rfind("/") + 1], "", "")
    paths = [one.path for one in found.files]
    if path not in paths:
        return None, None
    at = paths.index(path)
    return paths[at - 1] if at else None, paths[at + 1] if at + 1 < len(paths) else None


async def rendered(request: web.Request, site: Site) -> web.StreamResponse:
    """A page that a job has written, for a frame of its preview. Nothing in it is run."""
    context, path = site.context, request.match_info["path"]
    frame = await job_frame(request, site)
    if request.headers.get("Sec-Fetch-Dest", "iframe") != "iframe":
        kept = ("attempt", LINK_PARAMETER)
        query = {name: request.query[name] for name in kept if name in request.query}
        there = f"{frame.address}/files/{quoted(path)}"
        return site.go_to(there, view="rendered", **query)
    attempt = await requested_attempt(request, context, frame.record)
    async with opened_file(context, frame.record, attempt, path) as file:
        if media_type(path) != "text/html" or file.size > _MOST_RENDERED:
            message = "only pages in HTML are shown so, and none that are too large"
            raise Refusal(HTTPStatus.CONFLICT, "not_rendered", message)
        whole = Part(HTTPStatus.OK, 0, file.size, {})
        return await send_chunks(request, whole, _RENDERED_HEADERS, file.chunks)


ROUTES: Final = (
    PageRoute("GET", f"{JOB_PAGE}/files/{{path}}", Area.JOBS, page, by_link=(Shows.JOB,)),
    PageRoute("GET", _RENDERED, Area.JOBS, rendered, by_link=(Shows.JOB,)),
)
