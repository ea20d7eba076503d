"""Uploads over HTTP: what becomes a job, what a user may store, and what is refused with a clear
4xx that names it and leaves nothing.
"""

from __future__ import annotations

import asyncio
import tarfile
from typing import Any

import pytest

from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_archives import (
    BOUNDARY,
    FORM,
    RawZip,
    file_part,
    form_of,
    member,
    tar_of,
    text_part,
    zipped,
)
from tests.kit.server_http import RUN, ServerClient, driving
from tests.kit.uploads import FIELDS, left, post
from tests.kit.warm import Place

warm_loop = pytest.mark.asyncio(loop_scope="module")

SERVER = """
[server]
max_files = 50
[users.full]
stored_per_user = 1000
[users.daily]
upload_per_user_per_day = 1000
[users.small]
upload_per_user_per_day = 300
"""
LINK, LATER = 0o120777, "2100-01-01T00:00:00Z"


def bundle(content: bytes, name: str = "b.zip") -> bytes:
    return file_part(name, content, "bundle")


def files(*names: str) -> list[bytes]:
    return [file_part("run.sh", RUN), *(file_part(name) for name in names)]


def odd(kind: bytes) -> bytes:
    odd = member("odd", type=kind, linkname="/etc/passwd")
    return tar_of([(member("run.sh", size=len(RUN)), RUN), (odd, b"")], "w:gz")


WHOLE = zipped({"run.sh": RUN})
TAR = tar_of([(member("run.sh", size=len(RUN)), RUN)], "w:gz")
META = ".ferryman-meta.json"
REFUSED: list[tuple[list[bytes], str, str]] = [
    # parts, code, what the message or the part must name
    ([file_part("data.txt")], "no_run_sh", "run.sh"),
    ([], "no_file", "no file"),
    ([file_part("d/run.sh"), file_part(f"d/{META}"), text_part("meta", "{}")], "", META),
    ([file_part("run.sh"), file_part(f"{META}/x"), text_part("meta", "{}")], "", META),
    (files("../evil"), "unsafe_name", "../evil"),
    (files("/etc/passwd"), "unsafe_name", "/etc/passwd"),
    (files("a\\b"), "unsafe_name", "a\\b"),
    (files("\u0301" * 5000), "unsafe_name", "longer than 1024"),
    (files("a", "a"), "duplicate_name", "a"),
    (files("e\u0301", "\u00e9"), "duplicate_name", "\u00e9"),
    (files("a", "a/b"), "file_and_folder", "a/b"),
    (files(*[f"f{number}" for number in range(60)]), "too_many_files", "50"),
    ([*files(), file_part("x").replace(b'"x"', b'"x\xe9"')], "bad_utf8", "UTF-8"),
    ([bundle(RawZip().add(b"run.sh", RUN).add(b"../x", b"").bytes())], "unsafe_name", "../x"),
    ([bundle(RawZip().add(b"run.sh", b"/bin/sh", mode=LINK).bytes())], "link", "“run.sh”: it is a"),
    (
        [bundle(RawZip().add(b"run.sh", RUN).add(b"d/x", b"../run.sh", mode=LINK).bytes())],
        "link",
        "“d/x”: it is a symbolic link",
    ),
    ([bundle(zipped({"run.sh": RUN, "big": bytes(64 << 20)}))], "bomb", "b.zip"),
    ([bundle(WHOLE[:-9])], "truncated", "b.zip"),
    ([bundle(odd(tarfile.SYMTYPE), "b.tar.gz")], "link", "odd"),
    ([bundle(odd(tarfile.LNKTYPE), "b.tar.gz")], "link", "odd"),
    ([bundle(odd(tarfile.CHRTYPE), "b.tar.gz")], "special_file", "odd"),
    ([bundle(TAR[:-20], "b.tar.gz")], "truncated", "b.tar.gz"),
]
BROKEN = [
    (b"x" * 200_000, "no_first_boundary", "boundary"),
    (f"--{BOUNDARY}\r\nX: ".encode() + b"y" * 200_000, "bad_header", "header"),
    (form_of(file_part("run.sh"))[:-20], "body_cut_short", "cut short"),
]


def text(place: Place, user: str = "") -> list[bytes]:
    place.users |= {user or place.user}
    return [text_part("user_id", user or place.user), text_part("service", place.service)]


