"""Pages and browsers: whose page may do what at both programs, what trusted pages read, who gets
pages and who JSON, and a server behind a proxy with a path.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import pytest
import pytest_asyncio

from ferryman import Client
from server.api.routes import ROUTES
from server.web.assets import assets
from shared.http.origins import ALLOWED_HEADERS, ALLOWED_METHODS, EXPOSED_HEADERS
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.path_proxy import PREFIX, proxied
from tests.kit.server_http import RUN, driving
from tests.server.front import PORTAL, TOKEN, guarding, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

JSON = ("application/json", "application/problem+json")
ROOT = Path(__file__).parents[2]
_OURS = re.compile(r"""["'](Ferryman-[A-Za-z-]+)["']""")


@pytest.fixture(scope="module", params=["server", "agent"])
def name(request):
    return request.param


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(name, module_folder):
    async with serving(name, module_folder / name) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def guarded(name, module_folder):
    async with guarding(name, module_folder / f"{name}-guarded") as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trusting(module_folder):
    """A server without tokens that trusts pages of the portal."""
    folder = module_folder / "trusting"
    folder.mkdir()
    async with driving(folder, FakeOrchestrator(), allowed_origins=[PORTAL]) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(module_folder):
    """A server that asks for a token."""
    async with guarding("server", module_folder / "closed") as found:
        yield found.caller


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind(module_folder):
    """A server behind a proxy with a path, and its address there."""
    folder = module_folder / "behind"
    folder.mkdir()
    async with driving(folder, FakeOrchestrator(), public_url=PREFIX) as caller:
        with proxied(caller.url) as base:
            yield caller, base


@each(
    "headers",
    [
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site", "Origin": "http://other.localhost"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
    ],
)
async def test_a_strangers_page_changes_nothing(program, headers):
    for path in (program.change, program.upload):
        answer = await program.ask("POST", path, **headers)
        assert (answer.status, answer.document["code"]) == (403, "foreign_origin")
        assert "access-control-allow-origin" not in answer.headers
    if program.name == "agent":
        assert (await program.ask("DELETE", "/payloads/1", **headers)).status == 403


async def test_our_own_pages_and_programs_may_change_things(program):
    own = f"http://127.0.0.1:{program.port}"
    for headers in ({}, {"Origin": own}, {"Origin": own, "Sec_Fetch_Site": "same-origin"}):
        assert (await program.ask("POST", program.change, **headers)).status == 404


async def test_a_trusted_page_may_call_and_read_the_answer(guarded):
    if guarded.name == "agent":
        return  # no page calls an agent
    answer = await guarded.ask(
        "OPTIONS",
        guarded.upload,
        Origin=PORTAL,
        Access_Control_Request_Method="POST",
        Sec_Fetch_Site="cross-site",
    )
    assert answer.status == 204
    assert answer.headers["access-control-allow-origin"] == PORTAL
    assert "POST" in answer.headers["access-control-allow-methods"]
    assert "Authorization" in answer.headers["access-control-allow-headers"]
    shown = {"Authorization": f"Bearer {TOKEN}", "Origin": PORTAL, "Sec_Fetch_Site": "cross-site"}
    answer = await guarded.ask("POST", guarded.change, **shown)
    assert answer.status == 404
    assert answer.headers["access-control-allow-origin"] == PORTAL
    assert "X-Request-ID" in answer.headers["access-control-expose-headers"]
    # The host is allowed; a token is still needed.
    assert (await guarded.ask("POST", guarded.change, Origin=PORTAL)).status == 401


async def test_other_pages_are_refused_at_the_preflight(guarded):
    for origin in ("https://evil.example", f"{PORTAL}.evil.example", "http://portal.example.org"):
        answer = await guarded.ask(
            "OPTIONS", guarded.upload, Origin=origin, Access_Control_Request_Method="POST"
        )
        assert answer.status == 403
        answer = await guarded.ask("GET", guarded.private, Origin=origin)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers.get("vary", "Origin") == "Origin"


# -- what a trusted page reads


def words(text: str) -> set[str]:
    return set(text.split(", "))


async def test_a_trusted_page_may_call_every_route(trusting):
    for route in ROUTES:
        asked = {
            "Origin": PORTAL,
            "Sec-Fetch-Site": "cross-site",
            "Access-Control-Request-Method": route.method,
            "Access-Control-Request-Headers": "authorization, ferryman-act-as, idempotency-key",
        }
        path = re.sub(r"{\w+(:[^}]*)?}", "1", route.path)
        async with trusting.session.options(f"{trusting.url}{path}", headers=asked) as answer:
            assert answer.status == 204, path
            assert answer.headers["Access-Control-Allow-Origin"] == PORTAL
            assert route.method in words(answer.headers["Access-Control-Allow-Methods"])
            allowed = words(answer.headers["Access-Control-Allow-Headers"].lower())
            assert words(asked["Access-Control-Request-Headers"]) <= allowed


async def test_every_header_of_ours_crosses_origins():
    """Those of the routes; server and agents have others between them."""
    files = [file for name in ("api", "http") for file in (ROOT / "server" / name).rglob("*.py")]
    ours = {header for file in files for header in _OURS.findall(file.read_text())}
    assert {"Ferryman-Act-As", "Ferryman-Log-Next"} <= ours
    assert ours <= words(ALLOWED_HEADERS) | words(EXPOSED_HEADERS)
    assert {header for route in ROUTES for header in route.headers} <= words(ALLOWED_HEADERS)
    assert {header for route in ROUTES for header in route.sends} <= words(EXPOSED_HEADERS)
    assert {route.method for route in ROUTES} <= words(ALLOWED_METHODS)


async def test_a_trusted_page_reads_streams_parts_and_refusals(trusting):
    job = await trusting.upload()
    await trusting.job(job)
    for path, headers, status in (
        (f"/api/v1/jobs/{job}/events", {"Accept": "text/event-stream"}, 200),
        (f"/api/v1/jobs/{job}/result", {"Range": "bytes=0-3"}, 206),
        ("/api/v1/jobs/99", {}, 404),
        ("/nowhere", {}, 404),
    ):
        shown = headers | {"Origin": PORTAL, "Sec-Fetch-Site": "cross-site"}
        async with trusting.session.get(f"{trusting.url}{path}", headers=shown) as answer:
            assert answer.status == status, path
            assert answer.headers["Access-Control-Allow-Origin"] == PORTAL
            exposed = words(answer.headers["Access-Control-Expose-Headers"])
            assert {"Content-Range", "X-Request-ID", "Retry-After", "ETag"} <= exposed


async def test_what_depends_on_more_than_the_origin_says_so(trusting):
    version = assets()["ferryman.css"].version
    address = f"{trusting.url}/assets/{version}/ferryman.css"
    async with trusting.session.get(address, headers={"Origin": PORTAL}) as answer:
        assert words(answer.headers["Vary"]) == {"Accept-Encoding", "Origin"}


# -- browsers


def form() -> aiohttp.FormData:
    found = aiohttp.FormData()
    found.add_field("user_id", "7")
    found.add_field("service", "my_service")
    found.add_field("file", RUN, filename="run.sh")
    return found


async def test_a_plain_form_is_sent_on_to_its_job(trusting):
    shown = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
    url = f"{trusting.url}/upload"
    async with trusting.session.post(
        url, data=form(), headers=shown, allow_redirects=False
    ) as answer:
        assert answer.status == 303
        path, _, job = answer.headers["Location"].rpartition("/")
        assert path == "/jobs"
    async with trusting.session.post(url, data=form(), headers=shown) as answer:
        assert f"Job {int(job) + 1}: " in await answer.text()  # as a browser follows it


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


@each("who, accept", PROGRAMS.items())
async def test_programs_get_no_pages_whatever_they_accept(closed, who, accept):
    shown = {} if accept is None else {"Accept": accept}
    good = shown | {"Authorization": f"Bearer {TOKEN}"}
    async with aiohttp.ClientSession(closed.url, skip_auto_headers=["Accept"]) as session:

        async def ask(method, path, headers=shown, data=None):
            async with session.request(
                method, path, headers=headers, data=data, allow_redirects=False
            ) as answer:
                assert answer.content_type in JSON, path
                return answer.status

        assert await ask("GET", "/") == 200
        for method, path in (("POST", "/upload"), ("GET", "/api/v1/jobs"), ("GET", "/download/1")):
            assert await ask(method, path) == 401, path
        assert await ask("POST", "/upload", good, form()) == 201
        assert await ask("GET", "/download/999", good) == 404


NAVIGATION = {"Accept": "*/*", "Sec-Fetch-Mode": "navigate"}


@each("shown", [{"Accept": accept} for accept in BROWSERS.values()] + [NAVIGATION])
async def test_browsers_get_pages(closed, shown):
    async with closed.session.get(
        f"{closed.url}/jobs/1", headers=shown, allow_redirects=False
    ) as answer:
        assert (answer.status, answer.headers["Location"]) == (303, "/login?next=%2Fjobs%2F1")


async def test_parts_and_scripts_of_pages_are_not_sent_to_the_login(closed):
    # A part of a page whose session has ended: the whole page has to go there.
    shown = {"Accept": "text/html", "HX-Request": "true", "HX-Current-URL": closed.url}
    async with closed.session.get(f"{closed.url}/jobs/1", headers=shown) as answer:
        assert (answer.status, answer.headers["HX-Redirect"]) == (401, "/login?next=%2F")
    # A script of a page that was opened is no person.
    shown = {"Accept": "*/*", "Sec-Fetch-Mode": "cors"}
    async with closed.session.get(f"{closed.url}/jobs/1", headers=shown) as answer:
        assert (answer.status, answer.content_type) == (401, "application/json")


async def test_behind_a_proxy_with_a_path_everything_works(behind, tmp_path):
    caller, base = behind
    async with caller.session.post(f"{base}/upload", data=form()) as answer:
        assert answer.status == 201
        job = urljoin(base, answer.headers["Location"])
    links = json.loads(await text(caller, job))["links"]
    for name in ("self", "events", "partial"):
        async with caller.session.get(urljoin(base, links[name])) as answer:
            assert answer.status == 200, name
    async with Client(base, user="7") as client:
        (tmp_path / "run.sh").write_bytes(RUN)
        submitted = await client.submit(tmp_path, service="my_service")
        assert (await client.wait(submitted.id)).status == "Completed"


async def test_the_description_can_be_tried_behind_a_proxy(behind):
    caller, base = behind
    page = await text(caller, f"{base}/swagger")
    found = {}
    for reference in ("swagger/swagger-ui.css", "swagger/start.js"):
        assert f'"{reference}"' in page
        found[reference] = await text(caller, urljoin(f"{base}/swagger", reference))
    assert 'url: "openapi.json"' in found["swagger/start.js"]  # relative to the page
    url = urljoin(f"{base}/swagger", "openapi.json")
    document = json.loads(await text(caller, url))
    assert urljoin(url, document["servers"][0]["url"]) == f"{base}/"


async def text(caller, url):
    async with caller.session.get(url) as answer:
        assert answer.status == 200, url
        return await answer.text()
