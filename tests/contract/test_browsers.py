"""What browsers and proxies need: forms, a description that can be tried, a path of its own."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator
from urllib.parse import urljoin

import aiohttp
from aiohttp import web
from aiohttp.test_utils import TestServer

from ferryman import Client
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import RUN, ServerClient, driving

PREFIX = "/jobs/of-ours"


@contextlib.asynccontextmanager
async def proxied(caller: ServerClient) -> AsyncIterator[str]:
    """A proxy that shows the server below PREFIX; the address there."""

    async def forward(request: web.Request) -> web.StreamResponse:
        path = request.raw_path.removeprefix(PREFIX)
        assert path != request.raw_path, "it asked outside the prefix"
        headers = {
            name: value
            for name, value in request.headers.items()
            if name not in ("Host", "Transfer-Encoding")
        }
        async with caller.session.request(
            request.method,
            f"{caller.url}{path}",
            data=await request.read(),
            headers=headers,
            allow_redirects=False,
            skip_auto_headers=["User-Agent"],
        ) as answer:
            kept = {
                name: value
                for name, value in answer.headers.items()
                if name not in ("Content-Length", "Transfer-Encoding", "Connection", "Date")
            }
            return web.Response(status=answer.status, body=await answer.read(), headers=kept)

    application = web.Application(client_max_size=1 << 24)
    application.router.add_route("*", "/{path:.*}", forward)
    async with TestServer(application) as server:
        yield str(server.make_url(PREFIX))


def form() -> aiohttp.FormData:
    found = aiohttp.FormData()
    found.add_field("user_id", "7")
    found.add_field("service", "my_service")
    found.add_field("file", RUN, filename="run.sh")
    return found


async def test_a_plain_form_is_sent_on_to_its_job(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        shown = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
        async with caller.session.post(
            f"{caller.url}/upload", data=form(), headers=shown, allow_redirects=False
        ) as answer:
            assert (answer.status, answer.headers["Location"]) == (303, "/jobs/1")
        async with caller.session.post(
            f"{caller.url}/upload", data=form(), headers=shown
        ) as answer:  # as a browser follows it
            assert "Job 2: " in await answer.text()


async def test_behind_a_proxy_with_a_path_everything_works(tmp_path):
    async with (
        driving(tmp_path, FakeOrchestrator(), url_prefix=PREFIX) as caller,
        proxied(caller) as base,
    ):
        async with caller.session.post(f"{base}/upload", data=form()) as answer:
            assert answer.status == 201
            job = urljoin(base, answer.headers["Location"])
        async with caller.session.get(job) as answer:
            links = (await answer.json())["links"]
        for name in ("self", "events", "partial"):
            async with caller.session.get(urljoin(base, links[name])) as answer:
                assert answer.status == 200, name
        async with Client(base, user="7") as client:
            bundle = tmp_path / "mine"
            bundle.mkdir()
            (bundle / "run.sh").write_bytes(RUN)
            submitted = await client.submit(bundle, service="my_service")
            assert (await client.wait(submitted.id)).status == "Completed"


async def test_the_description_can_be_tried_behind_a_proxy(tmp_path):
    async with (
        driving(tmp_path, FakeOrchestrator(), url_prefix=PREFIX) as caller,
        proxied(caller) as base,
    ):
        async with caller.session.get(f"{base}/swagger") as answer:
            page = await answer.text()
        for reference in ("swagger/swagger-ui.css", "swagger/start.js"):
            assert f'"{reference}"' in page
            async with caller.session.get(urljoin(f"{base}/swagger", reference)) as answer:
                assert answer.status == 200
        start = await _text(caller, urljoin(f"{base}/swagger", "swagger/start.js"))
        assert 'url: "openapi.json"' in start  # relative to the page
        url = urljoin(f"{base}/swagger", "openapi.json")
        document = json.loads(await _text(caller, url))
        assert urljoin(url, document["servers"][0]["url"]) == f"{base}/"


async def _text(caller: ServerClient, url: str) -> str:
    async with caller.session.get(url) as answer:
        assert answer.status == 200, url
        return await answer.text()
