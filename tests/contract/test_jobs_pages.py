"""The lists of jobs as pages: what they show to whom, and what their forms do."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator
from datetime import datetime
from html import unescape
from typing import Any

import pytest
from aiohttp import FormData

from server.domain.choose import Recent
from server.stages.statistics import Statistics
from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
    "the-token-of-a-portal": Principal("portal", Role.PORTAL),
}
HOSTILE = '"><img src=x onerror=alert(1)>&amp;'
TAG = "<script>alert(2)</script>"


class World:
    """People with tokens, who look at pages."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url

    def shown(self, who: str) -> dict[str, str]:
        return {"Authorization": f"Bearer the-token-of-{who}"}

    async def job(self, user: str = "ann", *, wait: bool = True, **fields: str) -> int:
        form = FormData()
        for name, value in {"user_id": user, "service": "my_service", **fields}.items():
            form.add_field(name, value)
        form.add_field("file", RUN, filename="run.sh")
        async with self.caller.session.post(
            f"{self.url}/upload", data=form, headers=self.shown("admin")
        ) as answer:
            assert answer.status == 201, await answer.text()
            job_id = int((await answer.json())["id"])
        if wait:
            path = f"{self.url}/api/v1/jobs/{job_id}?wait=20"
            async with self.caller.session.get(path, headers=self.shown("admin")):
                pass
        return job_id

    async def running(self, job_id: int) -> None:
        seen = "Queued"
        while seen != "Running":
            path = f"{self.url}/api/v1/jobs/{job_id}?wait=20&seen={seen}"
            async with self.caller.session.get(path, headers=self.shown("admin")) as answer:
                seen = (await answer.json())["status"]

    async def see(self, path: str, who: str = "ann") -> tuple[int, str]:
        headers = {**self.shown(who), "Accept": "text/html,application/xhtml+xml"}
        async with self.caller.session.get(f"{self.url}{path}", headers=headers) as answer:
            return answer.status, await answer.text()

    async def rows(self, path: str, who: str = "ann") -> list[int]:
        status, page = await self.see(path, who)
        assert status == 200, page
        return rows(page)

    async def send(
        self, path: str, fields: list[tuple[str, str]], who: str = "ann"
    ) -> tuple[int, str, str]:
        """Status, page, and where it leads."""
        headers = {**self.shown(who), "Accept": "text/html,application/xhtml+xml"}
        async with self.caller.session.post(
            f"{self.url}{path}", data=fields, headers=headers, allow_redirects=False
        ) as answer:
            return answer.status, await answer.text(), answer.headers.get("Location", "")


def rows(page: str) -> list[int]:
    return [int(one) for one in re.findall(r'<tr id="job-(\d+)"', page)]


def older(page: str) -> str:
    found = re.search(r'<p id="older">.*?href="([^"]+)"', page)
    return unescape(found[1]) if found else ""


@pytest.fixture
async def world(tmp_path) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS) as caller:
        yield World(caller)


async def test_a_list_without_jobs_says_what_to_do(world):
    status, page = await world.see("/jobs")
    assert status == 200
    assert "No jobs yet." in page
    assert "ferryman submit run.sh --service my_service --url http://127.0.0.1:" in page
    status, page = await world.see("/jobs?tag=none&user=ann")
    assert "No job fits these filters." in page
    assert "Remove all filters" in page


async def test_a_row_says_about_when_a_job_starts_and_gives_times_for_people(tmp_path, monkeypatch):
    async def lately(_: object, service: str) -> Recent:
        return Recent(1_500.0, {"ann": 1})

    monkeypatch.setattr(Statistics, "recent", lately)
    agent = FakeOrchestrator(then="Running")
    async with driving(tmp_path, agent, principals=PRINCIPALS) as caller:
        world = World(caller)
        running = [await world.job(wait=False) for _ in range(2)]
        waits = await world.job(wait=False)
        for job in running:
            await world.running(job)
        later = await world.job(wait=False, not_before="in 2h")
        for path in ("/jobs", f"/jobs/{waits}"):
            page = " ".join(unescape((await world.see(path))[1]).split())
            assert re.search(r"about (10|15|20) min</time>", page), page
        page = (await world.see("/jobs"))[1]
        assert page.count(">about ") == 1, "of that with a time of its own nothing is estimated"
        for path in ("/jobs", f"/jobs/{later}"):
            page = (await world.see(path))[1]
            assert re.search(r"To be sent <time [^>]*>in 1 h</time>, as it was asked for\.", page)
            assert not re.search(r"\d\d:\d\d\.\d+Z", page)
        async with caller.session.get(
            f"{world.url}/api/v1/jobs/{waits}", headers=world.shown("ann")
        ) as answer:
            assert datetime.fromisoformat((await answer.json())["queue"]["expected_at"]).second == 0


