"""Signed links: to one job, its result or one file of it, until their end, and nothing else."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import FormData

from server.api.routes import ROUTES
from server.domain.permits import Shows
from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
JOB = "/api/v1/jobs/{}"


class World:
    """A server with tokens, and people without one who have links."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url

    async def job(self, user: str = "ann", **fields: str) -> int:
        form = {"user_id": user, "service": "my_service", **fields}
        data = FormData()
        for name, value in form.items():
            data.add_field(name, value)
        data.add_field("file", RUN, filename="run.sh")
        shown = {"Authorization": f"Bearer the-token-of-{user}"}
        async with self.caller.session.post(
            f"{self.url}/upload", data=data, headers=shown
        ) as answer:
            job_id = int((await answer.json())["id"])
        await self.get(f"{JOB.format(job_id)}/result?wait=20", Authorization=shown["Authorization"])
        return job_id

    async def make(self, job_id: int, who: str = "ann", **asked: Any) -> tuple[int, dict[str, Any]]:
        shown = {"Authorization": f"Bearer the-token-of-{who}"}
        path = f"{self.url}{JOB.format(job_id)}/links"
        async with self.caller.session.post(path, json=asked, headers=shown) as answer:
            return answer.status, await answer.json()

    async def link(self, job_id: int, **asked: Any) -> str:
        """What its address ends in."""
        status, found = await self.make(job_id, **asked)
        assert status == 201, found
        return str(found["link"])

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        url = path if path.startswith("http") else f"{self.url}{path}"
        async with self.caller.session.request(method, url, headers=headers) as answer:
            return answer.status, (await answer.read()).decode("latin-1")


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def test_whoever_has_a_link_sees_what_it_shows_without_a_token(world):
    job_id = await world.job()
    found: dict[str, Any] = {}
    for what, path in (("job", ""), ("result", "/result")):
        status, found = await world.make(job_id, what=what)
        assert status == 201
        assert found["url"].startswith(f"{world.url}{JOB.format(job_id)}{path}?link=")
        assert found["url"].endswith(found["link"])
        assert (await world.get(found["url"]))[0] == 200
        assert (await world.get(found["url"], "HEAD"))[0] == 200
    status, body = await world.get(found["url"], Range="bytes=0-1")
    assert (status, body) == (206, "PK")


async def test_a_link_does_not_show_where_the_job_is_announced(tmp_path):
    async with serving(tmp_path, webhook_allow=["127.0.0.1"]) as world:
        hook = "http://127.0.0.1:9/?key=secret"
        job_id = await world.job(callback_url=hook)
        url = f"{JOB.format(job_id)}?link={await world.link(job_id)}"
        assert json.loads((await world.get(url))[1])["callback_url"] is None
        own = await world.get(JOB.format(job_id), Authorization="Bearer the-token-of-ann")
        assert json.loads(own[1])["callback_url"] == hook


GOOD = {
    Shows.JOB: {"", "/events", "/logs", "/result", "/bundle", "/files", "/files/{path}"},
    Shows.RESULT: {"/result", "/bundle"},
    Shows.FILE: {"/files/{path}"},
}


@pytest.mark.parametrize("shows", list(Shows))
async def test_a_link_is_good_for_its_routes_and_for_no_other(world, shows):
    """Whatever token is beside it: whoever shows a link is nobody else."""
    own, other = await world.job(), await world.job()
    link = await world.link(own, what=shows, path="a/b.txt" if shows is Shows.FILE else "")
    shown = {"Authorization": "Bearer the-token-of-admin"}
    good = {f"/api/v1/jobs/{{id}}{end}" for end in GOOD[shows]}
    good |= {"/jobs/{id}"} if shows is Shows.JOB else set()

    def to(job_id: int, file: str = "a/b.txt") -> str:
        there = re.sub(r"{path(:[^}]*)?}", file, route.path.replace("{id}", str(job_id)))
        return re.sub(r"{\w+(:[^}]*)?}", "1", there) + f"?link={link}"

    for route in ROUTES:
        plain = re.sub(r"(?<={path):[^}]*", "", route.path)
        good_here = route.method == "GET" and plain in good
        refused = [to(other)] + ([] if good_here else [to(own)])
        if shows is Shows.FILE and "{path" in plain:
            refused += [to(own, file) for file in ("a/c.txt", "a", "A/b.txt")]
        for url in refused:
            status, body = await world.get(url, route.method, **shown)
            assert status == 403, (url, body)
            assert "and nothing else" in body
        if good_here:
            status, body = await world.get(to(own))
            # 404: the job has no such file; 409: it has no logs
            assert status in (200, 404, 409), body
            assert status != 404 or "{path" in plain, body


