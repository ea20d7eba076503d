"""Whether the server can take uploads: what it looks at for that, and what it says to whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, Literal

from pydantic import Field

from server.domain.troubles import DATABASE_TROUBLES, Trouble, TroubleKind
from server.http.context import Context
from shared.wire import Wire

STOPPING: Final = "stopping"
_FOLDER: Final = frozenset(
    {
        TroubleKind.DISK_FULL,
        TroubleKind.RESULTS_WAITING,
        TroubleKind.DATA_FOLDER_UNWRITABLE,
        TroubleKind.DATA_FOLDER_SILENT,
    }
)
_LOOPS: Final = frozenset({TroubleKind.LOOP_STUCK})


class CheckDoc(Wire):
    """One thing that was looked at."""

    name: str
    """What was looked at."""
    status: Literal["ok", "warning", "error"]
    """warning: uploads are taken all the same."""
    message: str = ""
    """How it is, for people."""


class ReadyDoc(Wire):
    """Whether uploads are taken now."""

    status: Literal["ok", "error"]
    """error: send them elsewhere, or later."""
    reasons: list[str] = Field(default_factory=list)
    """Why not: kinds of trouble, and ``stopping``."""
    checks: list[CheckDoc] | None = None
    """What was looked at; for operators who ask for it with ``verbose``."""


async def readiness(context: Context, *, with_checks: bool) -> ReadyDoc:
    """How it is now. It is made from memory and from the probe of the disk: it waits for neither
    the database nor the disk.
    """
    troubles = await context.troubles()
    reasons = sorted({one.kind.value for one in troubles})
    if context.watch.closing:
        reasons.append(STOPPING)
    checks = list(_checks(context, troubles)) if with_checks else None
    return ReadyDoc(status="error" if reasons else "ok", reasons=reasons, checks=checks)


def _checks(context: Context, troubles: Sequence[Trouble]) -> Iterator[CheckDoc]:
    for name, kinds in (
        ("database", DATABASE_TROUBLES),
        ("data folder", _FOLDER),
        ("loops", _LOOPS),
    ):
        wrong = "; ".join(one.text for one in troubles if one.kind in kinds)
        yield CheckDoc(name=name, status="error" if wrong else "ok", message=wrong)
    agents = context.fleet.all()
    up = sum(one.accepts_work for one in agents)
    away = ", ".join(one.name for one in agents if not one.accepts_work)
    yield CheckDoc(
        name="agents",
        status="ok" if agents and not away else "warning",  # jobs wait; uploads are welcome
        message=f"{up} of {len(agents)} take jobs" + (f"; not {away}" if away else ""),
    )
    closing = context.watch.closing
    yield CheckDoc(
        name="running",
        status="error" if closing else "ok",
        message="the server is stopping" if closing else "",
    )
