"""A browser without scripts, for tests of pages over HTTP: it keeps cookies and sends forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Final

import aiohttp
from yarl import URL

FIREFOX: Final = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
_CSRF: Final = re.compile(r'name="csrf" value="(\w+)"')


@dataclass(frozen=True)
class Shown:
    """What came; redirects are not followed.

    Attributes:
        location: where it leads on to; empty: it does not.
    """

    status: int
    text: str
    location: str
    headers: dict[str, str]
    set_cookies: list[str]


class FormBrowser:
    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url, self._session = url, session

    async def ask(
        self,
        path: str,
        method: str = "GET",
        fields: dict[str, str] | aiohttp.FormData | None = None,
        **headers: str,
    ) -> Shown:
        """Args:
        fields: of a form, in the body.
        headers: a name has ``_`` for ``-``.
        """
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        async with self._session.request(
            method, f"{self.url}{path}", data=fields, headers=given, allow_redirects=False
        ) as answer:
            return Shown(
                answer.status,
                (await answer.read()).decode("utf-8", "replace"),
                answer.headers.get("Location", ""),
                dict(answer.headers),
                answer.headers.getall("Set-Cookie", []),
            )

    def events(self, path: str) -> AbstractAsyncContextManager[aiohttp.ClientResponse]:
        """A stream that stays open."""
        return self._session.get(f"{self.url}{path}", headers={"Accept": "text/event-stream"})

    async def csrf(self, page: str) -> str:
        """The token of the forms of a page; empty: it has none."""
        found = _CSRF.search((await self.ask(page)).text)
        return found[1] if found else ""

    async def send(self, page: str, path: str, **fields: str) -> Shown:
        """Send a form of a page."""
        return await self.ask(path, "POST", {"csrf": await self.csrf(page), **fields})

    async def log_in(self, token: str, there: str = "") -> Shown:
        return await self.send("/login", "/login", token=token, next=there)

    def cookie(self, name: str) -> str:
        """What the cookie says whose name ends so; empty: there is none."""
        jar = self._session.cookie_jar
        return next((one.value for one in jar if one.key.endswith(name)), "")

    def set_cookie(self, name: str, value: str) -> None:
        """Change the cookie of the server whose name ends so, or make one."""
        jar = self._session.cookie_jar
        start = next(one.key for one in jar).rpartition("_")[0]
        key = f"{start}_{name}"
        jar.clear(lambda one: one.key == key)
        jar.update_cookies({key: value}, URL(f"{self.url}/"))


@asynccontextmanager
async def browsing(url: str, user_agent: str = FIREFOX) -> AsyncIterator[FormBrowser]:
    jar = aiohttp.CookieJar(unsafe=True)  # of addresses, too
    headers = {"User-Agent": user_agent, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=headers) as session:
        yield FormBrowser(url, session)
