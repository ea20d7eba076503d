"""What the forms of a job's page do, what is offered to whom, and the same from a script."""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from html import unescape
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import driving
from tests.server.job_pages import EVIL, TABS, S, World, actions_of, parent_of, serving

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_folder):
    async with serving(module_folder) as found:
        yield found


FORMS = ("cancel", "retry", "delete", "tags", "share")


WISHES = {"tags": "x", "what": "job", "expires_in": "1d"}


@pytest.mark.asyncio(loop_scope="function")
async def test_a_form_that_no_page_of_ours_sent_changes_nothing(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        world = World(caller)
        job = await world.new()
        before = await world.jobs.get(job.id)
        for form in FORMS:
            headers = {"Accept": "text/html,application/xhtml+xml"}
            there = f"{caller.url}/jobs/{job.id}/{form}"
            async with caller.session.post(there, data=WISHES, headers=headers) as answer:
                assert answer.status == 403, form
                assert "link=" not in await answer.text()
        assert await world.jobs.get(job.id) == before


async def test_who_may_only_read_is_offered_nothing_that_changes(world):
    job = await world.ended(await world.running(await world.new()), S.FAILED)
    assert actions_of(await world.page(f"/jobs/{job.id}", "a-reader")) == {"share"}


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


@each(
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


# ---------------------------------------------------------------------------- from a script


def ways_of(page: str) -> dict[str, list[str]]:
    """The texts to copy of each way."""
    found = {}
    for part in page[page.index('id="scripts"') :].split("<section>")[1:]:
        name = re.findall(r"<h2>(.+?)</h2>", part)[0]
        found[name] = [unescape(one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", part, re.S)]
    return found


async def test_what_is_shown_to_copy_works_as_it_stands(world, tmp_path):
    """By curl, by the command line and in Python, with a token in the variable."""
    _, _, text = await world.upload()
    job_id = json.loads(text)["id"]
    ways = ways_of(await world.page(f"/jobs/{job_id}"))
    environ = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(tmp_path),
        "FERRYMAN_TOKEN": "the-token-of-ann",
    }

    async def run(*words: str) -> tuple[int, str]:
        process = await asyncio.create_subprocess_exec(
            *words, env=environ, cwd=tmp_path, stdout=-1, stderr=-2
        )
        output, _ = await process.communicate()
        return process.returncode or 0, output.decode(errors="replace")

    status, wait, _, download, cancel = ways["curl"]
    found = json.loads((await run("sh", "-c", f"{wait} --silent"))[1])
    assert (found["id"], found["status"]) == (job_id, "Completed")
    assert json.loads((await run("sh", "-c", f"{status} --silent"))[1])["id"] == job_id
    code, output = await run("sh", "-c", download)
    assert (code, (tmp_path / f"job-{job_id}.zip").read_bytes()[:2]) == (0, b"PK"), output
    assert '"Completed"' in (await run("sh", "-c", cancel))[1]  # it had ended
    assert "the-token" not in " ".join(ways["curl"])
    one = ways["Command line"]
    code, output = await run("sh", "-ec", "\n".join([*one[:2], one[3]]))
    assert code == 0, output
    assert "ended" in (await run("sh", "-c", one[4]))[1]
    code, output = await run(sys.executable, "-c", ways["Python"][0])
    # A job-orchestrator client has no logs of its own to follow.
    assert code == 0 or "log" in output, output


async def test_what_a_failed_job_left_is_what_the_commands_fetch(world):
    job = await world.ended(await world.running(await world.new()), S.FAILED)
    ways = ways_of(await world.page(f"/jobs/{job.id}"))
    assert ways["curl"][3].endswith(f"/download_partial/{job.id}")
    assert f"download {job.id} --partial" in ways["Command line"][3]


@pytest.mark.asyncio(loop_scope="function")
async def test_what_is_shown_to_copy_is_for_this_servers_own_address(tmp_path):
    settings = {"public_url": "https://jobs.example.org/queue"}
    async with serving(tmp_path, **settings) as world:
        job = await world.new()
        ways = ways_of(await world.page(f"/jobs/{job.id}"))
    base = "https://jobs.example.org/queue"
    assert all(base in text for texts in ways.values() for text in texts)
    assert f"{base}/api/v1/jobs/{job.id}" in ways["curl"][0]
    assert ways["Command line"][0] == f"ferryman status {job.id} --url {base}"
