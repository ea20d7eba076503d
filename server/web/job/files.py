"""The files of a job: a folder at a time, of a result or as an agent lists them now."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from urllib.parse import quote

from aiohttp import web

from server.agents.ferryman_agent import FerrymanAgent
from server.domain.access import Area
from server.domain.jobs import Attempt, Job
from server.domain.permits import Shows
from server.http.context import Context
from server.http.files import MAX_FILES, list_running, modified_at, requested_attempt, scan_stored
from server.http.logs import FILES, live_agent
from server.http.problems import Refusal
from server.http.route import JOB_PAGE, LINK_PARAMETER
from server.store import jobs
from server.web.job.content import spelled, visible
from server.web.job.frame import JobFrame, frame_page, job_frame
from server.web.site import PageRoute, Site
from shared.files.archives.zip_reader import ListedFile
from shared.http.authentication import PRINCIPAL
from shared.principals import Role

_LOST: frozenset[str] = frozenset({"", ".", ".."})
"""Parts of a path that browsers and proxies leave out."""


def quoted(path: str) -> str | None:
    """The path of a file as the end of an address; None: it cannot be one."""
    if path in (".", ".."):
        return None
    odd = not _LOST.isdisjoint(path.split("/"))
    return quote(path, safe="" if odd else "/", errors="surrogatepass")


def crumbs(prefix: str) -> list[tuple[str, str]]:
    """Name and prefix of each folder on the way to one."""
    parts = prefix.split("/")[:-1]
    return [(one, "/".join(parts[: at + 1]) + "/") for at, one in enumerate(parts)]


ROWS: Final = 200
"""On a page."""
_SENT: Final = "/"
"""Before the name of a file that is as it was sent, where it says how far a page came."""


@dataclass(slots=True)
class Folder:
    """A folder in a folder.

    Attributes:
        path: of all that is in it, up to its last slash.
        whole: whether all of its files were counted.
    """

    name: str
    path: str
    files: int = 0
    size: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class File:
    """A file.

    Attributes:
        name: below the folder that is shown.
    """

    name: str
    path: str
    size: int
    modified: datetime | None


@dataclass(frozen=True, slots=True)
class FolderPage:
    """A page of a folder.

    Attributes:
        folders, files: by name.
        inputs: files that are as they were sent; they come behind all others.
        count, size: of all files in it and below it; None: not counted.
        after: the next page begins behind it; None: there is none.
        running: they may change.
    """

    folders: list[Folder] = field(default_factory=list)
    files: list[File] = field(default_factory=list)
    inputs: list[File] = field(default_factory=list)
    count: int | None = None
    size: int | None = None
    after: str | None = None
    running: bool = False


def prefix_of(folder: str) -> str:
    """What the paths of all files in a folder begin with; ``""``: the root."""
    return folder if not folder or folder.endswith("/") else f"{folder}/"


def folder_of(prefix: str) -> str:
    """What :func:`prefix_of` makes the prefix of, as short as possible."""
    short = prefix[:-1]
    return short if short and not short.endswith("/") else prefix


def folder_page(
    listed: Iterable[ListedFile], prefix: str, name: str, after: str, most: int = ROWS
) -> FolderPage:
    """Go through all files once; memory is in proportion to the folders and one page.

    Args:
        prefix: of the folder.
        name: only files below it whose path has this text somewhere, whatever its case.
        after: as a page before gave it; empty: the first page.
    """
    start, wanted = len(prefix), name.casefold()
    folders: dict[str, Folder] = {}
    count = size = 0
    after_place = (after.startswith(_SENT), after.removeprefix(_SENT))

    def own() -> Iterator[ListedFile]:
        """Those that may be on the page; all are counted."""
        nonlocal count, size
        for one in listed:
            if not one.path.startswith(prefix):
                continue
            rest = one.path[start:]
            if wanted and wanted not in rest.casefold():
                continue
            count += 1
            size += one.size
            if not wanted and "/" in rest:
                inner = rest.partition("/")[0]
                if (folder := folders.get(inner)) is None:
                    folder = folders[inner] = Folder(inner, f"{prefix}{inner}/")
                folder.files += 1
                folder.size += one.size
            elif not after or after.endswith("/") or _place(one, start) > after_place:
                yield one

    # One more than fits: does a page follow?
    files = heapq.nsmallest(most + 1, own(), key=lambda one: _place(one, start))
    names: Iterable[str] = ()
    if not after:
        names = folders
    elif after.endswith("/"):
        names = (one for one in folders if one > after[:-1])
    shown = [folders[one] for one in heapq.nsmallest(most + 1, names)]
    more = len(shown) + len(files) > most
    shown, files = shown[:most], files[: max(0, most - len(shown))]
    last = None
    if more and files:
        last = f"{_SENT if files[-1].is_input else ''}{files[-1].path[start:]}"
    elif more:
        last = f"{shown[-1].name}/"
    new, inputs = (
        [_file(one, start) for one in files if one.is_input is sent] for sent in (False, True)
    )
    return FolderPage(shown, new, inputs, count, size, last)


def _place(one: ListedFile, start: int) -> tuple[bool, str]:
    return one.is_input, one.path[start:]


def _file(one: ListedFile, start: int) -> File:
    return File(one.path[start:], one.path, one.size, modified_at(one.modified))


_CALLS: Final = 5
"""Of an agent, for one page."""
_LAST: Final = "\U0010ffff"
"""Behind all names."""


async def running_page(
    agent: FerrymanAgent, job: Job, attempt: Attempt, prefix: str, name: str, after: str
) -> FolderPage:
    """As :func:`server.web.job.files.folder_page`; ``after`` is a path of the whole list.

    Raises:
        Refusal: the agent does not show them now.
    """
    wanted = name.casefold()
    folders: dict[str, Folder] = {}
    files: list[File] = []
    position: str | None = after or prefix[:-1]
    for _ in range(_CALLS):
        found, position = await list_running(agent, job, attempt, position or "", MAX_FILES)
        inner = None
        for one in found:
            if not one.path.startswith(prefix):
                inner = None
                continue
            rest = one.path[len(prefix) :]
            inner, slash, _ = rest.partition("/")
            if wanted or not slash:
                inner = None
                if wanted in rest.casefold():
                    files.append(File(rest, one.path, one.size, one.modified_at))
                continue
            folder = folders.setdefault(inner, Folder(inner, f"{prefix}{inner}/"))
            folder.files += 1
            folder.size += one.size
        if position is None or (prefix and found and not _may_follow(found[-1].path, prefix)):
            position = None
            break
        if inner is not None:
            folders[inner].whole = False
            position = f"{prefix}{inner}/{_LAST}"
        if len(files) + len(folders) >= ROWS:
            break
    shown = [folders[one] for one in sorted(folders)]
    files.sort(key=lambda one: one.name)
    return FolderPage(shown, files, after=position, running=True)


def _may_follow(path: str, prefix: str) -> bool:
    """Whether files with the prefix may stand behind the path."""
    return path.encode().split(b"/") <= [*prefix[:-1].encode().split(b"/"), _LAST.encode()]


_SAID: Final = frozenset(
    {
        "agent_unreachable",
        "files_move",
        "files_of_children",
        "no_live_files",
        "no_result",
        "not_started",
        "result_cleaned",
        "unreadable_result",
    }
)
"""Why there are no files to show; that is what the page says then."""
_MOST_ATTEMPTS: Final = 50


async def page(request: web.Request, site: Site) -> web.StreamResponse:
    """A folder of a result, or of what an attempt has written so far."""
    context = site.context
    frame = await job_frame(request, site)
    query, found, refused, attempt = request.query, FolderPage(), "", None
    prefix, name = prefix_of(query.get("folder", "")), query.get("name", "").strip()
    after = query.get("after", "")
    try:
        attempt = await requested_attempt(request, context, frame.record)
        found = await _folder(context, frame.record, attempt, (prefix, name, after))
    except Refusal as refusal:
        if refusal.code not in _SAID:
            raise
        refused = refusal.message
    newest = await context.core.database.read_list(jobs.attempts, frame.record.id, _MOST_ATTEMPTS)
    chosen = {"attempt": query["attempt"]} if "attempt" in query else {}
    here = {"folder": folder_of(prefix), "name": name}
    return frame_page(
        request,
        site,
        frame,
        "files",
        query={**chosen, **here, "after": after},
        found=found,
        after=after,
        refused=refused,
        link=request.query.get(LINK_PARAMETER),
        attempt=attempt,
        attempts=sorted(one.number for one in newest),
        chosen=chosen,
        here=here,
        where={**chosen, **here},
        zip_address=_whole(request, frame, attempt),
        crumbs=crumbs(prefix),
        folder_of=folder_of,
        quoted=quoted,
        visible=visible,
        spelled=spelled,
    )


def _whole(request: web.Request, frame: JobFrame, attempt: Attempt | None) -> str | None:
    """Where all files of the attempt are sent as they are stored; None: nowhere."""
    if attempt is None or attempt.result is None:
        return None
    address = f"/api/v1/jobs/{frame.job.id}"
    if attempt.number == frame.record.attempt and frame.job.links.result:
        return f"{address}/result"
    by_link = request[PRINCIPAL].role is Role.LINK  # it shows no other attempt's result
    return None if by_link else f"{address}/result?attempt={attempt.number}"


async def _folder(
    context: Context, job: Job, attempt: Attempt, where: tuple[str, str, str]
) -> FolderPage:
    agent = live_agent(context, job, attempt, FILES)
    if agent is not None:
        return await running_page(agent, job, attempt, *where)
    return await scan_stored(context, job, attempt, lambda listed: folder_page(listed, *where))


ROUTES: Final = (PageRoute("GET", f"{JOB_PAGE}/files", Area.JOBS, page, by_link=(Shows.JOB,)),)
