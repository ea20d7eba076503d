"""Pages over HTTP, read as a tree; and browsers without scripts, which open them and send forms."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from typing import Any, Final

import aiohttp
from yarl import URL

from server.web.routes import ROUTES
from tests.kit.warm import Place

FIREFOX: Final = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
_VOID: Final = frozenset(("br", "hr", "img", "input", "link", "meta", "col", "source"))
_CONTROLS: Final = ("input", "select", "textarea")
_HANDLER: Final = re.compile(r"on[a-z]+\Z")


class Node:
    """An element; what is in it comes in the order of the page."""

    def __init__(self, tag: str, attributes: dict[str, str]) -> None:
        self.tag, self.attributes = tag, attributes
        self.inside: list[Node | str] = []

    def __getitem__(self, name: str) -> str:
        return self.attributes.get(name, "")

    def __iter__(self) -> Iterator[Node]:
        """It, and all that is in it."""
        yield self
        for one in self.inside:
            if isinstance(one, Node):
                yield from one

    @property
    def raw(self) -> str:
        return "".join(one if isinstance(one, str) else one.raw for one in self.inside)

    @property
    def text(self) -> str:
        """As it is read: each run of blanks is one."""
        parts = [one if isinstance(one, str) else f" {one.text} " for one in self.inside]
        return " ".join("".join(parts).split())

    def all(self, tag: str = "", kind: str = "", **attributes: str) -> list[Node]:
        """Those that are so and have a class ``kind``; of an attribute's name ``_`` is ``-``."""
        wanted = {name.replace("_", "-"): value for name, value in attributes.items()}
        return [
            one
            for one in self
            if tag in ("", one.tag)
            and (not kind or kind in one["class"].split())
            and all(one.attributes.get(name) == value for name, value in wanted.items())
        ]

    def one(self, tag: str = "", kind: str = "", **attributes: str) -> Node:
        found = self.all(tag, kind, **attributes)
        assert len(found) == 1, (tag, kind, attributes, [each.text for each in found])
        return found[0]

    def links(self, within: str = "") -> list[str]:
        return [one["href"] for one in self.all("a") if within in one["href"]]

    def rows(self) -> list[list[str]]:
        return [
            [one.text for one in row if one.tag in ("th", "td")]
            for row in self.all("tr")
            if row.all("td")
        ]

    def facts(self) -> dict[str, str]:
        found: dict[str, str] = {}
        name = ""
        for one in self:
            if one.tag == "dt":
                name = one.text
            elif one.tag == "dd":
                found[name] = one.text
        return found

    def fields(self) -> dict[str, str]:
        """What its forms would send; of several of a name the last."""
        found: dict[str, str] = {}
        for one in self:
            name = one["name"]
            if one.tag not in _CONTROLS or not name:
                continue
            if one["type"] in ("checkbox", "radio") and "checked" not in one.attributes:
                continue
            if one.tag == "textarea":
                found[name] = one.raw.removeprefix("\n")
            elif one.tag == "select":
                options = one.all("option")
                chosen = [each for each in options if "selected" in each.attributes] or options[:1]
                for each in chosen:
                    found[name] = each.attributes.get("value", each.text)
            else:
                found[name] = one["value"]
        return found

    def buttons(self) -> list[str]:
        return [one.text for one in self.all("button")]


class _Parser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open = [Node("", {})]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        node = Node(tag, {name: value or "" for name, value in attrs})
        self.open[-1].inside.append(node)
        if tag not in _VOID:
            self.open.append(node)

    def handle_endtag(self, tag: str) -> None:
        for at in range(len(self.open) - 1, 0, -1):
            if self.open[at].tag == tag:
                del self.open[at:]
                return

    def handle_data(self, data: str) -> None:
        self.open[-1].inside.append(data)


def parsed(text: str) -> Node:
    parser = _Parser()
    parser.feed(text)
    parser.close()
    return parser.open[0]


class Page:
    """An answer to a browser; redirects are not followed."""

    def __init__(self, path: str, answer: aiohttp.ClientResponse, body: bytes) -> None:
        self.path, self.status, self.headers = path, answer.status, answer.headers.copy()
        self.location = answer.headers.get("Location", "")
        self.set_cookies = answer.headers.getall("Set-Cookie", [])
        self.body, self.source = body, body.decode("utf-8", "replace")
        self.tree = parsed(self.source) if "html" in answer.content_type else Node("", {})

    @property
    def title(self) -> str:
        return self.tree.all("title")[0].text

    @property
    def heading(self) -> str:
        return self.tree.all("h1")[0].text

    @property
    def main(self) -> Node:
        found = self.tree.all("main")
        return found[0] if found else self.tree

    @property
    def text(self) -> str:
        return self.main.text

    @property
    def code(self) -> str:
        """Of a refusal."""
        return next((one.text for one in self.main.all("code")), "")

    @property
    def notice(self) -> str:
        return " ".join(one.text for one in self.main.all(kind="notice") if _shown(one))

    @property
    def errors(self) -> dict[str, str]:
        """Field -> what is said beside it."""
        found: dict[str, str] = {}
        for one in self.main.all(kind="field-error"):
            if _shown(one) and one.text:
                controls = [each for each in self.main if each.tag in _CONTROLS]
                described = [(each["name"], each["aria-describedby"].split()) for each in controls]
                fields = [name for name, by in described if one["id"] in by]
                own = one["id"].removesuffix("-problem").removeprefix("e-")
                found |= dict.fromkeys(fields or [own], one.text)
        return found

    @property
    def actions(self) -> set[str]:
        """Where the forms of the page itself lead, as last words: what can be done."""
        forms = [one for one in self.main.all("form") if one["method"].lower() == "post"]
        return {re.split("[?#]", one["action"])[0].rpartition("/")[2] for one in forms}

    @property
    def csrf(self) -> str:
        return next((one["value"] for one in self.tree.all("input", name="csrf")), "")

    def jobs(self) -> list[int]:
        return [int(one["data-id"]) for one in self.main.all("tr") if one["data-id"]]

    def scripts(self) -> list[str]:
        """What would run of it, and is no file of the server."""
        found = [
            one.raw
            for one in self.tree.all("script")
            if not one["src"] and "json" not in one["type"]
        ]
        for one in self.tree:
            found += [f"{one.tag} {name}" for name in one.attributes if _HANDLER.match(name)]
            found += [f"{one.tag} style" for name in one.attributes if name == "style"]
            addresses = (one["href"], one["src"], one["action"])
            found += [each for each in addresses if each.strip().lower().startswith("javascript:")]
        return found


