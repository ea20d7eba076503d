"""The pages of operators: status, users, charts and services; what they show, and their forms."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal
from unittest import mock

import pytest
import pytest_asyncio

from server.api.server_status import ADVICE
from server.domain.troubles import SERVER_TROUBLES, Trouble, TroubleKind
from server.stages.statistics import History, Point
from server.storage.scratch import Scratch
from server.web.operators.charts import charts
from shared.clock import SECOND
from shared.principals import Principal, Role
from tests.kit.clock import SimClock
from tests.kit.each import each
from tests.kit.fake_agent import serving
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, Page, browsing
from tests.kit.server_http import ServerClient, driving
from tests.kit.store import Jobs
from tests.kit.warm import Place
from tests.server.past_week import write_past_week

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "the-token-of-admin"
PRINCIPALS = {OPERATOR: Principal("admin", Role.OPERATOR), "seven": Principal("s", Role.USER, "7")}
SERVER = """
[server]
stored_per_user = 1000000
[users.lab]
members = ["7", "8"]
queued_per_user = 9
stored_per_user = 2000000
upload_per_user_per_day = 3000000
[services.of_the_file]
timeout = "90s"
retry_on = ["timeout", "exit:3"]
limits = { memory = "8GiB" }
"""
HOSTILE = "<img src=x onerror=alert(1)>"
SECRET = "hunter2-and-more"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def past(module_folder: Path) -> AsyncIterator[tuple[ServerClient, Browser]]:
    (data := module_folder / "past" / "data").mkdir(parents=True)
    clock = SimClock()
    await write_past_week(data / "ferryman.sqlite", clock.now())
    async with (
        driving(data.parent, FakeOrchestrator(), machine=clock) as caller,
        browsing(caller.url) as browser,
    ):
        yield caller, browser


def verdict(page: Page) -> tuple[str, str]:
    found = page.main.one(kind="verdict")
    return found["data-kind"], found.text


def troubles(page: Page) -> list[str]:
    return [one.text for one in page.main.all(kind="trouble")]


async def test_the_numbers_of_a_well_server_are_those_of_the_(place: Place, admin: Browser) -> None:
    place.does(None)
    await place.job(await place.upload(), until="Running")
    found = await place.api("GET", "/status")
    assert (found["status"], found["troubles"]) == ("ok", [])
    assert (found["agents_up"], found["agents"], found["in_work"], found["slots"]) == (1, 1, 1, 4)
    assert 0 < found["disk"]["free"] < found["disk"]["total"]
    assert found["database_bytes"] > 0
    assert {"sender", "cleaner", "record"} <= {one["name"] for one in found["loops"]}
    page = await admin.see("/status")
    well = "Everything is all right: uploads are taken, and jobs are run."
    assert verdict(page) == ("good", well)
    assert page.main.facts()["Agents that take jobs"] == "1 of 1"
    assert "Slots 1 of 4" in page.text


async def test_what_should_be_looked_at_is_said_with_what_to_do(
    place: Place, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = f"/services/{place.service}"
    await admin.send(service, f"{service}/pause", message=HOSTILE)
    await admin.send("/agents/local", "/agents/local/drain", message="new disk")
    found = await place.api("GET", "/status")
    assert found["status"] == "attention"
    assert [one["kind"] for one in found["troubles"]] == ["agent_draining", "service_paused"]
    page = await admin.see("/status")
    assert verdict(page) == ("doubt", "It works, but something should be looked at.")
    assert HOSTILE not in page.source
    for one, text in zip(found["troubles"], troubles(page), strict=True):
        assert one["advice"] in text
    links = page.main.one(kind="troubles").links()
    assert links == ["/agents/local", service]
    assert "0 of 1 agent takes jobs." in (await admin.see("/agents")).text, "and it has no slots"
    for path in (service, "/agents/local"):
        await admin.send(path, f"{path}/resume")
    with monkeypatch.context() as patch:
        patch.setattr(Scratch, "free_bytes", lambda _: 5)
        place.warm.clock.forward(60)  # it is not looked at for each request
        page = await admin.see("/status")
        assert verdict(page)[0] == "bad"
        assert "The disk is full." in troubles(page)[0]
        assert ADVICE[TroubleKind.DISK_FULL] in troubles(page)[0]
        assert (await place.api("GET", "/status"))["troubles"][0]["is_serious"]
        status, health = await place.ask("GET", "/health")
        assert (status, health["message"]) == (503, "the disk is full")
    place.warm.clock.forward(60)
    # A trouble of any kind can be shown, and has an advice.
    assert ADVICE.keys() == set(TroubleKind)
    assert set(TroubleKind) > SERVER_TROUBLES
    every = [Trouble(kind, f"{HOSTILE} {kind}", "fake") for kind in TroubleKind]
    all_of_them = mock.AsyncMock(return_value=every)
    with mock.patch.object(place.server.context.health, "troubles", all_of_them):
        page = await admin.see("/status")
    assert (HOSTILE in page.source, len(troubles(page))) == (False, len(every))


async def test_agents_that_are_away_lost_or_none_are_troubles(tmp_path: Path) -> None:
    extra = "[agents.away]\nurl = 'http://[::1]:9'\n[agents.gone]\nurl = 'http://[::1]:10'"
    async with serving(tmp_path, extra=extra) as caller, browsing(caller.url) as browser:
        await browser.send("/agents/gone", "/agents/gone/lost", message="burned")
        found = (await browser.json("/api/v1/status"))["troubles"]
        kinds = {one["about"]: one["kind"] for one in found}
        assert kinds == {"away": "agent_away", "gone": "agent_lost"}
        assert "burned" in " ".join(troubles(await browser.see("/status")))
    (other := tmp_path / "other").mkdir()
    async with serving(other, extra="[agents]") as caller, browsing(caller.url) as browser:
        page = await browser.see("/status")
        assert "There is no agent, so no job can run." in troubles(page)[0]
        assert "Nobody has uploaded anything yet" in (await browser.see("/users")).text


async def test_stored_files_to_look_at_are_named_and_stop_no_upload(tmp_path: Path) -> None:
    """More files without a row than a sweep may remove, and files that a start moved aside."""
    (aside := tmp_path / "data" / "unknown").mkdir(parents=True)
    async with driving(tmp_path, FakeOrchestrator(), gone=True) as caller:
        caller.server.context.stages.clean.orphans_left = 3
        await caller.server.context.health.troubles()  # looks at the disk
        async with browsing(caller.url) as browser:
            found = await browser.json("/api/v1/status")
        kinds = {one["kind"]: one["message"] for one in found["troubles"]}
        assert kinds["files_unknown"] == "3 stored files without a row in the database"
        assert kinds["files_moved_aside"] == f"files were moved aside to {aside}"
        assert found["status"] == "attention"
        assert (await caller.get("/readyz"))[0] == 200


async def test_users_are_listed_with_what_they_have_of_their_quotas(
    place: Place, admin: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.does(None)
    await place.job(await place.upload(user_id="7"), until="Running")
    await place.upload()
    page = await admin.see("/users?from=7")
    stored = await Jobs(place.server.context.core.database).stored("7")
    rows = {row[0]: row for row in page.main.one("table", aria_label="Users by name").rows()}
    assert f"{stored} B of 1.9 MiB" in rows["7"][4]
    assert f"{stored} B of 976.6 KiB" in rows[place.user][4], "it has the same bundle"
    assert rows["7"][1:4] == ["1", "1", "0"]
    assert (f"{stored} B of 2.9 MiB" in rows["7"][5], rows[place.user][5]) == (True, "any number")
    assert "With work now" in (await admin.see("/users")).text
    assert "No user has a name from there on" in (await admin.see("/users?from=zz")).text
    assert (await admin.ask("/users?from=" + "x" * 65)).status == 400
    monkeypatch.setattr("server.web.operators.users._ROWS", 1)
    seen, path = list[str](), "/users?from=7"
    while path:
        page = await admin.see(path)
        seen += [row[0] for row in page.main.one("table", aria_label="Users by name").rows()]
        path = next((one for one in page.main.one(kind="pager").links("from=")), "")
    assert seen == sorted(seen)
    assert {"7", place.user} <= set(seen)
    page = await admin.see("/users/7")
    for text in (f"Stored {stored} B of 1.9 MiB", "Waiting 0 of 9"):
        assert text in page.text
    assert page.main.facts()["Group"] == "lab"
    assert (await place.api("GET", "/usage", user="7"))["group"] == "lab"
    seven = {"Authorization": "Bearer seven"}
    assert (await place.ask("GET", "/api/v1/usage", headers=seven))[1]["group"] is None
    assert (await admin.ask("/users/a%20b")).status == 404
    for user, known in (("nobody", False), ("8", True), ("7", True), ("se", False)):
        page = await admin.see(f"/users/{user}")
        assert ("has no jobs, and nothing in the settings" in page.text) is not known, user


def tables(page: Page) -> dict[str, list[list[str]]]:
    """Name of a chart -> for each row of its table its time and its numbers."""
    return {
        chart["id"].removeprefix("chart-"): [
            [one["data-at"] or one["data-value"] for one in row if one.tag in ("th", "td")]
            for row in chart.all("tr")
            if row.all("td")
        ]
        for chart in page.main.all("section", kind="chart")
    }


@each("period, rows", [("day", 140), ("week", 160)])
async def test_each_chart_has_all_its_numbers_in_a_table(
    past: tuple[ServerClient, Browser], period: Literal["day", "week"], rows: int
) -> None:
    caller, browser = past
    page = await browser.see(f"/charts?period={period}")
    found = tables(page)
    assert list(found) == ["jobs", "ended", "waiting", "failures"]
    history = await caller.server.context.stages.statistics.read(period, None)
    assert {len(lines) for lines in found.values()} == {len(history.points)}
    assert len(history.points) >= rows
    newest, *_, oldest = found["ended"]
    for line, point in ((newest, history.points[-1]), (oldest, history.points[0])):
        numbers = point.numbers | {"failed": sum(point.numbers.get("failed", {}).values())}
        values = [numbers.get(name, 0) for name in ("completed", "failed", "cancelled", "uploaded")]
        assert line == [str(one) for one in (point.at // SECOND, *values)]
    assert page.main.facts()["Uploaded"] == f"{history.total['uploaded']:,}"


async def test_the_last_day_and_edited_addresses(past: tuple[ServerClient, Browser]) -> None:
    _, browser = past
    found = await browser.json("/api/v1/status")
    assert 0 <= found["database_free_bytes"] < found["database_bytes"]
    assert found["day_jobs"] == pytest.approx(120 * 24 * 0.55, rel=0.2)
    assert found["day_bytes"] > 10_000 * found["day_jobs"]
    facts = (await browser.see("/status")).main.facts()
    assert facts["Last day"].startswith(f"{found['day_jobs']:,} jobs, ")
    for query, status in (  # of charts, as people edit them
        ("period=hour", 400),
        ("service=nosuch", 404),
        ("period=&service=", 200),
        ("utm_source=mail", 200),
    ):
        page = await browser.ask(f"/charts?{query}")
        assert (page.status, page.scripts()) == (status, []), query


async def test_charts_are_of_their_service_and_a_job_shows_its_webhook(tmp_path: Path) -> None:
    hook = "http://127.0.0.1:9/?key=1"
    async with (
        driving(tmp_path, FakeOrchestrator(), webhook_allow=["127.0.0.1"]) as caller,
        browsing(caller.url) as browser,
    ):
        jobs = [await caller.upload(callback_url=hook) for _ in range(3)]
        for job in jobs:
            await caller.job(job)
        said = (await browser.see(f"/jobs/{jobs[0]}")).main.facts()["Webhook"]
        assert said.startswith(f"{hook} job.completed: pending")
        statistics = caller.server.context.stages.statistics
        await statistics.run_once()
        page = await browser.see("/charts?period=week&service=my_service")
        assert page.main.fields()["service"] == "my_service"
        assert page.main.links("period=day") == ["/charts?period=day&service=my_service"]
        for service in ("my_service", None):
            total = (await statistics.read("day", service)).total
            assert (total["uploaded"], total["completed"]) == (3, 3)
            assert min(total["uploaded_bytes"], total["result_bytes"]) > 0


async def test_an_unknown_reason_is_shown_as_text_and_many_are_put_together() -> None:
    reasons = {"<b>hostile</b>": 9} | {f"reason_{number}": 8 - number for number in range(7)}
    numbers = {"failed": reasons}
    history = History([], 600, numbers, [Point(0, 1, numbers)])
    found = {one.name: one for one in charts(history)}
    names = ["<b>hostile</b>", *(f"reason_{number}" for number in range(4)), "others"]
    assert [one.label for one in found["failures"].series] == names
    assert found["failures"].series[-1].values == [4 + 3 + 2]
    assert "hostile" not in found["failures"].body([(0, "11:00")])
    assert found["waiting"].empty


def setting(page: Page, key: str) -> str:
    (found,) = [row for row in page.main.rows() if key in row[0].split()]
    return " ".join(found[1:])


async def test_services_are_shown_with_what_waits_and_runs(place: Place, admin: Browser) -> None:
    name, path = place.service, f"/services/{place.service}"
    place.does(None)
    await place.job(await place.upload(), until="Running")
    page = await admin.send(path, f"{path}/pause", message="new disks")
    assert page.status == 303
    waiting = await place.upload()
    page = await admin.see("/services")
    assert "1 of 10" in page.text
    assert "Its queued jobs wait: new disks." in page.text
    assert f"/jobs?service={name}&state=Queued&children=true" in page.main.links()
    assert (await place.api("GET", path))["counts"]["Queued"] == 1
    for user, count in ((place.user, "1"), (place.warm.new("bob"), "0")):
        made = await place.api("POST", "/tokens", {"name": user, "role": "user"})
        async with browsing(place.url, made["token"]) as own:
            shown = await own.see(path)
            assert shown.main.facts()["Waiting"] == count
            assert "PUT /api" not in shown.text
    await admin.send(path, f"{path}/resume")
    assert (await place.job(waiting, until="Running"))["status"] == "Running"


async def test_every_setting_says_its_value_and_where_it_comes_from(admin: Browser) -> None:
    page = await admin.see("/services/of_the_file")
    for key, start, end in (
        ("timeout", "1m 30s ", "settings file default: 1h"),
        ("limits.memory", "8.0 GiB", "settings file default: 2.0 GiB"),
        ("retry_on", "exit:3, timeout", ""),
        ("expires_after", "", "default"),
        ("queue_timeout", "for ever", ""),
    ):
        found = setting(page, key)
        assert (found.startswith(start), found.endswith(end)) == (True, True), (key, found)
    assert "[services.of_the_file]" in page.text


async def test_a_service_shows_no_secret_and_is_retired(place: Place, admin: Browser) -> None:
    path = f"/services/{place.service}"

    async def listed(query: str = "") -> bool:
        page = await admin.see(f"/services{query}")
        return len(page.main.all(id=f"service-{place.service}")) == 1

    await place.configure(timeout="2h", env={"KEY": SECRET})
    page = await admin.see(path)
    assert setting(page, "timeout").endswith("an operator default: 1h")
    assert setting(page, "env").startswith("KEY")
    assert (SECRET in page.source, f"PUT /api/v1{path}" in page.text) == (False, True)
    assert (await admin.send(path, f"{path}/pause", message="x" * 201)).status == 400
    assert await listed()
    await admin.send(path, f"{path}/retire")
    assert (await place.api("GET", path))["retired"]
    assert [await listed(query) for query in ("", "?all=1")] == [False, True]
    page = await admin.send("/services/of_the_file", "/services/of_the_file/retire")
    assert (page.status, "settings file" in page.text) == (409, True)
    assert (await admin.send(path, "/services/none/pause")).status == 404
