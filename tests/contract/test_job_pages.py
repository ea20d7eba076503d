"""The pages of a job: what they show of each state, to whom, and what their buttons do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from html import unescape
from pathlib import Path
from typing import Any

import pytest
from aiohttp import FormData

from server.domain import ending
from server.domain.batch import begun, tasks
from server.domain.events import NewEvent
from server.domain.jobs import BatchRequest, Bundle, Job, Move, NewJob
from server.domain.live import Live
from shared.clock import SECOND
from shared.principals import Principal, Role, Scope
from shared.wire import JobState, Limits, Progress, Reason, Usage
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.server_http import RUN, ServerClient, driving

S = JobState
PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
TABS = ("", "/log", "/files", "/attempts", "/events")
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"
SAFE = "&lt;img src=x onerror=alert(1)&gt;"


class World:
    """A server with tokens, and browsers."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url
        self.context = caller.server.context
        self.jobs = caller.server.context.jobs

    async def get(self, path: str, who: str = "ann") -> tuple[int, str]:
        shown = {"Accept": "text/html", "Authorization": f"Bearer the-token-of-{who}"}
        if not who:
            del shown["Authorization"]
        async with self.caller.session.get(f"{self.url}{path}", headers=shown) as answer:
            return answer.status, await answer.text(errors="replace")

    async def page(self, path: str, who: str = "ann") -> str:
        status, text = await self.get(path, who)
        assert status == 200, text
        assert 'style="' not in text
        assert " onclick" not in text
        return text

    async def post(self, there: str, who: str = "ann", **fields: str) -> tuple[int, str, str]:
        """Status, where it leads, and the page."""
        shown = {"Accept": "text/html", "Authorization": f"Bearer the-token-of-{who}"}
        async with self.caller.session.post(
            f"{self.url}{there}", headers=shown, data=fields, allow_redirects=False
        ) as answer:
            return answer.status, answer.headers.get("Location", ""), await answer.text()

    async def upload(self) -> tuple[int, str, str]:
        fields = {"user_id": "ann", "service": "my_service"}
        data = FormData()
        for name, value in fields.items():
            data.add_field(name, value)
        data.add_field("file", RUN, filename="run.sh")
        shown = {"Authorization": "Bearer the-token-of-ann"}
        async with self.caller.session.post(
            f"{self.url}/upload", data=data, headers=shown
        ) as answer:
            return answer.status, "", await answer.text()

    async def new(self, **fields: Any) -> Job:
        """A job of a service that the server does not have: it stays as it is."""
        now = self.context.clock.now()
        start: dict[str, Any] = {
            "bundle": Bundle("b", 100, "d"),
            "limits": Limits(),
            "timeout_s": 60.0,
            "created_at": now - 60 * SECOND,
            "user_id": "ann",
            "service": "gone",
        }
        return (await self.jobs.insert(NewJob(**(start | fields)), "accepted"))[0]

    async def move(self, job: Job, to: JobState, **how: Any) -> Job:
        now = self.context.clock.now()
        message = how.pop("message", f"now {to}")
        move = Move(job.id, job.attempt, job.state, to, now, message, **how)
        moved = await self.jobs.move(move)
        assert moved is not None
        return moved

    async def running(self, job: Job, **changes: Any) -> Job:
        job = await self.move(job, S.PROCESSING, changes={"agent": "node"})
        job = await self.move(job, S.SUBMITTED, changes={"payload_id": 1})
        return await self.move(job, S.RUNNING, changes=changes)

    async def ended(self, job: Job, to: JobState, **more: Any) -> Job:
        now = self.context.clock.now()
        facts = more.pop("facts", {})
        changes = {"ended_at": now, "expires_at": now + 3600 * SECOND} | more.pop("changes", {})
        return await self.move(job, to, changes=changes, facts=facts, **more)


def actions_of(page: str) -> set[str]:
    """What the page has forms for."""
    return set(re.findall(r'action="/jobs/\d+/(\w+)', page))


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


# -- what is shown


async def test_all_tabs_of_a_job_are_there(world):
    job = await world.new(name="docking")
    for tab in TABS:
        page = await world.page(f"/jobs/{job.id}{tab}")
        assert f"<title>Job {job.id}: Queued" in page
        assert re.search(r'href="/jobs/\d+[^"]*" aria-current="page"', page)


async def test_what_a_user_wrote_is_text_in_every_place(world):
    job = await world.new(
        name=EVIL,
        tags=("a", "b"),
        meta=json.dumps({EVIL: EVIL, "n": {"x": [EVIL]}}),
        warnings=(EVIL,),
        callback_url=f"https://example.org/?{EVIL}",
        outputs=(EVIL,),
    )
    job = await world.running(
        job, progress=Progress(current=4, total=9), output={EVIL: EVIL}, message=EVIL
    )
    notice = NewEvent("job.warning", EVIL, "warning", {"name": EVIL})
    live = Live(notices=(notice,), output={EVIL: EVIL})
    for tab in TABS:
        page = await world.page(f"/jobs/{job.id}{tab}")
        assert SAFE in page
        assert "<img src=x" not in page
    facts = {"stderr_tail": EVIL, "exit_code": 3, "warnings": (EVIL,), "output": {EVIL: EVIL}}
    await world.ended(job, S.FAILED, facts=facts, message=EVIL, reason=Reason.EXIT_CODE, live=live)
    page = await world.page(f"/jobs/{job.id}")
    assert page.count(SAFE) >= 10
    for tab in TABS:
        assert "<img src=x" not in (await world.get(f"/jobs/{job.id}{tab}"))[1]


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
    assert "What came of it" not in page
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
    assert re.findall(r'<tr><th scope="row">(\w+)</th><td>20', table) == drawn


