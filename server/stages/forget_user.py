"""Forget a user: all that there is of it goes, or gets another name.

Every step may be done again: who was interrupted begins again and goes on with what is left. The
name stands nowhere but in the request, and in the rows that are still to go.
"""

from __future__ import annotations

import secrets
from collections import Counter
from typing import Final

import structlog

from server.domain.errors import FerrymanError, NoSuchJob
from server.stages.audit import AuditTrail
from server.stages.by_hand import Delete
from server.stages.schedules import Schedules
from server.stages.stage import Core, Stage
from server.stages.tokens import Tokens
from server.store import pages, users
from server.store.pages import Filter
from shared.principals import Principal
from shared.wire import ForgottenDoc, WaitingJob

log = structlog.get_logger()
_AT_ONCE: Final = 200
"""Jobs in one read."""
PATIENCE_S = 30.0
"""For jobs that are being cancelled; below what proxies wait for an answer."""
_AGAIN_S: Final = 1.0


class ForgetUser(Stage):
    """Forgets users."""

    def __init__(
        self, core: Core, delete: Delete, schedules: Schedules, tokens: Tokens, audit: AuditTrail
    ) -> None:
        super().__init__(core)
        self._delete, self._schedules = delete, schedules
        self._tokens, self._audit = tokens, audit
        self._instead: dict[str, str] = {}

    async def look(self, user: str) -> Counter[str]:
        """Kind -> how much there is."""
        await self._tokens.write_uses()
        await self._audit.write()
        return await self.core.database.read_list(users.found, user)

    def instead(self, user: str) -> str:
        """The name that stands for the user in the audit trail. It is made by chance and kept in
        memory only, so that nobody can tell later whose it is.
        """
        return self._instead.setdefault(user, f"forgotten-{secrets.token_hex(6)}")

    async def __call__(self, principal: Principal, user: str) -> ForgottenDoc:
        """Remove what is wanted first, then the jobs, then the rest. Waits a little for jobs that
        run: none is waiting when all is done. Raises NotAllowed.
        """
        before, instead = await self.look(user), self.instead(user)
        await self._tokens.end_of_user(user, instead)
        for number in await self.core.database.read(users.schedules, user):
            await self._schedules.delete(principal, number)
        until = self.core.clock.monotonic() + PATIENCE_S
        while waiting := await self._delete_jobs(principal, user):
            if self.core.clock.monotonic() >= until:
                break
            await self.core.clock.sleep(_AGAIN_S)
        await self.core.database.write(users.rename, user, instead)
        while await self.core.database.write(users.remove_some, user, instead):
            pass
        await self._schedules.load()  # who submitted them has another name now
        removed = before - await self.core.database.read_list(users.found, user)
        path = self.core.settings.server.database
        kept = [
            f"token {name} of another principal names the user"
            for name in await self.core.database.read(users.tokens_that_name, user)
        ]
        kept += [
            f"{copy.name}, a copy that was made before an upgrade: remove it when you do not want "
            "to go back any more"
            for copy in sorted(path.parent.glob(f"{path.name}.schema-*"))
        ]
        if not waiting:
            if not await self.core.database.empty_log():
                kept.append(
                    "remains of deleted rows in the log of the database, for some minutes: it was "
                    "read"
                )
            self._instead.pop(user, None)
            log.info("user.forgotten", instead=instead, by=principal.name, removed=dict(removed))
        return ForgottenDoc(removed=removed, waiting=waiting, kept=kept, done=not waiting)

    async def _delete_jobs(self, principal: Principal, user: str) -> list[WaitingJob]:
        """Delete all that can be deleted, the newest first; why the others cannot, yet."""
        waiting = list[WaitingJob]()
        below: int | None = None
        own = Filter(user_id=user, top_level=True)
        while numbers := (await self.core.database.read(pages.ids, own, below, _AT_ONCE))[0]:
            for number in numbers:
                below = number
                try:
                    left = await self._delete.forget(principal, number)
                except NoSuchJob:
                    continue
                except FerrymanError as problem:
                    waiting.append(WaitingJob(id=number, why=str(problem)))
                    continue
                if left is not None:
                    why = "it is being cancelled"
                    if left.agent:
                        why = f"agent {left.agent} has it, and has not said that it is dead"
                    waiting.append(WaitingJob(id=number, why=why))
        return waiting[::-1]
