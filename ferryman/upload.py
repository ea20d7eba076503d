"""One upload: sent again under its key while the server is away, but not where it has arrived."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Final

from ferryman.errors import NotUnderstood, Refused, TryLater, Unreachable
from ferryman.form import BATCH, Form, Told
from ferryman.models import JobPage, StatusBody
from ferryman.transport import LONGEST_PAUSE_S, Transport

GATEWAY_TIMEOUT: Final = 504


class Upload:
    """A form on its way.

    Args:
        user: whose job it is to be.
        key: for ``Idempotency-Key``.
        minted: nobody else can have used the key, so a job under it is this one.
        asked: fields for the head, where they can be refused before the body is sent.
    """

    def __init__(
        self,
        transport: Transport,
        form: Form,
        *,
        user: str,
        key: str,
        minted: bool,
        asked: Mapping[str, str],
        told: Told | None,
    ) -> None:
        self._transport, self._form, self._told = transport, form, told
        self._user, self._key, self._minted, self._asked = user, key, minted, asked
        self._arrived = False
        """The last try got as far as the last piece, so there may be a job."""
        self._slow = False
        """The last try ended because the server took its time: it may still be at work."""

    async def run(self) -> StatusBody:
        """Send it; see :meth:`ferryman.Client.submit` for the errors."""
        try:
            return await self._transport.persist(self._once)
        except (Unreachable, TryLater) as problem:
            if self._arrived:
                problem.add_note("all of the bundle was sent, so there may be a job all the same")
            raise

    async def _once(self) -> StatusBody:
        if self._arrived and self._minted:
            found = await self._look_up()
            if found is not None:
                return found
        self._arrived = self._slow = False
        headers = {
            "Content-Type": self._form.content_type,
            "Content-Length": str(self._form.size),
            "Idempotency-Key": self._key,
        }
        try:
            async with self._transport.answer(
                "POST",
                "upload",
                query=self._asked,
                headers=headers,
                body=self._body(),
                # A refusal before the body is worth a round trip only where the body is large.
                ask_first=self._form.size > BATCH,
            ) as answer:
                return await self._transport.read(answer, StatusBody)
        except Unreachable as problem:
            self._slow = isinstance(problem.__cause__, TimeoutError | asyncio.TimeoutError)
            raise
        except TryLater as problem:
            if problem.code:  # the server's own word, not a proxy's: there is no job
                self._arrived = False
            self._slow = problem.status == GATEWAY_TIMEOUT
            raise

    async def _body(self) -> AsyncIterator[bytes]:
        left = self._form.size
        async for piece in self._form.stream(self._told):
            left -= len(piece)
            self._arrived = not left
            yield piece

    async def _look_up(self) -> StatusBody | None:
        """The job that has the key, if any; a slow server is given as long again to make one."""
        clock = self._transport.clock
        end = clock.monotonic() + (self._transport.timeout if self._slow else 0)
        query = {"user": self._user, "idempotency_key": self._key}
        while True:
            try:
                _, page = await self._transport.fetch("GET", "api/v1/jobs", JobPage, query=query)
            except TryLater:
                raise
            except (Refused, NotUnderstood):  # a server that cannot be asked for a key
                return None
            if page.items:
                job = page.items[0]
                return StatusBody(id=job.id, status=job.status, message=job.message)
            if clock.monotonic() >= end:
                return None
            await clock.sleep(LONGEST_PAUSE_S)
