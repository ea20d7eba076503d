"""The page that uploads, over real HTTP."""

from __future__ import annotations

import contextlib
import html
import io
import json
import re
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest
from aiohttp import FormData

from server.domain.jobs import FileKind
from server.store.audit import AuditFilter
from shared.principals import Principal, Role, Scope
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

PRINCIPALS = {
    "the-token-of-ann": Principal("ann-laptop", Role.USER, "ann"),
    "the-token-of-bob": Principal("bob-laptop", Role.USER, "bob"),
    "the-token-of-a-reader": Principal("reader", Role.USER, "ann", scopes=frozenset({Scope.READ})),
    "the-token-of-sender": Principal("sender", Role.USER, "ann", scopes=frozenset({Scope.SUBMIT})),
    "the-token-of-portal": Principal("portal", Role.PORTAL, users=("p-*",)),
    "the-token-of-admin": Principal("admin", Role.OPERATOR),
}
PAGE = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
HOSTILE = "<img src=x onerror=alert(1)>\"'"
OTHER = """
[services.other]
timeout = "20m"
runs_per_user = 1
limits = { memory = "512MiB", cpus = 0.5, disk = "64MiB" }
"""


class Person:
    """Somebody who uploads with a browser."""

    def __init__(self, caller: ServerClient, who: str) -> None:
        self.caller, self.who = caller, {"Authorization": f"Bearer the-token-of-{who}"}

    async def page(self, query: str = "") -> tuple[int, str]:
        return await self._text("GET", f"/new{query}", headers=PAGE)

    async def send(
        self,
        fields: dict[str, str],
        files: dict[str, bytes] | None = None,
        *,
        part: str = "file",
        query: str = "",
        accept: str = "text/html,application/xhtml+xml",
        **headers: str,
    ) -> tuple[int, str]:
        """Status, and the page or (303) where it leads."""
        form = FormData(quote_fields=False, default_to_multipart=True)
        for name, value in fields.items():
            form.add_field(name, value)
        for name, content in (files or {}).items():
            form.add_field(part, io.BytesIO(content), filename=name)
        return await self._text(
            "POST", f"/new{query}", data=form, headers={"Accept": accept, **headers}
        )

    async def check(self, fields: dict[str, Any], **more: Any) -> dict[str, Any]:
        status, text = await self._text(
            "POST", "/new/check", json={"fields": fields, **more}, headers={}
        )
        assert status == 200, text
        found: dict[str, Any] = json.loads(text)
        return found

    async def _text(
        self, method: str, path: str, headers: dict[str, str], **more: Any
    ) -> tuple[int, str]:
        async with self.caller.session.request(
            method,
            f"{self.caller.url}{path}",
            headers=self.who | headers,
            allow_redirects=False,
            **more,
        ) as answer:
            return answer.status, answer.headers.get("Location") or await answer.text()

    async def jobs(self) -> list[dict[str, Any]]:
        _, text = await self._text("GET", "/api/v1/jobs", {})
        found: list[dict[str, Any]] = json.loads(text)["items"]
        return found

    async def bundle(self, job_id: int) -> dict[str, bytes]:
        """What was stored for the job."""
        job = await self.caller.server.context.jobs.get(job_id)
        assert job.bundle is not None
        storage = self.caller.server.context.storage
        async with storage.open(FileKind.BUNDLE, job.bundle.file) as stream:
            packed = b"".join([piece async for piece in stream])
        with zipfile.ZipFile(io.BytesIO(packed)) as found:
            return {name: found.read(name) for name in found.namelist()}


@contextlib.asynccontextmanager
async def serving(tmp_path, **settings: Any) -> AsyncIterator[ServerClient]:
    async with driving(
        tmp_path, FakeOrchestrator(), principals=PRINCIPALS, extra=OTHER, **settings
    ) as caller:
        yield caller


@pytest.fixture
async def caller(tmp_path):
    async with serving(tmp_path) as found:
        yield found


@pytest.fixture
def ann(caller):
    return Person(caller, "ann")


def error_of(page: str, field: str) -> str:
    """What stands beside the field."""
    found = re.search(rf'id="e-{field}"(?P<hidden> hidden)?>(?P<text>.*?)</p>', page, re.DOTALL)
    assert found is not None, page
    return "" if found["hidden"] else html.unescape(found["text"])


def value_of(page: str, field: str) -> str:
    found = re.search(rf'id="f-{field}" name="{field}" value="([^"]*)"', page)
    assert found is not None, page
    return html.unescape(found[1])


FIELDS = {"service": "my_service"}


async def test_questions_of_the_form_are_not_in_the_audit_trail(caller, ann):
    await ann.check({"service": "my_service"})
    await ann.send(FIELDS, {"run.sh": RUN})
    entries = await caller.server.context.audit.page(AuditFilter(), 9, 10**9)
    assert [one.action for one in entries] == ["POST /new"]


