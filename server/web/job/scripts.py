"""What a page shows, as commands and as Python, to copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from aiohttp import web

from server.http.addresses import address
from server.http.paths import JOB
from server.web.site.site import Site

_CURL: Final = (
    ("status", "curl {auth}{job}"),
    ("wait for its end, at most a minute", "curl {auth}'{job}?wait=60'"),
    ("log, as it grows", "curl --no-buffer {auth}'{job}/logs?follow=1'"),
    ("download", "curl --fail --output job-{id}.zip {auth}{job}/result"),
    ("cancel", "curl --request POST {auth}{job}/cancel"),
)
_COMMANDS: Final = (
    ("status", "ferryman status {id} --url {server}"),
    ("wait for its end", "ferryman wait {id} --url {server}"),
    ("log, as it grows", "ferryman logs {id} --follow --url {server}"),
    ("download", "ferryman download {id} --output job-{id}.zip --url {server}"),
    ("cancel", "ferryman cancel {id} --url {server}"),
)
_PYTHON: Final = """\
{imports}from ferryman import SyncClient

with SyncClient("{server}"{token}) as client:
    print(client.status({id}).message)
    for piece in client.follow_log({id}):
        print(piece.decode(errors="replace"), end="")
    job = client.wait({id})
    if job.status == "Completed":
        client.download({id}, "job-{id}.zip")
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


def scripts(request: web.Request, site: Site, job_id: int) -> list[Way]:
    """The same things by curl, by the command line and from Python, for this server.

    No token stands in them: they take it from the variable FERRYMAN_TOKEN.
    """
    needed = site.context.token_needed
    values = {
        "id": str(job_id),
        "server": address(request, site.context, ""),
        "job": address(request, site.context, JOB.replace("{id}", str(job_id))),
        "auth": '--header "Authorization: Bearer $FERRYMAN_TOKEN" ' if needed else "",
        "imports": "import os\n\n" if needed else "",
        "token": ', token=os.environ["FERRYMAN_TOKEN"]' if needed else "",
    }
    return [
        Way("curl", tuple((what, text.format(**values)) for what, text in _CURL)),
        Way("Command line", tuple((what, text.format(**values)) for what, text in _COMMANDS)),
        Way("Python", (("", _PYTHON.format(**values)),)),
    ]
