"""Which process of a server may change payloads.

Several processes may serve one database. The one that uses this agent holds a lease there, and
sends its number along, the token. Each new holder gets a higher one. A process that was paused and
does not know yet that another has taken over sends a lower one: it is refused, also after a restart
of this agent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from client_agent.payloads import states
from client_agent.payloads.errors import NoSuchPayload, StaleLease
from shared.sql import Transaction, listed

NO_PAYLOAD: Final = "payload_not_found"
"""Code: another payload has the number."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks for a change of a payload, as far as the request says."""

    lease: int = 0
    """Its token; 0: none, as from servers that have no leases."""
    server: str | None = None
    """Identity of the server; None: the one that the payload came from."""
    key: str | None = None
    """Key of the payload that is meant; None: whatever payload has the number."""


async def check(tx: Transaction, server: str, token: int) -> None:
    """Remember the highest token of a server. Raises StaleLease if a higher one was seen before."""
    rows = await tx.rows("SELECT token FROM leases WHERE server = :server", {"server": server})
    seen = rows[0]["token"] if rows else 0
    if token < seen:
        raise StaleLease(token, seen)
    if token > seen:
        await tx.rows(
            """
            INSERT INTO leases (server, token) VALUES (:server, :token)
            ON CONFLICT (server) DO UPDATE SET token = :token
            """,
            {"server": server, "token": token},
        )


async def check_payload(tx: Transaction, payload_id: int, caller: Caller) -> None:
    """Whether the caller may change the payload, if there is one. Raises NoSuchPayload if
    another payload has the number, or StaleLease."""
    rows = await tx.rows("SELECT server, key FROM payloads WHERE id = :id", {"id": payload_id})
    if not rows:
        return
    if caller.key is not None and caller.key != rows[0]["key"]:
        raise NoSuchPayload(payload_id)
    server = caller.server or rows[0]["server"]
    if server is not None:
        await check(tx, server, caller.lease)


async def split_ended(
    tx: Transaction, keys: Mapping[int, str | None], caller: Caller
) -> tuple[list[int], dict[int, str]]:
    """Which of some payloads have ended, and for the others the code of why they are kept; those
    that are not known are neither. Raises StaleLease.

    Args:
        keys: payload -> its key; None: whatever payload has the number.
    """
    names, params = listed(list(keys))
    rows = await tx.rows(
        f"SELECT id, server, key, state FROM payloads WHERE id IN ({names})",  # noqa: S608 - names
        params,
    )
    meant = [row for row in rows if keys[row["id"]] in (None, row["key"])]
    for server in {caller.server or row["server"] for row in meant} - {None}:
        await check(tx, server, caller.lease)
    refused = {row["id"]: NO_PAYLOAD for row in rows if row not in meant}
    refused |= {row["id"]: "not_ended" for row in meant if row["state"] not in states.ENDED}
    return [row["id"] for row in rows if row["id"] not in refused], refused
