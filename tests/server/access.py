"""People of every kind at one server, who ask for each other's jobs."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any, Final

import aiohttp
import pytest_asyncio

from shared.principals import Principal, Role, Scope
from tests.kit.pages import People
from tests.kit.warm import Place

_READ: Final = frozenset({Scope.READ})
PEOPLE: Final = {
    "ann": Principal("ann-laptop", Role.USER, "ann"),
    "reader": Principal("ann-reader", Role.USER, "ann", scopes=_READ),
    "sender": Principal("ann-sender", Role.USER, "ann", scopes=frozenset({Scope.SUBMIT})),
    "bob": Principal("bob-laptop", Role.USER, "bob"),
    "portal": Principal("portal", Role.PORTAL),
    "stranger": Principal("other-portal", Role.PORTAL),
    "admin": Principal("admin", Role.OPERATOR),
    "watcher": Principal("watcher", Role.OPERATOR, scopes=_READ | {Scope.OPERATE}),
    "node": Principal("node-1", Role.AGENT),
    "scraper": Principal("scraper", Role.METRICS),
}
PRINCIPALS: Final = {f"the-token-of-{name}": one for name, one in PEOPLE.items()}
OPERATOR: Final = "the-token-of-admin"
PAGE: Final = {"Accept": "text/html,application/xhtml+xml"}
LATER: Final = {"not_before": "2100-01-01T00:00:00Z"}
BOUNDARY: Final = {"Content-Type": "multipart/form-data; boundary=b"}


@dataclass(frozen=True)
class Said:
    status: int
    headers: dict[str, str]
    text: str

    @property
    def document(self) -> Any:
        return json.loads(self.text)

    @property
    def code(self) -> str:
        return str(self.document["code"])

    def __str__(self) -> str:
        return f"{self.status} {self.headers} {self.text}"


class Crowd:
    """Asks in the name of each of them."""

    def __init__(self, place: Place, session: aiohttp.ClientSession) -> None:
        self.place, self.session = place, session
        place.users |= {"ann", "bob"}

    async def ask(self, who: str, method: str, path: str, body: Any = None, **headers: str) -> Said:
        """Who: of PEOPLE, empty for nobody, "portal as ann", or a token of the server's own."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        name, _, user = who.partition(" as ")
        if name:
            token = name if name.startswith("ferryman_") else f"the-token-of-{name}"
            given["Authorization"] = f"Bearer {token}"
        if user:
            given["Ferryman-Act-As"] = user
        sent = {"json": body} if isinstance(body, dict) else {"data": body}
        url = self.place.url + path.removeprefix(self.place.url)
        async with self.session.request(
            method, url, headers=given, allow_redirects=False, **sent
        ) as answer:
            stream = answer.content_type == "text/event-stream"  # it may have no end
            text = "" if stream else (await answer.read()).decode("latin-1")
            found = {name.lower(): value for name, value in answer.headers.items()}
            return Said(answer.status, found, text)

    async def upload(self, who: str, user: str, headers: Any = None, **fields: str) -> Said:
        form = {"user_id": user, "service": self.place.service, **fields}
        return await self.ask(who, "POST", "/upload", formed(form), **BOUNDARY | (headers or {}))

    async def job(self, who: str, user: str, **fields: str) -> int:
        """A job that waits for another century."""
        return await self.made(who, user, **LATER | fields)

    async def made(self, who: str, user: str, **fields: str) -> int:
        said = await self.upload(who, user, **fields)
        assert said.status == 201, said
        return int(said.document["id"])


@pytest_asyncio.fixture(loop_scope="module")
async def crowd(place: Place) -> AsyncIterator[Crowd]:
    async with place.warm.session() as session:
        yield Crowd(place, session)


@pytest_asyncio.fixture(loop_scope="module")
async def people(place: Place) -> AsyncIterator[People]:
    """They, with browsers."""
    place.users |= {"ann", "bob"}
    async with AsyncExitStack() as stack:
        yield People(place, stack)


def words(service: str) -> dict[str, str]:
    """What forms of pages take, for all of them at once."""
    return {
        "action": "delete",
        "user": "ann",
        "user_id": "ann",
        "service": service,
        "name": "stolen",
        "role": "operator",
        "tags": "stolen",
        "what": "job",
        "message": "stolen",
        **dict.fromkeys(("sure", "confirmed", "all"), "1"),
    }


def formed(fields: dict[str, str], **files: str) -> str:
    """A form with a run.sh, whose delimiter is b."""
    parts = [(f'name="{name}"', text) for name, text in fields.items()]
    parts += [
        (f'name="file"; filename="{name}"', text)
        for name, text in {"run.sh": "echo hello\n", **files}.items()
    ]
    head = "--b\r\nContent-Disposition: form-data; "
    return "".join(f"{head}{name}\r\n\r\n{text}\r\n" for name, text in parts) + "--b--\r\n"
