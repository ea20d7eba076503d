"""The pages of a job: what they show of each state."""

from __future__ import annotations

import json
import re
from html import unescape

import pytest
import pytest_asyncio

from server.domain import ending
from shared.clock import SECOND
from shared.wire import Progress, Reason, Usage
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.server.job_pages import (
    PRINCIPALS,
    TABS,
    S,
    World,
    actions_of,
    parent_of,
    serving,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_folder):
    async with serving(module_folder) as found:
        yield found


# -- what is shown


async def test_all_tabs_of_a_job_are_there(world):
    job = await world.new(name="docking")
    for tab in TABS:
        page = await world.page(f"/jobs/{job.id}{tab}")
        assert f"<title>Job {job.id}: Queued" in page
        assert re.search(r'href="/jobs/\d+[^"]*" aria-current="page"', page)
    page = await world.page(f"/jobs/{job.id}/files")
    assert f"<title>Job {job.id}: Queued · docking · Files · Ferryman</title>" in page


async def test_a_job_that_waits_says_why_and_for_what(world):
    first = await world.new()
    job = await world.new(after=(first.id,))
    page = await world.page(f"/jobs/{job.id}")
    assert "Why it waits" in page
    assert f'<a href="/jobs/{first.id}">job {first.id}</a>' in page
    assert 'http-equiv="refresh"' in page
    later = await world.new(
        service="my_service", not_before=world.context.clock.now() + 3600 * SECOND
    )
    page = await world.page(f"/jobs/{later.id}")
    assert re.search(r"<dt>Until</dt><dd><time", page)


async def test_a_running_job_shows_its_progress_and_nothing_that_has_ended(world):
    job = await world.running(
        await world.new(), progress=Progress(current=45, total=100), message="step 45"
    )
    page = await world.page(f"/jobs/{job.id}")
    assert '<progress value="45.0" max="100.0"' in page
    assert "45 of 100" in page
    assert "Outcome" not in page
    assert f'href="/api/v1/jobs/{job.id}/result"' not in page
    assert actions_of(page) == {"cancel", "tags", "share"}


async def test_a_failure_says_why_and_what_to_do(world):
    job = await world.running(await world.new())
    facts = {
        "stderr_tail": "no such file",
        "exit_code": 3,
        "usage": Usage(wall_s=30, cpu_s=15, peak_memory_bytes=1 << 30),
        "enforcement": {"memory": "hard", "cpu": "soft"},
    }
    job = await world.ended(job, S.FAILED, facts=facts, reason=Reason.MEMORY_LIMIT)
    page = await world.page(f"/jobs/{job.id}")
    for text in (
        "<code>memory_limit</code>",
        "run it again with more",
        "no such file",
        "1.0 GiB of 2.0 GiB",
        "30s of 1m",
        "15s: 0.5 of 1 CPU",
        "may pass them for a moment: CPU",
    ):
        assert text in page, text
    assert "http-equiv" not in page
    assert actions_of(page) == {"retry", "delete", "tags", "share"}


async def test_unknown_dead_and_cleaned_jobs_say_what_that_means(world):
    job = await world.running(await world.new())
    job = await world.move(job, S.UNKNOWN)
    page = await world.page(f"/jobs/{job.id}")
    assert "Its agent cannot be reached" in page
    assert actions_of(page) == {"cancel", "tags", "share"}
    job = await world.ended(
        job, S.FAILED, reason=Reason.AGENT_LOST, changes={"dead_letter": True, "expires_at": None}
    )
    page = await world.page(f"/jobs/{job.id}")
    assert "is kept until somebody retries or deletes it" in page
    assert "somebody deletes it" in page  # kept until
    assert (await world.jobs.clean([ending.expired(job, world.context.clock.now())]))[0] == 1
    page = await world.page(f"/jobs/{job.id}")
    assert "Its files were removed when it expired" in page
    assert "Download all" not in page
    assert "Download what" not in page
    assert "/new?from=" not in page
    assert actions_of(page) == {"delete", "tags", "share"}


async def test_a_cancel_that_takes_longer_is_said_and_not_offered_again(world):
    job = await world.running(await world.new())
    await world.jobs.request_cancel(job.id, world.context.clock.now(), "ann-laptop")
    page = await world.page(f"/jobs/{job.id}")
    assert "its processes may still be alive" in page
    assert "cancel" not in actions_of(page)


async def test_the_timeline_has_every_state_with_its_times(world):
    job = await world.ended(await world.running(await world.new()), S.COMPLETED)
    page = await world.page(f"/jobs/{job.id}")
    drawn = re.findall(r'class="piece" data-state="(\w+)"', page)
    assert drawn == ["Queued", "Processing", "Submitted", "Running", "Completed"]
    table = page[page.index("Exact times") :]
    assert re.findall(r'<tr[^>]*><th scope="row">(\w+)</th><td[^>]*>20', table) == drawn


