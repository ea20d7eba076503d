"""One folder of an attempt that runs, as its agent lists it now.

The agent lists all files in one order, folder by folder. Of a folder in the folder that is shown
only the first files are counted, then the list goes on behind it: a page costs a few calls,
whatever a job has written.
"""

from __future__ import annotations

from typing import Final

from server.domain.attempts import Attempt
from server.domain.jobs import Job
from server.http.running_files import MAX_FILES, list_running
from server.ports import Agent
from server.web.job.files.folder import ROWS, File, Folder, FolderPage

_CALLS: Final = 5
"""Of an agent, for one page."""
_LAST: Final = "\U0010ffff"
"""Behind all names."""


async def running_page(
    agent: Agent, job: Job, attempt: Attempt, prefix: str, name: str, after: str
) -> FolderPage:
    """As :func:`server.web.job.files.folder.folder_page`; ``after`` is a path of the whole list.

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
