"""What operators decide about services while servers are running."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from server.domain.access import Visible
from server.domain.service import ServiceLoad, ServiceRecord
from shared.clock import Micros


class ServiceRecords(Protocol):
    """A row for each service that was ever used or changed; all servers read the same."""

    async def all(self) -> list[ServiceRecord]: ...

    async def put(
        self,
        name: str,
        settings: Mapping[str, Any],
        env: Mapping[str, str] | None,
        secrets: Mapping[str, str] | None,
        at: Micros,
    ) -> None:
        """Make a service, or change all of its settings. A retired one is in use again.

        Args:
            env: None: as they are; so are the secrets.
        """
        ...

    async def retire(self, name: str, at: Micros) -> None:
        """It takes no new jobs."""
        ...

    async def set_paused(self, name: str, message: str | None, at: Micros) -> None:
        """Let its queued jobs wait, and say why; None: let them be sent again."""
        ...

    async def load(self, name: str, most: int, where: Visible) -> ServiceLoad:
        """How many jobs it has in each state, of those that somebody may see; counts no further
        than ``most``, and of all that one portal submitted its latest ``most``.
        """
        ...
