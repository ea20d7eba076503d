"""How the server is: every trouble in a sentence, with what to do about it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from pydantic import AwareDatetime, Field

from server.domain.troubles import SERVER_TROUBLES, Trouble, TroubleKind
from server.http import agent_documents, reads
from server.http.context import Context
from server.stages.services import gone
from shared.clock import utc
from shared.sqlite.errors import DatabaseUnavailable
from shared.wire import AgentDoc, AgentState, JobState, Wire, say_gone

ADVICE: Final[Mapping[TroubleKind, str]] = {
    TroubleKind.LOOP_STUCK: "look into the server's log for sweep.failed; restart the server if "
    "nothing there helps: no job is lost by that",
    TroubleKind.DATABASE_DAMAGED: "stop the server, and restore the latest backup (ferryman server "
    "restore); keep a copy of the damaged file",
    TroubleKind.DATABASE_FULL: "make room on the disk of the database; the server goes on by "
    "itself as soon as there is some",
    TroubleKind.DATABASE_UNUSABLE: "look at the disk and the permissions of the database file; the "
    "server tries again by itself",
    TroubleKind.DISK_FULL: "make room on the disk of the data folder, delete jobs that nobody "
    "needs, or let their files expire sooner (expires_after)",
    TroubleKind.RESULTS_WAITING: "make room on the disk of the data folder: they are stored as "
    "soon as it is enough for them. Until then no jobs are sent and no uploads are taken, and the "
    "agents keep the results",
    TroubleKind.DATA_FOLDER_UNWRITABLE: "look at what it says: the permissions of the data "
    "folder, a disk that was mounted for reading only or has no inodes left (df -i), or the limit "
    "of open files (LimitNOFILE)",
    TroubleKind.DATA_FOLDER_SILENT: "look at the disk or network share of the data folder: it does "
    "not answer",
    TroubleKind.FILES_UNKNOWN: "look whether the database is the right one; if it is, the server "
    "deletes them some at a time, and ferryman admin verify --repair, with the server stopped, all "
    "at once",
    TroubleKind.FILES_MOVED_ASIDE: "the database did not know them when the server started: look "
    "whether somebody misses them, then remove the folder",
    TroubleKind.NO_AGENTS: "start an agent on a compute host, name it in the server's settings, "
    "and restart the server",
    TroubleKind.AGENT_AWAY: "look whether the agent runs on its host and can be reached from here; "
    "its jobs are followed again when it is back. If it will not come back, declare it lost",
    TroubleKind.AGENT_UNFIT: "look at what the agent says, and run ferryman agent check on its "
    "host; its results are fetched all the same",
    TroubleKind.AGENT_CLOCK: "set the clock that is wrong (timedatectl status); no job is lost by "
    "it, and its scripts see the wrong time",
    TroubleKind.AGENT_VERSION: "bring agent and server to the same version, in any order: jobs "
    "go on meanwhile",
    TroubleKind.AGENT_LOST: "start it again, or retire it if it is gone for good; its jobs are "
    "tried again elsewhere",
    TroubleKind.AGENT_DRAINING: "resume it when its host may be used again, or retire it when it "
    "has no jobs left",
    TroubleKind.SERVICE_NOT_OFFERED: "start an agent that offers it, or look at the services that "
    "the agents offer: until then its jobs wait",
    TroubleKind.SERVICE_PAUSED: "resume it when its jobs may be sent again",
    TroubleKind.SERVICE_GONE: "put it back into the settings, move its jobs to another service "
    "(ferryman services move) or cancel them; else those that wait fail after agent_lost_after",
}
"""What to do about each kind of trouble."""


class TroubleDoc(Wire):
    """Something that is wrong."""

    kind: TroubleKind
    """What is wrong, for programs."""
    message: str
    """A sentence for people."""
    advice: str
    """What to do about it."""
    about: str = ""
    """Name of the agent, service or loop that it is about."""
    is_serious: bool
    """Whether it keeps the server from taking new work."""


class DiskDoc(Wire):
    """The disk with the server's data folder. Sizes in bytes."""

    free: int
    """What is free."""
    total: int
    """How large it is."""
    min_free: int
    """What uploads must leave."""


class LoopDoc(Wire):
    """Something that the server does again and again."""

    name: str
    """What it is called in the log."""
    last_ok_s: float
    """Seconds since it was done last."""
    stuck: bool
    """Whether that is far longer ago than it should be."""