async def job_of(place: Place, *parts: bytes, until: str = "Running") -> dict[str, Any]:
    place.does(None)
    status, _, reply = await post(place, form_of(*text(place), *parts))
    assert status == 201, reply
    return await place.job(reply["id"], until=until)


@warm_loop
async def test_what_is_refused_is_named_and_leaves_nothing(place):
    wrong: list[object] = []
    before = left(place.warm.data)
    bodies = [(form_of(*text(place), *parts), code, named) for parts, code, named in REFUSED]
    for body, code, named in (*bodies, *BROKEN):
        status, _, reply = await post(place, body)
        said = named in str(reply.get("message")) or named == reply.get("part")
        shape = (reply["id"], reply["status"]) == (0, "Unknown")
        if not (400 <= status < 500 and said and shape and code in reply["code"]):
            wrong.append((code, named, status, reply))
        if left(place.warm.data) != before:
            wrong.append((code, named, "it left something"))
    assert wrong == []
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


@warm_loop
async def test_folders_and_archives_become_the_bundle_that_was_meant(place):
    meant = {"run.sh": RUN, "data/in.pdb": b"ATOM"}
    in_folder = {f"mine/{name}": content for name, content in meant.items()}
    place.does(None)
    for parts in (
        [file_part(*one) for one in in_folder.items()],
        [bundle(zipped(meant))],
        [bundle(zipped(in_folder))],
    ):
        job = await job_of(place, *parts)
        process = await place.process(job["id"])
        assert {name: process.read(name) for name in meant} == meant
        process.finish()


@warm_loop
async def test_what_only_linux_can_store_is_taken_with_a_lasting_warning(place):
    names = ("chr1:1000-2000.bed", "aux.h", "Makefile", "makefile", "end.")
    (warning,) = (await job_of(place, *files(*names)))["warnings"]
    assert warning.startswith("portable_names: 4 names are not for every system (“chr1:1000-")


@warm_loop
@each("folder", ["", "mine/"])
async def test_windows_line_endings_of_run_sh_are_taken_with_a_warning(place, folder):
    other = {"run.sh": b"echo\n", "data/run.sh": b"a\r\n", "table.csv": b"1\r\n"}
    script = {f"{folder}run.sh": b"#!/bin/bash\r\necho hello\r\n"}
    for content, warned in ((other, False), (script, True)):
        job = await job_of(place, bundle(zipped(content)))
        assert any("run.sh has Windows line" in one for one in job["warnings"]) is warned
        await place.end()


@warm_loop
async def test_names_with_a_percent_sign_are_kept(place):
    """aiohttp, which quotes whole names, is known by what it calls itself."""
    place.does(None)
    body = form_of(*text(place), *files("page%2Findex.html"))
    for agent, name in {
        "curl/8.5.0": "page%2Findex.html",
        "Python/3.11 aiohttp/3.9.1": "page/index.html",
    }.items():
        _, _, reply = await post(place, body, **{"User-Agent": agent})
        process = await place.process(reply["id"])
        assert process.read(name) == b""


@warm_loop
async def test_a_key_makes_one_job_and_another_body_under_it_is_422(place):
    place.does(None)
    key = {"Idempotency-Key": place.user}
    body = form_of(*text(place), *files())
    found = await asyncio.gather(*(post(place, body, **key) for _ in range(4)))
    assert {status for status, _, _ in found} == {201}
    assert len({reply["id"] for _, _, reply in found}) == 1
    assert [h.get("Idempotent-Replayed") for _, h, _ in found].count("true") == 3
    status, _, reply = await post(place, form_of(*text(place), *files("more")), **key)
    assert (status, reply["code"]) == (422, "idempotency_key_reused")


# ---------------------------------------------------------------------------- before the body


async def head(caller: ServerClient, request: str, body: bytes = b"", *, close: bool = False):
    """Send it as it is; where it is answered."""
    port = int(caller.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"{request}\r\nHost: localhost\r\nContent-Type: {FORM}\r\n\r\n".encode() + body)
    await writer.drain()
    if close:
        writer.write_eof()
    return reader, writer


@warm_loop
@each("more", ["", "\r\nExpect: 100-continue"])
@each(
    ("length", "query", "status"),
    [
        (10**15, "", b" 413 "),
        (1_000, "?service=nope", b" 400 "),
        (1_000, "?user_id=a%20b", b" 400 "),
        (1_000, "?timeoutt=5m", b" 400 "),
    ],
)
async def test_what_is_known_from_the_head_is_refused_before_the_body(
    place, length, query, status, more
):
    request = f"POST /upload{query} HTTP/1.1\r\nContent-Length: {length}{more}"
    reader, writer = await head(place, request)
    answer = await reader.readline()
    assert status in answer, answer
    writer.close()