async def test_the_form_shows_what_each_service_gives(ann):
    status, page = await ann.page("?service=other")
    assert status == 200
    assert re.search(r'<option value="other"[^>]* selected>', page)
    assert re.search(r'name="timeout"[^>]* placeholder="20m"', page)
    assert re.search(r'name="memory"[^>]* placeholder="512.0 MiB"', page)
    assert "The job will be ann’s" in page
    assert 'name="user_id"' not in page
    _, page = await ann.page("?service=none&name=n%22x")
    assert ">Choose one<" in page
    assert value_of(page, "name") == 'n"x'


async def test_a_form_with_files_becomes_a_job(ann):
    status, there = await ann.send(
        FIELDS | {"name": "first", "tags": "a,b", "script": "", "timeout": ""},
        {"run.sh": RUN, "data/x.txt": b"1"},
    )
    assert (status, there) == (303, "/jobs/1")
    (job,) = await ann.jobs()
    assert (job["name"], job["tags"], job["user_id"]) == ("first", ["a", "b"], "ann")
    assert await ann.bundle(1) == {"run.sh": RUN, "data/x.txt": b"1"}


async def test_a_script_reads_json(ann):
    status, text = await ann.send(FIELDS, {"run.sh": RUN}, accept="application/json")
    assert (status, text) == (201, "/jobs/1")
    status, text = await ann.send(
        FIELDS | {"timeout": "x"}, {"run.sh": RUN}, accept="application/json"
    )
    found = json.loads(text)
    assert (status, found["code"], found["part"]) == (400, "invalid_timeout", "timeout")


async def test_a_run_sh_is_written_in_the_page(ann):
    status, _ = await ann.send(FIELDS | {"script": "#!/bin/sh\r\necho 1\r\n"}, {"a.txt": b"a"})
    assert status == 303
    assert await ann.bundle(1) == {"a.txt": b"a", "run.sh": b"#!/bin/sh\necho 1\n"}
    status, _ = await ann.send(FIELDS | {"script": "echo alone"})
    assert status == 303
    assert await ann.bundle(2) == {"run.sh": b"echo alone\n"}


@pytest.mark.parametrize("folder", ["", "project/"])
async def test_a_run_sh_that_is_sent_counts_more_than_one_that_is_written(ann, folder):
    files = {f"{folder}run.sh": RUN, f"{folder}b": b""}
    status, _ = await ann.send(FIELDS | {"script": "echo written"}, files)
    assert status == 303
    assert await ann.bundle(1) == files


async def test_an_archive_is_expanded_and_has_a_run_sh_of_its_own(ann):
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("run.sh", RUN)
    files = {"all.zip": packed.getvalue()}
    status, page = await ann.send(FIELDS | {"script": "echo no"}, files, part="bundle")
    assert status == 400
    assert "brings its own run.sh" in error_of(page, "script")
    assert ">\necho no</textarea>" in page
    assert (await ann.send(FIELDS, files, part="bundle"))[0] == 303
    assert await ann.bundle(1) == {"run.sh": RUN}


async def test_every_wrong_field_has_its_error_beside_it_and_what_was_typed_stays(ann):
    typed = {
        "service": "my_service",
        "name": HOSTILE,
        "timeout": "soon",
        "memory": "1MB",
        "array": "9-1",
        "retries": "3",
        "script": "</textarea><script>alert(1)</script>",
    }
    status, page = await ann.send(typed, {"run.sh": RUN})
    assert status == 400
    assert "is not a duration" in error_of(page, "timeout")
    assert "too little" in error_of(page, "memory")
    assert "is not a range of indices" in error_of(page, "array")
    assert error_of(page, "name") == ""
    for name in ("name", "timeout", "memory", "array", "retries"):
        assert value_of(page, name) == typed[name]
    assert "<img" not in page
    assert "<script>" not in page
    assert "&lt;/textarea&gt;&lt;script&gt;" in page
    assert "choose them again" in page
    # the first wrong one has the focus
    assert re.findall(r'name="(\w+)"[^>]*autofocus', page) == ["timeout"]
    assert await ann.jobs() == []


