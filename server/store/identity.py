"""What a database was given when it was made: its name, which scopes its attempt keys on agents,
and the secrets that it signs with; and the start of each run.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from server.store.statements import insert
from shared.clock import SECOND, Micros
from shared.ids import Start
from shared.sql import Tx

_KEYS: Final = ("signing_key", "csrf_key", "webhook_key")


@dataclass(frozen=True, slots=True)
class Identity:
    """Attributes:
    server: name that the database was given when it was made.
    former: those of the servers that it was restored in place of.
    start: of this run.
    rehearsal: it is a copy of a server's that goes on.
    signing_key: signs upload tickets and links.
    csrf_key: proves that a form was sent by a page of ours.
    webhook_key: all secrets of webhooks are made from it.
    """

    server: str
    former: tuple[str, ...]
    start: Start
    rehearsal: bool
    signing_key: bytes
    csrf_key: bytes
    webhook_key: bytes


def begin(tx: Tx, now: Micros, random: Callable[[int], bytes], above: int = 0) -> Identity:
    """Begin a run of the server; what the database has not been given yet, it is given.

    Args:
        random: so many bytes that nobody can guess.
        above: the number of a start that the database may not know.
    """
    former, rehearsal = value(tx, "former"), value(tx, "rehearsal")
    return Identity(
        server=kept(tx, "server", random(16).hex()),
        former=tuple(json.loads(former or "[]")),
        start=new_start(tx, now, random(8).hex(), above),
        rehearsal=rehearsal is not None,
        **{name: bytes.fromhex(kept(tx, name, random(32).hex())) for name in _KEYS},
    )


def new_start(tx: Tx, now: Micros, random_id: str, above: int = 0) -> Start:
    """The start of this run of the server: higher than that of any earlier one, and than that of
    an earlier run of a copy of its data folder.
    """
    number = max(int(value(tx, "start") or 0) + 1, above + 1, now // SECOND)
    put(tx, "start", str(number))
    return Start(number, random_id)


def kept(tx: Tx, key: str, candidate: str) -> str:
    """What it has under the key: what is there already, or else the candidate."""
    if (known := value(tx, key)) is not None:
        return known
    put(tx, key, candidate)
    return candidate


def value(tx: Tx, key: str) -> str | None:
    """What the database remembers under a key."""
    rows = tx.rows("SELECT value FROM meta WHERE key = :key", {"key": key})
    return str(rows[0]["value"]) if rows else None


def put(tx: Tx, key: str, value: str) -> None:
    values = {"key": key, "value": value}
    insert(tx, "meta", values, "ON CONFLICT (key) DO UPDATE SET value = :value")