class StatusDoc(Wire):
    """``GET /api/v1/status``: whether all is well, and how the server's parts are."""

    status: Literal["ok", "attention", "error"]
    """attention: new work is welcome, and something should be looked at; error: it is not."""
    version: str
    """Of the server."""
    started_at: AwareDatetime
    """Since when it runs."""
    troubles: list[TroubleDoc] = Field(default_factory=list)
    """Those that keep it from new work come first."""
    disk: DiskDoc | None = None
    """null: it does not answer."""
    database_bytes: int | None = None
    """What the database takes on disk; null: it cannot be read."""
    database_free_bytes: int | None = None
    """Of these, what is not in use; null: it cannot be read."""
    day_jobs: int | None = None
    """Jobs that were uploaded in the last day; null: they cannot be counted now."""
    day_bytes: int | None = None
    """Bytes of the bundles and results that were stored in it; null: likewise."""
    queued: int | None = None
    """Jobs that wait; null: they cannot be counted now."""
    in_work: int | None = None
    """Slots that jobs hold; null: they cannot be counted now."""
    slots: int = 0
    """Of the agents that take jobs."""
    agents_up: int = 0
    """Agents that take jobs."""
    agents: int = 0
    """Agents that are not retired."""
    uploads: int = 0
    """Under way now."""
    most_uploads: int
    """How many may be."""
    loops: list[LoopDoc] = Field(default_factory=list)
    """What it does again and again."""


async def status_of(context: Context) -> StatusDoc:
    """How the server is now. It is made without the database, too."""
    found, vitals = await context.troubles(), await context.vitals()
    found = [*found, *context.files_to_look_at()]
    queued = in_work = day_jobs = day_bytes = None
    agents: Sequence[AgentDoc] = ()
    with contextlib.suppress(DatabaseUnavailable):  # one of the troubles says so
        agents = await agent_documents.listed(context, every=False)
        queued = await context.statistics.queued()
        day_jobs, day_bytes = await context.statistics.last_day()
        in_work = sum(one.slots for one in await context.jobs.held())
        found = [*found, *_of_agents(agents, context.version)]
        for name, load in (await gone(context.services, context.jobs)).items():
            text = say_gone(name, load.by_state[JobState.QUEUED], load.in_work)
            found.append(Trouble(TroubleKind.SERVICE_GONE, text, name))
    found += [
        Trouble(
            TroubleKind.AGENT_UNFIT,
            f"agent {name} gets no new jobs: what a job left there does not fit on the disk",
            name,
        )
        for name in sorted(context.results_waiting.held())
    ]
    found = sorted(
        [*found, *_of_services(context)], key=lambda one: one.kind not in SERVER_TROUBLES
    )
    is_serious = any(one.kind in SERVER_TROUBLES for one in found)
    return StatusDoc(
        status="error" if is_serious else "attention" if found else "ok",
        version=context.version,
        started_at=utc(vitals.started_at),
        troubles=[_document(one) for one in found],
        disk=None
        if vitals.disk is None
        else DiskDoc(free=vitals.disk.free, total=vitals.disk.total, min_free=vitals.disk.min_free),
        database_bytes=vitals.database_bytes,
        database_free_bytes=vitals.database_free_bytes,
        day_jobs=day_jobs,
        day_bytes=day_bytes,
        queued=queued,
        in_work=in_work,
        slots=sum(one.slots or 0 for one in agents if one.up),
        agents_up=sum(one.up for one in agents),
        agents=sum(one.state is not AgentState.RETIRED for one in agents),
        uploads=context.upload_limits.under_way,
        most_uploads=reads.AT_ONCE,
        loops=[
            LoopDoc(name=one.name, last_ok_s=round(one.last_ok_s, 1), stuck=one.stuck)
            for one in vitals.loops
        ],
    )


def _document(trouble: Trouble) -> TroubleDoc:
    return TroubleDoc(
        kind=trouble.kind,
        message=trouble.text,
        advice=ADVICE[trouble.kind],
        about=trouble.about,
        is_serious=trouble.kind in SERVER_TROUBLES,
    )


def _of_agents(agents: Sequence[AgentDoc], version: str) -> list[Trouble]:
    in_use = [one for one in agents if one.state is not AgentState.RETIRED]
    if not in_use:
        return [Trouble(TroubleKind.NO_AGENTS, "there is no agent, so no job can run")]
    found = []
    for one in in_use:
        for kind, text in (
            (TroubleKind.AGENT_CLOCK, agent_documents.of_clock(one)),
            (TroubleKind.AGENT_VERSION, agent_documents.of_version(one, version)),
        ):
            if text:
                found.append(Trouble(kind, f"agent {one.name}: {text}", one.name))
        kind, text = TroubleKind.AGENT_UNFIT, one.trouble
        if one.up:
            continue
        if one.state is AgentState.LOST:
            kind, text = TroubleKind.AGENT_LOST, f"agent {one.name} is lost: {one.message}"
        elif not one.reachable:
            kind = TroubleKind.AGENT_AWAY
        elif one.state is AgentState.DRAINING:
            kind, text = TroubleKind.AGENT_DRAINING, f"{one.trouble}: {one.message}"
        found.append(Trouble(kind, text, one.name))
    return found


def _of_services(context: Context) -> list[Trouble]:
    found = []
    for one in context.services.values():
        if one.retired:
            continue
        if one.paused:
            text = f"service {one.name} is paused: {one.paused_message}"
            found.append(Trouble(TroubleKind.SERVICE_PAUSED, text, one.name))
        elif not context.fleet.offered(one.name):
            text = f"no agent offers the service {one.name}"
            found.append(Trouble(TroubleKind.SERVICE_NOT_OFFERED, text, one.name))
    return found
