"""Upload tickets and signed links: for whoever has one, until their end, and nothing else.

Which routes they are good for: test_access.py.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from server.domain.allowances import DAY
from server.domain.permits import Ticket
from server.store import retention, tokens
from shared.principals import Principal, Role, Scope
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, browsing, parsed
from tests.kit.raw_http import ask
from tests.kit.server_http import driving
from tests.kit.waiting import until
from tests.kit.warm import Place
from tests.server import access
from tests.server.access import BOUNDARY, OPERATOR, Crowd, Said, formed
from tests.server.warm_jobs import leaving

__all__ = ["OPERATOR"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

PORTAL: Final = "https://portal.example.org"
PRINCIPALS: Final = access.PRINCIPALS | {
    "the-token-of-lab": Principal("lab", Role.PORTAL, users=("ann", "b*")),
    "the-token-of-writer": Principal("writer", Role.PORTAL, scopes=frozenset({Scope.SUBMIT})),
}
SERVER = f'[server]\nallowed_origins = ["{PORTAL}"]\nwebhook_allow = ["127.0.0.1"]'
HTML: Final = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
KEY: Final = "Idempotency-Key"
LONG: Final = json.dumps({"a": "b" * 5_000})
LARGE: Final = 3 << 20
"""More than is kept in memory: one sees it come."""


class Portal(Crowd):
    """A portal, and browsers that have no token."""

    async def ticket(self, who: str = "lab", **asked: Any) -> str:
        """The path to upload to."""
        asked = {"user_id": "ann", "service": self.place.service} | asked
        said = await self.ask(who, "POST", "/api/v1/tickets", asked)
        assert said.status == 201, said
        return str(said.document["upload_url"]).removeprefix(self.place.url)

    async def post(
        self, path: str, fields: Any = None, run: str = "echo hello\n", **headers: str
    ) -> Said:
        """A form, by a browser without a token."""
        body = formed(fields or {}, **{"run.sh": run})
        return await self.ask("", "POST", path, body, **BOUNDARY | headers)

    async def link(self, job_id: int, **asked: Any) -> str:
        said = await self.ask("ann", "POST", f"/api/v1/jobs/{job_id}/links", asked)
        assert said.status == 201, said
        found = said.document
        assert found["url"].endswith(f"?link={found['link']}")
        return str(found["url"]).removeprefix(self.place.url)

    async def ended(self, **fields: Any) -> int:
        job_id = await self.place.upload(user_id="ann", **fields)
        await self.place.job(job_id)
        return job_id

    async def jobs(self) -> list[Any]:
        return list((await self.place.api("GET", "/jobs", service=self.place.service))["items"])


@pytest_asyncio.fixture(loop_scope="module")
async def portal(place: Place) -> AsyncIterator[Portal]:
    async with place.warm.session() as session:
        yield Portal(place, session)


async def test_whoever_has_a_ticket_uploads_and_follows_the_job(portal: Portal) -> None:
    """And neither ticket nor link is in the log or in the trail."""
    with capture_logs() as lines:
        path = await portal.ticket()
        sent = await portal.post(path)
        assert (sent.status, sent.document["status"]) == (201, "Queued")
        job_id, links = sent.document["id"], sent.document["links"]
        for who in ("lab", "ann"):
            job = (await portal.ask(who, "GET", f"/api/v1/jobs/{job_id}")).document
            assert (job["user_id"], job["service"]) == ("ann", portal.place.service)
        await portal.place.job(job_id)
        for name in ("job", "events", "logs", "result", "page", "files"):
            assert (await portal.ask("", "GET", links[name])).status == 200, name
        refused = await portal.ask("", "DELETE", links["job"])
        assert (refused.status, refused.code) == (403, "not_allowed")
        await portal.post(f"{path}x")
        found = f"{lines} {await portal.place.api('GET', '/audit', limit='50')}"
    for address in (path, links["job"]):
        head, _, tail = address.partition("=")[2].partition(".")
        assert (head in found, tail in found) == (False, False)


async def test_a_ticket_is_for_one_upload_and_its_repetitions(portal: Portal) -> None:
    path = await portal.ticket(expires_in=None, fields=None)  # as good as nothing
    sent = await portal.post(path, {"timeout": "soon"})
    assert (sent.status, sent.code) == (400, "invalid_timeout")  # which does not use it
    answers = await asyncio.gather(*(portal.post(path, {}, f"echo {n}\n") for n in range(6)))
    assert sorted(one.status for one in answers) == [201, *[403] * 5]
    assert {one.code for one in answers if one.status == 403} == {"ticket_used"}
    assert (await portal.post(path, **{KEY: "k"})).code == "ticket_used"
    assert len(await portal.jobs()) == 1
    path, key = await portal.ticket(), {KEY: portal.place.warm.new("k")}
    first, again = [await portal.post(path, **key) for _ in range(2)]
    assert (first.status, again.status) == (201, 201)
    assert again.headers["idempotent-replayed"] == "true"
    there = [one.document["links"]["job"].partition("?")[0] for one in (first, again)]
    assert there[0] == there[1]
    assert (await portal.post(path, {}, "echo\n", **key)).code == "idempotency_key_reused"
    # Another ticket gives no link to the job that this one became.
    other = await portal.post(await portal.ticket(), **key)
    assert (other.status, other.document["id"]) == (201, first.document["id"])
    assert "links" not in other.document


async def test_what_a_ticket_fixes_cannot_be_changed(portal: Portal) -> None:
    first = str((await portal.post(await portal.ticket())).document["id"])
    path = await portal.ticket(fields={"timeout": "10s", "tags": "web"})
    for name, value in (
        *(("user_id", "bob"), ("service", "other"), ("timeout", "1h"), ("tags", "")),
        *(("after", first), ("inputs_from", first)),
    ):
        for address, fields in ((path, {name: value}), (f"{path}&{name}={value}", {})):
            sent = await portal.post(address, fields)
            assert (sent.status, sent.code) == (400, "fixed_by_ticket"), name
            assert sent.document["part"] == name
    sent = await portal.post(path, {"timeout": "10s", "user_id": "ann", "name": "mine"})
    job = await portal.place.api("GET", f"/jobs/{sent.document['id']}")
    assert (job["timeout_s"], job["tags"], job["name"]) == (10.0, ["web"], "mine")
    for name in ("after", "inputs_from"):
        assert (await portal.post(await portal.ticket(fields={name: first}))).status == 201
    path = await portal.ticket(service=None)
    assert (await portal.post(path)).code == "missing_service"
    assert (await portal.post(path, {"service": portal.place.service})).status == 201


@each("who", ["writer", "sender"])
async def test_what_may_not_be_read_is_no_input_either(portal: Portal, who: str) -> None:
    def refused(said: Said) -> bool:
        return (said.status, said.code) == (403, "not_allowed") and "scope read" in said.text

    number = str(await portal.made(who, "ann"))
    assert refused(await portal.upload(who, "ann", inputs_from=number))
    form = formed({"user_id": "ann", "service": portal.place.service})
    query = f"/upload?inputs_from={number}"
    assert refused(await portal.ask(who, "POST", query, form, **BOUNDARY))
    assert (await portal.upload(who, "ann", after=number)).status == 201
    if who == "writer":  # nor by a ticket that it makes
        for name in ("inputs_from", "after"):
            for service in ({"service": portal.place.service}, {}):
                asked = {"user_id": "ann", "fields": {name: number}} | service
                assert refused(await portal.ask(who, "POST", "/api/v1/tickets", asked))
        await portal.ticket(who)


async def test_a_ticket_bounds_the_size(portal: Portal) -> None:
    path = await portal.ticket(max_bytes="2KB")
    sent = await portal.post(path, {}, "#" * 2_200)
    assert (sent.status, sent.code) == (413, "too_large")
    port, kind = int(portal.place.url.rpartition(":")[2]), BOUNDARY["Content-Type"]
    answer = await ask(port, "POST", path, Content_Type=kind, Content_Length="100000000")
    assert (answer.status, answer.document["code"]) == (413, "upload_too_large")
    assert "the most its ticket allows is 2.0 KiB" in answer.document["message"]
    assert (await portal.post(path, {}, "#" * 1_800)).status == 201


async def test_a_form_of_any_page_may_use_a_ticket(portal: Portal) -> None:
    """Also one that hides where it comes from: no page can use a ticket that it was not given."""
    for origin in ("null", "https://any.example"):
        headers = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
        assert (await portal.post(await portal.ticket(), **headers)).status == 201


async def test_a_browser_is_sent_on_to_the_job_or_to_where_its_ticket_says(
    portal: Portal, browser: Browser
) -> None:
    sent = await portal.post(await portal.ticket(), **HTML)
    assert sent.status == 303
    page = await browser.see(sent.headers["location"].removeprefix(portal.place.url))
    assert page.heading.startswith("Job ")
    path = await portal.ticket(return_to=f"{PORTAL}/done?a=1&b=#here")
    sent = await portal.post(path, **HTML)
    there = f"{PORTAL}/done?a=1&b=&job={(await portal.jobs())[0]['id']}&status=Queued#here"
    assert (sent.status, sent.headers["location"]) == (303, there)
    path = await portal.ticket(return_to=f'{PORTAL}/?"<')
    sent = await portal.post(path, {"name": "<script>\n"}, **HTML)
    assert (sent.status, sent.headers["content-type"]) == (400, "text/html; charset=utf-8")
    assert "default-src 'none'" in sent.headers["content-security-policy"]
    found = parsed(sent.text)
    assert (f'{PORTAL}/?"<' in found.links(), "<script>" in sent.text) == (True, False)
    assert "Invalid name" in found.text
    sent = await portal.post(f"{path}x", **HTML)
    assert (sent.status, "This ticket is not valid" in sent.text) == (403, True)


@each(
    "kind, asked, code, says",
    [
        ("ticket", {"user_id": ""}, "invalid_user_id", "Missing user_id"),
        ("ticket", {"service": "none"}, "unknown_service", "this server has: "),
        ("ticket", {"service_": "x"}, "unknown_field", "did you mean service?"),
        ("ticket", {"expires_in": "25h"}, "invalid_expires_in", "up to 1d"),
        ("ticket", {"expires_in": 0}, "invalid_expires_in", "duration"),
        ("ticket", {"expires_in": 1e400}, "invalid_json", "JSON"),
        ("ticket", {"max_bytes": -1}, "invalid_max_bytes", "greater than 0"),
        ("ticket", {"max_bytes": 2**70}, "invalid_max_bytes", "any disk"),
        ("ticket", {"fields": {"timeout": 7}}, "invalid_fields", "timeout: "),
        ("ticket", {"fields": {"timeout": "soon"}}, "invalid_timeout", "soon"),
        ("ticket", {"fields": {"tmeout": "1s"}}, "unknown_field", "did you mean timeout?"),
        ("ticket", {"fields": {"user_id": "bob"}}, "invalid_fields", "beside"),
        ("ticket", {"fields": {"idempotency_key": "k"}}, "invalid_fields", "idempotency_key"),
        ("ticket", {"fields": {"meta": LONG}}, "invalid_fields", "too many"),
        ("ticket", {"return_to": "https://evil.example/"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": f"{PORTAL}@evil.example/"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": f"{PORTAL}.evil.example/"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": f"{PORTAL}\\@evil.example"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": f"{PORTAL}/\r\nSet-Cookie: a"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": "javascript:alert(1)"}, "invalid_return_to", PORTAL),
        ("ticket", {"return_to": "https://["}, "invalid_return_to", PORTAL),
        ("ticket", {"user_id": "cleo"}, "not_allowed", "ann, b*"),
        ("link", {"what": "logs"}, "invalid_what", "'job', 'result' or 'file'"),
        ("link", {"what": "file"}, "invalid_path", "needs the path"),
        ("link", {"what": "result", "path": "a"}, "invalid_path", "only a file"),
        ("link", {"what": "file", "path": "a" * 3_000}, "invalid_path", "at most"),
        ("link", {"expires_in": "31d"}, "invalid_expires_in", "up to 30d"),
        ("link", {"what_": "job"}, "unknown_field", "did you mean what?"),
    ],
)
async def test_a_wrong_wish_is_said(
    portal: Portal, kind: str, asked: dict[str, Any], code: str, says: str
) -> None:
    if kind == "ticket":
        who, path = "lab", "/api/v1/tickets"
        asked = {"user_id": "ann", "service": portal.place.service} | asked
    else:
        who, path = "ann", f"/api/v1/jobs/{await portal.job('ann', 'ann')}/links"
    said = await portal.ask(who, "POST", path, asked)
    assert (said.status, said.code) == (403 if code == "not_allowed" else 400, code)
    assert says in said.document["detail"]


async def test_an_altered_or_expired_permit_is_refused(portal: Portal, browser: Browser) -> None:
    job_id = await portal.ended()

    async def used(path: str) -> tuple[int, str]:
        said = await (portal.post(path) if "ticket=" in path else portal.ask("", "GET", path))
        return said.status, "" if said.status < 300 else said.code

    ticket, brief_ticket = await portal.ticket(), await portal.ticket(expires_in="1m")
    link, brief_link = await portal.link(job_id), await portal.link(job_id, expires_in="1m")
    for good, kind in ((ticket, "ticket"), (link, "link")):
        for wrong in (good[:-1], good.partition("=")[0] + "=", f"{good}%00"):
            assert await used(wrong) == (403, f"{kind}_invalid"), wrong
    for more in (f"&link={link.partition('link=')[2]}x", "&ticket=x"):
        assert (await used(f"{link}{more}"))[0] in (400, 403), more
    portal.place.warm.clock.forward(60)
    assert await used(brief_ticket) == (403, "ticket_expired")
    assert await used(brief_link) == (403, "link_expired")
    page = await browser.ask(brief_link)
    assert (page.status, "This link expired at 20" in page.text) == (403, True)
    assert [await used(one) for one in (ticket, link)] == [(201, ""), (200, "")]


async def test_permits_and_uploads_end_with_the_token_that_made_them(portal: Portal) -> None:
    place = portal.place
    asked = {"name": place.warm.new("web"), "role": "portal"}
    made = await place.api("POST", "/tokens", asked)
    tickets = [await portal.ticket(made["token"]) for _ in range(3)]
    job = (await portal.post(tickets[0])).document["links"]["job"]
    assert (await portal.ask("", "GET", job)).status == 200
    form = formed({}, **{"run.sh": "#" * LARGE}).encode()
    begun, revoked = asyncio.Semaphore(0), asyncio.Event()
    await until(lambda: not place.warm.held()["staged"])  # of uploads before

    async def content() -> AsyncIterator[bytes]:
        yield form[:-20]
        begun.release()
        await revoked.wait()
        yield form[-20:]

    by_token = f"/upload?user_id=ann&service={place.service}"
    uploads = asyncio.gather(
        portal.ask("", "POST", tickets[1], content(), **BOUNDARY),
        portal.ask(made["token"], "POST", by_token, content(), **BOUNDARY),
    )
    for _ in range(2):
        await begun.acquire()
    await until(lambda: place.warm.held()["staged"] >= 2)
    await place.api("DELETE", f"/tokens/{made['id']}")
    revoked.set()
    why = f"the token of {asked['name']} was revoked while this upload was under way"
    assert [(one.status, one.document["message"]) for one in await uploads] == [(403, why)] * 2
    assert (await portal.post(tickets[2])).code == "ticket_revoked"
    said = await portal.ask("", "GET", job)
    assert (said.status, said.code) == (403, "link_revoked")
    assert len(await portal.jobs()) == 1


async def test_a_used_ticket_is_known_while_its_upload_may_come(portal: Portal) -> None:
    path, context = await portal.ticket(), portal.place.server.context
    text, now = path.partition("ticket=")[2], context.core.clock.now()
    ticket = context.access.permits.read(Ticket, text, now)
    assert (await portal.post(path)).status == 201
    for days, known in ((7, True), (31, False)):
        await context.core.database.write(retention.forget_old, ticket.expires_at + days * DAY)
        assert await context.core.database.read(tokens.ticket_used, ticket.id) is known


async def test_tickets_outlive_a_restart_and_have_the_public_address(tmp_path: Path) -> None:
    asked = {"user_id": "ann", "service": "my_service"}
    shown = {"Authorization": "Bearer the-token-of-portal"}
    public = "https://Jobs.Example.org/of-ours"
    options: dict[str, Any] = {"principals": PRINCIPALS}
    async with (
        driving(tmp_path, FakeOrchestrator(), public_url=public, **options) as caller,
        caller.session.post(f"{caller.url}/api/v1/tickets", json=asked, headers=shown) as answer,
    ):
        url = (await answer.json())["upload_url"]
        async with browsing(caller.url) as browser:
            cookies = (await browser.ask("/login")).set_cookies
        assert ["Secure" in one for one in cookies] == [True], "they are sent by https only"
    assert url.startswith("https://jobs.example.org/of-ours/upload?ticket=")
    async with driving(tmp_path, FakeOrchestrator(), **options) as caller:
        there = f"{caller.url}/upload?{url.partition('?')[2]}"
        async with caller.session.post(there, data=formed({}), headers=BOUNDARY) as answer:
            assert answer.status == 201


# -- links


async def test_whoever_has_a_link_sees_what_it_shows(portal: Portal, browser: Browser) -> None:
    """And neither where the job is announced, nor what leads to more."""
    portal.place.does(leaving({"a/b.txt": b"hello"}))
    hook = "http://127.0.0.1:9/?key=secret"
    words = {"name": "<b>mine</b>", "callback_url": hook}
    job_id, batch = await portal.ended(**words), await portal.ended(**words, array="0-1")
    job = (await portal.ask("ann", "GET", f"/api/v1/jobs/{job_id}")).document
    assert job["callback_url"] == hook
    assert hook in (await portal.ask("ann", "GET", f"/jobs/{job_id}", **HTML)).text
    for what, path in (("job", ""), ("result", "/result")):
        link = await portal.link(job_id, what=what)
        assert link.startswith(f"/api/v1/jobs/{job_id}{path}?link=")
        bundle = f"/api/v1/jobs/{job_id}/bundle?{link.partition('?')[2]}"
        for part in (bundle, link) if what == "result" else (bundle,):
            said = await portal.ask("", "GET", part, Range="bytes=0-1")
            assert (said.status, said.text) == (206, "PK")
    links = {one: await portal.link(one) for one in (job_id, batch)}
    assert (await portal.ask("", "GET", links[job_id])).document["callback_url"] is None
    pages = [(job_id, tab) for tab in ("", "/log", "/files", "/files/a/b.txt")]
    for number, tab in (*pages, (batch, "")):
        query = links[number].partition("?")[2]
        page = await browser.see(f"/jobs/{number}{tab}?{query}")
        assert f"Job {number}" in page.title
        assert ("<b>mine</b>" in page.text, hook in page.source) == (True, False)
        assert not page.actions
        leads = [one[name] for one in page.tree for name in ("href", "hx-get", "data-live")]
        for there in (one for one in leads if one.startswith("/")):
            assert "link=" in there or there.startswith("/assets/") or there == "/", there
            assert "/children" not in there
        assert page.tree.all("meta", http_equiv="refresh") == [], "it has ended"
        for header, start in (
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self';"),
        ):
            assert page.headers[header].startswith(start)
    page = await browser.see(f"/jobs/{job_id}?{links[job_id].partition('?')[2]}")
    (result,) = set(page.main.links("/result"))
    assert (await portal.ask("", "GET", result)).status == 200
