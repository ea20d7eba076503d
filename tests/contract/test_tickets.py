"""Uploads by ticket: for whoever has one, once, as it says, and nothing else."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from server.api.routes import ROUTES
from server.domain.allowances import DAY
from server.domain.permits import Ticket
from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_http import ask
from tests.kit.server_http import RUN, ServerClient, driving

PORTAL = "https://portal.example.org"
SUBMIT = frozenset({Scope.SUBMIT})
PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-the-portal": Principal("portal", Role.PORTAL, users=("ann", "b*")),
    "the-token-of-the-admin": Principal("admin", Role.OPERATOR),
    "the-token-of-the-writer": Principal("writer", Role.PORTAL, scopes=SUBMIT),
    "the-token-of-the-ci": Principal("ann-ci", Role.USER, "ann", scopes=SUBMIT),
}
BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


class World:
    """A server with tokens, its portal, and browsers that have none."""

    def __init__(self, caller: ServerClient) -> None:
        self.caller, self.url = caller, caller.url

    async def ask(
        self, method: str, path: str, who: str = "portal", **more: Any
    ) -> tuple[int, dict[str, Any]]:
        shown = {"Authorization": f"Bearer the-token-of-{'the-' if who != 'ann' else ''}{who}"}
        async with self.caller.session.request(
            method, f"{self.url}{path}", headers=shown, **more
        ) as answer:
            return answer.status, await answer.json(content_type=None)

    async def ticket(self, **asked: Any) -> str:
        """The address to upload to."""
        asked = {"user_id": "ann", "service": "my_service"} | asked
        status, found = await self.ask("POST", "/api/v1/tickets", json=asked)
        assert status == 201, found
        return str(found["upload_url"])

    async def refused_ticket(self, who: str = "portal", **asked: Any) -> tuple[int, str, str]:
        status, found = await self.ask("POST", "/api/v1/tickets", who, json=asked)
        return status, found.get("code", ""), found.get("detail", "")

    async def post(
        self, url: str, fields: dict[str, str] | None = None, run: bytes = RUN, **headers: str
    ) -> tuple[int, Any, aiohttp.typedefs.LooseHeaders]:
        """A form, by a browser without a token."""
        form = aiohttp.FormData()
        for name, value in (fields or {}).items():
            form.add_field(name, value)
        form.add_field("file", run, filename="run.sh")
        async with self.caller.session.post(
            url, data=form, headers=headers, allow_redirects=False
        ) as answer:
            body = await answer.text()
            kind = answer.content_type
            return answer.status, json.loads(body) if "json" in kind else body, answer.headers


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[World]:
    async with driving(tmp_path, FakeOrchestrator(), principals=PRINCIPALS, **settings) as caller:
        yield World(caller)


@pytest.fixture
async def world(tmp_path):
    async with serving(tmp_path, allowed_origins=[PORTAL]) as found:
        yield found


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(module_folder):
    """One for all tests that get nothing from it."""
    async with serving(module_folder, allowed_origins=[PORTAL]) as found:
        yield found


# -- an upload


async def test_whoever_has_a_ticket_uploads_for_its_user_without_a_token(world):
    status, body, _ = await world.post(await world.ticket())
    assert (status, body["status"]) == (201, "Queued")
    job = await world.caller.server.context.jobs.get(body["id"])
    assert (job.user_id, job.service, job.submitted_by) == ("ann", "my_service", "portal")
    for who in ("portal", "ann"):
        assert (await world.ask("GET", f"/api/v1/jobs/{job.id}", who))[0] == 200


async def test_the_answer_lets_its_browser_follow_the_job_and_nothing_more(world):
    _, body, _ = await world.post(await world.ticket())
    session = world.caller.session
    async with session.get(body["links"]["job"] + "&wait=20") as answer:
        assert (await answer.json())["id"] == body["id"]
    stream = {"Accept": "text/event-stream"}
    async with session.get(body["links"]["events"], headers=stream) as answer:
        assert b"job.completed" in await answer.read()  # it ends with the job
    for name in ("logs", "result", "page"):
        async with session.get(body["links"][name]) as answer:
            # A job-orchestrator client leaves no logs.
            assert answer.status == (409 if name == "logs" else 200), name
    async with session.delete(body["links"]["job"]) as answer:
        assert (answer.status, (await answer.json())["code"]) == (403, "not_allowed")


async def test_a_ticket_is_good_for_one_upload(world):
    url = await world.ticket()
    assert (await world.post(url))[0] == 201
    status, body, _ = await world.post(url, {}, b"echo other\n")
    assert (status, body["code"]) == (403, "ticket_used")
    status, body, _ = await world.post(url, {}, Idempotency_Key="k")
    assert (status, body["code"]) == (403, "ticket_used")
    assert len((await world.ask("GET", "/api/v1/jobs"))[1]["items"]) == 1


async def test_of_uploads_at_once_by_one_ticket_one_becomes_a_job(world):
    url = await world.ticket()
    answers = await asyncio.gather(
        *(world.post(url, {}, b"echo %d\n" % number) for number in range(6))
    )
    assert sorted(status for status, _, _ in answers) == [201, *[403] * 5]
    assert {body["code"] for status, body, _ in answers if status == 403} == {"ticket_used"}
    assert len((await world.ask("GET", "/api/v1/jobs"))[1]["items"]) == 1


async def test_an_upload_that_is_repeated_under_its_key_is_the_same_job(world):
    url, key = await world.ticket(), {"Idempotency-Key": "k"}
    first = await world.post(url, **key)
    again = await world.post(url, **key)
    assert (first[0], again[0], first[1]["id"]) == (201, 201, again[1]["id"])
    assert again[2]["Idempotent-Replayed"] == "true"
    assert (await world.post(url, {}, b"echo other\n", **key))[1]["code"] == (
        "idempotency_key_reused"
    )


async def test_a_refused_upload_does_not_use_its_ticket(world):
    url = await world.ticket()
    status, body, _ = await world.post(url, {"timeout": "soon"})
    assert (status, body["code"]) == (400, "invalid_timeout")
    assert (await world.post(url))[0] == 201


async def test_what_a_ticket_fixes_cannot_be_changed(world):
    url = await world.ticket(fields={"timeout": "10s", "tags": "web"})
    for name, value in (
        ("user_id", "bob"),
        ("service", "other"),
        ("timeout", "1h"),
        ("tags", ""),
    ):
        status, body, _ = await world.post(url, {name: value})
        assert (status, body["code"], body["part"]) == (400, "fixed_by_ticket", name)
        status, body, _ = await world.post(f"{url}&{name}={value}")
        assert (status, body["code"]) == (400, "fixed_by_ticket")
    status, body, _ = await world.post(url, {"timeout": "10s", "user_id": "ann", "name": "mine"})
    assert status == 201
    job = await world.caller.server.context.jobs.get(body["id"])
    assert (job.timeout_s, job.tags, job.name) == (10.0, ("web",), "mine")


@pytest.mark.parametrize("name", ["after", "inputs_from"])
async def test_only_the_ticket_itself_names_other_jobs(world, name):
    _, first, _ = await world.post(await world.ticket())
    number = str(first["id"])
    url = await world.ticket()
    for address, fields in ((url, {name: number}), (f"{url}&{name}={number}", {})):
        status, body, _ = await world.post(address, fields)
        assert (status, body["code"], body["part"]) == (400, "fixed_by_ticket", name)
    status, body, _ = await world.post(await world.ticket(fields={name: number}))
    assert status == 201


@pytest.mark.parametrize("who", ["writer", "ci"])
async def test_what_may_not_be_read_is_no_input_either(world, who):
    def form(**fields: str) -> aiohttp.FormData:
        made = aiohttp.FormData({"user_id": "ann", "service": "my_service"} | fields)
        made.add_field("file", RUN, filename="run.sh")
        return made

    status, first = await world.ask("POST", "/upload", who, data=form())
    assert status == 201
    number = str(first["id"])
    assert (await world.ask("GET", f"/api/v1/jobs/{number}", who))[0] == 403
    for where, query in ((form(inputs_from=number), ""), (form(), f"?inputs_from={number}")):
        status, body = await world.ask("POST", f"/upload{query}", who, data=where)
        assert (status, body["code"]) == (403, "not_allowed")
        assert "lacks the scope read" in body["message"]
    assert (await world.ask("POST", "/upload", who, data=form(after=number)))[0] == 201


async def test_a_ticket_gives_no_more_to_read_than_the_token_that_made_it(world):
    _, first, _ = await world.post(await world.ticket())
    for name in ("inputs_from", "after"):
        for service in ({"service": "my_service"}, {}):
            asked = {"user_id": "ann", "fields": {name: str(first["id"])}} | service
            status, code, why = await world.refused_ticket("writer", **asked)
            assert (status, code) == (403, "not_allowed")
            assert "lacks the scope read" in why
    asked = {"user_id": "ann", "service": "my_service"}
    assert (await world.ask("POST", "/api/v1/tickets", "writer", json=asked))[0] == 201


async def test_a_ticket_gives_no_link_to_a_job_that_another_one_became(world):
    key = {"Idempotency-Key": "order-1"}
    used = await world.ticket()
    _, first, _ = await world.post(used, **key)
    _, again, _ = await world.post(used, **key)
    assert again["links"]["job"].startswith(first["links"]["job"].partition("?")[0])
    status, other, _ = await world.post(await world.ticket(), **key)
    assert (status, other["id"], "links" in other) == (201, first["id"], False)


async def test_a_ticket_without_a_service_lets_the_form_choose(world):
    url = await world.ticket(service=None)
    assert (await world.post(url))[1]["code"] == "missing_service"
    assert (await world.post(url, {"service": "my_service"}))[0] == 201


async def test_a_ticket_bounds_the_size(world):
    url = await world.ticket(max_bytes="2KB")
    status, body, _ = await world.post(url, {}, b"#" * 2_200)
    assert (status, body["code"]) == (413, "too_large")
    port, path = int(world.url.rpartition(":")[2]), url.removeprefix(world.url)
    kind = "multipart/form-data; boundary=b"
    answer = await ask(port, "POST", path, Content_Type=kind, Content_Length="100000000")
    assert (answer.status, answer.document["code"]) == (413, "upload_too_large")
    assert "the most its ticket allows is 2.0 KiB" in answer.document["message"]
    assert (await world.post(url, {}, b"#" * 1_900))[0] == 201


async def test_a_form_of_any_page_may_use_a_ticket(world):
    """Also one that hides where it comes from: no page can use a ticket that it was not given."""
    for headers in ({"Origin": "null"}, {"Origin": "https://any.example"}):
        url = await world.ticket()
        assert (await world.post(url, **headers, **{"Sec-Fetch-Site": "cross-site"}))[0] == 201
    status, body, _ = await world.post(f"{world.url}/upload", Origin="https://any.example")
    assert (status, body["code"]) == (403, "foreign_origin")


# -- forms of browsers


async def test_a_form_with_a_ticket_is_sent_on_to_the_page_of_its_job(world):
    status, _, headers = await world.post(await world.ticket(), **BROWSER)
    assert status == 303
    async with world.caller.session.get(headers["Location"], headers=BROWSER) as answer:
        page = await answer.text()
    assert answer.status == 200
    assert "Job 1" in page


async def test_a_form_is_sent_on_to_where_its_ticket_says(world):
    url = await world.ticket(return_to=f"{PORTAL}/done?a=1&b=#here")
    status, _, headers = await world.post(url, **BROWSER)
    assert (status, headers["Location"]) == (
        303,
        f"{PORTAL}/done?a=1&b=&job=1&status=Queued#here",
    )


async def test_a_refused_form_gets_a_page_that_leads_back(world):
    url = await world.ticket(return_to=f'{PORTAL}/?"<')
    status, page, headers = await world.post(url, {"name": "<script>\n"}, **BROWSER)
    assert (status, headers["Content-Type"]) == (400, "text/html; charset=utf-8")
    assert "Invalid name" in page
    assert "invalid_name" in page
    assert "<script>" not in page
    assert f'href="{PORTAL}/?&#34;&lt;"' in page
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    status, page, _ = await world.post(f"{url}x", **BROWSER)
    assert status == 403
    assert "This ticket is not valid" in page


# -- who is refused


async def test_an_altered_or_expired_ticket_is_refused(world):
    url = await world.ticket()
    head, _, text = url.partition("ticket=")
    for changed in (text[:-1], text[1:], text.replace(".", ""), "", "x", "%00", text + "A"):
        status, body, _ = await world.post(f"{head}ticket={changed}")
        assert (status, body["code"]) == (403, "ticket_invalid"), changed
    brief = await world.ticket(expires_in=0.000001)
    status, body, _ = await world.post(brief)
    assert (status, body["code"]) == (403, "ticket_expired")


async def test_a_ticket_and_a_link_end_with_the_token_that_made_them(world):
    asked = {"name": "web", "role": "portal"}
    status, made = await world.ask("POST", "/api/v1/tokens", "admin", json=asked)
    assert status == 201
    url, shown = f"{world.url}/api/v1/tickets", {"Authorization": f"Bearer {made['token']}"}
    tickets = []
    for _ in range(2):
        asked = {"user_id": "ann", "service": "my_service"}
        async with world.caller.session.post(url, json=asked, headers=shown) as answer:
            tickets.append((await answer.json())["upload_url"])
    status, body, _ = await world.post(tickets[0])
    assert status == 201
    job = body["links"]["job"]
    async with world.caller.session.get(job) as answer:
        assert answer.status == 200
    assert (await world.ask("DELETE", f"/api/v1/tokens/{made['id']}", "admin"))[0] in (200, 204)
    status, body, _ = await world.post(tickets[1])
    assert (status, body["code"]) == (403, "ticket_revoked")
    async with world.caller.session.get(job) as answer:
        assert (answer.status, (await answer.json())["code"]) == (403, "link_revoked")


async def test_an_upload_ends_with_the_token_that_allowed_it(world, monkeypatch):
    asked = {"name": "web", "role": "portal"}
    _, made = await world.ask("POST", "/api/v1/tokens", "admin", json=asked)
    shown = {"Authorization": f"Bearer {made['token']}"}
    session, limits = world.caller.session, world.caller.server.context.upload_limits
    asked = {"user_id": "ann", "service": "my_service"}
    async with session.post(f"{world.url}/api/v1/tickets", json=asked, headers=shown) as answer:
        ticket = (await answer.json())["upload_url"]
    begun, revoked, count, users = asyncio.Event(), asyncio.Event(), limits.count, list[str]()

    def counts(user: str) -> None:
        count(user)
        users.append(user)
        if len(users) == 2:
            begun.set()

    monkeypatch.setattr(limits, "count", counts)
    name = 'Content-Disposition: form-data; name="file"; filename="run.sh"'
    body = f"--x\r\n{name}\r\n\r\necho\r\n--x--\r\n".encode()

    async def content() -> AsyncIterator[bytes]:
        yield body[:-9]
        await revoked.wait()
        yield body[-9:]

    async def upload(url: str, headers: dict[str, str]) -> tuple[int, Any]:
        kind = {"Content-Type": "multipart/form-data; boundary=x"}
        async with session.post(url, data=content(), headers=headers | kind) as answer:
            return answer.status, (await answer.json())["message"]

    by_token = f"{world.url}/upload?user_id=ann&service=my_service"
    uploads = asyncio.gather(upload(ticket, {}), upload(by_token, shown))
    await begun.wait()
    await world.ask("DELETE", f"/api/v1/tokens/{made['id']}", "admin")
    revoked.set()
    refused = 403, "the token of web was revoked while this upload was under way"
    assert [*await uploads] == [refused, refused]
    assert (await world.ask("GET", "/api/v1/jobs", "admin"))[1]["items"] == []


async def test_a_used_ticket_is_known_while_an_upload_that_began_before_its_end_may_come(world):
    url = await world.ticket()
    context = world.caller.server.context
    ticket = context.permits.read(Ticket, url.partition("ticket=")[2], context.clock.now())
    assert (await world.post(url))[0] == 201
    assert await context.jobs.forget_tickets(ticket.expires_at + 7 * DAY) == 0
    assert await context.jobs.ticket_used(ticket.id)
    assert await context.jobs.forget_tickets(ticket.expires_at + 31 * DAY) == 1


async def test_a_ticket_is_good_for_no_other_route(world):
    """Nor does a token beside it help: whoever shows a ticket is nobody else."""
    text = (await world.ticket()).partition("ticket=")[2]
    shown = {"Authorization": "Bearer the-token-of-the-admin"}
    good = [route for route in ROUTES if route.by_ticket]
    assert [(route.method, route.path) for route in good] == [("POST", "/upload")]
    for route in ROUTES:
        path = re.sub(r"{\w+(:[^}]*)?}", "1", route.path)
        url = f"{world.url}{path}?ticket={text}"
        if route not in good:
            async with world.caller.session.request(route.method, url, headers=shown) as answer:
                assert answer.status == 403, path
                assert "an upload ticket is for POST /upload" in await answer.text()


async def test_users_and_strangers_make_no_tickets_and_portals_only_for_their_users(world):
    asked = {"user_id": "ann", "service": "my_service"}
    assert (await world.refused_ticket("ann", **asked))[:2] == (403, "not_allowed")
    async with world.caller.session.post(f"{world.url}/api/v1/tickets", json=asked) as answer:
        assert answer.status == 401
    for other in ({**asked, "user_id": "cleo"}, {"user_id": "cleo"}):
        status, code, why = await world.refused_ticket(**other)
        assert (status, code) == (403, "not_allowed")
        assert "ann, b*" in why


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("asked", "code", "says"),
    [
        ({"user_id": ""}, "invalid_user_id", "Missing user_id"),
        ({"user_id": 7}, "invalid_user_id", "should be text"),
        ({"service": ""}, "missing_service", "Missing service"),
        ({"service": "none"}, "unknown_service", "this server has: my_service"),
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
    ],
)
async def test_a_wrong_wish_for_a_ticket_is_said(shared, asked, code, says):
    asked = {"user_id": "ann", "service": "my_service"} | asked
    status, found, why = await shared.refused_ticket(**asked)
    assert (status, found) == (400, code), why
    assert says in why


async def test_tickets_begin_with_the_address_that_browsers_know(tmp_path):
    async with serving(tmp_path, public_url="https://Jobs.Example.org/of-ours") as world:
        url = await world.ticket()
    assert url.startswith("https://jobs.example.org/of-ours/upload?ticket=")


async def test_tickets_are_good_after_a_restart(tmp_path):
    async with serving(tmp_path, public_url="http://localhost") as world:
        path = (await world.ticket()).removeprefix("http://localhost")
    async with serving(tmp_path) as world:
        assert (await world.post(world.url + path))[0] == 201


async def test_neither_tickets_nor_links_are_in_logs_or_the_audit_trail(world):
    with capture_logs() as lines:
        url = await world.ticket()
        _, body, _ = await world.post(url)
        await world.post(url)
        await world.post(f"{url}x")
        async with world.caller.session.get(body["links"]["job"]) as answer:
            assert answer.status == 200
        status, audit = await world.ask("GET", "/api/v1/audit", "admin")
    assert status == 200
    assert any(line["event"] == "request.denied" for line in lines)
    found = f"{lines} {audit}"
    for address in (url, body["links"]["job"]):
        text = address.partition("=")[2]
        assert text.partition(".")[0] not in found
        assert text.partition(".")[2] not in found
