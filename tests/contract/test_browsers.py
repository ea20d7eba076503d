"""What browsers and proxies need: forms, a description that can be tried, a path of its own."""

from __future__ import annotations

import json
from urllib.parse import urljoin

import aiohttp

from ferryman import Client
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.path_proxy import PREFIX, proxied
from tests.kit.server_http import RUN, ServerClient, driving

JSON = ("application/json", "application/problem+json")


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


PROGRAMS = {
    "Java HttpURLConnection": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    "Java 17": "text/html, image/gif, image/jpeg, */*; q=0.2",
    "json first": "application/json, text/html;q=0.1",
    "the mere word": "text/html",
    "wget": "*/*",
    "old wget": "text/html, */*",
    "curl, requests": "*/*",
    "PHP": None,
    "PHP Guzzle": "text/html, application/json",
    "libwww-perl": "text/html, image/png, image/jpeg, image/gif, */*;q=0.1",
}
BROWSERS = {
    "Firefox": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "Chrome": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,"
    "image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7",
    "Safari": "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
    "lynx": "text/html, text/plain, text/sgml, application/xhtml+xml, */*;q=0.01",
}


async def test_programs_get_no_pages_whatever_they_accept(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), tokens=["a-token-of-16-letters"]) as caller:
        good = {"Authorization": "Bearer a-token-of-16-letters"}
        for who, accept in PROGRAMS.items():
            shown = {} if accept is None else {"Accept": accept}
            async with aiohttp.ClientSession(skip_auto_headers=["Accept"]) as session:
                for path in ("/", "/upload", "/api/v1/jobs", "/download/1"):
                    method = "POST" if path == "/upload" else "GET"
                    async with session.request(
                        method, caller.url + path, headers=shown, allow_redirects=False
                    ) as answer:
                        assert answer.status == (200 if path == "/" else 401), (who, path)
                        assert answer.content_type in JSON, (who, path)
                async with session.post(
                    f"{caller.url}/upload", data=form(), headers=shown | good, allow_redirects=False
                ) as answer:
                    assert (answer.status, answer.content_type) == (201, "application/json"), who
                async with session.get(
                    f"{caller.url}/download/999", headers=shown | good
                ) as answer:
                    assert (answer.status, answer.content_type) == (404, "application/json"), who


async def test_browsers_get_pages(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), tokens=["a-token-of-16-letters"]) as caller:
        sent = {name: {"Accept": accept} for name, accept in BROWSERS.items()}
        sent["navigation"] = {"Accept": "*/*", "Sec-Fetch-Mode": "navigate"}
        for who, shown in sent.items():
            async with caller.session.get(
                f"{caller.url}/jobs/1", headers=shown, allow_redirects=False
            ) as answer:
                assert answer.status == 303, who
                assert answer.headers["Location"] == "/login?next=%2Fjobs%2F1", who
        # A part of a page whose session has ended: the whole page has to go to the login.
        shown = {"Accept": "text/html", "HX-Request": "true", "HX-Current-URL": caller.url}
        async with caller.session.get(f"{caller.url}/jobs/1", headers=shown) as answer:
            assert (answer.status, answer.headers["HX-Redirect"]) == (401, "/login?next=%2F")
        # A script of a page that was opened is no person.
        shown = {"Accept": "*/*", "Sec-Fetch-Mode": "cors"}
        async with caller.session.get(f"{caller.url}/jobs/1", headers=shown) as answer:
            assert (answer.status, answer.content_type) == (401, "application/json")


async def test_behind_a_proxy_with_a_path_everything_works(tmp_path):
    async with (
        driving(tmp_path, FakeOrchestrator(), public_url=PREFIX) as caller,
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
        driving(tmp_path, FakeOrchestrator(), public_url=PREFIX) as caller,
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
