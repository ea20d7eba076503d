"""The page with charts: its tables, which are all of it where there is no JavaScript."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from server.stages.statistics import History, Point
from server.web.operators.charts import charts
from shared.clock import SECOND
from shared.principals import Principal, Role, Scope
from tests.kit.clock import SimClock
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.past_week import write_past_week
from tests.kit.server_http import ServerClient, driving

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
PRINCIPALS = {
    "ann": Principal("ann", Role.USER, "7"),
    "portal": Principal("portal", Role.PORTAL, users=("7",)),
    "reader": Principal("reader", Role.OPERATOR, scopes=frozenset({Scope.READ})),
    "admin": Principal("admin", Role.OPERATOR),
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


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("period", "rows"), [("day", 140), ("week", 160)])
async def test_each_chart_has_all_its_numbers_in_a_table(client, period, rows):
    status, page = await opened(client, f"?period={period}")
    assert status == 200
    found = tables(page)
    assert list(found) == ["jobs", "ended", "waiting", "failures"]
    history = await client.server.context.statistics.read(period, None)
    for name, lines in found.items():
        assert len(lines) == len(history.points) >= rows, name
    newest, oldest = history.points[-1], history.points[0]
    for line, point in ((found["ended"][0], newest), (found["ended"][-1], oldest)):
        assert f'data-at="{point.at // SECOND}"' in line
        values = [int(one) for one in re.findall(r'data-value="(\d+)"', line)]
        numbers, failed = point.numbers, sum(point.numbers.get("failed", {}).values())
        completed, cancelled = numbers.get("completed", 0), numbers.get("cancelled", 0)
        assert values == [completed, failed, cancelled, numbers.get("uploaded", 0)]
    assert f"<dd>{history.total['uploaded']:,}</dd>" in page


async def test_the_charts_of_a_service_are_about_its_jobs(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as client:
        for _ in range(3):
            await client.job(await client.upload())
        statistics = client.server.context.statistics
        await statistics.run_once()
        _, page = await opened(client, "?period=week&service=my_service")
        assert '<option value="my_service" selected>' in page
        assert 'href="/charts?period=day&amp;service=my_service"' in page
        for service in ("my_service", None):
            total = (await statistics.read("day", service)).total
            assert (total["uploaded"], total["completed"]) == (3, 3)
            assert min(total["uploaded_bytes"], total["result_bytes"]) > 0


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("?period=hour", 400),
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


def test_a_reason_that_is_unknown_is_shown_as_text_and_many_are_put_together():
    reasons = {"<b>hostile</b>": 9} | {f"reason_{number}": 8 - number for number in range(7)}
    numbers = {"failed": reasons}
    history = History([], 600, numbers, [Point(0, 1, numbers)])
    (failures,) = [one for one in charts(history) if one.name == "failures"]
    assert [one.label for one in failures.series] == [
        "<b>hostile</b>",
        *(f"reason_{number}" for number in range(4)),
        "others",
    ]
    assert failures.series[-1].values == [4 + 3 + 2]
    assert "hostile" not in failures.body([(0, "11:00")])
    waiting = next(one for one in charts(history) if one.name == "waiting")
    assert waiting.empty