async def test_everybody_sees_their_own_jobs_only(world):
    own, other = await world.job("ann", name="hers"), await world.job("bob", name="his-name")
    assert await world.rows("/jobs") == [own]
    assert await world.rows("/jobs", "admin") == [other, own]
    assert await world.rows("/jobs", "a-portal") == []
    for path in (
        "?user=bob",
        "?text=his-na",
        f"?text={other}",
        "?user_id=bob",
        f"?cursor={9**9}",
    ):
        status, page = await world.see(f"/jobs{path}")
        assert status == 200
        assert "his-name" not in page
        assert f'href="/jobs/{other}"' not in page
    _, page = await world.see("/jobs")
    assert '<th scope="col" class="user">' not in page
    _, page = await world.see("/jobs", "admin")
    assert '<th scope="col" class="user">' in page


async def test_filters_stand_in_the_address(world):
    first = await world.job(name="Alpha run", tags="red,blue")
    second = await world.job(name="beta", tags="red")
    await world.job("bob")
    for query, expected in (
        ("text=ALPHA", [first]),
        ("tag=red", [second, first]),
        ("tag=red&text=beta&state=Completed", [second]),
        ("state=Failed", []),
        ("state=&service=&user=&tag=&since=&until=", [second, first]),
        ("since=1h", [second, first]),
        ("until=1h", []),
        ("name=beta", [second]),
        ("unknown=1", [second, first]),
        ("service=my_service&status=Completed", [second, first]),
    ):
        assert await world.rows(f"/jobs?{query}") == expected, query
    _, page = await world.see("/jobs?text=ALPHA&tag=red&name=Alpha+run")
    assert 'name="text" value="ALPHA"' in page
    assert '<input type="hidden" name="name" value="Alpha run">' in page
    assert 'href="/jobs?text=ALPHA&amp;name=Alpha+run"' in page  # without the tag


async def test_a_wrong_filter_is_said_beside_its_field(world):
    await world.job()
    for query, field, says in (
        ("since=yesterday", "since", "is not a time such as"),
        ("state=Gone", "state", "is none of"),
        (f"tag={'x' * 201}", "tag", "longer than 200"),
    ):
        status, page = await world.see(f"/jobs?{query}")
        assert status == 400
        assert says in unescape(page)
        assert re.search(f'name="{field}"[^>]*aria-invalid="true" aria-describedby="problem"', page)
        assert rows(page) == []
    assert (await world.see("/jobs?cursor=x"))[0] == 400
    assert (await world.see("/jobs?reason=<b>"))[0] == 400


async def test_pages_lead_to_older_jobs(world, monkeypatch):
    monkeypatch.setattr("server.web.jobs.ROWS", 2)
    jobs = [await world.job(tags="t") for _ in range(5)][::-1]
    found, page, path = list[list[int]](), "", "/jobs?tag=t"
    for _ in range(3):
        _, page = await world.see(path)
        found.append(rows(page))
        path = older(page)
        assert not path or "tag=t" in path
    assert not path
    assert found == [jobs[:2], jobs[2:4], jobs[4:]]
    assert "Back to the newest jobs" in page


async def test_a_search_says_how_far_it_went(world, monkeypatch):
    monkeypatch.setattr("server.store.pages._SLICE", 1)
    monkeypatch.setattr("server.web.jobs._SLICES", 2)
    monkeypatch.setattr("server.web.jobs._SEARCH_S", 60)
    wanted = await world.job(name="wanted")
    jobs = [await world.job() for _ in range(3)]
    _, page = await world.see("/jobs?text=wanted")
    assert rows(page) == []
    assert f"Searched back to job {jobs[1]}." in page
    assert "No job fits these filters, as far as was searched." in page
    assert rows((await world.see(older(page)))[1]) == [wanted]
    monkeypatch.setattr("server.web.jobs._SEARCH_S", 0)
    assert f"Searched back to job {jobs[2]}." in (await world.see("/jobs?text=wanted"))[1]
    _, page = await world.see(f"/jobs?text={wanted}")  # by its number it is there at once
    assert f'<a href="/jobs/{wanted}">Job {wanted}</a>' in page


