"""What is about a server, and not about a job: its health, services and agents."""

from __future__ import annotations

from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final
from urllib.parse import quote

from ferryman.agent_models import AgentAction, AgentDoc, AgentPage
from ferryman.answers import Health, Trouble, Troubles
from ferryman.calls import Calls
from ferryman.forgotten_models import ForgottenDoc
from ferryman.service_models import ServiceDoc, ServicePage
from ferryman.settings_models import Reloaded
from ferryman.usage_models import UsageDoc

_LONG_S: Final = 3_600.0


class OperatorCalls(Calls):
    """Part of :class:`ferryman.Client`."""

    async def health(self) -> Health:
        """How the server is.

        Raises:
            TryLater: it is up, but cannot take work; the text says why.
        """

        async def once() -> Health:
            async with self._transport.answer("GET", "health") as answer:
                health = await self._transport.read(answer, Health)
                return health.model_copy(update={"date": _date(answer.headers.get("Date"))})

        return await self._transport.retry(once)

    async def troubles(self) -> list[Trouble]:
        """What is wrong with the server and what belongs to it, with what to do; asked once. For
        operators.

        Raises:
            NotAllowed, and as :meth:`health`
        """
        return (await self._transport.get_once("api/v1/status", Troubles)).troubles

    async def services(self) -> list[ServiceDoc]:
        """The services that the server offers: what they allow, and how busy they are."""
        return (await self._transport.get("api/v1/services", ServicePage)).items

    async def service(self, name: str) -> ServiceDoc:
        """One service: what it allows, and how busy it is.

        Raises:
            NotFound
        """
        return await self._transport.get(f"api/v1/services/{quote(name, safe='')}", ServiceDoc)

    async def usage(self, user: str | None = None) -> UsageDoc:
        """What a user has used of everything that is limited, and what is left.

        Args:
            user: for operators and portals: whose; None: the client's ``user``.

        Raises:
            NotAllowed: not of this user.
        """
        whose = user or self.user
        query = {} if whose is None else {"user": whose}
        return await self._transport.get("api/v1/usage", UsageDoc, query=query)

    async def reload_settings(self) -> Reloaded:
        """Let the server read its settings again. For operators.

        Returns:
            What has changed, and what waits for a restart.

        Raises:
            Conflict: the settings are wrong, and nothing was changed; the text says what is wrong.
        """
        return (await self._transport.post("api/v1/settings/reload", Reloaded))[1]

    async def metrics(self) -> str:
        """What the server measures of itself, as text for Prometheus.

        Raises:
            NotAllowed
            NotUnderstood: the server has none, or has them at another address.
        """

        async def once() -> str:
            async with self._transport.answer("GET", "metrics") as answer:
                return await answer.text("utf-8", errors="replace")

        return await self._transport.retry(once)

    async def forget_user(self, user: str, *, dry_run: bool = False) -> ForgottenDoc:
        """Remove all data of a user. For operators with the scope ``admin``. Of thousands of jobs
        this takes minutes; what is interrupted goes on when it is called again.

        Args:
            dry_run: only count it.
        """
        fields = {"user": user, "dry_run": dry_run}
        path = "api/v1/forget-user"
        return (await self._transport.post(path, ForgottenDoc, json=fields, hold_s=_LONG_S))[1]

    async def pause_service(self, name: str, message: str | None = None) -> ServiceDoc:
        """Let the queued jobs of a service wait; those that run go on. For operators.

        Args:
            message: why, for those who wait.

        Raises:
            NotFound
        """
        path = f"api/v1/services/{quote(name, safe='')}/pause"
        query = {"message": message} if message else None
        return (await self._transport.post(path, ServiceDoc, query=query))[1]

    async def resume_service(self, name: str) -> ServiceDoc:
        """Send the jobs of a paused service again. For operators.

        Raises:
            NotFound
        """
        path = f"api/v1/services/{quote(name, safe='')}/resume"
        return (await self._transport.post(path, ServiceDoc))[1]

    async def agents(self, *, retired: bool = False) -> list[AgentDoc]:
        """The agents that the server sends jobs to, and how they are. For operators, as what
        follows.

        Args:
            retired: those, too, that were retired and are not in the settings any more.
        """
        query = {"retired": "1"} if retired else None
        return (await self._transport.get("api/v1/agents", AgentPage, query=query)).items

    async def agent(self, name: str) -> AgentDoc:
        """One agent, by its name or id.

        Raises:
            NotFound
        """
        return await self._transport.get(_agent_path(name), AgentDoc)

    async def change_agent(
        self, name: str, action: AgentAction, message: str | None = None
    ) -> AgentDoc:
        """Decide what becomes of an agent.

        Args:
            action: ``"drain"``: no new jobs. ``"resume"``: use it again. ``"retire"``: no jobs, no
                contact; it must have none. ``"lost"``: it will not come back, so what it has is
                tried again at once.
            message: why, for whoever looks at it.

        Raises:
            Conflict: not as it is now; the text says why.
            NotFound
        """
        body = {"action": action} | ({"message": message} if message else {})
        return (await self._transport.post(_agent_path(name), AgentDoc, json=body))[1]


def _date(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None  # of some proxy


def _agent_path(name: str) -> str:
    return f"api/v1/agents/{quote(name, safe='')}"
