"""Uploads: the fields of their forms, what is checked while they come, and the job."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, TypeAlias

from aiohttp import web

from server.domain.access import Area, visible
from server.domain.allowances import DAY
from server.domain.errors import BadField, BundleTooLarge
from server.domain.jobs import Job
from server.domain.permits import LINK_OF_UPLOAD_S, Link, Shows, Ticket
from server.domain.retry import BackoffKind
from server.domain.schedules import NOT_REPEATED
from server.domain.upload_fields import HEADER, check_field, given, upload_request
from server.http.context import Context
from server.http.params import Param
from server.http.permits import TICKET, links_by, with_query
from server.http.problems import Refusal, wants_page
from server.http.route import JOB_PAGE, TICKET_PARAMETER, Body, Route, json_answer
from server.stages.accept import QUEUED
from server.storage.scratch import ScratchFile
from server.store import tokens
from shared import wire
from shared.clock import SECOND
from shared.files.bundles.format import BundleSummary
from shared.files.staged_file import ReserveSpace
from shared.http.authentication import PRINCIPAL
from shared.http.request_body import send_continue
from shared.http.request_log import UPLOADED_AS, UPLOADED_ID
from shared.multipart.parser import FormLimits, FormRefused
from shared.multipart.receive import receive
from shared.multipart.sinks import BundleSink, Sink
from shared.principals import Scope
from shared.units.sizes import say_size
from shared.wire import StatusBody


def field_of(text: str, such: str, **more: Any) -> Param:
    """A field of a form: what it means, and an example."""
    return Param(text, {"type": "string", **more}, such)


def _duration(text: str, such: str) -> Param:
    return field_of(text, such, pattern=r"^(\d{1,3}[wdhms])?$")


def words_of(text: str, such: str, values: tuple[str, ...]) -> Param:
    """One that is one of some words, or left empty."""
    return field_of(text, such, enum=["", *values])


_SIZE: Final = r"^([1-9]\d{0,3}[MG]i?B)?$"
_IDS: Final = r"^([1-9]\d{0,8}(,[1-9]\d{0,8})*)?$"
_DELAYS: Final = r"^(\d{1,3}[dhms](,\d{1,3}[dhms])*)?$"
_TAGS: Final = r"^([A-Za-z0-9_.-]{1,64}(,[A-Za-z0-9_.-]{1,64})*)?$"

FIELDS: Final[Mapping[str, Param]] = {
    "name": field_of("a name for people", "first try", maxLength=200),
    "tags": field_of("separated by commas", "batch-7,test", pattern=_TAGS),
    "priority": field_of(
        "-100 to 100, the higher comes first among the user's own jobs",
        "10",
        pattern=r"^([+-]?(\d{1,2}|100))?$",
    ),
    "not_before": field_of("when it may start: a time with its offset from UTC, or in 2h", "in 2h"),
    "meta": field_of("a JSON object that is kept with the job, up to 16 KiB", '{"sample": 7}'),
    "after": field_of("jobs that have to complete before it starts", "17,18", pattern=_IDS),
    "inputs_from": field_of("likewise; it gets their result files", "17", pattern=_IDS),
    "array": field_of("a child for each index: 0-99, 0-99:10, 1,5,9-12", "0-99"),
    "array_file": field_of("in place of array: a child for each line of this file", "params.txt"),
    "max_parallel": field_of("most children under way at once", "10", pattern=r"^(\d{1,6})?$"),
    "batch_policy": words_of(
        "fail_fast: the first child that fails ends the others",
        "fail_fast",
        ("wait_all", "fail_fast"),
    ),
    "callback_url": field_of(
        "where its end is posted", "https://portal.example.org/hooks", maxLength=2000
    ),
    "outputs": field_of("patterns of the files that its result is to have", "out/*.csv,best.pdb"),
    "result_files": words_of(
        "all, or changed: without files that are as they were sent", "changed", ("all", "changed")
    ),
    "timeout": _duration("wall time of an attempt; lowers the service's; 0s: none", "30m"),
    "queue_timeout": _duration("longest wait for a start; lowers the service's", "2h"),
    "heartbeat_timeout": _duration("longest silence of an attempt; lowers the service's", "10m"),
    "expires_after": _duration("how long it is kept after its end; lowers the service's", "2d"),
    "retries": field_of("how often a failure is tried again", "3", pattern=r"^(\d{1,6})?$"),
    "retry_delays": field_of("before each retry; the last one repeats", "10s,1m", pattern=_DELAYS),
    "backoff": words_of("in place of retry_delays", "linear", tuple(map(str, BackoffKind))),
    "retry_delay": _duration("the base of backoff", "30s"),
    "max_retry_delay": _duration("the longest delay of backoff", "1h"),
    "retry_on": field_of(
        "reason codes and exit codes that are tried again; in place of the service's",
        "timeout,exit:3",
    ),
    "no_retry_on": field_of("those that are not", "memory_limit"),
    "memory": field_of("lowers the service's", "512MB", pattern=_SIZE),
    "cpus": field_of("lowers the service's", "0.5", pattern=r"^(\d{1,9}(\.\d{1,9})?)?$"),
    "pids": field_of("lowers the service's", "64", pattern=r"^(\d{1,9})?$"),
    "disk": field_of("lowers the service's", "1GiB", pattern=_SIZE),
}
"""Optional ones. Their examples are no defaults: forms stay empty. Patterns show the usual way to
write a value."""
NEEDED: Final = {
    "user_id": field_of("whose job it is", "1", pattern="^[A-Za-z0-9._@-]{1,64}$"),
    "service": field_of("what kind of work it is; GET /api/v1/services lists them", "example"),
}


_IN_MEMORY: Final = 64 << 10
"""Bytes of a bundle that is not written to scratch space first."""
CheckField: TypeAlias = Callable[[str, str], None]
"""Refuses a field as soon as it is known to be wrong."""
MakeSink: TypeAlias = Callable[[Path, FormLimits, ReserveSpace], Sink]
"""Makes what writes the files."""
ChooseSink: TypeAlias = Callable[[Mapping[str, str]], MakeSink]
"""By the fields so far, to which those that follow are added. May refuse."""


@dataclass(frozen=True, slots=True)
class Form:
    """A form that has arrived as a whole."""

    fields: Mapping[str, str]
    content: ScratchFile
    """The bundle, whole and synced, unless ``bundle`` has its bytes; removed at the end."""
    bundle: BundleSummary


async def check_head(
    request: web.Request,
    context: Context,
    fields: Mapping[str, str],
    check: CheckField,
    most: int | None = None,
) -> dict[str, str]:
    """Check what is known before the body.

    Args:
        fields: those that the head gives.
        most: bytes that the form may have; None: as the server allows.

    Returns:
        Those of them that are not empty; the user is that of the request where it has one.
    """
    # Not request.content_type: that costs a mail parser for each upload.
    kind = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if kind != "multipart/form-data":
        raise Refusal(
            HTTPStatus.BAD_REQUEST,
            "not_multipart",
            f"Multipart error: the upload must be multipart/form-data, not {kind or 'nothing'}",
        )
    own = visible(request[PRINCIPAL]).user_id
    if own is not None:
        fields = {"user_id": own, **fields}
    for name, value in fields.items():
        check(name, value)
    length, limits = request.content_length or 0, _limits(context, most)
    if length > limits.max_bytes + (0 if most is None else limits.max_overhead):
        whose = "this server takes" if most is None else "its ticket allows"
        raise Refusal(
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            "upload_too_large",
            f"the upload is {say_size(length)}, the most {whose} is {say_size(limits.max_bytes)}",
        )
    if (waiting := context.stages.get.results).hold_uploads():
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "disk_full",
            f"no upload is taken now: {waiting.sentence()}",
            retry_after_s=60,
        )
    if (free := await context.core.scratch.too_full_for(length)) is not None:
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "disk_full",
            f"the server's disk has {say_size(free)} free, which is too little for this upload",
            retry_after_s=60,
        )
    return given(fields)


@asynccontextmanager
async def received_form(
    request: web.Request,
    context: Context,
    fields: Mapping[str, str],
    check: CheckField,
    most: int | None = None,
    choose_sink: ChooseSink | None = None,
) -> AsyncIterator[Form]:
    """Receive the body.

    Args:
        fields: what the head gave, checked.
        most: bytes that its files may have; None: as the server allows.
        choose_sink: also for a form without files; None: they become a bundle as they are.
    """
    form_limits = _limits(context, most)
    async with AsyncExitStack() as stack:
        in_flight = stack.enter_context(context.pools.uploads.admit(request.content))
        content = await stack.enter_async_context(context.core.scratch.file())
        if "user_id" in fields:
            in_flight.count_for(fields["user_id"])

        def on_field(name: str, value: str, _: dict[str, str]) -> None:
            check(name, value)
            if name == "user_id":
                in_flight.count_for(value)

        too_large: BundleTooLarge | None = None

        def on_first_file(so_far: dict[str, str]) -> Sink:
            nonlocal too_large
            make = _bundle_sink if choose_sink is None else choose_sink(so_far)
            # What is known to be too large for its job need not be read to the end.
            too_large = context.stages.accept.too_large({**fields, **so_far})
            limits = form_limits
            if too_large is None or too_large.most >= form_limits.max_bytes:
                too_large = None
            else:
                limits = dataclasses.replace(form_limits, max_bytes=too_large.most)
            return make(content.path, limits, content.reserve)

        await send_continue(request)
        try:
            received = await receive(
                in_flight.body(),
                request.headers.get("Content-Type", ""),
                request.content_length,
                staging=content.path,
                limits=form_limits,
                user_agent=request.headers.get("User-Agent", ""),
                naming="filename",
                on_field=on_field,
                on_first_file=on_first_file,
                may_have_no_file=choose_sink is not None,
                reserve=content.reserve,
                threads=context.pools.upload_threads.for_upload(fields.get("user_id", "")),
            )
        except FormRefused as problem:
            if problem.code == "too_large" and too_large is not None:
                raise too_large from None
            raise
        content.made = received.bundle.content is None
        complete = {**fields, **received.fields}
        if complete.get("callback_url"):
            await context.stages.webhooks.check(complete["callback_url"])
        yield Form(complete, content, received.bundle)


def _bundle_sink(path: Path, limits: FormLimits, reserve: ReserveSpace) -> Sink:
    return BundleSink(path, limits, "filename", reserve=reserve, keep=_IN_MEMORY)


def _limits(context: Context, most: int | None) -> FormLimits:
    limits = context.core.settings.server.form_limits
    if most is None or most >= limits.max_bytes:
        return limits
    return dataclasses.replace(limits, max_bytes=most)


_OF_OTHERS: Final = ("after", "inputs_from")
"""Fields that name other jobs."""
_KEPT: Final = 30 * DAY
"""How long a used ticket is known after its end: uploads that began before it may come slowly."""


class UploadForm:
    """What a form is made of. That of programs has the fields of an upload, and nothing else.

    Attributes:
        own: further fields, in the form or in the query, that are no fields of an upload.
        choose_sink: what writes its files; None: they become a bundle as they are.
    """

    own: frozenset[str] = frozenset({TICKET_PARAMETER})
    choose_sink: ChooseSink | None = None

    def take(self, name: str, value: str, check: CheckField) -> None:
        """A field has come.

        Args:
            check: refuses a field of an upload that is wrong.
        """
        check(name, value)


async def accept_upload(
    request: web.Request, context: Context, form: UploadForm | None = None
) -> tuple[Job, bool]:
    """Queue the bundle of a multipart form.

    Returns:
        The job, and whether it is new (False: a repeat under the same Idempotency-Key).

    Raises:
        FerrymanError, FormRefused, Refusal
    """
    form = form or UploadForm()
    principal, ticket = request[PRINCIPAL], request.get(TICKET)
    fixed = {} if ticket is None else {"user_id": ticket.user_id, **ticket.fields}

    def check(name: str, value: str) -> None:
        if fixed.get(name, value) != value:
            message = f"Invalid {name}: the upload ticket says {fixed[name]!r}, not {value[:64]!r}"
            raise BadField(name, "fixed_by_ticket", message)
        if ticket is not None and name in _OF_OTHERS and name not in fixed:
            # A portal may have one user for all its visitors: they must not read by number what
            # other visitors got.
            message = f"Invalid {name}: with an upload ticket only the ticket itself names jobs"
            raise BadField(name, "fixed_by_ticket", message)
        check_field(name, value, context.core.services, principal)

    def take(name: str, value: str) -> None:
        form.take(name, value, check)

    fields = {name: value for name, value in request.query.items() if name not in form.own}
    key = request.headers.get("Idempotency-Key")
    if key is not None:
        fields[HEADER] = key
    most = None if ticket is None else ticket.max_bytes
    given = await check_head(request, context, fields, take, most)
    fields = given | fixed
    if ticket is not None:
        await context.stages.accept.check_ticket(ticket, key)
    if "service" in fields and "user_id" in fields:
        asked = upload_request(fields, context.core.services, principal)
        await context.stages.accept.check_quota(asked, request.content_length or 0)
    async with received_form(request, context, fields, take, most, form.choose_sink) as received:
        complete = {name: value for name, value in received.fields.items() if name not in form.own}
        asked = upload_request(complete, context.core.services, principal)
        context.access.check_not_revoked(request)
        used = ticket and dataclasses.replace(ticket, expires_at=ticket.expires_at + _KEPT)
        job, is_new = await context.stages.accept(
            principal, asked, received.content, received.bundle, used
        )
    request[UPLOADED_ID], request[UPLOADED_AS] = job.id, (job.user_id, job.service)
    return job, is_new


_FILES: Final = {
    "file": {
        "type": "array",
        # Without an example, Swagger's page sends "string" while no file is chosen.
        "items": {"type": "string", "format": "binary", "example": ""},
        "minItems": 1,
        "description": "the bundle's files, run.sh among them; names may hold /",
    },
    "bundle": {
        "type": "string",
        "format": "binary",
        "description": "instead of files: one .zip, .tar or .tar.gz",
    },
}


def _form(needed: Mapping[str, Param], optional: Mapping[str, Param]) -> Body:
    properties: dict[str, Any] = {
        name: {**one.schema, "description": one.text, "example": one.example}
        for name, one in needed.items()
    }
    for name, one in optional.items():
        # Swagger's form would send "string" in a field that has no example.
        text = f"{one.text}, such as {one.example}"
        properties.setdefault(name, {**one.schema, "description": text, "example": ""})
    schema = {
        "type": "object",
        "required": list(needed),
        "anyOf": [{"required": [name]} for name in _FILES],
        "properties": properties | _FILES,
        "additionalProperties": False,
    }
    return Body("multipart/form-data", schema)


UPLOAD: Final = _form(NEEDED, FIELDS)
SCHEDULE: Final = _form(
    {
        **NEEDED,
        "name": field_of(
            "a name, another one for each schedule of a user", "nightly", maxLength=200
        ),
        "cron": field_of(
            "minute, hour, day of the month, month, day of the week", "30 2 * * MON-FRI"
        ),
    },
    {name: one for name, one in FIELDS.items() if name not in NOT_REPEATED}
    | {"time_zone": field_of("where the times of cron are", "Europe/Berlin")},
)


def in_query(form: Body) -> dict[str, Any]:
    """The fields of a form as one parameter: each of them may stand in the query instead."""
    fields = {
        name: schema for name, schema in form.schema["properties"].items() if name not in _FILES
    }
    return {
        "name": "fields",
        "in": "query",
        "description": "Any field of the form, as a parameter of its own (service=example): what "
        "is given here is refused before the body is sent, where it is wrong.",
        "style": "form",
        "explode": True,
        "schema": {"type": "object", "properties": fields, "additionalProperties": False},
        "example": {},
    }


async def upload(request: web.Request, context: Context) -> web.StreamResponse:
    """Queue the bundle of a multipart form."""
    ticket = request.get(TICKET)
    job, is_new = await accept_upload(request, context)
    links = None
    # A repeat by another ticket finds the job by its Idempotency-Key: it is not its to show.
    if ticket is not None and (
        is_new or await context.core.database.read(tokens.ticket_used, ticket.id)
    ):
        links = links_by(request, context, _link(ticket, job, context))
    if wants_page(request):
        # A browser that posted a plain form: on to the job, so that a reload does not post again.
        there = f"{context.core.settings.server.url_prefix}{JOB_PAGE.replace('{id}', str(job.id))}"
        if ticket is not None and ticket.return_to is not None:
            there = with_query(ticket.return_to, job=str(job.id), status=job.state)
        elif links is not None:
            there = links.page
        return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": there})
    headers = {"Location": f"{context.core.settings.server.url_prefix}/api/v1/jobs/{job.id}"}
    if not is_new:
        headers["Idempotent-Replayed"] = "true"
    warnings = list(job.upload_warnings) or None
    body = StatusBody(id=job.id, status=job.state, message=QUEUED, warnings=warnings, links=links)
    return json_answer(body, HTTPStatus.CREATED, headers)


def _link(ticket: Ticket, job: Job, context: Context) -> Link:
    """To the job that the ticket became."""
    return Link(
        issued_by=ticket.issued_by,
        job_id=job.id,
        shows=Shows.JOB,
        expires_at=context.core.clock.now() + round(LINK_OF_UPLOAD_S * SECOND),
        token_id=ticket.token_id,
        issuer=ticket.issuer,
    )


_IDEMPOTENCY_KEY: Final = Param(
    "an upload that is repeated with the same key makes no second job",
    {"type": "string", "maxLength": 255, "pattern": r"^[\x21-\x7e]*$"},
    "",
)

ROUTES: Final = (
    Route(
        "POST",
        "/upload",
        Area.JOBS,
        upload,
        {201: wire.StatusBody, 303: None},
        needs=Scope.SUBMIT,
        body=UPLOAD,
        headers={"Idempotency-Key": _IDEMPOTENCY_KEY},
        sends=("Location", "Idempotent-Replayed"),
        fields_in_query=True,
        by_ticket=True,
    ),
)