async def test_states_are_tabs_with_their_numbers(world):
    await world.job()
    await world.job()
    await world.job("bob")
    _, page = await world.see("/jobs")
    assert re.search(r'href="/jobs\?state=Completed">Completed <span class="count">2<', page)
    _, page = await world.see("/jobs?text=x")
    assert 'class="count"' not in page


# -- many at once


async def test_ticked_jobs_are_named_before_they_are_deleted(world):
    one, two, kept = [await world.job(name=name) for name in ("first", "second", "kept")]
    fields = [("action", "delete"), ("id", str(one)), ("ids", f"{two},{one}"), ("query", "tag=")]
    status, page, _ = await world.send("/jobs/bulk", fields)
    assert status == 200
    assert "Delete 2 jobs?" in page
    assert "first" in page
    assert f'name="ids" value="{one},{two}"' in page
    assert await world.rows("/jobs") == [kept, two, one]
    status, _, there = await world.send("/jobs/bulk/now", fields)
    assert (status, there) == (303, "/jobs?done=delete&number=2")
    assert await world.rows("/jobs") == [kept]
    assert "2 jobs deleted" in (await world.see(there))[1]


async def test_a_child_says_which_job_it_is_of(world):
    parent = await world.job(array="1-2")
    _, page = await world.see("/jobs?children=true")
    assert re.search(rf'child 2 of <a href="/jobs/{parent}">job {parent}</a>', page)


async def test_the_trail_names_the_jobs_of_a_form_and_leaves_out_the_question(world):
    one, two = [await world.job() for _ in range(2)]
    fields = [("action", "delete"), ("ids", f"{one},{two}")]
    await world.send("/jobs/bulk", fields)
    await world.send("/jobs/bulk/now", fields)
    await world.send("/jobs/bulk", fields, "a-reader")
    _, text = await world.see("/api/v1/audit?action=bulk", "admin")
    found = [(e["action"], e["target"], e["status"]) for e in json.loads(text)["items"]]
    assert found == [
        ("POST /jobs/bulk", "", 403),
        ("POST /jobs/bulk/now", f"delete {one} {two}", 303),
    ]


async def test_all_that_match_are_those_of_the_moment_of_the_question(world):
    jobs = [await world.job(tags="t") for _ in range(3)]
    other = await world.job()
    fields = [("action", "delete"), ("all", "1"), ("query", "tag=t")]
    _, page, _ = await world.send("/jobs/bulk", fields)
    assert "Delete 3 jobs?" in page
    (before,) = re.findall(r'name="before" value="(\d+)"', page)
    assert int(before) == jobs[-1] + 1
    late = await world.job(tags="t")
    status, _, there = await world.send("/jobs/bulk/now", [*fields, ("before", before)])
    assert (status, there) == (303, "/jobs?tag=t&done=delete&number=3")
    assert await world.rows("/jobs") == [late, other]


async def test_more_than_a_step_takes_goes_on_with_a_button(world, monkeypatch):
    monkeypatch.setattr("server.web.jobs._MOST", 2)
    for _ in range(3):
        await world.job()
    fields = [("action", "delete"), ("all", "1"), ("before", "1000")]
    status, page, _ = await world.send("/jobs/bulk/now", fields)
    assert status == 200
    assert "2 jobs are deleted" in page
    assert "data-goes-on" in page
    more = re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)"', page)
    status, _, there = await world.send("/jobs/bulk/now", [one for one in more if one[0] != "csrf"])
    assert (status, there) == (303, "/jobs?done=delete&number=3")
    assert await world.rows("/jobs") == []


async def test_what_cannot_be_done_is_said_of_each_job(world):
    done = await world.job()
    other = await world.job("bob")
    fields = [("action", "retry"), ("id", str(done)), ("id", str(other)), ("id", "999999")]
    _, page, _ = await world.send("/jobs/bulk", fields)
    assert "stays as it is" in page
    assert f'href="/jobs/{other}"' not in page
    status, page, _ = await world.send("/jobs/bulk/now", fields)
    assert status == 200
    assert "0 jobs are queued again. 3 could not be changed." in page
    assert f"job {other} not found" in page.lower()
    assert "job 999999 not found" in page.lower()


async def test_another_users_jobs_are_left_alone(world):
    other = await world.job("bob")
    for fields in ([("id", str(other))], [("all", "1"), ("query", "user=bob")], [("all", "1")]):
        await world.send("/jobs/bulk/now", [("action", "delete"), *fields])
    assert await world.rows("/jobs", "bob") == [other]


