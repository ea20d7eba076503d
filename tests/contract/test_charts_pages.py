"""The page with charts: its tables, which are all of it where there is no JavaScript."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.web.operators.charts import charts
from shared.principals import Principal, Role, Scope
from shared.wire import StatisticsDoc
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.past_week import write_past_week
from tests.support.server_http import ServerClient, driving
from tests.support.sim_clock import SimClock

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PRINCIPALS = {
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "reader": Principal("reader", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "admin": Principal("admin", Role.OPERATOR),
}
POINT = {
    "uploaded": 0,
    "uploaded_bytes": 0,
    "started": 0,
    "completed": 0,
    "cancelled": 0,
    "retried": {},
    "result_bytes": 0,
    "waiting": {"count": 0},
    "run": {"count": 0},
}


async def opened(client: ServerClient, query: str = "", token: str = "") -> tuple[int, str]:
    given = BROWSER | ({"Authorization": f"Bearer {token}"} if token else {})
    url = f"{client.url}/charts{query}"
    async with client.session.get(url, headers=given, allow_redirects=False) as answer:
        return answer.status, await answer.text()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(module_folder: Path) -> AsyncIterator[ServerClient]:
    """A server with the statistics of a week."""
    data = module_folder / "data"
    data.mkdir()
    clock = SimClock()
    await write_past_week(data / "ferryman.sqlite", clock.now())
    async with driving(module_folder, FakeOrchestrator(), machine=clock) as running:
        yield running


def tables(page: str) -> dict[str, list[str]]:
    """Name of a chart -> the rows of its table."""
    found = {}
    for name, inner in re.findall(r'id="chart-(\w+)"(.*?)</section>', page, re.DOTALL):
        found[name] = re.findall(r"<tr>(<th scope=\"row\".*?)</tr>", inner)
    return found


OF_JOBS = ["jobs", "ended", "waiting", "run", "failures", "bytes"]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("period", "rows"), [("hour", 60), ("day", 140), ("week", 160)])
async def test_each_chart_has_all_its_numbers_in_a_table(client, period, rows):
    status, page = await opened(client, f"?period={period}")
    assert status == 200
    found = tables(page)
    assert list(found) == [*OF_JOBS, "slots", "disk", "database"]
    doc = await client.server.context.statistics.read(period, None)
    for name, lines in found.items():
        assert len(lines) == len(doc.points) >= rows, name
    newest, oldest = doc.points[-1], doc.points[0]
    for line, point in ((found["ended"][0], newest), (found["ended"][-1], oldest)):
        assert f'data-at="{int(point.at.timestamp())}"' in line
        values = [int(one) for one in re.findall(r'data-value="(\d+)"', line)]
        failed = sum(point.failed.values())
        assert values == [point.completed, failed, point.cancelled, point.uploaded]
    assert f"<dd>{doc.total.uploaded:,}</dd>" in page


@pytest.mark.asyncio(loop_scope="module")
async def test_the_charts_of_a_service_are_about_its_jobs(client):
    _, page = await opened(client, "?period=week&service=docking")
    assert list(tables(page)) == OF_JOBS
    assert '<option value="docking" selected>' in page
    assert 'href="/charts?period=day&amp;service=docking"' in page


async def test_a_new_server_says_that_the_first_minute_is_counted(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), machine=SimClock()) as client:
        _, page = await opened(client)
        assert "The first minute is being counted." in page
        assert tables(page) == {}


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?period=year", 400),
        ("?period=<script>alert(1)</script>", 400),
        ("?service=nosuch", 404),
        ('?service="><script>alert(1)</script>', 404),
        ("?period=&service=", 200),
        ("?utm_source=mail", 200),
    ],
)
async def test_addresses_that_people_edited(client, query, status):
    found, page = await opened(client, query)
    assert found == status
    assert "<script>alert" not in page


async def test_it_is_for_operators(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as client:
        answers = {who: (await opened(client, token=who))[0] for who in ("", *PRINCIPALS)}
    assert answers == {"": 303, "ann": 403, "portal": 403, "reader": 403, "admin": 200}


def test_a_reason_that_is_unknown_is_shown_as_text_and_many_are_put_together():
    reasons = {"<b>hostile</b>": 9} | {f"reason_{number}": 8 - number for number in range(7)}
    doc = StatisticsDoc.model_validate(
        {
            "period": "hour",
            "services": [],
            "resolution_s": 60,
            "since": "2026-01-01T11:00:00Z",
            "until": "2026-01-01T12:00:00Z",
            "total": POINT | {"failed": reasons},
            "ever": POINT | {"failed": reasons},
            "points": [POINT | {"failed": reasons, "at": "2026-01-01T11:00:00Z"}],
        }
    )
    (failures,) = [one for one in charts(doc) if one.name == "failures"]
    assert [one.label for one in failures.series] == [
        "<b>hostile</b>",
        *(f"reason_{number}" for number in range(4)),
        "others",
    ]
    assert failures.series[-1].values == [4 + 3 + 2]
    assert "hostile" not in failures.body([(0, "11:00")])
    waiting = next(one for one in charts(doc) if one.name == "waiting")
    assert waiting.empty


async def test_the_page_says_what_was_counted_ever(tmp_path: Path) -> None:
    async with driving(tmp_path, FakeOrchestrator()) as client:
        job_id = await client.upload()
        await client.job(job_id)
        async with client.session.delete(f"{client.url}/api/v1/jobs/{job_id}") as answer:
            assert answer.status == 204
        await client.server.context.statistics.run_once()
        said = "Ever, jobs that were deleted or forgotten too: 1 uploaded, 1 completed, 0 failed"
        assert said in (await opened(client, "?period=day"))[1]