@pytest.mark.parametrize(
    ("fields", "field", "says"),
    [
        ({}, "service", "Missing service"),
        ({"service": HOSTILE}, "service", "this server has: my_service, other"),
        ({"service": "other", "retries": "1", "retry_delay": "5s"}, "retry_delay", "belongs to"),
        ({"service": "other", "after": "77"}, "after", "77"),
        ({"service": "other", "array_file": "no.txt"}, "array_file", "no.txt"),
    ],
)
async def test_what_is_wrong_together_is_said_beside_a_field_too(ann, fields, field, says):
    status, page = await ann.send(fields, {"run.sh": RUN})
    assert status == 400
    assert says in error_of(page, field)
    assert await ann.jobs() == []


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({}, "it needs at least a run.sh"),
        ({"data.txt": b""}, "has no run.sh at its root"),
        ({"run.sh": RUN, "../x": b""}, "../x"),
        ({"run.sh": RUN, f"a{HOSTILE.replace(chr(34), '')}/../b": b""}, "<img src=x"),
        ({"run.sh": RUN, "back\\slash": b""}, "backslash"),
    ],
)
async def test_what_is_wrong_with_files_is_said_beside_them(ann, files, says):
    status, page = await ann.send(FIELDS | {"name": "kept"}, files)
    assert status == 400
    assert says in error_of(page, "file")
    assert "<img" not in page
    assert value_of(page, "name") == "kept"


async def test_what_is_too_large_is_refused_early(tmp_path):
    async with serving(tmp_path, max_upload="1MiB") as caller:
        ann = Person(caller, "ann")
        status, page = await ann.send(FIELDS, {"run.sh": RUN, "big": bytes(3 << 20)})
        assert status == 413
        assert "1.0 MiB" in page
        assert await ann.jobs() == []
        found = await ann.check(FIELDS, bytes=2 << 20, files=2)
        assert "the most this server takes is 1.0 MiB" in found["problem"]


async def test_more_than_the_service_gives_is_cut_and_the_job_says_so(ann):
    asked = {"service": "other", "timeout": "2h", "memory": "1GiB"}
    found = await ann.check(asked)
    assert found == {
        "errors": {},
        "cuts": {
            "timeout": "2h was asked for, service other allows 20m",
            "memory": "1GiB was asked for, service other allows 512.0 MiB",
        },
        "problem": "",
    }
    assert (await ann.send(asked, {"run.sh": RUN}))[0] == 303
    (job,) = await ann.jobs()
    cuts = [f"{field}: {text}" for field, text in found["cuts"].items()]
    assert job["warnings"][:2] == cuts


async def test_the_script_hears_of_everything_that_is_wrong_before_it_sends(ann, caller):
    found = await ann.check({"service": "no", "timeout": "x", "user_id": "bob", "odd": "1"})
    assert set(found["errors"]) == {"service", "timeout", "odd"}
    found = await ann.check({"service": "other", "memory": "x", "timeout": "2h"})
    assert (set(found["errors"]), set(found["cuts"])) == ({"memory"}, {"timeout"})
    admin, portal = Person(caller, "admin"), Person(caller, "portal")
    for person in (admin, portal):
        assert await person.check({"service": "other"}) == {"errors": {}, "cuts": {}, "problem": ""}
    found = await portal.check({"service": "other", "user_id": "ann"}, bytes=1, files=1)
    assert (set(found["errors"]), found["problem"]) == ({"user_id"}, "")
    assert set((await admin.check({"service": "other", "user_id": "a b"}))["errors"]) == {"user_id"}
    found = await ann.check({"service": "other"}, bytes=65 << 20, files=2)
    assert "other" in found["problem"]
    found = await ann.check({"service": "other"}, bytes=1, files=10**6)
    assert "the most this server takes is 10000" in found["problem"]


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"fields": []},
        {"fields": {"a": 1}},
        {"fields": {}, "bytes": -1},
        {"fields": {}, "files": "1"},
    ],
)
async def test_a_question_that_means_nothing_is_refused(caller, body):
    shown = {"Authorization": "Bearer the-token-of-ann"}
    async with caller.session.post(f"{caller.url}/new/check", json=body, headers=shown) as answer:
        assert (answer.status, (await answer.json())["code"]) == (400, "invalid_json")


async def test_a_repeat_under_the_same_key_makes_no_second_job(ann, caller):
    key = {"Idempotency-Key": "the-key"}
    first = await ann.send(FIELDS, {"run.sh": RUN}, accept="application/json", **key)
    again = await ann.send(FIELDS, {"run.sh": RUN}, accept="application/json", **key)
    assert first == again == (201, "/jobs/1")
    # a form without scripts has it in a field: pressing twice makes one job
    plain = FIELDS | {"idempotency_key": "other-key"}
    assert await ann.send(plain, {"run.sh": RUN}) == await ann.send(plain, {"run.sh": RUN})
    assert len(await ann.jobs()) == 2

    async def sent(who: str, query: str) -> Any:
        shown = {"Authorization": f"Bearer the-token-of-{who}"}
        async with caller.session.get(f"{caller.url}/new/sent{query}", headers=shown) as answer:
            return await answer.json() if answer.status == 200 else answer.status

    assert await sent("ann", "?key=the-key") == {"job": 1, "page": "/jobs/1"}
    assert await sent("admin", "?key=the-key&user=ann") == {"job": 1, "page": "/jobs/1"}
    assert await sent("ann", "?key=another") == {"job": None}
    assert await sent("bob", "?key=the-key") == {"job": None}
    assert await sent("bob", "?key=the-key&user=ann") == 403
    assert await sent("portal", "?key=the-key&user=ann") == 403
    assert await sent("admin", "?key=the-key") == 400
    assert await sent("ann", "?key=") == 400


