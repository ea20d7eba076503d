"""API tokens, as all servers of a database know them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from server.domain.tokens import TokenRecord
from shared.clock import Micros
from shared.principals import Role


@dataclass(frozen=True, slots=True)
class TokenFilter:
    """Which tokens a list has; None: any."""

    name: str | None = None
    role: Role | None = None
    user_id: str | None = None
    live_at: Micros | None = None
    """Only those that were neither revoked nor expired then."""
    id: str | None = None


class TokenRecords(Protocol):
    """A row for each token that was ever made."""

    async def changed(self, after: int) -> Sequence[TokenRecord]:
        """Those whose version is higher, in the order of their versions."""
        ...

    async def page(
        self, which: TokenFilter, limit: int, before: tuple[Micros, str] | None
    ) -> Sequence[TokenRecord]:
        """Tokens, the newest first.

        Args:
            before: time and id of the last one of the page before.
        """
        ...

    async def get(self, token_id: str) -> TokenRecord | None: ...

    async def insert(
        self, new: TokenRecord, check: Callable[[Sequence[TokenRecord]], None]
    ) -> None:
        """Keep a token.

        Args:
            check: called with all tokens of the same name, in the transaction; what it raises
                undoes that.
        """
        ...

    async def change(
        self, token_id: str, change: Callable[[TokenRecord], TokenRecord]
    ) -> TokenRecord | None:
        """Replace a token by what ``change`` makes of it, in one transaction; None: there is
        none. What ``change`` raises undoes that.
        """
        ...

    async def used(self, uses: Mapping[str, tuple[Micros, str]]) -> None:
        """Keep when and from where each of these tokens was used last; no new version."""
        ...
