"""Pages of another origin: every route, every header, uploads, streams and ranges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from server.api.routes import ROUTES
from server.web.assets import assets
from shared.http.origins import ALLOWED_HEADERS, ALLOWED_METHODS, EXPOSED_HEADERS
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving

PORTAL = "https://portal.example.org"
ROOT = Path(__file__).parents[2]
_OURS = re.compile(r"""["'](Ferryman-[A-Za-z-]+)["']""")


@pytest.fixture
async def caller(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), allowed_origins=[PORTAL]) as found:
        yield found


def words(text: str) -> set[str]:
    return set(text.split(", "))


async def test_a_trusted_page_may_call_every_route(caller):
    for route in ROUTES:
        asked = {
            "Origin": PORTAL,
            "Sec-Fetch-Site": "cross-site",
            "Access-Control-Request-Method": route.method,
            "Access-Control-Request-Headers": "authorization, ferryman-act-as, idempotency-key",
        }
        path = re.sub(r"{\w+(:[^}]*)?}", "1", route.path)
        async with caller.session.options(f"{caller.url}{path}", headers=asked) as answer:
            assert answer.status == 204, path
            assert answer.headers["Access-Control-Allow-Origin"] == PORTAL
            assert route.method in words(answer.headers["Access-Control-Allow-Methods"])
            allowed = words(answer.headers["Access-Control-Allow-Headers"].lower())
            assert words(asked["Access-Control-Request-Headers"]) <= allowed


def test_every_header_of_ours_crosses_origins():
    """Those of the routes; server and agents have others between them."""
    files = [file for name in ("api", "http") for file in (ROOT / "server" / name).rglob("*.py")]
    ours = {header for file in files for header in _OURS.findall(file.read_text())}
    assert {"Ferryman-Act-As", "Ferryman-Log-Next"} <= ours
    assert ours <= words(ALLOWED_HEADERS) | words(EXPOSED_HEADERS)
    assert {header for route in ROUTES for header in route.headers} <= words(ALLOWED_HEADERS)
    assert {header for route in ROUTES for header in route.sends} <= words(EXPOSED_HEADERS)
    assert {route.method for route in ROUTES} <= words(ALLOWED_METHODS)


async def test_a_trusted_page_reads_streams_parts_and_refusals(caller):
    job = await caller.upload()
    await caller.job(job)
    for path, headers, status in (
        (f"/api/v1/jobs/{job}/events", {"Accept": "text/event-stream"}, 200),
        (f"/api/v1/jobs/{job}/result", {"Range": "bytes=0-3"}, 206),
        ("/api/v1/jobs/99", {}, 404),
        ("/nowhere", {}, 404),
    ):
        shown = headers | {"Origin": PORTAL, "Sec-Fetch-Site": "cross-site"}
        async with caller.session.get(f"{caller.url}{path}", headers=shown) as answer:
            assert answer.status == status, path
            assert answer.headers["Access-Control-Allow-Origin"] == PORTAL
            exposed = words(answer.headers["Access-Control-Expose-Headers"])
            assert {"Content-Range", "X-Request-ID", "Retry-After", "ETag"} <= exposed


async def test_what_depends_on_more_than_the_origin_says_so(caller):
    version = assets()["ferryman.css"].version
    address = f"{caller.url}/assets/{version}/ferryman.css"
    async with caller.session.get(address, headers={"Origin": PORTAL}) as answer:
        assert words(answer.headers["Vary"]) == {"Accept-Encoding", "Origin"}