def _shown(node: Node) -> bool:
    return "hidden" not in node.attributes


_NO_PAGES: Final = {
    *("/assets/{version}/{path}", "/live", "/live/{id}", "/live/{id}/log", "/login/once"),
    *("/jobs/{id}/rendered/{path}", "/new/sent"),
}
"""Streams, files of the pages, what a frame renders (server/test_files_page.py), and JSON."""


def unopened(addresses: Iterable[str]) -> list[str]:
    """The pages that are at none of these."""
    paths = {one.partition("?")[0] for one in addresses}
    pages = [one.path for one in ROUTES if one.method == "GET" and one.path not in _NO_PAGES]
    patterns = {one: re.sub(r"\{\w+\}", "[^/]+", one.replace("{path}", ".+")) for one in pages}
    return [one for one in pages if not any(re.fullmatch(patterns[one], path) for path in paths)]


class Browser:
    """Keeps cookies and sends forms; with each request its token, if it has one."""

    def __init__(self, url: str, session: aiohttp.ClientSession, token: str = "") -> None:
        self.url, self.session, self.token = url, session, token

    async def ask(self, path: str, method: str = "GET", fields: Any = None, **headers: str) -> Page:
        """``fields`` are of a form, in the body; a header's name has ``_`` for ``-``."""
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        if self.token:
            given.setdefault("Authorization", f"Bearer {self.token}")
        url = URL(self.url + path, encoded=True) if path.isascii() else self.url + path
        async with self.session.request(
            method, url, data=fields, headers=given, allow_redirects=False
        ) as answer:
            return Page(path, answer, await answer.read())

    async def see(self, path: str) -> Page:
        page = await self.ask(path)
        assert page.status == 200, (path, page.status, page.text)
        assert page.scripts() == []
        return page

    async def json(self, path: str, method: str = "GET", **more: Any) -> Any:
        given = {"Accept": "application/json"}
        given |= {"Authorization": f"Bearer {self.token}"} if self.token else {}
        async with self.session.request(method, self.url + path, headers=given, **more) as answer:
            assert answer.status < 300, (path, await answer.text())
            return await answer.json()

    def events(self, path: str) -> Any:
        return self.session.get(f"{self.url}{path}", headers={"Accept": "text/event-stream"})

    async def csrf(self, page: str = "/login") -> str:
        return (await self.ask(page)).csrf

    async def send(self, page: str, path: str, fields: Any = None, **more: str) -> Page:
        """Send a form of a page; ``fields`` are pairs, where a name comes more than once."""
        given = [*(fields or []), *more.items()]
        return await self.ask(path, "POST", [("csrf", await self.csrf(page)), *given])

    async def log_in(self, token: str, there: str = "") -> Page:
        return await self.send("/login", "/login", token=token, next=there)

    def cookie(self, name: str) -> str:
        jar = self.session.cookie_jar
        return next((one.value for one in jar if one.key.endswith(name)), "")

    def set_cookie(self, name: str, value: str) -> None:
        """Change the cookie of the server whose name ends so, or make one."""
        jar = self.session.cookie_jar
        start = next(one.key for one in jar).rpartition("_")[0]
        key = f"{start}_{name}"
        jar.clear(lambda one: one.key == key)
        jar.update_cookies({key: value}, URL(f"{self.url}/"))


@asynccontextmanager
async def browsing(url: str, token: str = "") -> AsyncIterator[Browser]:
    jar = aiohttp.CookieJar(unsafe=True)  # of addresses, too
    headers = {"User-Agent": FIREFOX, "Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    async with aiohttp.ClientSession(cookie_jar=jar, headers=headers) as session:
        yield Browser(url, session, token)


class People:
    """People at a server that a module shares, each with a browser of their own."""

    def __init__(self, place: Place, stack: Any) -> None:
        self.place, self._stack = place, stack

    async def stranger(self) -> Browser:
        found: Browser = await self._stack.enter_async_context(browsing(self.place.url))
        return found

    async def logged_in(self, token: str) -> Browser:
        found = await self.stranger()
        assert (await found.log_in(token)).status == 303
        return found
