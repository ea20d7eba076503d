"""The pages of a job: what they show of each state, what their forms do, the same from a script.

What is offered in each state: tests/rules/test_shown.py, and to each role: test_pages.py.
"""

import asyncio
import itertools
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from server.domain.batch import tasks
from server.domain.jobs import BatchRequest, Bundle, Job, Move
from server.store import events
from shared.clock import SECOND
from shared.wire import JobState as S
from shared.wire import Progress, Reason, Usage
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, Node, Page, browsing
from tests.kit.server_http import ServerClient, driving
from tests.kit.store import Jobs, new
from tests.server.access import BOUNDARY, PRINCIPALS, formed

pytestmark = pytest.mark.asyncio(loop_scope="module")

NUMBERS = itertools.count(1)
EVIL = "<img src=x onerror=alert(1)>\"'&{{7*7}}"


class World(Browser):
    """A server, and ann's browser."""

    def __init__(self, caller: ServerClient, session: Any) -> None:
        super().__init__(caller.url, session, "the-token-of-ann")
        self.caller, self.context = caller, caller.server.context
        self.jobs = Jobs(self.context.core.database)

    async def new(self, **fields: Any) -> Job:
        """A job of a service that the server does not have: it stays as it is."""
        number = next(NUMBERS)
        start: dict[str, Any] = {
            "service": "gone",
            "bundle": Bundle(f"b{number}", 100, f"d{number}"),
            "created_at": self.context.core.clock.now() - 60 * SECOND,
        }
        return (await self.jobs.insert(new("ann", **(start | fields)), "accepted"))[0]

    async def move(self, job: Job, to: S, **how: Any) -> Job:
        message = how.pop("message", f"now {to}")
        now = self.context.core.clock.now()
        return await self.jobs.moved(Move(job.id, job.attempt, job.state, to, now, message, **how))

    async def running(self, **changes: Any) -> Job:
        """At an agent that does not answer: no sweep moves its jobs for an hour."""
        job = await self.new()
        job = await self.move(job, S.PROCESSING, changes={"agent": "away"})
        job = await self.move(job, S.SUBMITTED, changes={"payload_id": job.id})
        return await self.move(job, S.RUNNING, changes=changes)

    async def ended(self, job: Job, to: S, **more: Any) -> Job:
        now = self.context.core.clock.now()
        changes = {"ended_at": now, "expires_at": now + 3600 * SECOND} | more.pop("changes", {})
        return await self.move(job, to, **{"facts": {}, "changes": changes} | more)

    async def parent(self, count: int) -> tuple[Job, list[Job]]:
        """With so many children, and the first of them."""
        parent = await self.new(batch=BatchRequest(((0, count - 1, 1),)), name="sweep")
        started, batch = await self.jobs.begin_batch(parent.id, self.context.core.clock.now())
        while (batch := await self.jobs.batch(parent.id)) is not None and batch.made < count:
            some = tasks(batch, batch.made, min(1_000, count - batch.made))
            await self.jobs.make_children(batch, some, 30, "a child")  # or the server was quicker
        children = await self.jobs.children(parent.id, 9)
        return started, [await self.jobs.get(one.id) for one in children]