WRONG: list[tuple[list[tuple[str, str]], int]] = [
    ([("action", "explode"), ("id", "1")], 400),
    ([("action", "tag"), ("id", "1")], 400),
    ([("id", "1")], 400),
    ([("action", "delete"), ("id", "x")], 400),
    ([("action", "delete"), ("id", "9" * 30)], 400),
    ([("action", "delete"), ("id", "-1")], 400),
    ([("action", "delete"), ("all", "1"), ("query", "since=never")], 400),
    ([("action", "delete"), ("ids", ",".join(str(one) for one in range(1, 1_002)))], 400),
    ([("action", "delete"), ("ids", "1,x")], 400),
    ([("action", "delete"), *(("id", str(one)) for one in range(1, 1_002))], 413),
]


@pytest.mark.parametrize(("fields", "status"), WRONG)
async def test_a_wrong_form_is_refused(world, fields: list[Any], status: int):
    job_id = await world.job()
    for path in ("/jobs/bulk", "/jobs/bulk/now"):
        assert (await world.send(path, fields))[0] == status
    assert await world.rows("/jobs") == [job_id]


async def test_a_form_without_jobs_leads_back(world):
    status, _, there = await world.send(
        "/jobs/bulk", [("action", "cancel"), ("query", "tag=a%26b")]
    )
    assert (status, there) == (303, "/jobs?tag=a%26b&done=nothing&number=0")
    assert "No job was chosen" in (await world.see(there))[1]
    status, page = await world.see("/jobs?done=<b>&number=<b>")
    assert status == 200
    assert 'class="notice"' not in page


# -- batches


async def test_a_batch_is_one_row_until_its_children_are_asked_for(world):
    alone = await world.job(name="alone")
    parent = await world.job(array="0-2", name="scan", tags="t")
    children = [parent + 3, parent + 2, parent + 1]
    assert await world.rows("/jobs") == [parent, alone]
    for query, expected in (
        ("children=true", [*children, parent, alone]),
        ("tag=t", [parent]),
        ("tag=t&children=1", [*children, parent]),
        ("text=scan[1", []),
        ("text=scan[1&children=true", [parent + 2]),
        ("state=Failed&service=my_service", [parent]),  # the agent here has no arrays
        ("top_level=true&children=true", [*children, parent, alone]),
        (f"parent={parent}", children),
        (f"parent={alone}", []),
    ):
        assert await world.rows(f"/jobs?{query}") == expected, query
        assert await world.rows(f"/jobs?{query}", "bob") == [], query
    _, page = await world.see("/jobs")
    assert f'<a href="/jobs?parent={parent}">3 children</a>: 3 failed.' in page
    assert 'Failed <span class="count">1<' in page
    assert re.search('name="children" value="true"> Children, too', page)
    _, page = await world.see("/jobs?children=true")
    assert 'Failed <span class="count">4<' in page
    assert 'name="children" value="true" checked' in page
    assert 'href="/jobs?children=true&amp;state=Failed"' in page
    assert 'class="chips"' not in page
    _, page = await world.see("/jobs?text=scan[1")
    assert 'href="/jobs?text=scan%5B1&amp;children=true"' in page
    status, page = await world.see("/jobs?children=<b>")
    assert status == 400
    assert "is not true" in page
    assert "<b>" not in page


async def test_all_that_match_are_the_batches_where_these_are_listed(world):
    parent = await world.job(array="0-2")
    alone = await world.job()
    fields = [("action", "delete"), ("all", "1"), ("query", "children=true")]
    _, page, _ = await world.send("/jobs/bulk", fields)
    assert "Delete 5 jobs?" in page
    assert "A child by itself cannot be deleted." in page
    fields[-1] = ("query", "")
    _, page, _ = await world.send("/jobs/bulk", fields)
    assert "Delete 2 jobs?" in page
    assert "A batch goes as a whole: its children are deleted with it." in page
    status, _, there = await world.send("/jobs/bulk/now", [*fields, ("before", str(alone))])
    assert (status, there) == (303, "/jobs?done=delete&number=1")
    assert await world.rows("/jobs?children=true") == [alone]
    fields = [("action", "delete"), ("id", str(alone))]
    assert "A batch" not in (await world.send("/jobs/bulk", fields))[1]
    assert await world.rows(f"/jobs?parent={parent}") == []
