"""Puts together what operators rarely do."""

from __future__ import annotations

from pathlib import Path

from server.callers import Callers
from server.stages.by_hand import Delete
from server.stages.forget_user import ForgetUser
from server.stages.schedules import Schedules
from server.stages.stage import Resources
from server.store.forgotten import SqlForgotten
from shared.sql import Database


def forget_user(
    resources: Resources,
    database: Database,
    who: Callers,
    delete: Delete,
    schedules: Schedules,
    db_path: Path,
) -> ForgetUser:
    """Forgets users.

    Args:
        db_path: copies beside it were made before upgrades.
    """

    async def take_up() -> None:
        await who.write_uses()
        await who.run_once()
        await who.audit.write()

    def copies() -> list[str]:
        kinds = ("schema-*",)
        return sorted(
            path.name for kind in kinds for path in db_path.parent.glob(f"{db_path.name}.{kind}")
        )

    return ForgetUser(resources, SqlForgotten(database), delete, schedules, take_up, copies)