async def test_whoever_may_read_a_result_may_fetch_its_bundle_until_it_is_cleaned(tmp_path):
    async with serving(tmp_path, cleaner_interval=0.02) as world:
        job_id = await world.job()
        for what in ("job", "result"):
            path = f"{JOB.format(job_id)}/bundle?link={await world.link(job_id, what=what)}"
            assert await world.get(path, Range="bytes=0-1") == (206, "PK")
        other = await world.get(
            f"{JOB.format(job_id)}/bundle", Authorization="Bearer the-token-of-bob"
        )
        assert (other[0], "job_not_found" in other[1]) == (404, True)
        brief = await world.job(expires_after="10ms")
        link = await world.link(brief)
        events, after = "", 0
        while "job.cleaned" not in events:
            path = f"{JOB.format(brief)}/events?link={link}&after={after}&wait=20"
            _, events = await world.get(path)
            after = json.loads(events)["reached"]
        status, body = await world.get(f"{JOB.format(brief)}/bundle?link={link}")
        assert (status, "result_cleaned" in body) == (410, True)


async def test_a_link_altered_by_a_byte_or_expired_is_refused(world):
    job_id = await world.job()
    link, path = await world.link(job_id), JOB.format(job_id)
    for at in range(0, len(link), 5):
        changed = link[:at] + ("B" if link[at] == "A" else "A") + link[at + 1 :]
        status, body = await world.get(f"{path}?link={changed}")
        assert (status, "link_invalid" in body) == (403, True), at
    for other in ("", "x", link + "A", link[:-1], "%00", "é", f"{link}&link={link}x"):
        assert (await world.get(f"{path}?link={other}"))[0] in (400, 403), other
    brief = await world.link(job_id, expires_in=0.000001)
    status, body = await world.get(f"{path}?link={brief}")
    assert status == 403
    assert "this link expired at 20" in body
    status, page = await world.get(f"{path}?link={brief}", **BROWSER)
    assert status == 403
    assert page.startswith("<!doctype html>")
    assert "This link expired at" in page


async def test_a_link_and_a_ticket_at_once_are_refused(world):
    job_id = await world.job()
    link = await world.link(job_id)
    status, _ = await world.get(f"{JOB.format(job_id)}?link={link}&ticket={link}")
    assert status == 403


async def test_links_are_made_by_whoever_may_read_the_job(world):
    job_id = await world.job()
    for who in ("ann", "a-reader", "admin"):
        assert (await world.make(job_id, who))[0] == 201
    assert (await world.make(job_id, "bob"))[0] == 404
    # A link makes no further links, which could outlive it.
    link = await world.link(job_id)
    status, body = await world.get(f"{JOB.format(job_id)}/links?link={link}", "POST")
    assert (status, "nothing else" in body) == (403, True)


@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ({"what": "logs"}, "invalid_what", "job, result, file"),
        ({"what": 7}, "invalid_what", "text"),
        ({"what": "file"}, "invalid_path", "needs the path"),
        ({"what": "result", "path": "a"}, "invalid_path", "only a file"),
        ({"what": "file", "path": "a" * 3_000}, "invalid_path", "longer"),
        ({"expires_in": "31d"}, "invalid_expires_in", "up to 30d"),
        ({"what_": "job"}, "unknown_field", "did you mean what?"),
    ],
)
async def test_a_wrong_wish_for_a_link_is_said(world, asked, code, says):
    status, found = await world.make(await world.job(), **asked)
    assert (status, found["code"]) == (400, code)
    assert says in found["detail"]


# -- the page


async def test_the_page_of_a_job_shows_where_it_stands_and_leads_on(world):
    job_id = await world.job(name="<b>mine</b>")
    link = await world.link(job_id)
    async with world.caller.session.get(
        f"{world.url}/jobs/{job_id}?link={link}", headers=BROWSER
    ) as answer:
        page, headers = await answer.text(), answer.headers
    assert (answer.status, answer.content_type) == (200, "text/html")
    assert f"Job {job_id}: Completed" in page
    assert "&lt;b&gt;mine&lt;/b&gt;" in page
    assert "http-equiv" not in page  # it has ended
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cache-Control"] == "no-store"
    assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
    policy = headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    assert "<script>" not in page
    (result,) = re.findall(r'href="([^"]*/result[^"]*)"', page)
    assert (await world.get(result))[0] == 200


async def test_the_page_of_a_job_is_for_who_may_see_it(world):
    job_id = await world.job()
    for who, status in (("ann", 200), ("admin", 200), ("bob", 404)):
        shown = {"Authorization": f"Bearer the-token-of-{who}"}
        found, page = await world.get(f"/jobs/{job_id}", **BROWSER, **shown)
        assert (found, page.startswith("<!doctype html>")) == (status, True)
    async with world.caller.session.get(
        f"{world.url}/jobs/{job_id}", headers=BROWSER, allow_redirects=False
    ) as answer:
        there = answer.headers["Location"]
    assert (answer.status, there) == (303, f"/login?next=%2Fjobs%2F{job_id}")
    status, text = await world.get(f"/jobs/{job_id}")  # a program
    assert (status, text[0]) == (401, "{")
