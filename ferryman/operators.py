"""What is about a server, and not about one job: services, agents, users, tokens, webhooks."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, Literal
from urllib.parse import quote

from ferryman.follow import follow_all_events, pages
from ferryman.models.events import EventDoc, WebhookSecret
from ferryman.models.operators import (
    AgentAction,
    AgentDoc,
    AgentPage,
    AuditDoc,
    AuditPage,
    ForgottenDoc,
    Health,
    NewTokenDoc,
    Reloaded,
    RoleName,
    ScopeName,
    ServiceDoc,
    ServicePage,
    TokenDoc,
    TokenPage,
    Trouble,
    Troubles,
    UsageDoc,
    WhoAmI,
)
from ferryman.transport import Transport

_LONG_S: Final = 3_600.0


class Operators:
    """What :class:`ferryman.Client` does besides the jobs."""

    _transport: Transport
    user: str | None

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

    async def forget_user(self, user: str, *, dry_run: bool = False) -> ForgottenDoc:
        """Remove all data of a user. For operators with the scope ``admin``. Of thousands of jobs
        this takes minutes; what is interrupted goes on when it is called again.

        Args:
            dry_run: only count it.
        """
        fields = {"user": user, "dry_run": dry_run}
        path = "api/v1/forget-user"
        return (await self._transport.post(path, ForgottenDoc, json=fields, hold_s=_LONG_S))[1]

    async def agents(self, *, retired: bool = False) -> list[AgentDoc]:
        """The agents that the server sends jobs to, and how they are. For operators, as what
        follows.

        Args:
            retired: those, too, that were retired and are not in the settings any more.
        """
        query = {"retired": "1"} if retired else None
        return (await self._transport.get("api/v1/agents", AgentPage, query=query)).items

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

    async def change_service(
        self, name: str, action: Literal["pause", "resume"], message: str | None = None
    ) -> ServiceDoc:
        """Decide whether the queued jobs of a service wait; those that run go on. For operators.

        Args:
            action: ``"pause"``: they wait. ``"resume"``: they are sent again.
            message: why, for those who wait.

        Raises:
            NotFound
        """
        path = f"api/v1/services/{quote(name, safe='')}/{action}"
        query = {"message": message} if message else None
        return (await self._transport.post(path, ServiceDoc, query=query))[1]

    async def whoami(self) -> WhoAmI:
        """Whose requests these are, and what they may do.

        Raises:
            NotAllowed: the token is not good; the text says why.
        """
        return await self._transport.get("api/v1/whoami", WhoAmI)

    async def create_token(
        self,
        name: str,
        role: RoleName = "user",
        *,
        user: str | None = None,
        users: Iterable[str] = (),
        scopes: Iterable[ScopeName] | None = None,
        expires_in: float | str | None = None,
    ) -> NewTokenDoc:
        """Make a token; for operators, as are the others. It is not repeated after a lost answer:
        look with :meth:`tokens` whether it was made, and revoke it.

        Args:
            name: of the principal; tokens with the same name are one principal's.
            user: of a ``"user"``: whose jobs it sees and makes; None: ``name``.
            users: of a ``"portal"``: patterns of the users for whom it may act; empty: any.
            scopes: None: all of its role's.
            expires_in: seconds, or text such as ``"90d"``; None: it does not expire.

        Returns:
            The token; its text is in ``token``, and nowhere else.

        Raises:
            Conflict: the name is another principal's.
            Refused: something is not as it should be; the text says what.
        """
        body = {
            "name": name,
            "role": role,
            "user_id": user,
            "users": list(users),
            "scopes": None if scopes is None else list(scopes),
            "expires_in": expires_in,
        }
        return await self._new_token("api/v1/tokens", body)

    async def tokens(
        self, *, name: str | None = None, role: RoleName | None = None, ended: bool = False
    ) -> AsyncGenerator[TokenDoc, None]:
        """Tokens, newest first, without their secrets.

        Args:
            ended: those, too, that were revoked or have expired.
        """
        query = {"ended": "1"} if ended else {}
        query |= {key: one for key, one in (("name", name), ("role", role)) if one is not None}
        async for token in pages(self._transport, "api/v1/tokens", TokenPage, query):
            yield token

    async def revoke_token(self, token_id: str) -> TokenDoc:
        """Have it refused from now on. Raises NotFound."""

        async def once() -> TokenDoc:
            async with self._transport.answer("DELETE", _token_path(token_id)) as answer:
                return await self._transport.read(answer, TokenDoc)

        return await self._transport.retry(once)

    async def rotate_token(
        self, token_id: str, *, overlap: float | str = 0, expires_in: float | str | None = None
    ) -> NewTokenDoc:
        """Give it another secret; not repeated after a lost answer, in which the secret is lost.

        Args:
            overlap: for so long the former secret is good, too: seconds, or text such as ``"1h"``.
            expires_in: from now; None: it ends when it would have.

        Returns:
            As :meth:`create_token`

        Raises:
            Conflict: it was revoked or has expired.
            NotFound
        """
        body = {"overlap": overlap, "expires_in": expires_in}
        return await self._new_token(f"{_token_path(token_id)}/rotate", body)

    async def audit(
        self,
        *,
        principal: str | None = None,
        user: str | None = None,
        token: str | None = None,
        action: str | None = None,
        target: str | None = None,
        since: str | None = None,
        until: str | None = None,
        limit: int | None = None,
    ) -> AsyncGenerator[AuditDoc, None]:
        """The audit trail, newest first: requests that changed something, or were to.

        Args:
            principal: only what the principal of this name did.
            user: only what a portal did for this user.
            token: only what was done with the token of this id.
            action: only actions whose text has this in it, such as ``"cancel"``.
            target: only what was done to this, such as the number of a job.
            since, until: a time with its offset from UTC, or how long ago, such as ``"2h"``.
            limit: at most so many; None: all.
        """
        chosen = {
            "principal": principal,
            "user": user,
            "token": token,
            "action": action,
            "target": target,
            "since": since,
            "until": until,
        }
        query = {key: text for key, text in chosen.items() if text is not None}
        async for entry in pages(self._transport, "api/v1/audit", AuditPage, query, limit=limit):
            yield entry

    async def _new_token(self, path: str, body: dict[str, Any]) -> NewTokenDoc:
        given = {key: one for key, one in body.items() if one is not None}
        async with self._transport.answer("POST", path, json=given) as answer:
            return await self._transport.read(answer, NewTokenDoc)

    def all_events(
        self, after: int | None = None, *, user: str | None = None, service: str | None = None
    ) -> AsyncGenerator[EventDoc, None]:
        """What happens to all jobs that the caller may see, as it happens; it does not end.

        Args:
            after: from behind this ``seq``; 0: from the start; None: from now on.
            user: only this user's jobs.
            service: only this service's jobs.
        """
        return follow_all_events(self._transport, after, user, service)

    async def webhook_secret(
        self, *, principal: str | None = None, replace: bool = False
    ) -> WebhookSecret:
        """What signs the webhooks of the caller's jobs; see :func:`ferryman.verify_webhook`.

        Args:
            principal: for operators: of what this principal uploads.
            replace: make another one; for a day both sign.

        Raises:
            NotAllowed
        """
        query = {} if principal is None else {"principal": principal}
        path = "api/v1/webhook-secret"
        if replace:
            return (await self._transport.post(path, WebhookSecret, query=query))[1]
        return await self._transport.get(path, WebhookSecret, query=query)


def _date(header: str | None) -> datetime | None:
    try:
        return parsedate_to_datetime(header) if header else None
    except ValueError:
        return None  # of some proxy


def _agent_path(name: str) -> str:
    return f"api/v1/agents/{quote(name, safe='')}"


def _token_path(token_id: str) -> str:
    return f"api/v1/tokens/{quote(token_id, safe='')}"