async def test_attempts_stand_side_by_side_and_differences_are_marked(tmp_path):
    agent = FakeOrchestrator(broken=False)
    async with driving(tmp_path, agent, principals=PRINCIPALS) as caller:
        world = World(caller)
        status, _, text = await world.upload()
        assert status == 201, text
        job_id = json.loads(text)["id"]
        await world.get(f"/api/v1/jobs/{job_id}/result?wait=20")
        page = await world.page(f"/jobs/{job_id}/attempts")
    assert '<h2 id="attempt-1">' in page
    assert f'href="/jobs/{job_id}/log?attempt=1"' in page
    assert f'href="/api/v1/jobs/{job_id}/attempts/1/result"' in page


async def test_events_are_paged_the_newest_first(world):
    job = await world.new()
    for number in range(120):
        await world.jobs.change_tags(job.id, [f"t{number % 2}"], [f"t{(number + 1) % 2}"], 1, "ann")
    page = await world.page(f"/jobs/{job.id}/events")
    assert page.count("<code>job.") == 100
    (older,) = re.findall(r'href="([^"]+events\?before=\d+)"', page)
    page = await world.page(older)
    assert page.count("<code>job.") == 21
    assert "Accepted." in page
    assert (await world.get(f"/jobs/{job.id}/events?before=x"))[0] == 400
    assert "There are no older events" in await world.page(f"/jobs/{job.id}/events?before=1")


# -- children


async def parent_of(world: World, count: int, **fields: Any) -> Job:
    ranges = ((0, count - 1, 1),)
    parent = await world.new(batch=BatchRequest(ranges), name="sweep", **fields)
    batch = await world.jobs.batch(parent.id)
    assert batch is not None
    started = await world.jobs.begin_batch(begun(parent, batch, world.context.clock.now()))
    assert started is not None
    for first in range(0, count, 1_000):
        batch = await world.jobs.batch(parent.id)
        assert batch is not None
        some = tasks(batch, first, min(1_000, count - first))
        assert await world.jobs.make_children(batch, some, 30, "a child")
    return started


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
    page = await world.page(f"/jobs/{parent.id}/children?show=failed")
    assert "No child here" in page
    child = await world.page(f"/jobs/{first.id}")
    assert f'<a href="/jobs/{parent.id}">job {parent.id}</a>, called 0' in child
    assert "delete" not in actions_of(child)


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
            headers={"Accept": "text/html"},
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


# -- from a script


def ways_of(page: str) -> dict[str, list[str]]:
    """The texts to copy of each way."""
    found = {}
    for part in page[page.index('id="scripts"') :].split("<section>")[1:]:
        name = re.findall(r"<h2>(.+?)</h2>", part)[0]
        found[name] = [unescape(one) for one in re.findall(r"<pre[^>]*>(.*?)</pre>", part, re.S)]
    return found


async def test_what_is_shown_to_copy_works_as_it_stands(tmp_path):
    """By curl, by the command line and in Python, with a token in the variable."""
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        world = World(caller)
        _, _, text = await world.upload()
        job_id = json.loads(text)["id"]
        ways = ways_of(await world.page(f"/jobs/{job_id}"))
        programs = Path(sys.executable).parent
        environ = {
            "PATH": f"{programs}:{os.environ['PATH']}",
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
        for command in ways["Command line"][:2] + ways["Command line"][3:4]:
            code, output = await run("sh", "-c", command)
            assert code == 0, output
        code, output = await run("sh", "-c", ways["Command line"][4])
        assert "ended" in output
        code, output = await run(sys.executable, "-c", ways["Python"][0])
        # A job-orchestrator client has no logs of its own to follow.
        assert code == 0 or "log" in output, output


async def test_what_a_failed_job_left_is_what_the_commands_fetch(world):
    job = await world.ended(await world.running(await world.new()), S.FAILED)
    ways = ways_of(await world.page(f"/jobs/{job.id}"))
    assert ways["curl"][3].endswith(f"/download_partial/{job.id}")
    assert f"download {job.id} --partial" in ways["Command line"][3]


async def test_what_is_shown_to_copy_is_for_this_servers_own_address(tmp_path):
    settings = {"public_url": "https://jobs.example.org", "url_prefix": "/queue"}
    async with serving(tmp_path, **settings) as world:
        job = await world.new()
        ways = ways_of(await world.page(f"/jobs/{job.id}"))
    base = "https://jobs.example.org/queue"
    assert all(base in text for texts in ways.values() for text in texts)
    assert f"{base}/api/v1/jobs/{job.id}" in ways["curl"][0]
    assert ways["Command line"][0] == f"ferryman status {job.id} --url {base}"
