"""Which pages may do and read what at both programs; who gets pages; a proxy with a path."""

import json
import re
from functools import partial
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
from tests.kit.waiting import eventually
from tests.server.access import BOUNDARY, formed
from tests.server.front import PORTAL, TOKEN, guarded, guarding, name, program

__all__ = ["guarded", "name", "program"]
pytestmark = pytest.mark.asyncio(loop_scope="module")

ROOT = Path(__file__).parents[2]
_OURS = re.compile(r"""["'](Ferryman-[A-Za-z-]+)["']""")
FORM = formed({"user_id": "7", "service": "my_service"})
KNOWN = {"Authorization": f"Bearer {TOKEN}"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def trusting(module_folder):
    """A server without tokens that trusts pages of the portal."""
    (folder := module_folder / "trusting").mkdir()
    async with driving(folder, FakeOrchestrator(), allowed_origins=[PORTAL]) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def closed(module_folder):
    """Asks a server that needs a token; no header is sent but those given."""
    async with (
        guarding("server", module_folder / "closed") as found,
        aiohttp.ClientSession(found.caller.url, skip_auto_headers=["Accept"]) as session,
    ):

        async def ask(method, path, headers, data=None):
            async with session.request(
                method, path, headers=headers, data=data, allow_redirects=False
            ) as answer:
                return answer.status, answer.content_type, answer.headers

        yield ask


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def behind(module_folder):
    """A server behind a proxy with a path, and its address there."""
    (folder := module_folder / "behind").mkdir()
    async with driving(folder, FakeOrchestrator(), public_url=PREFIX) as caller:
        with proxied(caller.url) as base:
            yield caller, base


@each(
    "ours, headers",
    [
        (False, {"Sec_Fetch_Site": "cross-site"}),
        (False, {"Sec_Fetch_Site": "same-site", "Origin": "http://other.localhost"}),
        (False, {"Origin": "https://evil.example"}),
        (False, {"Origin": "null"}),
        (False, {"Origin": "http://127.0.0.1:1"}),
        (True, {}),
        (True, {"Origin": "own"}),
        (True, {"Origin": "own", "Sec_Fetch_Site": "same-origin"}),
    ],
)
async def test_only_our_pages_and_programs_change_things(program, ours, headers):
    if headers.get("Origin") == "own":
        headers = headers | {"Origin": f"http://127.0.0.1:{program.port}"}
    asked = [("POST", program.change)] + ([] if ours else [("POST", program.upload)])
    if program.name == "agent" and not ours:
        asked.append(("DELETE", "/payloads/1"))
    for method, path in asked:
        answer = await program.ask(method, path, **headers)
        assert "access-control-allow-origin" not in answer.headers
        if ours:
            assert answer.status == 404
        else:
            assert (answer.status, answer.document["code"]) == (403, "foreign_origin")


async def test_a_trusted_page_may_call_and_read_the_answer_and_others_may_not(guarded):
    for origin in ("https://evil.example", f"{PORTAL}.evil.example", "http://portal.example.org"):
        asked = {"Origin": origin, "Access_Control_Request_Method": "POST"}
        assert (await guarded.ask("OPTIONS", guarded.upload, **asked)).status == 403
        answer = await guarded.ask("GET", guarded.private, Origin=origin)
        assert "access-control-allow-origin" not in answer.headers
        assert answer.headers.get("vary", "Origin") == "Origin"
    if guarded.name == "agent":
        return  # no page calls an agent
    shown = {"Origin": PORTAL, "Sec_Fetch_Site": "cross-site"}
    asked = shown | {"Access_Control_Request_Method": "POST"}
    for method, path, more, status in (
        ("OPTIONS", guarded.upload, asked, 204),
        ("POST", guarded.change, shown | KNOWN, 404),
        ("POST", guarded.change, shown, 401),  # the host is allowed; a token is still needed
    ):
        answer = await guarded.ask(method, path, **more)
        assert (answer.status, answer.headers["access-control-allow-origin"]) == (status, PORTAL)


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
    current = assets()["ferryman.css"].version
    for version, kept in ((current, "public, max-age=31536000, immutable"), ("old", "no-cache")):
        address = f"{trusting.url}/assets/{version}/ferryman.css"
        async with trusting.session.get(address, headers={"Origin": PORTAL}) as answer:
            assert words(answer.headers["Vary"]) == {"Accept-Encoding", "Origin"}
            assert answer.headers["Cache-Control"] == kept


PROGRAMS = {
    "Java HttpURLConnection": "text/html, image/gif, image/jpeg, *; q=.2, */*; q=.2",
    "Java 17": "text/html, image/gif, image/jpeg, */*; q=0.2",
    "json first": "application/json, text/html;q=0.1",
    "the mere word": "text/html",
    "wget": "*/*",
    "old wget": "text/html, */*",
    "PHP": None,
    "PHP Guzzle": "text/html, application/json",
    "libwww-perl": "text/html, image/png, image/jpeg, image/gif, */*;q=0.1",
}
FIREFOX = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
BROWSERS = {
    "Firefox, Safari": {"Accept": FIREFOX},
    "Chrome": {
        "Accept": "text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,"
        "image/apng,*/*;q=0.8,application/signed-exchange;v=b3;q=0.7"
    },
    "lynx": {"Accept": "text/html, text/plain, text/sgml, application/xhtml+xml, */*;q=0.01"},
    "one that goes to a page": {"Accept": "*/*", "Sec-Fetch-Mode": "navigate"},
}


async def test_programs_get_no_pages_whatever_they_accept_and_browsers_do(closed):
    for who, accept in PROGRAMS.items():
        shown = {} if accept is None else {"Accept": accept}
        for method, path, more, status, body in (
            ("GET", "/", {}, 200, None),
            ("POST", "/upload", {}, 401, None),
            ("GET", "/api/v1/jobs", {}, 401, None),
            ("GET", "/download/1", {}, 401, None),
            ("POST", "/upload", KNOWN | BOUNDARY, 201, FORM),
            ("GET", "/download/999", KNOWN, 404, None),
        ):
            found, kind, _ = await closed(method, path, shown | more, body)
            assert (found, kind.endswith("json")) == (status, True), (who, path, kind)
    for who, shown in BROWSERS.items():
        found, _, headers = await closed("GET", "/jobs/1", shown)
        assert (found, headers.get("Location")) == (303, "/login?next=%2Fjobs%2F1"), who
    # A part of a page whose session has ended: the whole page has to go there.
    part = {"Accept": "text/html", "HX-Request": "true", "HX-Current-URL": "http://localhost"}
    found, _, headers = await closed("GET", "/jobs/1", part)
    assert (found, headers["HX-Redirect"]) == (401, "/login?next=%2F")
    # A script of a page that was opened is no person.
    script = {"Accept": "*/*", "Sec-Fetch-Mode": "cors"}
    assert (await closed("GET", "/jobs/1", script))[:2] == (401, "application/json")


async def test_behind_a_proxy_with_a_path_everything_works(behind, tmp_path):
    caller, base = behind

    async def text(url):
        async with caller.session.get(url) as answer:
            assert answer.status == 200, url
            return (await answer.read()).decode(errors="replace")

    async with caller.session.post(f"{base}/upload", data=FORM, headers=BOUNDARY) as answer:
        assert answer.status == 201
        job = urljoin(base, answer.headers["Location"])
    done = await caller.job(int(job.rpartition("/")[2]))
    parent = await caller.upload(array="0-1")
    listed = partial(caller.api, "GET", "/jobs", parent=str(parent))
    (child, _) = (await eventually(listed, lambda page: len(page["items"]) == 2))["items"]
    shown = (await caller.api("GET", f"/jobs/{parent}"), *done["attempts"], child, done)
    links = [pair for document in shown for pair in document["links"].items() if pair[1]]
    of_each = dict(links)
    assert of_each.keys() >= {"self", "parent", "children", "stdout", "result", "bundle"}
    assert [link for _, link in links if not link.startswith(f"{PREFIX}/")] == []
    for link in ("self", "events", "partial", "parent", "children"):
        await text(urljoin(base, of_each[link]))
    async with Client(base, user="7") as client:
        (tmp_path / "run.sh").write_bytes(RUN)
        submitted = await client.submit(tmp_path, service="my_service")
        assert (await client.wait(submitted.id)).status == "Completed"
    # The description can be tried there.
    page = await text(f"{base}/swagger")
    found = {}
    for reference in ("swagger/swagger-ui.css", "swagger/start.js"):
        assert f'"{reference}"' in page
        found[reference] = await text(urljoin(f"{base}/swagger", reference))
    assert 'url: "openapi.json"' in found["swagger/start.js"]  # relative to the page
    url = urljoin(f"{base}/swagger", "openapi.json")
    document = json.loads(await text(url))
    assert urljoin(url, document["servers"][0]["url"]) == f"{base}/"
