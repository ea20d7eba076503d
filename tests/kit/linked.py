"""Signed links: to one job, its result or one file of it, until their end, and nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import FormData

from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JOB = "/api/v1/jobs/{}"


class World:
    """A server with tokens, and people without one who have links."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url

    async def job(self, user: str = "ann", **fields: str) -> int:
        form = {"user_id": user, "service": "my_service", **fields}
        data = FormData()
        for name, value in form.items():
            data.add_field(name, value)
        data.add_field("file", RUN, filename="run.sh")
        shown = {"Authorization": f"Bearer the-token-of-{user}"}
        async with self.caller.session.post(
            f"{self.url}/upload", data=data, headers=shown
        ) as answer:
            job_id = int((await answer.json())["id"])
        await self.get(f"{JOB.format(job_id)}/result?wait=20", Authorization=shown["Authorization"])
        return job_id

    async def make(self, job_id: int, who: str = "ann", **asked: Any) -> tuple[int, dict[str, Any]]:
        shown = {"Authorization": f"Bearer the-token-of-{who}"}
        path = f"{self.url}{JOB.format(job_id)}/links"
        async with self.caller.session.post(path, json=asked, headers=shown) as answer:
            return answer.status, await answer.json()

    async def link(self, job_id: int, **asked: Any) -> str:
        """What its address ends in."""
        status, found = await self.make(job_id, **asked)
        assert status == 201, found
        return str(found["link"])

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.caller.session.request(method, url, headers=headers) as answer:
            return answer.status, (await answer.read()).decode("latin-1")


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)
