"""Forget a user: all that there is of it goes, or gets another name.

Every step may be done again: who was interrupted begins again and goes on with what is left. The
name stands nowhere but in the request, and in the rows that are still to go.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import structlog

from server.domain.errors import FerrymanError, NoSuchJob, StillNeeded
from server.ports.forgotten import ForgottenRecords
from server.stages.delete import Delete
from server.stages.schedules import Schedules
from server.stages.stage import Resources, Stage
from shared.principals import Principal

log = structlog.get_logger()
_AT_ONCE = 200
"""Jobs in one call."""
_AGAIN_S = 1.0


@dataclass(slots=True)
class Forgotten:
    """What was removed.

    Attributes:
        removed: kind -> how many; ``audit`` entries were given another name.
        waiting: job -> why it is not gone yet.
        kept: what stays, in sentences.
        done: nothing more is to be done; else: call again.
    """

    removed: Counter[str] = field(default_factory=Counter)
    waiting: dict[int, str] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    done: bool = False


class ForgetUser(Stage):
    """Forgets users.

    Args:
        take_up: makes this server know what was done to tokens and sessions, and writes the audit
            trail.
        copies: names of copies of the database that hold what it held.
    """

    def __init__(
        self,
        resources: Resources,
        records: ForgottenRecords,
        delete: Delete,
        schedules: Schedules,
        take_up: Callable[[], Awaitable[None]],
        copies: Callable[[], list[str]],
    ) -> None:
        super().__init__(resources)
        self._records, self._delete, self._schedules = records, delete, schedules
        self._take_up, self._copies = take_up, copies
        self._instead: dict[str, str] = {}

    async def look(self, user: str) -> dict[str, int]:
        """Kind -> how much there is."""
        await self._take_up()
        return await self._records.found(user)

    def instead(self, user: str) -> str:
        """The name that stands for the user in the audit trail. It is made by chance and kept in
        memory only, so that nobody can tell later whose it is.
        """
        return self._instead.setdefault(user, f"forgotten-{secrets.token_hex(6)}")

    async def __call__(self, principal: Principal, user: str) -> Forgotten:
        """Remove some of it: what is wanted first, then the jobs, the newest first.

        Raises:
            NotAllowed
        """
        report, instead = Forgotten(), self.instead(user)
        report.removed.update(await self._records.end_access(user, instead, self._clock.now()))
        await self._take_up()
        for number in await self._records.schedules(user):
            await self._schedules.delete(principal, number)
            report.removed["schedules"] += 1
        more = await self._delete_jobs(principal, user, report)
        if more:
            return report
        report.removed.update(await self._records.remove_rest(user, instead))
        report.kept += [
            f"token {name} of another principal names the user"
            for name in await self._records.tokens_that_name(user)
        ]
        report.kept += [
            f"{name}, a copy that was made before an upgrade: remove it when you do not want to go "
            "back any more"
            for name in self._copies()
        ]
        report.done = not report.waiting
        if report.waiting and not report.removed:  # whoever calls again at once need not
            await self._clock.sleep(_AGAIN_S)
        if report.done and not await self._records.empty_log():
            report.kept.append(
                "remains of deleted rows in the log of the database, for some minutes: it was read"
            )
        if report.done:
            self._instead.pop(user, None)
            log.info(
                "user.forgotten", instead=instead, by=principal.name, removed=dict(report.removed)
            )
        return report

    async def _delete_jobs(self, principal: Principal, user: str, report: Forgotten) -> bool:
        """Returns whether there are more that can be deleted."""
        below: int | None = None
        deleted = 0
        while numbers := await self._records.jobs(user, below, _AT_ONCE):
            for number in numbers:
                below = number
                try:
                    left = await self._delete.forget(principal, number)
                except NoSuchJob:
                    continue
                except StillNeeded as problem:
                    report.waiting[number] = str(problem)
                except FerrymanError as problem:
                    report.waiting[number] = str(problem)
                else:
                    if left is None:
                        deleted += 1
                        report.removed["jobs"] += 1
                    else:
                        report.waiting[number] = (
                            f"agent {left.agent} has it, and has not said that it is dead"
                            if left.agent
                            else "it is being cancelled"
                        )
            if deleted >= _AT_ONCE:
                return True
        return False
