"""A person who opens pages and sends their forms, without a browser."""

from __future__ import annotations

import re
from typing import Final

from tests.kit.server_http import ServerClient

_TOKEN: Final = re.compile(r'name="csrf" value="([0-9a-f]+)"')


class Person:
    """Args:
    token: sent with each request; None: the server needs none.
    form_of: a page with a form.
    """

    def __init__(
        self, caller: ServerClient, token: str | None = None, form_of: str = "/agents"
    ) -> None:
        self._caller = caller
        self._headers = {"Accept": "text/html,application/xhtml+xml"}
        self._form_of = form_of
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"

    async def get(self, path: str) -> tuple[int, str]:
        """Status and text of the page."""
        url = self._caller.url + path
        async with self._caller.session.get(url, headers=self._headers) as answer:
            if answer.cookies:  # aiohttp keeps none of a server that has no name
                self._headers["Cookie"] = answer.cookies.output(attrs=[], header="", sep=";")
            return answer.status, await answer.text()

    async def read(self, path: str) -> str:
        """The text of a page that there is."""
        status, text = await self.get(path)
        assert status == 200, (path, text)
        return text

    async def csrf(self) -> str:
        """The token that a page has in its forms, which belongs to the cookie."""
        _, text = await self.get(self._form_of)
        found = _TOKEN.search(text)
        return found[1] if found else ""

    async def send(self, path: str, csrf: str | None = None, **fields: str) -> tuple[int, str]:
        """Send a form, and follow where it leads.

        Args:
            csrf: in place of the page's token.
        """
        form = {"csrf": await self.csrf() if csrf is None else csrf, **fields}
        url = self._caller.url + path
        async with self._caller.session.post(url, data=form, headers=self._headers) as answer:
            return answer.status, await answer.text()
