"""All pages: forms that no page of ours sent, what people and jobs wrote, each role's offers."""

import errno
import json
from http import HTTPStatus
from typing import Any, Final
from unittest import mock
from urllib.parse import quote

import pytest
from aiohttp import FormData

from server.http.problems import Refusal
from server.web.routes import ROUTES
from tests.kit.each import each
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.pages import Browser, People, unopened
from tests.kit.server_http import RUN
from tests.server.access import OPERATOR, PEOPLE, PRINCIPALS, Crowd, crowd, people, words

__all__ = ["OPERATOR", "PRINCIPALS", "crowd", "people"]

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVIL: Final = "\"'><img class=evil src=x onerror=stolen()><script>stolen()</script>{{7*7}}"
"""Ends an attribute and an element, then begins others."""
TAG: Final = "\"'><b/onclick=stolen()>"
ANSI: Final = "\x1b]8;;javascript:stolen()\x1b\\link\x1b]8;;\x1b\\\n"
SVG: Final = '<svg xmlns="http://www.w3.org/2000/svg" class="evil" onload="stolen()"/>'
HTML: Final = f"<body onload=stolen()><p class=evil>{EVIL}"


async def of(people: People, who: str) -> Browser:
    browser = await people.stranger()
    browser.token = f"the-token-of-{who}"
    return browser


async def test_a_form_that_no_page_of_ours_sent_changes_nothing(people: People) -> None:
    place = people.place
    place.does(None)
    job = await place.upload(user_id="ann", name="kept")
    await place.job(job, until="Running")
    token = await place.api("POST", "/tokens", {"name": place.warm.new("eve"), "role": "user"})
    browser, other = [await people.logged_in(OPERATOR) for _ in range(2)]
    foreign = await other.csrf("/account")
    values = {"id": str(job), "name": place.service, "token": token["id"]}
    fields = words(place.service) | {"id": str(job), "ids": str(job), "script": "echo"}

    async def state() -> Any:
        found = await place.api("GET", f"/jobs/{job}")
        jobs = await place.api("GET", "/jobs", limit="500", user="ann")
        service = await place.api("GET", f"/services/{place.service}")
        return [
            *([found[name] for name in ("status", "tags", "cancel_requested_at")]),
            *(await place.api("GET", "/tokens"), [one["id"] for one in jobs["items"]]),
            *(service["paused"], (await place.api("GET", "/agents/local"))["state"]),
        ]

    before, sent = await state(), 0
    for route in ROUTES:
        if route.method == "GET" or route.path.startswith("/login"):
            continue  # test_login.py
        path = route.path
        values["name"] = "local" if path.startswith("/agents") else place.service
        for name, value in values.items():
            path = path.replace(f"{{{name}}}", value)
        assert "{" not in path, f"{path}: say in this test what that may be"
        for csrf in (None, "", "0" * 64, foreign):
            given: Any = fields if csrf is None else fields | {"csrf": csrf}
            if route.files:
                path = route.path + (f"?csrf={csrf}" if csrf is not None else "")
                given = FormData(given, default_to_multipart=True)
            page = await browser.ask(path, "POST", given, Origin=place.url)
            assert (page.status, "form_expired" in page.source) == (403, True), (path, csrf)
            sent += 1
        # A page of elsewhere does not even get so far.
        page = await browser.ask(path, "POST", fields, Origin="https://evil.example")
        assert (page.status, "foreign_origin" in page.source) == (403, True), path
    assert sent > 60
    assert await state() == before
    assert "Log out" in (await browser.see("/jobs")).tree.buttons()


def writes(process: FakeProcess) -> None:
    process.log(stdout=f"{EVIL}\n{ANSI}::progress value=1,total=2::{EVIL}\n".encode())
    process.log(stdout=f"::notice::{EVIL}\n::error::{EVIL}\n::output name=score::{EVIL}\n".encode())
    process.log(stderr=f"{EVIL}\n".encode())
    for name, text in {
        "bad.txt": EVIL,
        "page.svg": SVG,
        "page.html": HTML,
        "table.csv": f'a,b\n"{EVIL.replace(chr(34), chr(34) * 2)}",=cmd()\n',
        "<img class=evil>.txt": "1",
    }.items():
        process.write(f"out/{name}", text.encode())


