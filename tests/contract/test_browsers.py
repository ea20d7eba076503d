"""What browsers and proxies need: forms, a description that can be tried, a path of its own."""

from __future__ import annotations

import json
from urllib.parse import urljoin

import aiohttp

from ferryman import Client
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.path_proxy import PREFIX, proxied
from tests.support.server_http import RUN, ServerClient, driving


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
