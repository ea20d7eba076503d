"""Who sees the pages of a job, and what their forms do."""

from __future__ import annotations

import re
from html import unescape

import pytest

from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.job_pages import (
    EVIL,
    TABS,
    S,
    World,
    actions_of,
    parent_of,
    serving,
)
from tests.kit.server_http import driving


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


# -- who


@pytest.mark.parametrize("end", [*TABS, "/children"])
async def test_a_job_is_not_there_for_other_users(world, end):
    job = await parent_of(world, 2)
    assert (await world.get(f"/jobs/{job.id}{end}"))[0] == 200
    assert (await world.get(f"/jobs/{job.id}{end}", "admin"))[0] == 200
    assert (await world.get(f"/jobs/{job.id}{end}", "bob"))[0] == 404
    assert (await world.get(f"/jobs/9999{end}"))[0] == 404


FORMS = ("cancel", "retry", "delete", "tags", "share")


@pytest.mark.parametrize("form", FORMS)
async def test_nobody_else_changes_a_job(world, form):
    fields = {"tags": "x", "what": "job", "expires_in": "1d"}
    job = await world.new()
    before = await world.jobs.get(job.id)
    status, _, page = await world.post(f"/jobs/{job.id}/{form}", "bob", **fields)
    assert status == 404
    if form != "share":  # whoever may read may show
        status, _, _ = await world.post(f"/jobs/{job.id}/{form}", "a-reader", **fields)
        assert status == 403
    else:
        assert "link=" not in page
    assert await world.jobs.get(job.id) == before


async def test_who_may_only_read_is_offered_nothing_that_changes(world):
    job = await world.ended(await world.running(await world.new()), S.FAILED)
    assert actions_of(await world.page(f"/jobs/{job.id}", "a-reader")) == {"share"}


@pytest.mark.parametrize("form", FORMS)
async def test_a_form_that_no_page_of_ours_sent_changes_nothing(tmp_path, form):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        world = World(caller)
        job = await world.new()
        before = await world.jobs.get(job.id)
        async with caller.session.post(
            f"{caller.url}/jobs/{job.id}/{form}",
            data={"tags": "x", "what": "job", "expires_in": "1d"},
            headers={"Accept": "text/html,application/xhtml+xml"},
        ) as answer:
            assert answer.status == 403
            assert "link=" not in await answer.text()
        assert await world.jobs.get(job.id) == before


async def test_whoever_comes_by_a_link_sees_the_job_keeps_the_link_and_changes_nothing(world):
    job = await parent_of(world, 2, callback_url="https://example.org/?key=secret")
    assert "key=secret" in await world.page(f"/jobs/{job.id}")
    status, _, page = await world.post(f"/jobs/{job.id}/share", what="job", expires_in="1d")
    assert status == 200
    (url,) = re.findall(r"<pre[^>]*>(http[^<]+)</pre>", page[: page.index('id="scripts"')])
    path = unescape(url).removeprefix(world.url)
    for tab in TABS:
        status, page = await world.get(path.replace("?", f"{tab}?", 1), "")
        assert status == 200, page
        assert '<form method="post"' not in page
        assert "key=secret" not in page
        for there in re.findall(r'(?:href|hx-get|data-live)="(/[^"]*)"', page):
            assert "link=" in there or there.startswith("/assets/") or there == "/", there
        assert "/children" not in page
    link = path.partition("?")[2]
    for form in FORMS:
        status, _, _ = await world.post(f"/jobs/{job.id}/{form}?{link}", what="job")
        assert status == 403
    assert (await world.get(f"/jobs/{job.id}/children?{link}", ""))[0] == 403
    assert (await world.jobs.get(job.id)).cancel_requested_at is None


# -- what the forms do


async def test_a_job_is_cancelled_retried_and_deleted(world):
    job = await world.new(service="my_service")
    job = await world.new()
    here = f"/jobs/{job.id}"
    status, there, _ = await world.post(f"{here}/cancel")
    assert (status, there) == (303, f"{here}?done=cancel")
    page = await world.page(there)
    assert "The cancel was asked for" in page
    assert "Cancelled" in page
    status, there, _ = await world.post(f"{here}/cancel")
    assert (status, there) == (303, f"{here}?done=cancel")
    # Its service is gone, so it cannot run: the page of the refusal leads back.
    status, _, page = await world.post(f"{here}/retry")
    assert status == 409
    assert f'href="{here}"' in page
    status, there, _ = await world.post(f"{here}/delete")
    assert (status, there) == (303, "/jobs?done=deleted")
    assert "The job is deleted" in await world.page(there)
    assert (await world.get(here))[0] == 404


async def test_a_job_that_ended_before_the_cancel_stays_as_it_is(world):
    job = await world.ended(await world.running(await world.new()), S.COMPLETED)
    status, there, _ = await world.post(f"/jobs/{job.id}/cancel")
    assert (status, there) == (303, f"/jobs/{job.id}?done=ended")
    assert "had ended before" in await world.page(there)
    status, _, page = await world.post(f"/jobs/{job.id}/retry")
    assert status == 409
    assert "it has completed" in page


async def test_tags_are_replaced_and_wrong_ones_are_said_beside_the_field(world):
    job = await world.new(tags=("a", "b"))
    path = f"/jobs/{job.id}/tags"
    status, there, _ = await world.post(path, tags="b, c")
    assert (status, there) == (303, f"/jobs/{job.id}?done=tags")
    assert set((await world.jobs.get(job.id)).tags) == {"b", "c"}
    for wrong in ("two words", EVIL, ",".join(f"t{number}" for number in range(200)), "x" * 5_000):
        status, _, page = await world.post(path, tags=wrong)
        assert status == 400
        assert 'id="tags-error"' in page
        assert "<img src=x" not in page
    assert set((await world.jobs.get(job.id)).tags) == {"b", "c"}
    assert (await world.post(path, tags=" "))[0] == 303
    assert (await world.jobs.get(job.id)).tags == ()


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"what": "all", "expires_in": "1d"}, "should be one of"),
        ({"what": "file", "expires_in": "1d", "path": ""}, "needs the path"),
        ({"what": "job", "expires_in": "99d"}, "up to 30d"),
        ({}, "should be a duration up to 30d"),
    ],
)
async def test_a_wrong_wish_for_a_link_is_said_in_the_form(world, fields, says):
    job = await world.new()
    status, _, page = await world.post(f"/jobs/{job.id}/share", **fields)
    assert status == 400
    assert 'id="share-error"' in page
    assert says in page
    assert "link=" not in page


async def test_a_link_to_a_file_is_to_that_file(world):
    job = await world.new()
    fields = {"what": "file", "expires_in": "1h", "path": "a b/<c>.txt"}
    _, _, page = await world.post(f"/jobs/{job.id}/share", **fields)
    assert f"/api/v1/jobs/{job.id}/files/a%20b/%3Cc%3E.txt?link=" in page
