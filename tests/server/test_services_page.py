"""The pages about services: what they show, and what their forms do."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from shared.principals import Principal, Role
from tests.kit.pages import Browser, Node, browsing
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR = "the-token-of-admin"
PRINCIPALS = {OPERATOR: Principal("admin", Role.OPERATOR)}
SERVER = """
[services.of_the_file]
timeout = "90s"
retry_on = ["timeout", "exit:3"]
limits = { memory = "8GiB" }
"""
SECRET = "hunter2-and-more"


@pytest_asyncio.fixture(loop_scope="module")
async def admin(place: Place) -> AsyncIterator[Browser]:
    async with browsing(place.url, OPERATOR) as found:
        yield found


def setting(page: Node, key: str) -> str:
    """The text of a setting's row."""
    (found,) = [row for row in page.rows() if row[0].split()[-1] == key or key in row[0].split()]
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
    page = (await admin.see("/services/of_the_file")).main
    for key, start, end in (
        ("timeout", "1m 30s ", "settings file default: 1h"),
        ("limits.memory", "8.0 GiB", "settings file default: 2.0 GiB"),
        ("retry_on", "exit:3, timeout", ""),
        ("expires_after", "", "default"),
        ("queue_timeout", "for ever", ""),
    ):
        found = setting(page, key)
        assert found.startswith(start), key
        assert found.endswith(end), key
    assert "[services.of_the_file]" in page.text


async def test_an_operator_pauses_resumes_and_retires_a_service(
    place: Place, admin: Browser
) -> None:
    name, path = place.service, f"/services/{place.service}"
    await place.configure(timeout="2h", env={"KEY": SECRET})
    page = await admin.see(path)
    assert setting(page.main, "timeout").endswith("an operator default: 1h")
    assert setting(page.main, "env").startswith("KEY")
    assert SECRET not in page.source
    assert f"PUT /api/v1{path}" in page.text
    for action, paused in (("pause", True), ("resume", False)):
        await admin.send(path, f"{path}/{action}")
        assert (await place.api("GET", path))["paused"] is paused
    assert (await admin.send(path, f"{path}/pause", message="x" * 201)).status == 400
    assert f"service-{name}" in [one["id"] for one in (await admin.see("/services")).main]
    await admin.send(path, f"{path}/retire")
    assert (await place.api("GET", path))["retired"]
    assert f"service-{name}" not in [one["id"] for one in (await admin.see("/services")).main]
    assert f"service-{name}" in [one["id"] for one in (await admin.see("/services?all=1")).main]
    page = await admin.send("/services/of_the_file", "/services/of_the_file/retire")
    assert (page.status, "settings file" in page.text) == (409, True)
    assert (await admin.send(path, "/services/none/pause")).status == 404
