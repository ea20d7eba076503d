"""A multipart form straight into a file of the scratch space, as bundles are uploaded."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeAlias

from aiohttp import web

from server.domain.access import visible
from server.domain.errors import BundleTooLarge
from server.domain.upload_fields import given
from server.http.context import Context
from server.http.problems import Refusal
from server.ports import ScratchFile
from shared.files.bundles.format import BundleSummary
from shared.files.staged_file import ReserveSpace
from shared.http.authentication import PRINCIPAL
from shared.http.request_body import send_continue
from shared.multipart.limits import FormLimits, FormRefused
from shared.multipart.receive import receive
from shared.multipart.sinks import BundleSink, Sink
from shared.units.sizes import say_size

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
    if (waiting := context.results_waiting).hold_uploads(context.fleet):
        raise Refusal(
            HTTPStatus.INSUFFICIENT_STORAGE,
            "disk_full",
            f"no upload is taken now: {waiting.sentence()}",
            retry_after_s=60,
        )
    if (free := await context.scratch.too_full_for(length)) is not None:
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
        in_flight = stack.enter_context(context.upload_limits.admit(request.content))
        content = await stack.enter_async_context(context.scratch.file())
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
            too_large = context.accept.too_large({**fields, **so_far})
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
                threads=context.upload_threads.for_upload(fields.get("user_id", "")),
            )
        except FormRefused as problem:
            if problem.code == "too_large" and too_large is not None:
                raise too_large from None
            raise
        content.made = received.bundle.content is None
        complete = {**fields, **received.fields}
        if complete.get("callback_url"):
            await context.webhooks.check(complete["callback_url"])
        yield Form(complete, content, received.bundle)


def _bundle_sink(path: Path, limits: FormLimits, reserve: ReserveSpace) -> Sink:
    return BundleSink(path, limits, "filename", reserve=reserve, keep=_IN_MEMORY)


def _limits(context: Context, most: int | None) -> FormLimits:
    limits = context.form_limits
    if most is None or most >= limits.max_bytes:
        return limits
    return dataclasses.replace(limits, max_bytes=most)
