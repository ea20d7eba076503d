"""``last`` in place of a job's number: the newest job of whoever asks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from ferryman.cli.identity import usual_user
from ferryman.errors import BadArgument

if TYPE_CHECKING:
    from ferryman.client import Client


class _Last(int):
    """Stands for a number that only the server knows."""


LAST: Final = _Last(-1)


def is_meant(given: dict[str, Any]) -> bool:
    """Whether some argument of a command is ``last``."""
    return any(
        value is LAST or (isinstance(value, list | tuple) and any(one is LAST for one in value))
        for value in given.values()
    )


def replaced(given: dict[str, Any], number: int) -> dict[str, Any]:
    """The same arguments, with this number in its place."""

    def put(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(put, value))
        return number if value is LAST else value

    return {name: put(value) for name, value in given.items()}


async def newest(client: Client, *, has_token: bool) -> int:
    """The number of the newest job of the user who is meant; of a batch the parent's.

    Raises:
        BadArgument: there is none.
    """
    user = await usual_user(client, has_token=has_token)
    if user is None:
        raise BadArgument("last: whose job? FERRYMAN_USER says it")
    async for job in client.jobs(user=user, limit=1):
        return job.parent_id or job.id
    raise BadArgument(
        f"last: user {user} has no jobs at {client.url}; FERRYMAN_USER=NAME says whose are meant"
    )