async def test_each_attempt_stands_in_a_table_with_its_log_and_its_zip(tmp_path):
    agent = FakeOrchestrator(broken=False)
    async with driving(tmp_path, agent, principals=PRINCIPALS) as caller:
        world = World(caller)
        status, _, text = await world.upload()
        assert status == 201, text
        job_id = json.loads(text)["id"]
        await world.get(f"/api/v1/jobs/{job_id}/result?wait=20")
        page = await world.page(f"/jobs/{job_id}")
    table = page[page.index('id="attempts"') :]
    assert re.search(r'<tr><th scope="row">1</th><td class="is">', table)
    assert len(re.findall(r'\(UTC\)">20\d\d-\d\d-\d\d ', table)) == 2
    assert f'href="/jobs/{job_id}/log?attempt=1"' in table
    assert f'href="/api/v1/jobs/{job_id}/result?attempt=1"' in table


async def test_the_newest_events_have_exact_times_the_oldest_of_them_first(world):
    job = await world.new()
    for number in range(60):
        await world.jobs.change_tags(job.id, [f"t{number % 2}"], [f"t{(number + 1) % 2}"], 1, "ann")
    page = await world.page(f"/jobs/{job.id}")
    times = page[page.index("Exact times") : page.index('id="facts-title"')]
    assert times.count('<th scope="row"><code>job.') == 50
    assert f'href="/api/v1/jobs/{job.id}/events">all of them' in times


async def test_a_page_is_told_of_what_it_does_not_know_until_the_job_has_ended(world):
    job = await world.new()
    (known,) = re.findall(r'data-live="([^"]+)"', await world.page(f"/jobs/{job.id}"))
    ended = await world.ended(await world.running(job), S.COMPLETED)
    _, text = await world.get(known)
    assert [line for line in text.splitlines() if line.startswith("event")] == [
        "event: changed",
        "event: end",
    ]
    assert "data-live" not in await world.page(f"/jobs/{ended.id}")
    newest = await world.jobs.newest_event()
    assert (await world.get(f"/live/{ended.id}?after={newest}"))[0] == 204


# -- children


async def test_children_are_a_grid_that_can_be_narrowed(world):
    parent = await parent_of(world, 4)
    first, *_ = await world.jobs.children(parent.id, 9)
    await world.ended(await world.jobs.get(first.id), S.CANCELLED)
    page = await world.page(f"/jobs/{parent.id}/children")
    assert re.findall(r'<a href="/jobs/\d+" data-state="(\w+)"', page) == [
        "Cancelled",
        *["Queued"] * 3,
    ]
    assert f'title="0: Cancelled, job {first.id}"' in page
    assert "1 cancelled" in page
    page = await world.page(f"/jobs/{parent.id}/children?show=cancelled")
    assert page.count('data-state="Cancelled" title') == 1
    assert 'data-state="Queued" title' not in page
    assert "Why it waits" not in await world.page(f"/jobs/{parent.id}"), "its children say it"
    page = await world.page(f"/jobs/{parent.id}/children?show=failed")
    assert "No child here" in page
    child = await world.page(f"/jobs/{first.id}")
    assert f'<a href="/jobs/{parent.id}">job {parent.id}</a>, called 0' in child
    assert "delete" not in actions_of(child)
    assert "retry" in actions_of(child)


async def test_a_child_of_a_parent_that_has_ended_is_retried_by_its_parent_only(world):
    parent = await parent_of(world, 1)
    (child,) = await world.jobs.children(parent.id, 9)
    await world.ended(await world.jobs.get(child.id), S.CANCELLED)
    await world.ended(await world.jobs.get(parent.id), S.CANCELLED)
    assert "retry" not in actions_of(await world.page(f"/jobs/{child.id}"))
    assert "Retry what did not complete" in await world.page(f"/jobs/{parent.id}")


async def test_thousands_of_children_come_page_by_page(world):
    parent = await parent_of(world, 2_500)
    seen, path = 0, f"/jobs/{parent.id}/children"
    while path:
        page = await world.page(path)
        seen += page.count('data-state="Queued" title')
        assert len(page) < 600_000
        following = re.findall(r'href="([^"]+after=\d+)"', page)
        path = unescape(following[0]) if following else ""
    assert seen == 2_500


async def test_a_job_without_children_has_no_such_tab(world):
    job = await world.new()
    assert "/children" not in await world.page(f"/jobs/{job.id}")
    assert (await world.get(f"/jobs/{job.id}/children"))[0] == 404
    assert (await world.get(f"/jobs/{job.id}/children?after=x"))[0] == 400