# -- who may


async def test_who_may_upload(caller):
    for who in ("a-reader",):
        reader = Person(caller, who)
        assert (await reader.page())[0] == 403
        assert (await reader.send(FIELDS, {"run.sh": RUN}))[0] == 403
    portal = Person(caller, "portal")
    status, page = await portal.send(FIELDS | {"user_id": "ann"}, {"run.sh": RUN})
    assert status == 400
    assert "may not upload for user ann" in error_of(page, "user_id")
    assert (await portal.send(FIELDS | {"user_id": "p-1"}, {"run.sh": RUN}))[0] == 303
    admin = Person(caller, "admin")
    status, page = await admin.send(FIELDS, {"run.sh": RUN})
    assert (status, error_of(page, "user_id")) == (400, "Missing user_id field.")
    status, page = await Person(caller, "ann").send(FIELDS | {"user_id": "bob"}, {"run.sh": RUN})
    assert status == 400
    assert len(await admin.jobs()) == 1


# -- again, with changes


async def test_a_job_is_run_again_with_changes(ann):
    asked = {
        "service": "other",
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
    assert (await ann.send(asked, files))[0] == 303
    status, page = await ann.page("?from=1")
    assert status == 200
    for name in ("name", "tags", "priority", "timeout", "cpus", "array", "max_parallel", "outputs"):
        assert value_of(page, name) == asked[name].replace("90s", "1m 30s"), name
    assert value_of(page, "memory") == "100000000B"
    assert value_of(page, "disk") == ""
    assert "<option selected>linear</option>" in page
    assert "<option selected>changed</option>" in page
    assert "echo é &lt;/textarea&gt;" in page
    assert "Take the 3 files of" in page
    # its files go along where they are not sent in another version
    sent = {"service": "other", "keep": "1", "script": "echo 2\n"}
    status, there = await ann.send(sent, {"b": b"3"}, query="?from=1")
    assert status == 303
    assert await ann.bundle(int(there.removeprefix("/jobs/"))) == {
        "run.sh": b"echo 2\n",
        "data/a": b"1",
        "b": b"3",
    }
    sent = {"service": "other", "script": "echo 2\n"}
    status, there = await ann.send(sent, query="?from=1")
    assert status == 303
    assert await ann.bundle(int(there.removeprefix("/jobs/"))) == {"run.sh": b"echo 2\n"}


async def test_nobody_runs_the_job_of_another_again(ann, caller):
    assert (await ann.send(FIELDS | {"name": "secret"}, {"run.sh": b"echo secret\n"}))[0] == 303
    bob = Person(caller, "bob")
    for query in ("?from=1", "?from=99"):
        status, page = await bob.page(query)
        assert status == 404
        assert "secret" not in page
        status, page = await bob.send(FIELDS | {"keep": "1"}, query=query)
        assert status == 404
    for query in ("?from=x", "?from=-1", f"?from={10**30}"):
        assert (await bob.page(query))[0] == 400
    assert await bob.jobs() == []


async def test_a_token_that_may_only_upload_reads_no_former_job(ann, caller):
    assert (await ann.send(FIELDS | {"name": "secret"}, {"run.sh": b"echo secret\n"}))[0] == 303
    sender = Person(caller, "sender")
    status, page = await sender.page("?from=1")
    assert status == 403
    assert "secret" not in page
    # nor does it take the files along, to have them printed
    assert (await sender.send(FIELDS | {"keep": "1"}, query="?from=1"))[0] == 403
    assert len(await ann.jobs()) == 1
    assert (await sender.send(FIELDS, {"run.sh": RUN}))[0] == 303


async def test_a_job_whose_files_are_gone_is_filled_in_without_them(ann, caller):
    assert (await ann.send(FIELDS | {"name": "old"}, {"run.sh": RUN}))[0] == 303
    job = await caller.server.context.jobs.get(1)
    await caller.server.context.storage.delete([(FileKind.BUNDLE, job.bundle.file)])
    status, page = await ann.page("?from=1")
    assert status == 200
    assert value_of(page, "name") == "old"
    assert 'name="keep"' not in page
    status, page = await ann.send(FIELDS | {"keep": "1"}, query="?from=1")
    assert status == 400
    assert "were removed meanwhile" in error_of(page, "file")