@asynccontextmanager
async def serving(folder: Path, **settings: Any) -> AsyncIterator[World]:
    settings |= {"extra": "[agents.away]\nurl = 'http://[::1]:9'\n", "agent_timeout": 3600.0}
    async with (
        driving(folder, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller,
        browsing(caller.url) as browser,
    ):
        yield World(caller, browser.session)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(module_folder: Path) -> AsyncIterator[World]:
    async with serving(module_folder) as found:
        yield found


def loads_itself_again(page: Page) -> bool:
    return bool(page.tree.all("meta", http_equiv="refresh"))


def card(page: Page, name: str) -> Node:
    return page.main.one(aria_labelledby=f"{name}-title")


async def test_a_job_that_waits_says_why_and_for_what(world: World) -> None:
    first = await world.new()
    job = await world.new(after=(first.id,), name="docking")
    for tab, title in (("", ""), ("/log", " · Log"), ("/files", " · Files")):
        page = await world.see(f"/jobs/{job.id}{tab}")
        assert page.title == f"Job {job.id}: Queued · docking{title} · Ferryman"
        (here,) = page.main.all("a", aria_current="page")
        assert here["href"] == f"/jobs/{job.id}{tab}"
        assert loads_itself_again(page)
    page = await world.see(f"/jobs/{job.id}")
    assert card(page, "waits").text.startswith("Why it waits")
    assert card(page, "facts").facts()["Starts after"] == f"job {first.id}"
    assert f"/jobs/{first.id}" in card(page, "facts").links()
    in_an_hour = world.context.core.clock.now() + 3600 * SECOND
    later = await world.new(service="my_service", not_before=in_an_hour)
    assert card(await world.see(f"/jobs/{later.id}"), "waits").facts()["Until"]


async def test_a_running_job_shows_its_progress_and_nothing_that_has_ended(world: World) -> None:
    job = await world.running(progress=Progress(current=45, total=100), message="step 45")
    page = await world.see(f"/jobs/{job.id}")
    (bar,) = card(page, "progress").all("progress")
    assert (bar["value"], bar["max"]) == ("45.0", "100.0")
    assert "45 of 100" in card(page, "progress").text
    assert page.main.all(id="outcome-title") == []
    assert page.main.links("/result") == []
    await world.jobs.request_cancel(job.id, world.context.core.clock.now(), "ann-laptop")
    page = await world.see(f"/jobs/{job.id}")
    assert "its processes may still be alive" in page.text


async def test_a_failure_says_why_and_what_to_do(world: World) -> None:
    job = await world.running()
    facts = {
        "stderr_tail": "no such file",
        "exit_code": 3,
        "usage": Usage(wall_s=30, cpu_s=15, peak_memory_bytes=1 << 30),
        "enforcement": {"memory": "hard", "cpu": "soft"},
    }
    job = await world.ended(job, S.FAILED, facts=facts, reason=Reason.MEMORY_LIMIT)
    page = await world.see(f"/jobs/{job.id}")
    outcome = card(page, "outcome")
    assert (outcome.facts()["Reason"], outcome.facts()["Exit code"]) == ("memory_limit", "3")
    assert "run it again with more" in outcome.facts()["What to do"]
    assert outcome.one("pre").text == "no such file"
    used = card(page, "use").text
    for text in ("1.0 GiB of 2.0 GiB", "30s of 1m", "15s: 0.5 of 1 CPU", "for a moment: CPU"):
        assert text in used, text
    assert not loads_itself_again(page)


async def test_unknown_dead_and_cleaned_jobs_say_what_that_means(world: World) -> None:
    job = await world.move(await world.running(), S.UNKNOWN)
    page = await world.see(f"/jobs/{job.id}")
    assert "Its agent cannot be reached" in card(page, "outcome").facts()["What to do"]
    dead = {"dead_letter": True, "expires_at": None}
    job = await world.ended(job, S.FAILED, reason=Reason.AGENT_LOST, changes=dead)
    page = await world.see(f"/jobs/{job.id}")
    assert "until somebody retries or deletes" in card(page, "outcome").facts()["Dead letter"]
    assert card(page, "facts").facts()["Kept until"] == "somebody deletes it"
    assert (await world.jobs.clean([job], world.context.core.clock.now()))[0] == 1
    page = await world.see(f"/jobs/{job.id}")
    assert "removed when it expired" in card(page, "outcome").facts()["Files"]
    assert [page.main.links(one) for one in ("result", "partial", "/new?from=")] == [[], [], []]


async def test_the_timeline_has_every_state_and_the_newest_events(world: World) -> None:
    job = await world.ended(await world.running(), S.COMPLETED)
    states = ["Queued", "Processing", "Submitted", "Running", "Completed"]
    timeline = card(await world.see(f"/jobs/{job.id}"), "timeline")
    assert [one["data-state"] for one in timeline.all(kind="piece")] == states
    assert [row[0] for row in timeline.rows() if re.match(r"20\d\d-", row[1])] == states
    job = await world.new()
    for number in range(60):
        await world.jobs.change_tags(job.id, [f"t{number % 2}"], [f"t{(number + 1) % 2}"], 1, "ann")
    timeline = card(await world.see(f"/jobs/{job.id}"), "timeline")
    assert [row[0] for row in timeline.rows()] == ["job.tagged"] * 50, "job.queued is too old"
    assert timeline.links() == [f"/api/v1/jobs/{job.id}/events"]


async def test_a_page_is_told_what_it_does_not_know_until_the_end(world: World) -> None:
    job = await world.running()
    page = await world.see(f"/jobs/{job.id}")
    (known,) = [one["data-live"] for one in page.tree if one["data-live"]]
    await world.ended(job, S.COMPLETED)
    said = (await world.ask(known)).source.splitlines()
    assert [line for line in said if line.startswith("event")] == ["event: changed", "event: end"]
    page = await world.see(f"/jobs/{job.id}")
    assert [one for one in page.tree if one["data-live"]] == []
    newest = await world.jobs.database.read(events.newest_seq)
    assert (await world.ask(f"/live/{job.id}?after={newest}")).status == 204


def grid(page: Page) -> list[str]:
    """Title of each child shown: its name, its state and its job."""
    return [one["title"] for one in page.main.all("a") if one["data-state"]]


async def test_children_are_a_grid_that_can_be_narrowed(world: World) -> None:
    parent, (first, *others) = await world.parent(4)
    first = await world.ended(first, S.CANCELLED)
    here, cancelled = f"/jobs/{parent.id}/children", f"0: Cancelled, job {first.id}"
    queued = [f"{n}: Queued, job {one.id}" for n, one in enumerate(others, 1)]
    for query, shown in (("", [cancelled, *queued]), ("?show=cancelled", [cancelled])):
        assert grid(await world.see(f"{here}{query}")) == shown
    page = await world.see(f"{here}?show=failed")
    assert (grid(page), "No child here" in page.text) == ([], True)
    assert "1 cancelled" in page.main.one("nav", kind="counts").text
    page = await world.see(f"/jobs/{parent.id}")
    assert page.main.all(id="waits-title") == [], "its children say it"
    page = await world.see(f"/jobs/{first.id}")
    assert card(page, "facts").facts()["Child of"] == f"job {parent.id} , called 0"
    assert f"/jobs/{parent.id}" in card(page, "facts").links()
    assert page.actions == {"retry", "tags", "share"}
    # Once its parent has ended, only that one can be retried.
    await world.ended(await world.jobs.get(parent.id), S.CANCELLED)
    assert "retry" not in (await world.see(f"/jobs/{first.id}")).actions
    page = await world.see(f"/jobs/{parent.id}")
    assert "Retry what did not complete" in page.main.buttons()
    # A job without children has no such tab.
    assert (await world.see(f"/jobs/{first.id}")).main.links("/children") == []
    for query, status in (("", 404), ("?after=x", 400)):
        assert (await world.ask(f"/jobs/{first.id}/children{query}")).status == status


async def test_thousands_of_children_come_page_by_page(world: World) -> None:
    parent, _ = await world.parent(2_500)
    seen, path = list[str](), f"/jobs/{parent.id}/children"
    while path:
        page = await world.see(path)
        seen += grid(page)
        assert len(page.source) < 600_000
        path = next(iter(page.main.links("after=")), "")
    assert len(set(seen)) == 2_500


async def test_a_job_is_cancelled_retried_and_deleted(world: World) -> None:
    job = await world.new()
    here = f"/jobs/{job.id}"
    for _ in range(2):
        page = await world.ask(f"{here}/cancel", "POST")
        assert (page.status, page.location) == (303, f"{here}?done=cancel")
    page = await world.see(page.location)
    assert ("The cancel was asked for" in page.notice, "Cancelled" in page.title) == (True, True)
    # Its service is gone, so it cannot run: the page of the refusal leads back.
    page = await world.ask(f"{here}/retry", "POST")
    assert (page.status, here in page.main.links()) == (409, True)
    page = await world.ask(f"{here}/delete", "POST")
    assert (page.status, page.location) == (303, "/jobs?done=deleted")
    assert "The job is deleted" in (await world.see(page.location)).notice
    assert (await world.ask(here)).status == 404
    # One that ended before the cancel stays as it is.
    here = f"/jobs/{(await world.ended(await world.running(), S.COMPLETED)).id}"
    page = await world.ask(f"{here}/cancel", "POST")
    assert (page.status, page.location) == (303, f"{here}?done=ended")
    assert "had ended before" in (await world.see(page.location)).notice
    page = await world.ask(f"{here}/retry", "POST")
    assert (page.status, "it has completed" in page.text) == (409, True)
    later = world.context.core.clock.now() + 3600 * SECOND
    job = await world.new(service="my_service", not_before=later)
    here = f"/jobs/{(await world.ended(job, S.FAILED, reason=Reason.QUEUE_TIMEOUT)).id}"
    page = await world.ask(f"{here}/retry", "POST")
    assert (page.status, page.location) == (303, f"{here}?done=retry")
    assert "It was queued again" in (await world.see(page.location)).notice


async def test_tags_are_replaced_and_wrong_ones_are_said_beside_the_field(world: World) -> None:
    job = await world.new(tags=("a", "b"))
    path, many = f"/jobs/{job.id}/tags", ",".join(f"t{number}" for number in range(200))
    for typed, tags in (
        ("b, c", {"b", "c"}),
        *((wrong, None) for wrong in ("two words", EVIL, many, "x" * 5_000)),
        (" ", set[str]()),
    ):
        before = set((await world.jobs.get(job.id)).tags)
        page = await world.ask(path, "POST", {"tags": typed})
        assert page.status == (400 if tags is None else 303)
        assert set((await world.jobs.get(job.id)).tags) == (before if tags is None else tags)
        if tags is None:
            assert (list(page.errors), page.scripts()) == (["tags"], [])
        else:
            assert page.location == f"/jobs/{job.id}?done=tags"


async def test_a_link_to_a_file_is_to_that_file_and_a_wrong_wish_is_said(world: World) -> None:
    job = await world.new()
    share = f"/jobs/{job.id}/share"
    for fields, field, says in (
        ({"what": "all", "expires_in": "1d"}, "what", "input should be"),
        ({"what": "file", "expires_in": "1d", "path": ""}, "path", "needs the path"),
        ({"what": "job", "expires_in": "99d"}, "expires_in", "up to 30d"),
        (dict[str, str](), "expires_in", "should be a duration up to 30d"),
    ):
        page = await world.ask(share, "POST", fields)
        assert (page.status, "link=" in page.source) == (400, False), fields
        assert says in page.errors[field]
    fields = {"what": "file", "expires_in": "1h", "path": "a b/<c>.txt"}
    page = await world.ask(share, "POST", fields)
    (link,) = [one.text for one in page.main.one(id="share").all("pre")]
    assert link.startswith(f"{world.url}/api/v1/jobs/{job.id}/files/a%20b/%3Cc%3E.txt?link=")


def ways_of(page: Page) -> dict[str, list[str]]:
    """The texts to copy of each way."""
    ways = page.main.one(id="scripts").all("section")
    return {one.one("h2").text: [text.raw for text in one.all("pre")] for one in ways}


async def test_what_is_shown_to_copy_works_as_it_stands(world: World, tmp_path: Path) -> None:
    """By curl, by the command line and in Python, with a token in the variable."""
    sent = await world.ask("/upload", "POST", formed({"service": "my_service"}), **BOUNDARY)
    assert sent.status == 303
    job_id = sent.location.removeprefix("/jobs/")
    assert (await world.ask(f"/api/v1/jobs/{job_id}/result?wait=20")).status == 200
    page = await world.see(sent.location)
    ((number, state, _, _, started, ended, files),) = page.main.one(id="attempts").rows()
    assert (number, state, files) == ("1", "Completed", "Log · ZIP")
    assert re.match(r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d 20", f"{started} {ended}")
    of_attempt = [f"/jobs/{job_id}/log?attempt=1", f"/api/v1/jobs/{job_id}/result?attempt=1"]
    assert page.main.one(id="attempts").links() == of_attempt
    ways = ways_of(page)
    environ = {"HOME": str(tmp_path), "FERRYMAN_TOKEN": world.token}
    environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"

    async def run(*words: str) -> str:
        process = await asyncio.create_subprocess_exec(
            *words, env=environ, cwd=tmp_path, stdout=-1, stderr=-2
        )
        output, _ = await process.communicate()
        return f"{process.returncode} {output.decode(errors='replace')}"

    status, wait, _, download, cancel = ways["curl"]
    for command in (wait, status):
        found = json.loads((await run("sh", "-c", f"{command} --silent")).partition(" ")[2])
        assert (str(found["id"]), found["status"]) == (job_id, "Completed")
    assert (await run("sh", "-c", download)).startswith("0 ")
    assert (tmp_path / f"job-{job_id}.zip").read_bytes()[:2] == b"PK"
    assert '"Completed"' in await run("sh", "-c", cancel), "it had ended"
    assert world.token not in " ".join(ways["curl"])
    one = ways["Command line"]
    assert (await run("sh", "-ec", "\n".join([*one[:2], one[3]]))).startswith("0 ")
    assert "ended" in await run("sh", "-c", one[4])
    output = await run(sys.executable, "-c", ways["Python"][0])
    # A job-orchestrator client has no logs of its own to follow.
    assert output.startswith("0 ") or "log" in output, output
    # What a failed job left is what the commands fetch.
    job = await world.ended(await world.running(), S.FAILED)
    ways = ways_of(await world.see(f"/jobs/{job.id}"))
    assert ways["curl"][3].endswith(f"/download_partial/{job.id}")
    assert f"download {job.id} --partial" in ways["Command line"][3]


@pytest.mark.asyncio(loop_scope="function")
async def test_what_is_shown_to_copy_is_for_this_servers_own_address(tmp_path: Path) -> None:
    base = "https://jobs.example.org/queue"
    async with serving(tmp_path, public_url=base) as world:
        job = await world.new()
        ways = ways_of(await world.see(f"/jobs/{job.id}"))
    assert all(base in text for texts in ways.values() for text in texts)
    assert f"{base}/api/v1/jobs/{job.id}" in ways["curl"][0]
    assert ways["Command line"][0] == f"ferryman status {job.id} --url {base}"
