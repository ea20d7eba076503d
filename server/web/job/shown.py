"""What the first page of a job shows of it: its states as a drawing, what it used of what it may
use, what somebody whose job failed can do, and the same things as commands and as Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from aiohttp import web

from server.domain import states
from server.domain.jobs import Job
from server.http.permits import address
from server.http.route import JOB
from server.web.site import Site
from shared.units.durations import say_duration
from shared.units.sizes import say_size
from shared.wire import HistoryEntry, JobState, Reason

# -- the timeline

_MOST: Final = 30
"""Pieces that are drawn; of a longer history the newest."""
_WIDTH: Final = 100.0
_LEAST: Final = 3.2
"""Width of the shortest piece, where there is room for it: its shape can be seen."""
_GAP: Final = 0.25


@dataclass(frozen=True, slots=True)
class Piece:
    """One state.

    Attributes:
        x, width: of 100.
        going_on: it is the state now, and may change.
    """

    entry: HistoryEntry
    x: float
    width: float
    going_on: bool

    @property
    def state(self) -> JobState:
        return self.entry.status

    @property
    def room(self) -> str:
        """What can be written into it: ``long`` and ``word`` (of these not on a phone) have the
        state and its duration, ``shape`` the shape alone, as ``""`` has not even that.
        """
        if self.width >= 30:
            return "long"
        return "word" if self.width >= 20 else "shape" if self.width >= _LEAST - _GAP else ""


def pieces(history: Sequence[HistoryEntry]) -> list[Piece]:
    """What is drawn: as long as the states lasted, but each of them visible.

    An end is drawn short: how long ago it was says nothing about the job.
    """
    shown = _merged(history)[-_MOST:]
    if not shown:
        return []
    lasted = [0.0 if one.status in states.ENDED else one.seconds for one in shown]
    least = min(_LEAST, _WIDTH / len(shown))
    rest, total = _WIDTH - least * len(shown), sum(lasted)
    found, x = [], 0.0
    for number, (entry, seconds) in enumerate(zip(shown, lasted, strict=True), 1):
        part = seconds / total if total else 1 / len(shown)
        width = least + rest * part
        now = number == len(shown) and entry.status not in states.ENDED
        found.append(Piece(entry, round(x, 2), round(max(width - _GAP, 0.1), 2), now))
        x += width
    return found


def took_s(history: Sequence[HistoryEntry]) -> float:
    """Seconds from the upload to the end, or until now."""
    return sum(one.seconds for one in history if one.status not in states.ENDED)


def _merged(history: Sequence[HistoryEntry]) -> list[HistoryEntry]:
    """One entry where a state follows itself, as of a parent that goes on with its children."""
    found: list[HistoryEntry] = []
    for entry in history:
        last = found[-1] if found else None
        if last and (last.status, last.attempt) == (entry.status, entry.attempt):
            found[-1] = last.model_copy(update={"seconds": last.seconds + entry.seconds})
        else:
            found.append(entry)
    return found


# -- resources


@dataclass(frozen=True, slots=True)
class Bar:
    """One limit.

    Attributes:
        used: None: not known.
        enforced: ``hard``, ``soft``, ``none``; empty: not known, or nothing to enforce.
    """

    label: str
    used: float | None
    limit: float
    text: str
    enforced: str = ""


def bars(one: Job, stdout_bytes: int | None, stderr_bytes: int | None) -> list[Bar]:
    """What is known, against the limits; all of them, for one that has not run, too.

    Args:
        one: the job with the facts of its latest attempt.
        stdout_bytes, stderr_bytes: what its logs hold; each of them may have the limit.
    """
    logs = [size for size in (stdout_bytes, stderr_bytes) if size is not None]
    usage, limits = one.usage, one.limits
    wall_s, cpu_s = (usage.wall_s, usage.cpu_s) if usage else (None, None)
    memory = usage.peak_memory_bytes if usage else None
    result = one.result.size if one.result else None

    def bar(
        label: str, key: str, used: float | None, limit: float, say: Callable[[float], str]
    ) -> Bar:
        if not limit:  # of time only
            return Bar(label, None, limit, "no limit" if used is None else f"{say(used)}, no limit")
        text = f"up to {say(limit)}" if used is None else f"{say(used)} of {say(limit)}"
        return Bar(label, used, limit, text, one.enforcement.get(key, ""))

    cpu = bar("CPU", "cpu", None, limits.cpus, _say_cpus)
    if cpu_s is not None and wall_s:  # of what so many processors give in the time that it ran
        load = cpu_s / wall_s
        text = f"{say_duration(cpu_s)}: {round(load, 2):g} of {_say_cpus(limits.cpus)}"
        cpu = replace(cpu, used=load, text=text)
    return [
        bar("Memory", "memory", memory, limits.memory, say_size),
        bar("Time", "wall", wall_s, one.timeout_s, say_duration),
        cpu,
        bar("Log", "log", max(logs, default=None), limits.log, say_size),
        bar("Result (ZIP)", "results", result, limits.results, say_size),
        bar("Disk", "disk", None, limits.disk, say_size),
        bar("Processes", "pids", None, limits.pids, "{:g}".format),
    ]


def _say_cpus(count: float) -> str:
    return f"{count:g} {'CPU' if count == 1 else 'CPUs'}"


# -- advice

_NOT_THE_BUNDLE: Final = (
    "It failed through no fault of its bundle, and no tries were left. Retry it; if that does not "
    "help, tell the operator."
)
ADVICE: Final[dict[Reason, str]] = {
    Reason.EXIT_CODE: "Read the last lines of stderr below and the log. Exit code 127 means that "
    "a program was not found, 126 that it could not be executed.",
    Reason.TIMEOUT: "If the upload asked for less time than the service allows, run it again with "
    "a longer timeout. Otherwise make the work smaller, or ask the operator.",
    Reason.HEARTBEAT_TIMEOUT: "It wrote nothing for longer than it may. Print progress or "
    "::heartbeat:: now and then; the end of the log shows where it stood.",
    Reason.QUEUE_TIMEOUT: "It was not started in time. Upload it again when fewer jobs wait, or "
    "with a longer queue timeout.",
    Reason.MEMORY_LIMIT: "The bars below show what it needed. If the upload asked for less memory "
    "than the service allows, run it again with more. Otherwise make the work smaller.",
    Reason.CPU_LIMIT: "Start fewer processes and threads at once: FERRYMAN_CPUS says how many "
    "processors there are.",
    Reason.PIDS_LIMIT: "Start fewer processes at once.",
    Reason.DISK_LIMIT: "Bundle, files and results together need more disk than it may use. Delete "
    "what is not needed before the end.",
    Reason.LOG_LIMIT: "It printed too much. Print less, or write to a file.",
    Reason.RESULTS_LIMIT: "What it left is too large. Delete what nobody needs before the end, or "
    "name the files that you want (outputs) at the upload.",
    Reason.INVALID_BUNDLE: "The message names the file that is wrong. Correct it, and upload the "
    "bundle again.",
    Reason.CHILD_FAILED: "Look at the children that failed. Retry those while the parent runs; "
    "once it has ended, retry the parent: children that completed keep their results.",
    Reason.DEPENDENCY_FAILED: "A job that it was to start after did not complete. Retry that one, "
    "then this one.",
    Reason.NOT_OFFERED: "No agent offers this service now. Ask the operator.",
    Reason.SANDBOX_ERROR: _NOT_THE_BUNDLE,
    Reason.AGENT_ERROR: _NOT_THE_BUNDLE,
    Reason.AGENT_UNREACHABLE: _NOT_THE_BUNDLE,
    Reason.AGENT_LOST: _NOT_THE_BUNDLE,
    Reason.SHUTDOWN: _NOT_THE_BUNDLE,
}
"""For every reason."""


# -- scripts

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


Texts: TypeAlias = tuple[tuple[str, str], ...]


def scripts(request: web.Request, site: Site, job: Job) -> dict[str, Texts]:
    """The same things by curl, by the command line and from Python, for this server: what each text
    does (empty: all of it), and the text to copy.

    No token stands in them: they take it from the variable FERRYMAN_TOKEN.
    """
    needed = site.context.access.known.needed
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

    def texts(rows: Texts) -> Texts:
        kept = [row for row in rows if row[0] != left_out]
        return tuple((what.format(**values), text.format(**values)) for what, text in kept)

    return {
        "curl": texts(_CURL),
        "Command line": texts(_COMMANDS),
        "Python": texts((("", _PYTHON),)),
    }