@warm_loop
async def test_an_upload_that_asks_first_gets_100_continue(place):
    body = form_of(*text(place), *files())
    request = f"POST /upload HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: {len(body)}"
    reader, writer = await head(place, request)
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert b"Location: /api/v1/jobs/" in answer
    writer.close()


@warm_loop
async def test_a_declared_length_that_lies_is_refused(place):
    body = form_of(*text(place), *files())
    request = f"POST /upload HTTP/1.1\r\nContent-Length: {len(body) + 10}"
    reader, writer = await head(place, request, body, close=True)
    answer = await reader.read()
    assert answer == b"" or b" 400 " in answer[:20]
    writer.close()
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


# ---------------------------------------------------------------------------- allowances

LONG = [f"{name:0>60}" for name in range(3)]
"""Names count, too: one such bundle fits into 1000 bytes, and not a second."""


@warm_loop
async def test_a_full_queue_is_429_and_says_when_to_come_back(place):
    await place.configure(queued_per_user=1)
    later = text_part("not_before", LATER)
    body = form_of(*text(place), later, *files())
    assert (await post(place, body))[0] == 201
    before = left(place.warm.data)
    status, headers, reply = await post(place, body)
    assert (status, reply["code"]) == (429, "queue_full")
    assert int(headers["Retry-After"]) > 0
    assert left(place.warm.data) == before


@warm_loop
async def test_a_user_who_has_stored_enough_is_refused_with_what_is_left(place):
    body, key = form_of(*text(place, "full"), *files(*LONG)), {"Idempotency-Key": place.user}
    assert (await post(place, body, **key))[0] == 201
    status, _, reply = await post(place, body)
    assert (status, reply["code"]) == (413, "storage_full")
    assert " of the 1000 B that one user has here (stored_per_user), so " in reply["message"]
    assert (await post(place, body, **key))[0] == 201, "a repeat"
    query = f"?user_id=full&service={place.service}"
    request = f"POST /upload{query} HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 1000"
    reader, writer = await head(place, request)
    assert b" 413 " in await reader.readline()
    writer.close()


@warm_loop
async def test_a_user_who_has_uploaded_enough_today_is_told_what_is_left_and_until_when(place):
    body, key = form_of(*text(place, "daily"), *files(*LONG)), {"Idempotency-Key": place.user}
    assert (await post(place, body, **key))[0] == 201
    says = []
    for _ in range(2):
        status, headers, reply = await post(place, body)
        assert (status, reply["code"]) == (429, "upload_quota")
        assert 0 < int(headers["Retry-After"]) <= 86_400
        assert "T00:00:00" in reply["message"]
        says.append(reply["message"])
        assert (await post(place, body, **key))[0] == 201, "a repeat"
    assert says[0] == says[1], "neither a refusal nor a repeat counts"
    assert (await post(place, form_of(*text(place), *files(*LONG))))[0] == 201
    status, headers, reply = await post(place, form_of(*text(place, "small"), *files(*LONG)))
    assert (status, reply["code"]) == (413, "upload_over_quota")
    assert "Retry-After" not in headers


# ---------------------------------------------------------------------------- other servers


async def test_an_operator_may_refuse_names_that_only_linux_can_store(tmp_path):
    portable = "[server]\nnames = 'portable'\n"
    async with driving(tmp_path, FakeOrchestrator(), extra=portable) as caller:
        for name in ("chr1:1000-2000.bed", "RUN.sh"):
            status, _, reply = await post(caller, form_of(*FIELDS, *files(name)))
            assert (status, reply["part"]) == (400, name)
        assert left(tmp_path / "data") == set()


async def test_an_upload_whose_content_was_removed_a_moment_ago_is_stored(tmp_path, monkeypatch):
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        jobs = caller.server.context.jobs
        seen = []

        async def removed_since(digest: str, size: int) -> bool:
            seen.append((digest, size))
            return True

        monkeypatch.setattr(jobs, "can_share_bundle", removed_since)
        await caller.job(await caller.upload(), until="Running")
        assert len(seen) == 1
        assert len(left(tmp_path / "data")) == 1
        await caller.job(await caller.upload(), until="Running")
        assert len(left(tmp_path / "data")) == 1
