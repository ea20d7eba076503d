"""Upload tickets and signed links: for whoever has one, until their end, and nothing else.

Which routes they are good for: test_access.py.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import aiohttp
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from server.domain.allowances import DAY
from server.domain.permits import Ticket
from shared.principals import Principal, Role, Scope
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.pages import Browser, browsing, parsed
from tests.kit.raw_http import ask
from tests.kit.server_http import RUN, driving
from tests.kit.waiting import until
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORTAL: Final = "https://portal.example.org"
SUBMIT: Final = frozenset({Scope.SUBMIT})
ADMIN = OPERATOR = "the-token-of-admin"
PRINCIPALS: Final = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-portal": Principal("portal", Role.PORTAL, users=("ann", "b*")),
    OPERATOR: Principal("admin", Role.OPERATOR),
    "the-token-of-writer": Principal("writer", Role.PORTAL, scopes=SUBMIT),
    "the-token-of-ci": Principal("ann-ci", Role.USER, "ann", scopes=SUBMIT),
}
SERVER = f'[server]\nallowed_origins = ["{PORTAL}"]\nwebhook_allow = ["127.0.0.1"]'
HTML: Final = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY: Final = "Idempotency-Key"
LARGE: Final = 3 << 20
"""More than is kept in memory: one sees it come."""


class Sent:
    """What came to an upload."""

    def __init__(self, answer: aiohttp.ClientResponse, text: str) -> None:
        self.status, self.headers, self.text = answer.status, answer.headers, text
        self.document = json.loads(text) if "json" in answer.content_type else {}
        self.code = str(self.document.get("code", ""))


class Portal:
    """A portal, and browsers that have no token."""

    def __init__(self, place: Place, session: aiohttp.ClientSession) -> None:
        self.place, self.session = place, session
        place.users |= {"ann", "bob"}

    async def ask(
        self, method: str, path: str, who: str = "portal", **more: Any
    ) -> tuple[int, Any]:
        token = who if who.startswith("ferryman_") else f"the-token-of-{who}"
        shown = {"Authorization": f"Bearer {token}"}
        async with self.session.request(
            method, f"{self.place.url}{path}", headers=shown, **more
        ) as answer:
            return answer.status, await answer.json(content_type=None)

    async def ticket(self, who: str = "portal", **asked: Any) -> str:
        """The address to upload to."""
        asked = {"user_id": "ann", "service": self.place.service} | asked
        status, found = await self.ask("POST", "/api/v1/tickets", who, json=asked)
        assert status == 201, found
        return str(found["upload_url"])

    async def post(self, url: str, fields: Any = None, run: Any = RUN, **headers: str) -> Sent:
        """A form, by a browser without a token."""
        form = aiohttp.FormData(fields or {})
        form.add_field("file", run, filename="run.sh")
        async with self.session.post(
            url, data=form, headers=headers, allow_redirects=False
        ) as answer:
            return Sent(answer, await answer.text())

    async def get(self, url: str, method: str = "GET", **headers: str) -> tuple[int, str]:
        url = url if url.startswith("http") else f"{self.place.url}{url}"
        async with self.session.request(method, url, headers=headers) as answer:
            return answer.status, (await answer.read()).decode("latin-1")

    async def link(self, job_id: int, **asked: Any) -> str:
        status, found = await self.ask("POST", f"/api/v1/jobs/{job_id}/links", "ann", json=asked)
        assert status == 201, found
        return str(found["link"])

    async def ended(self, **fields: Any) -> int:
        """A job of ann that has ended."""
        job_id = await self.place.upload(user_id="ann", **fields)
        await self.place.job(job_id)
        return job_id

    async def jobs(self) -> list[Any]:
        path = f"/api/v1/jobs?service={self.place.service}"
        return list((await self.ask("GET", path, "admin"))[1]["items"])


@pytest_asyncio.fixture(loop_scope="module")
async def portal(place: Place) -> AsyncIterator[Portal]:
    async with place.warm.session() as session:
        yield Portal(place, session)


@pytest_asyncio.fixture(loop_scope="module")
async def browser(place: Place) -> AsyncIterator[Browser]:
    async with browsing(place.url) as found:
        yield found


# -- uploads by a ticket


async def test_whoever_has_a_ticket_uploads_for_its_user_and_follows_the_job(
    portal: Portal,
) -> None:
    sent = await portal.post(await portal.ticket())
    assert (sent.status, sent.document["status"]) == (201, "Queued")
    job_id, links = sent.document["id"], sent.document["links"]
    for who in ("portal", "ann"):
        status, job = await portal.ask("GET", f"/api/v1/jobs/{job_id}", who)
        assert (status, job["user_id"], job["service"]) == (200, "ann", portal.place.service)
    await portal.place.job(job_id)
    assert json.loads((await portal.get(links["job"]))[1])["id"] == job_id
    _, stream = await portal.get(links["events"], Accept="text/event-stream")
    assert "job.completed" in stream  # it ends with the job
    for name in ("logs", "result", "page", "files"):
        assert (await portal.get(links[name]))[0] == 200, name
    status, body = await portal.get(links["job"], "DELETE")
    assert (status, json.loads(body)["code"]) == (403, "not_allowed")


async def test_a_ticket_is_good_for_one_upload(portal: Portal) -> None:
    url = await portal.ticket()
    sent = await portal.post(url, {"timeout": "soon"})
    assert (sent.status, sent.code) == (400, "invalid_timeout")  # which does not use it
    answers = await asyncio.gather(*(portal.post(url, {}, b"echo %d\n" % n) for n in range(6)))
    assert sorted(one.status for one in answers) == [201, *[403] * 5]
    assert {one.code for one in answers} == {"", "ticket_used"}
    for headers in ({}, {KEY: "k"}):
        assert (await portal.post(url, {}, **headers)).code == "ticket_used"
    assert len(await portal.jobs()) == 1


async def test_an_upload_that_is_repeated_under_its_key_is_the_same_job(portal: Portal) -> None:
    url, key = await portal.ticket(), {KEY: portal.place.warm.new("k")}
    first, again = await portal.post(url, **key), await portal.post(url, **key)
    assert (first.status, again.status) == (201, 201)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.document["links"]["job"].startswith(
        first.document["links"]["job"].partition("?")[0]
    )
    assert (await portal.post(url, {}, b"echo\n", **key)).code == "idempotency_key_reused"
    # Another ticket gives no link to the job that this one became.
    other = await portal.post(await portal.ticket(), **key)
    assert (other.status, other.document["id"]) == (201, first.document["id"])
    assert "links" not in other.document


async def test_what_a_ticket_fixes_cannot_be_changed(portal: Portal) -> None:
    first = (await portal.post(await portal.ticket())).document["id"]
    fixed = {"timeout": "10s", "tags": "web"}
    url = await portal.ticket(fields=fixed)
    for name, value in (
        *(("user_id", "bob"), ("service", "other"), ("timeout", "1h"), ("tags", "")),
        *(("after", str(first)), ("inputs_from", str(first))),
    ):
        for address, fields in ((url, {name: value}), (f"{url}&{name}={value}", {})):
            sent = await portal.post(address, fields)
            assert (sent.status, sent.code) == (400, "fixed_by_ticket"), name
            assert sent.document["part"] == name
    sent = await portal.post(url, {"timeout": "10s", "user_id": "ann", "name": "mine"})
    job = await portal.place.api("GET", f"/jobs/{sent.document['id']}")
    assert (job["timeout_s"], job["tags"], job["name"]) == (10.0, ["web"], "mine")
    for name in ("after", "inputs_from"):
        url = await portal.ticket(fields={name: str(first)})
        assert (await portal.post(url)).status == 201
    url = await portal.ticket(service=None)
    assert (await portal.post(url)).code == "missing_service"
    assert (await portal.post(url, {"service": portal.place.service})).status == 201


@each("who", ["writer", "ci"])
async def test_what_may_not_be_read_is_no_input_either(portal: Portal, who: str) -> None:
    def form(**fields: str) -> aiohttp.FormData:
        made = aiohttp.FormData({"user_id": "ann", "service": portal.place.service} | fields)
        made.add_field("file", RUN, filename="run.sh")
        return made

    _, first = await portal.ask("POST", "/upload", who, data=form())
    number = str(first["id"])
    for sent, query in ((form(inputs_from=number), ""), (form(), f"?inputs_from={number}")):
        status, refused = await portal.ask("POST", f"/upload{query}", who, data=sent)
        assert (status, refused["code"]) == (403, "not_allowed")
        assert "lacks the scope read" in refused["message"]
    assert (await portal.ask("POST", "/upload", who, data=form(after=number)))[0] == 201
    if who == "writer":  # nor by a ticket that it makes
        for name in ("inputs_from", "after"):
            for service in ({"service": portal.place.service}, {}):
                asked = {"user_id": "ann", "fields": {name: number}} | service
                status, refused = await portal.ask("POST", "/api/v1/tickets", who, json=asked)
                assert (status, refused["code"]) == (403, "not_allowed")
                assert "lacks the scope read" in refused["detail"]
        await portal.ticket(who)


async def test_a_ticket_bounds_the_size(portal: Portal) -> None:
    url = await portal.ticket(max_bytes="2KB")
    sent = await portal.post(url, {}, b"#" * 2_200)
    assert (sent.status, sent.code) == (413, "too_large")
    port, path = int(portal.place.url.rpartition(":")[2]), url.removeprefix(portal.place.url)
    kind = "multipart/form-data; boundary=b"
    answer = await ask(port, "POST", path, Content_Type=kind, Content_Length="100000000")
    assert (answer.status, answer.document["code"]) == (413, "upload_too_large")
    assert "the most its ticket allows is 2.0 KiB" in answer.document["message"]
    assert (await portal.post(url, {}, b"#" * 1_900)).status == 201


async def test_a_form_of_any_page_may_use_a_ticket(portal: Portal) -> None:
    """Also one that hides where it comes from: no page can use a ticket that it was not given."""
    for origin in ("null", "https://any.example"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert (await portal.post(await portal.ticket(), **headers)).status == 201
    sent = await portal.post(f"{portal.place.url}/upload", Origin="https://any.example")
    assert (sent.status, sent.code) == (403, "foreign_origin")


async def test_a_browser_is_sent_on_to_the_job_or_to_where_its_ticket_says(
    portal: Portal, browser: Browser
) -> None:
    sent = await portal.post(await portal.ticket(), **HTML)
    assert sent.status == 303
    page = await browser.see(sent.headers["Location"].removeprefix(portal.place.url))
    assert page.heading.startswith("Job ")
    url = await portal.ticket(return_to=f"{PORTAL}/done?a=1&b=#here")
    sent = await portal.post(url, **HTML)
    (newest, *_) = await portal.jobs()
    there = f"{PORTAL}/done?a=1&b=&job={newest['id']}&status=Queued#here"
    assert (sent.status, sent.headers["Location"]) == (303, there)
    url = await portal.ticket(return_to=f'{PORTAL}/?"<')
    sent = await portal.post(url, {"name": "<script>\n"}, **HTML)
    assert (sent.status, sent.headers["Content-Type"]) == (400, "text/html; charset=utf-8")
    assert "default-src 'none'" in sent.headers["Content-Security-Policy"]
    page_text = parsed(sent.text)
    assert f'{PORTAL}/?"<' in page_text.links()
    assert "Invalid name" in page_text.text
    assert "<script>" not in sent.text
    sent = await portal.post(f"{url}x", **HTML)
    assert (sent.status, "This ticket is not valid" in sent.text) == (403, True)


@each(
    "asked, code, says",
    [
        ({"user_id": ""}, "invalid_user_id", "Missing user_id"),
        ({"user_id": 7}, "invalid_user_id", "should be text"),
        ({"service": ""}, "missing_service", "Missing service"),
        ({"service": "none"}, "unknown_service", "this server has: "),
        ({"service_": "x"}, "unknown_field", "did you mean service?"),
        ({"expires_in": "25h"}, "invalid_expires_in", "up to 1d"),
        ({"expires_in": 0}, "invalid_expires_in", "duration"),
        ({"expires_in": True}, "invalid_expires_in", "duration"),
        ({"expires_in": []}, "invalid_expires_in", "duration"),
        ({"expires_in": 1e400}, "invalid_json", "JSON"),
        ({"max_bytes": -1}, "invalid_max_bytes", "size"),
        ({"max_bytes": "much"}, "invalid_max_bytes", "size"),
        ({"max_bytes": 2**70}, "invalid_max_bytes", "size"),
        ({"fields": "a"}, "invalid_fields", "object"),
        ({"fields": {"timeout": 7}}, "invalid_fields", "text"),
        ({"fields": {"timeout": "soon"}}, "invalid_timeout", "soon"),
        ({"fields": {"tmeout": "1s"}}, "unknown_field", "did you mean timeout?"),
        ({"fields": {"user_id": "bob"}}, "invalid_fields", "beside"),
        ({"fields": {"idempotency_key": "k"}}, "invalid_fields", "idempotency_key"),
        ({"fields": {"meta": json.dumps({"a": "b" * 5_000})}}, "invalid_fields", "too many"),
        ({"return_to": "https://evil.example/"}, "invalid_return_to", PORTAL),
        ({"return_to": f"{PORTAL}@evil.example/"}, "invalid_return_to", PORTAL),
        ({"return_to": f"{PORTAL}.evil.example/"}, "invalid_return_to", PORTAL),
        ({"return_to": "//portal.example.org"}, "invalid_return_to", PORTAL),
        ({"return_to": f"{PORTAL}\\@evil.example"}, "invalid_return_to", PORTAL),
        ({"return_to": f"{PORTAL}/\r\nSet-Cookie: a"}, "invalid_return_to", PORTAL),
        ({"return_to": "javascript:alert(1)"}, "invalid_return_to", PORTAL),
        ({"return_to": "https://["}, "invalid_return_to", PORTAL),
        ({"user_id": "cleo"}, "not_allowed", "ann, b*"),
        ({"user_id": "cleo", "service": None}, "not_allowed", "ann, b*"),
    ],
)
async def test_a_wrong_wish_for_a_ticket_is_said(
    portal: Portal, asked: dict[str, Any], code: str, says: str
) -> None:
    asked = {"user_id": "ann", "service": portal.place.service} | asked
    status, found = await portal.ask("POST", "/api/v1/tickets", json=asked)
    assert (status, found["code"]) == (403 if code == "not_allowed" else 400, code)
    assert says in found["detail"]


# -- how tickets and links end


async def test_an_altered_or_expired_ticket_is_refused(portal: Portal) -> None:
    url, brief = await portal.ticket(), await portal.ticket(expires_in="1m")
    head, _, text = url.partition("ticket=")
    for changed in (text[:-1], text[1:], text.replace(".", ""), "", "x", "%00", text + "A"):
        sent = await portal.post(f"{head}ticket={changed}")
        assert (sent.status, sent.code) == (403, "ticket_invalid"), changed
    portal.place.warm.clock.forward(60)
    assert (await portal.post(brief)).code == "ticket_expired"
    assert (await portal.post(url)).status == 201


async def test_permits_and_uploads_end_with_the_token_that_made_them(portal: Portal) -> None:
    place = portal.place
    asked = {"name": place.warm.new("web"), "role": "portal"}
    made = await place.api("POST", "/tokens", asked)
    tickets = [await portal.ticket(made["token"]) for _ in range(3)]
    job = (await portal.post(tickets[0])).document["links"]["job"]
    assert (await portal.get(job))[0] == 200
    head = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="run.sh"\r\n\r\n'
        + b"#" * LARGE
    )
    begun, revoked, before = asyncio.Semaphore(0), asyncio.Event(), place.warm.held().staged

    async def content() -> AsyncIterator[bytes]:
        yield head
        begun.release()
        await revoked.wait()
        yield b"\r\n--x--\r\n"

    async def upload(url: str, headers: dict[str, str]) -> tuple[int, str]:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        async with portal.session.post(url, data=content(), headers=headers | kind) as answer:
            return answer.status, (await answer.json())["message"]

    by_token = f"{place.url}/upload?user_id=ann&service={place.service}"
    shown = {"Authorization": f"Bearer {made['token']}"}
    uploads = asyncio.gather(upload(tickets[1], {}), upload(by_token, shown))
    for _ in range(2):
        await begun.acquire()
    await until(lambda: place.warm.held().staged >= before + 2)
    await place.api("DELETE", f"/tokens/{made['id']}")
    revoked.set()
    refused = 403, f"the token of {asked['name']} was revoked while this upload was under way"
    assert [*await uploads] == [refused, refused]
    assert (await portal.post(tickets[2])).code == "ticket_revoked"
    status, body = await portal.get(job)
    assert (status, json.loads(body)["code"]) == (403, "link_revoked")
    assert len(await portal.jobs()) == 1


async def test_a_used_ticket_is_known_while_an_upload_that_began_before_its_end_may_come(
    portal: Portal,
) -> None:
    url = await portal.ticket()
    context = portal.place.server.context
    ticket = context.permits.read(Ticket, url.partition("ticket=")[2], context.clock.now())
    assert (await portal.post(url)).status == 201
    await context.jobs.forget_tickets(ticket.expires_at + 7 * DAY)
    assert await context.jobs.ticket_used(ticket.id)
    await context.jobs.forget_tickets(ticket.expires_at + 31 * DAY)
    assert not await context.jobs.ticket_used(ticket.id)


async def test_neither_tickets_nor_links_are_in_logs_or_the_audit_trail(portal: Portal) -> None:
    with capture_logs() as lines:
        url = await portal.ticket()
        job = (await portal.post(url)).document["links"]["job"]
        await portal.post(url)
        await portal.post(f"{url}x")
        assert (await portal.get(job))[0] == 200
        audit = await portal.place.api("GET", "/audit", limit="50")
    found = f"{lines} {audit}"
    for address in (url, job):
        head, _, tail = address.partition("=")[2].partition(".")
        assert head not in found
        assert tail not in found


async def test_tickets_outlive_a_restart_and_begin_with_the_address_that_browsers_know(
    tmp_path: Path,
) -> None:
    asked = {"user_id": "ann", "service": "my_service"}
    shown = {"Authorization": "Bearer the-token-of-portal"}
    public = "https://Jobs.Example.org/of-ours"
    options: dict[str, Any] = {"principals": PRINCIPALS}
    async with (
        driving(tmp_path, FakeOrchestrator(), public_url=public, **options) as caller,
        caller.session.post(f"{caller.url}/api/v1/tickets", json=asked, headers=shown) as answer,
    ):
        url = (await answer.json())["upload_url"]
    assert url.startswith("https://jobs.example.org/of-ours/upload?ticket=")
    form = aiohttp.FormData()
    form.add_field("file", RUN, filename="run.sh")
    async with driving(tmp_path, FakeOrchestrator(), **options) as caller:
        there = f"{caller.url}/upload?{url.partition('?')[2]}"
        async with caller.session.post(there, data=form) as answer:
            assert answer.status == 201


# -- links


async def test_whoever_has_a_link_sees_what_it_shows_without_a_token(portal: Portal) -> None:
    hook = "http://127.0.0.1:9/?key=secret"
    job_id = await portal.ended(callback_url=hook)
    there = f"{portal.place.url}/api/v1/jobs/{job_id}"
    for what, path in (("job", ""), ("result", "/result")):
        status, found = await portal.ask(
            "POST", f"/api/v1/jobs/{job_id}/links", "ann", json={"what": what}
        )
        assert status == 201
        assert found["url"] == f"{there}{path}?link={found['link']}"
        for method in ("GET", "HEAD"):
            assert (await portal.get(found["url"], method))[0] == 200
        bundle = f"{there}/bundle?link={found['link']}"
        assert await portal.get(bundle, Range="bytes=0-1") == (206, "PK")
        if what == "result":
            assert await portal.get(found["url"], Range="bytes=0-1") == (206, "PK")
        else:  # it does not show where the job is announced
            assert json.loads((await portal.get(found["url"]))[1])["callback_url"] is None
    job = (await portal.ask("GET", f"/api/v1/jobs/{job_id}", "ann"))[1]
    assert job["callback_url"] == hook


async def test_a_link_altered_by_a_byte_or_expired_is_refused(
    portal: Portal, browser: Browser
) -> None:
    job_id = await portal.ended()
    link, brief = await portal.link(job_id), await portal.link(job_id, expires_in="1m")
    path = f"/api/v1/jobs/{job_id}"
    for at in range(0, len(link), 5):
        changed = link[:at] + ("B" if link[at] == "A" else "A") + link[at + 1 :]
        status, body = await portal.get(f"{path}?link={changed}")
        assert (status, "link_invalid" in body) == (403, True), at
    for other in ("", "x", link + "A", link[:-1], "%00", "é", f"{link}&link={link}x"):
        assert (await portal.get(f"{path}?link={other}"))[0] in (400, 403), other
    assert (await portal.get(f"{path}?link={link}&ticket={link}"))[0] == 403
    portal.place.warm.clock.forward(60)
    status, body = await portal.get(f"{path}?link={brief}")
    assert (status, "this link expired at 20" in body) == (403, True)
    page = await browser.ask(f"{path}?link={brief}")
    assert (page.status, "This link expired at" in page.text) == (403, True)
    assert (await portal.get(f"{path}?link={link}"))[0] == 200


@each(
    "asked, code, says",
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
async def test_a_wrong_wish_for_a_link_is_said(
    portal: Portal, asked: dict[str, Any], code: str, says: str
) -> None:
    job_id = await portal.place.upload(user_id="ann")
    status, found = await portal.ask("POST", f"/api/v1/jobs/{job_id}/links", "ann", json=asked)
    assert (status, found["code"]) == (400, code)
    assert says in found["detail"]


async def test_the_page_of_a_link_shows_its_job_and_leads_on_by_the_link(
    portal: Portal, browser: Browser
) -> None:
    def script(process: FakeProcess) -> None:
        process.write("a/b.txt", b"hello")
        process.finish()

    portal.place.does(script)
    job_id = await portal.ended(name="<b>mine</b>")
    link = await portal.link(job_id)
    for tab in ("", "/log", "/files", "/files/a/b.txt"):
        page = await browser.see(f"/jobs/{job_id}{tab}?link={link}")
        assert f"Job {job_id}" in page.title
        assert "<b>mine</b>" in page.text
        assert not page.actions
        assert all("link=" in one for one in page.main.links(f"/jobs/{job_id}"))
        assert not re.search("http-equiv", page.source)  # it has ended
        assert page.headers["Referrer-Policy"] == "no-referrer"
        assert page.headers["Cache-Control"] == "no-store"
        assert page.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self';")
    page = await browser.see(f"/jobs/{job_id}?link={link}")
    result = next(one for one in page.main.links("/result"))
    assert (await browser.ask(result.removeprefix(portal.place.url))).status == 200