async def test_what_people_and_jobs_wrote_is_text_on_every_page(people: People) -> None:
    place = people.place
    place.does(writes)
    meta = json.dumps({EVIL: EVIL, "n": {"x": [EVIL]}})
    words = {"user_id": "ann", "name": EVIL, "tags": TAG, "meta": meta, "outputs": "out/**"}
    files = {"run.sh": RUN, "bad.txt": EVIL.encode()}
    ended, running = [await place.upload(files, **words) for _ in range(2)]
    for job in (ended, running):
        await place.job(job, until="Running")
    (await place.process(ended)).finish(3)
    await place.job(ended)
    waiting = await place.upload(files, **words, after=str(running))
    form = FormData({"user_id": "ann", "service": place.service, "cron": "0 6 1 1 *", "name": EVIL})
    form.add_field("file", RUN, filename="run.sh")
    assert (await place.ask("POST", "/api/v1/schedules", data=form))[0] == 201
    await place.api("POST", f"/services/{place.service}/pause", {"message": EVIL})
    await place.api("POST", "/agents/local", {"action": "drain", "message": EVIL})
    admin = await of(people, "admin")
    evil, shown = quote(EVIL, safe=""), 0
    token = (await place.api("GET", "/tokens"))["items"]
    ways = [
        *("/jobs", f"/jobs?text={evil}", f"/jobs?tag={quote(TAG, safe='')}"),
        *(f"/jobs?state={evil}", f"/jobs?since={evil}", f"/jobs?cursor={evil}"),
        *("/schedules", "/services", f"/services/{place.service}", "/status", "/charts"),
        *(f"/charts?service={evil}", f"/charts?period={evil}", "/agents", "/agents/local"),
        *("/users", f"/users?from={evil}", f"/users/{evil}", "/tokens", f"/tokens?name={evil}"),
        *("/audit", f"/audit?principal={evil}", f"/audit?since={evil}", "/account"),
        *(f"/login?next={evil}", "/login?next=javascript:stolen()", f"/nothing/{evil}"),
        *(f"/new?from={ended}", f"/new?name={evil}", f"/new?service={evil}", f"/tokens/{evil}"),
        *([f"/tokens/{token[0]['id']}"] if token else []),
    ]
    tabs = (
        *("", "/children", "/log", "/log?stream=stderr", "/log?search=%3Cimg", "/log?line=1"),
        *("/files", "/files?folder=out", "/files?name=evil"),
    )
    for job in (ended, running, waiting):
        ways += [f"/jobs/{job}{tab}" for tab in tabs]
        for name in ("bad.txt", "page.svg", "page.html", "table.csv", "<img class=evil>.txt"):
            path = f"/jobs/{job}/files/out/{quote(name)}"
            ways += [path, f"{path}?view=text", f"{path}?view=rendered"]
    for path in ways:
        page = await admin.ask(path)
        assert page.status < 500, path
        assert page.scripts() == [], path
        assert page.tree.all(kind="evil") == [], path
        assert "49" not in page.source.replace("{{7*7}}", "").partition("stolen()</script>")[2][:2]
        shown += "stolen()" in page.tree.text
    assert shown > 45
    assert unopened(ways) == []
    await place.api("POST", "/agents/local", {"action": "resume"})
    await place.api("POST", f"/services/{place.service}/resume")


MENU: Final = {
    "/new": {"ann", "bob", "portal", "stranger", "admin", "reader", "watcher"},
    "/status": {"admin", "watcher"},
    "/tokens": {"admin"},
    "/audit": {"admin"},
}
OFFERS: Final[dict[str, dict[str, set[str]]]] = {
    "/jobs": {key: {"bulk"} for key in ("ann", "portal", "admin")}
    | {"bob": set(), "reader": set()},
    "/jobs/{failed}": {
        **{key: {"retry", "delete", "tags", "share"} for key in ("ann", "portal", "admin")},
        "reader": {"share"},
        "watcher": {"share"},
    },
    "/jobs/{running}": {
        **{key: {"cancel", "tags", "share"} for key in ("ann", "portal", "admin")},
        "reader": {"share"},
    },
    "/services/{service}": {
        **{key: {"pause", "retire"} for key in ("admin", "watcher")},
        **{key: set() for key in ("ann", "portal", "reader", "node")},
    },
    "/agents/local": {key: {"drain"} for key in ("admin", "watcher")},
    "/tokens": {"admin": {"tokens"}},
}
"""Page -> who -> where its forms lead."""


async def test_each_role_is_offered_what_it_may_do(people: People, crowd: Crowd) -> None:
    place = people.place

    async def made(end: int | None) -> int:
        place.does(lambda process: None if end is None else process.finish(end))
        job = await crowd.made("portal", "ann")
        await place.job(job, until="Running" if end is None else "")
        return job

    values = {"failed": await made(3), "running": await made(None), "service": place.service}
    for path, offers in OFFERS.items():
        for who, actions in offers.items():
            page = await (await of(people, who)).see(path.format(**values))
            assert page.actions == actions, (path, who)
    for who, with_users in (("ann", False), ("reader", False), ("admin", True), ("portal", True)):
        page = await (await of(people, who)).see(f"/jobs?service={place.service}")
        assert page.jobs() == [values["running"], values["failed"]], who
        assert bool(page.main.all("th", kind="user")) is with_users, who
    for who in PEOPLE:
        browser = await of(people, who)
        page = await browser.ask("/account")
        links = page.tree.links()
        for path, allowed in MENU.items():
            if page.status == 200:
                assert (path in links) is (who in allowed), (who, path)


SECRET: Final = "what-nobody-should-see"
UNREADABLE: Final = OSError(errno.EIO, "Input/output error", SECRET)


@each(
    "problem, status, title, code",
    [
        (RuntimeError(SECRET), 500, "Something went wrong here", "internal_error"),
        (UNREADABLE, 503, "This does not work right now", "storage_unavailable"),
        (Refusal(HTTPStatus.GONE, "gone", "it was <b>deleted</b>"), 410, "This is gone", "gone"),
    ],
)
async def test_whatever_goes_wrong_is_a_page_with_words_a_code_and_the_request(
    people: People, problem: Exception, status: int, title: str, code: str
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("server.web.operators.users.usage_of", mock.AsyncMock(side_effect=problem))
        page = await (await of(people, "admin")).ask("/users/7")
    assert (page.status, page.heading, page.code) == (status, title, code)
    said = [one.text for one in page.main.all("code")]
    assert page.headers["X-Request-ID"] in said
    assert SECRET not in page.source
    assert page.main.all("b") == []
    assert page.main.one("p", kind="lead").text
    page = await (await of(people, "admin")).ask("/jobs", Host="elsewhere.example.org")
    assert (page.status, page.heading) == (421, "This server has another name")
    assert "allowed_hosts" in page.text
