"""A form straight into a sealed bundle, and its job: for programs and for our page."""

from __future__ import annotations

from typing import Final

from aiohttp import web

from server.domain.allowances import DAY
from server.domain.errors import BadField
from server.domain.jobs import Job, UsedTicket
from server.domain.upload_fields import HEADER, check_field, upload_request
from server.http.context import Context
from server.http.forms import CheckField, ChooseSink, check_head, received_form
from server.http.permitted import TICKET
from server.http.route import TICKET_PARAMETER
from shared.http.authentication import PRINCIPAL
from shared.http.request_log import UPLOADED_AS, UPLOADED_ID

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
        check_field(name, value, context.services, principal)

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
        await context.accept.check_ticket(ticket, key)
    if "service" in fields and "user_id" in fields:
        asked = upload_request(fields, context.services, principal)
        await context.accept.check_quota(asked, request.content_length or 0)
    async with received_form(request, context, fields, take, most, form.choose_sink) as received:
        complete = {name: value for name, value in received.fields.items() if name not in form.own}
        asked = upload_request(complete, context.services, principal)
        context.check_not_revoked(request)
        used = None if ticket is None else UsedTicket(ticket.id, ticket.expires_at + _KEPT)
        job, is_new = await context.accept(
            principal, asked, received.content, received.bundle, used
        )
    request[UPLOADED_ID], request[UPLOADED_AS] = job.id, (job.user_id, job.service)
    return job, is_new
