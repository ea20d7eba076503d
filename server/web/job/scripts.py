"""What a page shows, as commands and as Python, to copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from server.domain.jobs import Job
from server.http.addresses import address
from server.http.paths import JOB
from server.web.site.site import Site
from shared.wire import JobState

_DOWNLOAD: Final = "{download}"
_CURL: Final = (
    ("status", "curl {auth}{job}"),
    ("wait for its end, at most a minute", "curl {auth}'{job}?wait=60'"),
    ("log, as it grows", "curl --no-buffer {auth}'{job}/logs?follow=1'"),
    (_DOWNLOAD, "curl --fail --output job-{id}.zip {auth}{zip}"),
    ("cancel", "curl --request POST {auth}{job}/cancel"),
)
_COMMANDS: Final = (
    ("status", "ferryman status {id} --url {server}"),
    ("wait for its end", "ferryman wait {id} --url {server}"),
    ("log, as it grows", "ferryman logs {id} --follow --url {server}"),
    (_DOWNLOAD, "ferryman download {id} {partial}--output job-{id}.zip --url {server}"),
    ("cancel", "ferryman cancel {id} --url {server}"),
)
_PYTHON: Final = """\
{imports}from ferryman import SyncClient

with SyncClient("{server}"{token}) as client:
    print(client.status({id}).message)
    for piece in client.follow_log({id}):
        print(piece.decode(errors="replace"), end="")
    job = client.wait({id})
    client.download({id}, "job-{id}.zip", partial=job.status != "Completed")
    # client.cancel({id})
"""


@dataclass(frozen=True, slots=True)
class Way:
    """A way to do it.

    Attributes:
        texts: what each does (empty: all of it), and the text to copy.
    """

    name: str
    texts: tuple[tuple[str, str], ...]


def scripts(request: web.Request, site: Site, job: Job) -> list[Way]:
    """The same things by curl, by the command line and from Python, for this server.

    No token stands in them: they take it from the variable FERRYMAN_TOKEN.
    """
    needed = site.context.token_needed()
    job_id, partial = job.id, job.ended and job.state is not JobState.COMPLETED
    here = JOB.replace("{id}", str(job_id))
    result = f"/download_partial/{job_id}" if partial else f"{here}/result"
    values = {
        "id": str(job_id),
        "server": address(request, site.context, ""),
        "job": address(request, site.context, here),
        "zip": address(request, site.context, result),
        "download": "download what it left" if partial else "download",
        "partial": "--partial " if partial else "",
        "auth": '--header "Authorization: Bearer $FERRYMAN_TOKEN" ' if needed else "",
        "imports": "import os\n\n" if needed else "",
        "token": ', token=os.environ["FERRYMAN_TOKEN"]' if needed else "",
    }
    # Of one that is cleaned there is nothing to fetch.
    left_out = _DOWNLOAD if job.state is JobState.CLEANED else None

    def texts(rows: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        kept = [row for row in rows if row[0] != left_out]
        return tuple((what.format(**values), text.format(**values)) for what, text in kept)

    return [
        Way("curl", texts(_CURL)),
        Way("Command line", texts(_COMMANDS)),
        Way("Python", texts((("", _PYTHON),))),
    ]
