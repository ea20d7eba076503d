"""The page that uploads, without scripts and as its script asks it."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
import pytest_asyncio
from aiohttp import FormData

from shared.principals import Principal, Role
from tests.kit.each import each
from tests.kit.pages import Browser, Page, browsing
from tests.kit.raw_archives import unzipped, zipped
from tests.kit.server_http import RUN
from tests.kit.store import Jobs
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

OPERATOR, PORTAL = "the-token-of-admin", "the-token-of-portal"
PRINCIPALS = {
    OPERATOR: Principal("admin", Role.OPERATOR),
    PORTAL: Principal("portal", Role.PORTAL, users=("p-*",)),
}
SERVER = '[server]\nmax_upload = "2MiB"\nmax_files = 1000'
HOSTILE = "<img src=x onerror=alert(1)>\"'"
LESS = {
    "timeout": "20m",
    "runs_per_user": 1,
    "limits": {"memory": "512MiB", "cpus": 0.5, "disk": "64MiB"},
}


class Uploads(Browser):
    def __init__(self, place: Place, session: aiohttp.ClientSession, token: str = "") -> None:
        super().__init__(place.url, session, token)
        self.place = place

    def other(self, token: str) -> Uploads:
        return Uploads(self.place, self.session, token)

    async def user(self, name: str, **fields: Any) -> Uploads:
        asked = {"name": name, "role": "user", **fields}
        return self.other((await self.place.api("POST", "/tokens", asked))["token"])

    async def send_form(
        self,
        fields: dict[str, str] | None = None,
        files: dict[str, bytes] | None = None,
        *,
        part: str = "file",
        query: str = "",
        **headers: str,
    ) -> Page:
        form = FormData(quote_fields=False, default_to_multipart=True)
        for name, value in ({"service": self.place.service} | (fields or {})).items():
            form.add_field(name, value)
        for name, content in (files or {}).items():
            form.add_field(part, io.BytesIO(content), filename=name)
        return await self.ask(f"/new{query}", "POST", form, **headers)

    async def made(self, *given: Any, **more: Any) -> int:
        """The job that such a form becomes."""
        page = await self.send_form(*given, **more)
        assert page.status == 303, page.errors
        return int(page.location.removeprefix("/jobs/"))

    async def check(self, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        return dict(await self.json("/new/check", "POST", json={"fields": fields, **more}))

    async def jobs(self) -> list[dict[str, Any]]:
        return list((await self.json("/api/v1/jobs"))["items"])

    async def bundle(self, job_id: int) -> dict[str, bytes]:
        """What was stored for the job."""
        return unzipped((await self.place.get(f"/api/v1/jobs/{job_id}/bundle"))[2])


@pytest_asyncio.fixture(loop_scope="module")
async def ann(place: Place) -> AsyncIterator[Uploads]:
    async with browsing(place.url) as browser:
        yield await Uploads(place, browser.session).user(place.user)


async def test_the_form_shows_what_each_service_gives(ann: Uploads) -> None:
    await ann.place.configure(**LESS)
    page = await ann.see(f"/new?service={ann.place.service}")
    assert page.main.fields()["service"] == ann.place.service
    for name, given in (("timeout", "20m"), ("memory", "512.0 MiB")):
        assert page.main.one("input", name=name)["placeholder"] == given
    assert f"The job will be {ann.place.user}’s" in page.text
    assert page.main.all(name="user_id") == []
    page = await ann.see("/new?service=none&name=n%22x")
    assert page.main.one("select", name="service").all("option")[0].text == "Choose one"
    assert page.main.fields()["name"] == 'n"x'


async def test_a_form_with_files_becomes_a_job(ann: Uploads) -> None:
    fields = {"name": "first", "tags": "a,b", "script": "", "timeout": ""}
    files = {"run.sh": RUN, "data/x.txt": b"1"}
    job_id = await ann.made(fields, files)
    (job,) = await ann.jobs()
    assert (job["id"], job["name"], job["tags"]) == (job_id, "first", ["a", "b"])
    assert job["user_id"] == ann.place.user
    assert await ann.bundle(job_id) == files
    await ann.check({"service": ann.place.service})
    trail = (await ann.place.api("GET", "/audit", principal=ann.place.user))["items"]
    assert [one["action"] for one in trail] == ["POST /new"], "questions of the form are not in it"
    page = await ann.send_form({}, {"run.sh": RUN}, Accept="application/json")
    assert (page.status, page.location.startswith("/jobs/")) == (201, True)
    page = await ann.send_form({"timeout": "x"}, {"run.sh": RUN}, Accept="application/json")
    found = json.loads(page.body)
    assert (page.status, found["code"], found["part"]) == (400, "invalid_timeout", "timeout")
    page = await ann.send_form({}, {"run.sh": RUN, "big": bytes(3 << 20)})
    assert (page.status, "2.0 MiB" in page.text, len(await ann.jobs())) == (413, True, 2)


async def test_a_run_sh_is_written_in_the_page_or_brought_by_an_archive(ann: Uploads) -> None:
    written = b"#!/bin/sh\necho 1\n"
    for script, files, stored in (
        (written.decode().replace("\n", "\r\n"), {"a": b"a"}, {"a": b"a", "run.sh": written}),
        ("echo alone", {}, {"run.sh": b"echo alone\n"}),
        # One that is sent counts more than one that is written.
        ("echo written", {"run.sh": RUN, "b": b""}, {"run.sh": RUN, "b": b""}),
        ("echo written", {"p/run.sh": RUN, "p/b": b""}, {"p/run.sh": RUN, "p/b": b""}),
    ):
        assert await ann.bundle(await ann.made({"script": script}, files)) == stored, script
    files = {"all.zip": zipped({"run.sh": RUN})}
    page = await ann.send_form({"script": "echo no"}, files, part="bundle")
    assert (page.status, page.main.fields()["script"]) == (400, "echo no")
    assert "brings its own run.sh" in page.errors["script"]
    assert await ann.bundle(await ann.made({}, files, part="bundle")) == {"run.sh": RUN}


async def test_errors_stand_beside_their_fields_and_what_was_typed_stays(ann: Uploads) -> None:
    typed = {
        "name": HOSTILE,
        "timeout": "soon",
        "memory": "1MB",
        "array": "9-1",
        "retries": "3",
        "script": "</textarea><script>alert(1)</script>",
    }
    page = await ann.send_form(typed, {"run.sh": RUN})
    assert page.status == 400
    says = {"timeout": "is not a duration", "memory": "too little", "array": "is not a range of"}
    assert page.errors.keys() == says.keys()
    for name, text in says.items():
        assert text in page.errors[name]
    assert {name: page.main.fields()[name] for name in typed} == typed
    assert page.scripts() == []
    assert "choose them again" in page.notice
    focused = [one["name"] for one in page.main if "autofocus" in one.attributes]
    assert focused == ["timeout"], "the first wrong one"
    assert await ann.jobs() == []


@each(
    "fields, files, field, says",
    [
        ({"service": ""}, {}, "service", "Missing service"),
        ({"service": HOSTILE}, {}, "service", "this server has: "),
        ({"retries": "1", "retry_delay": "5s"}, {}, "retry_delay", "belongs to"),
        ({"after": "999999"}, {}, "after", "999999"),
        ({"array_file": "no.txt"}, {}, "array_file", "no.txt"),
        ({}, {"run.sh": None}, "file", "it needs at least a run.sh"),
        ({}, {"run.sh": None, "data.txt": b""}, "file", "has no run.sh at its root"),
        ({}, {"../x": b""}, "file", "../x"),
        ({}, {f"a{HOSTILE.replace(chr(34), '')}/../b": b""}, "file", "<img src=x"),
        ({}, {"back\\slash": b""}, "file", "backslash"),
    ],
)
async def test_what_is_wrong_is_said_beside_a_field_or_beside_the_files(
    ann: Uploads, fields: dict[str, str], files: dict[str, Any], field: str, says: str
) -> None:
    all_files = ({"run.sh": RUN} | files).items()
    given = {name: content for name, content in all_files if content is not None}
    page = await ann.send_form({"name": "kept"} | fields, given)
    assert (page.status, page.scripts()) == (400, [])
    assert says in page.errors[field]
    assert page.main.fields()["name"] == "kept"
    assert await ann.jobs() == []


async def test_the_script_hears_of_everything_that_is_wrong_before_it_sends(ann: Uploads) -> None:
    place, nothing = ann.place, {"errors": {}, "cuts": {}, "problem": ""}
    await place.configure(**LESS)
    service = {"service": place.service}
    asked = {"timeout": "2h", "memory": "1GiB"}
    found = await ann.check(service | asked)
    allows = f"was asked for, service {place.service} allows"
    cuts = {"timeout": f"2h {allows} 20m", "memory": f"1GiB {allows} 512.0 MiB"}
    assert found == nothing | {"cuts": cuts}
    job = await ann.made(asked, {"run.sh": RUN})
    warnings = (await place.api("GET", f"/jobs/{job}"))["warnings"]
    assert warnings[:2] == [f"{field}: {text}" for field, text in cuts.items()]
    wrong = {"service": "no", "timeout": "x", "user_id": "bob", "odd": "1"}
    for fields, more, errors, cut, problem in (
        (wrong, {}, {"service", "timeout", "odd"}, set[str](), ""),
        (service | {"memory": "x", "timeout": "2h"}, {}, {"memory"}, {"timeout"}, ""),
        (service, {"bytes": 65 << 20, "files": 2}, set(), set(), "the most this server takes is"),
        (service, {"bytes": 1, "files": 10**6}, set(), set(), "the most this server takes is 1000"),
    ):
        found = await ann.check(fields, **more)
        assert (set(found["errors"]), set(found["cuts"])) == (errors, cut)
        assert problem in found["problem"]
    admin, portal = ann.other(OPERATOR), ann.other(PORTAL)
    for one in (admin, portal):
        assert await one.check(service) == nothing
    # Nobody hears of the quota of a user for whom they may not upload.
    found = await portal.check(service | {"user_id": place.user}, bytes=1, files=1)
    assert (set(found["errors"]), found["problem"]) == ({"user_id"}, "")
    assert set((await admin.check(service | {"user_id": "a b"}))["errors"]) == {"user_id"}
    bodies: tuple[tuple[Any, str], ...] = (
        ({"a": 1}, "unknown_field"),
        ({}, "missing_fields"),
        ({"fields": []}, "invalid_fields"),
        ({"fields": {"a": 1}}, "invalid_fields"),
        ({"fields": {}, "bytes": -1}, "invalid_bytes"),
        *(({"fields": {}, "files": files}, "invalid_files") for files in ("1", True)),
    )
    for body, code in bodies:
        status, refused = await place.ask("POST", "/new/check", json=body)
        assert (status, refused["code"]) == (400, code), body


async def test_a_repeat_under_the_same_key_makes_no_second_job(ann: Uploads) -> None:
    place, key = ann.place, ann.place.warm.new("key")
    bob = await ann.user(place.warm.new("bob"))
    admin, portal = ann.other(OPERATOR), ann.other(PORTAL)
    headers = {"Accept": "application/json", "Idempotency_Key": key}
    first, again = [await ann.send_form({}, {"run.sh": RUN}, **headers) for _ in range(2)]
    assert (first.status, first.location) == (again.status, again.location)
    # a form without scripts has it in a field: pressing twice makes one job
    plain = {"idempotency_key": f"other-{key}"}
    assert await ann.made(plain, {"run.sh": RUN}) == await ann.made(plain, {"run.sh": RUN})
    assert len(await ann.jobs()) == 2
    job = int(first.location.removeprefix("/jobs/"))
    for who, query, answer in (
        (ann, f"?key={key}", {"job": job, "page": f"/jobs/{job}"}),
        (admin, f"?key={key}&user={place.user}", {"job": job, "page": f"/jobs/{job}"}),
        (ann, "?key=another", {"job": None}),
        (bob, f"?key={key}", {"job": None}),
        (bob, f"?key={key}&user={place.user}", 403),
        (portal, f"?key={key}&user={place.user}", 403),
        (admin, f"?key={key}", 400),
        (ann, "?key=", 400),
    ):
        page = await who.ask(f"/new/sent{query}")
        assert (json.loads(page.body) if page.status == 200 else page.status) == answer, query


async def test_for_whom_one_may_upload_is_said_beside_the_user(ann: Uploads) -> None:
    place = ann.place
    admin, portal = ann.other(OPERATOR), ann.other(PORTAL)
    page = await portal.send_form({"user_id": "ann"}, {"run.sh": RUN})
    assert (page.status, "may not upload for user ann" in page.errors["user_id"]) == (400, True)
    mine = f"p-{place.user}"
    place.users.add(mine)
    await portal.made({"user_id": mine}, {"run.sh": RUN})
    page = await admin.send_form({}, {"run.sh": RUN})
    assert (page.status, page.errors["user_id"]) == (400, "Missing user_id field.")
    assert (await ann.send_form({"user_id": "bob"}, {"run.sh": RUN})).status == 400


async def test_a_job_is_run_again_with_changes(ann: Uploads) -> None:
    asked = {
        "name": "first",
        "tags": "a,b",
        "priority": "7",
        "timeout": "90s",
        "memory": "100MB",
        "cpus": "0.25",
        "meta": '{"a":1}',
        "retries": "2",
        "backoff": "linear",
        "array": "1,5-9:2",
        "max_parallel": "3",
        "outputs": "*.txt",
        "result_files": "changed",
        "expires_after": "1d",
    }
    files = {"run.sh": b"echo \xc3\xa9 </textarea>\n", "data/a": b"1", "b": b"2"}
    query = f"?from={await ann.made(asked, files)}"
    page = await ann.see(f"/new{query}")
    fields = page.main.fields()
    for name in ("name", "tags", "priority", "cpus", "array", "max_parallel", "outputs"):
        assert fields[name] == asked[name], name
    assert (fields["timeout"], fields["memory"], fields["disk"]) == ("1m 30s", "100000000B", "")
    assert (fields["backoff"], fields["result_files"]) == ("linear", "changed")
    assert fields["script"] == "echo é </textarea>\n"
    assert "Take the 3 files of" in page.text
    # its files go along where they are not sent in another version
    again = {"keep": "1", "script": "echo 2\n"}
    job = await ann.made(again, {"b": b"3"}, query=query)
    assert await ann.bundle(job) == {"run.sh": b"echo 2\n", "data/a": b"1", "b": b"3"}
    job = await ann.made({"script": "echo 2\n"}, query=query)
    assert await ann.bundle(job) == {"run.sh": b"echo 2\n"}
    # Of one whose files are gone meanwhile it is filled in without them.
    context = ann.place.server.context
    stored = await Jobs(context.core.database).get(job)
    assert stored.bundle is not None
    await context.core.database.write(lambda tx: tx.rows("DELETE FROM contents"))
    page = await ann.see(f"/new?from={job}")
    assert (page.main.fields()["script"], page.main.all(name="keep")) == ("", [])
    page = await ann.send_form({"keep": "1"}, query=f"?from={job}")
    assert (page.status, "were removed meanwhile" in page.errors["file"]) == (400, True)


async def test_nobody_reads_a_job_of_another_by_running_it_again(ann: Uploads) -> None:
    place = ann.place
    job = await ann.made({"name": "secret"}, {"run.sh": b"echo secret\n"})
    bob = await ann.user(place.warm.new("bob"))
    sender = await ann.user(place.user, scopes=["submit"])
    for who, number, status in ((bob, job, 404), (bob, 10**6, 404), (sender, job, 403)):
        for page in (
            await who.ask(f"/new?from={number}"),
            # nor does it take the files along, to have them printed
            await who.send_form({"keep": "1"}, query=f"?from={number}"),
        ):
            assert (page.status, "secret" in page.source) == (status, False)
    for wrong in ("x", "-1", str(10**30)):
        assert (await bob.ask(f"/new?from={wrong}")).status == 400
    assert await bob.jobs() == []
    assert len(await ann.jobs()) == 1
    await sender.made({}, {"run.sh": RUN})
