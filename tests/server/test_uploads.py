"""Uploads over HTTP: what becomes a job, and what is refused by its name and leaves nothing."""

import asyncio
import tarfile
from typing import Any

import pytest

from server.domain.jobs import ROW_BYTES
from shared.sql import Tx
from tests.kit import raw_archives
from tests.kit.each import each
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.raw_archives import FORM, file_part, form_of, text_part, zipped
from tests.kit.server_http import RUN, driving
from tests.kit.uploads import FIELDS, left, post
from tests.kit.warm import Place

pytestmark = pytest.mark.asyncio(loop_scope="module")

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
LATER = "2100-01-01T00:00:00Z"


def bundle(content: bytes, name: str = "b.zip") -> bytes:
    return file_part(name, content, "bundle")


def files(*names: str) -> list[bytes]:
    return [file_part("run.sh", RUN), *(file_part(name) for name in names)]


ODD = raw_archives.member("odd", type=tarfile.CHRTYPE, linkname="/etc/passwd")
SCRIPT = raw_archives.member("run.sh", size=len(RUN))
SPECIAL = raw_archives.tar_of([(SCRIPT, RUN), (ODD, b"")], "w:gz")
META = ".ferryman-meta.json"
REFUSED: list[tuple[list[bytes], str, str]] = [
    # parts, code, what the message or the part must name
    ([file_part("data.txt")], "no_run_sh", "run.sh"),
    ([], "no_file", "no file"),
    ([file_part("d/run.sh"), file_part(f"d/{META}"), text_part("meta", "{}")], "", META),
    ([file_part("run.sh"), file_part(f"{META}/x"), text_part("meta", "{}")], "", META),
    (files("../evil"), "unsafe_name", "../evil"),
    (files(*[f"f{number}" for number in range(60)]), "too_many_files", "50"),
    ([*files(), file_part("x").replace(b'"x"', b'"x\xe9"')], "bad_utf8", "UTF-8"),
    (
        [bundle(raw_archives.RawZip().add(b"run.sh", RUN).add(b"../x", b"").bytes())],
        "unsafe_name",
        "../x",
    ),
    ([bundle(zipped({"run.sh": RUN, "big": bytes(64 << 20)}))], "bomb", "b.zip"),
    ([bundle(SPECIAL, "b.tar.gz")], "special_file", "odd"),
]


def text(place: Place, user: str = "") -> list[bytes]:
    place.users |= {user or place.user}
    return [text_part("user_id", user or place.user), text_part("service", place.service)]


async def test_what_is_refused_is_named_and_leaves_nothing(place: Place) -> None:
    wrong: list[object] = []
    before = left(place.warm.data, "bundles", "staging")
    bodies = [(form_of(*text(place), *parts), code, named) for parts, code, named in REFUSED]
    cut_short = form_of(file_part("run.sh"))[:-20]
    for body, code, named in (*bodies, (cut_short, "body_cut_short", "cut short")):
        status, _, reply = await post(place, body)
        said = named in str(reply.get("message")) or named == reply.get("part")
        shape = (reply["id"], reply["status"]) == (0, "Unknown")
        if not (400 <= status < 500 and said and shape and code in reply["code"]):
            wrong.append((code, named, status, reply))
        if left(place.warm.data, "bundles", "staging") != before:
            wrong.append((code, named, "it left something"))
    assert wrong == []
    assert (await place.api("GET", "/jobs", user=place.user))["items"] == []


MANY_NAMES = files("chr1:1000-2000.bed", "aux.h", "Makefile", "makefile", "end.")
UNIX = {"run.sh": b"echo\n", "data/run.sh": b"a\r\n", "table.csv": b"1\r\n"}
WINDOWS = b"#!/bin/bash\r\necho hello\r\n"


@each(
    "parts, warning",
    [
        (MANY_NAMES, "portable_names: 4 names are not for every system (“chr1:1000-"),
        ([bundle(zipped(UNIX))], ""),
        ([bundle(zipped({"run.sh": WINDOWS}))], "run.sh has Windows line"),
        ([bundle(zipped({"mine/run.sh": WINDOWS}))], "run.sh has Windows line"),
    ],
)
async def test_what_may_surprise_is_taken_with_a_lasting_warning(
    place: Place, parts: list[bytes], warning: str
) -> None:
    place.does(None)
    status, _, reply = await post(place, form_of(*text(place), *parts))
    assert status == 201, reply
    job = await place.job(reply["id"], until="Running")
    assert len(job["warnings"]) == bool(warning)
    assert warning in "".join(job["warnings"])
    await place.end()


async def test_names_with_a_percent_sign_are_kept(place: Place) -> None:
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


async def test_a_key_makes_one_job_and_another_body_under_it_is_422(place: Place) -> None:
    place.does(None)
    key = {"Idempotency-Key": place.user}
    body = form_of(*text(place), *files())
    found = await asyncio.gather(*(post(place, body, **key) for _ in range(4)))
    assert {status for status, _, _ in found} == {201}
    assert len({reply["id"] for _, _, reply in found}) == 1
    assert [h.get("Idempotent-Replayed") for _, h, _ in found].count("true") == 3
    service = place.warm.new("service")
    await place.api("PUT", f"/services/{service}", {})
    other = [text_part("user_id", place.user), text_part("service", service)]
    for parts in ([*text(place), *files("more")], [*other, *files()]):
        status, _, reply = await post(place, form_of(*parts), **key)
        assert (status, reply["code"]) == (422, "idempotency_key_reused")


async def begun(
    place: Place, length: int, query: str = "", more: str = "\r\nExpect: 100-continue"
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send the head of an upload; where it is answered, and goes on."""
    port = int(place.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = f"POST /upload{query} HTTP/1.1\r\nContent-Length: {length}{more}\r\nHost: localhost\r\n"
    writer.write(f"{head}Content-Type: {FORM}\r\n\r\n".encode())
    await writer.drain()
    return reader, writer


@each("more", ["", "\r\nExpect: 100-continue"])
@each(
    "length, query, status",
    [
        (10**15, "", b" 413 "),
        (1_000, "?service=nope", b" 400 "),
        (1_000, "?user_id=a%20b", b" 400 "),
        (1_000, "?timeoutt=5m", b" 400 "),
    ],
)
async def test_what_is_known_from_the_head_is_refused_before_the_body(
    place: Place, length: int, query: str, status: bytes, more: str
) -> None:
    reader, writer = await begun(place, length, query, more)
    answer = await reader.readline()
    assert status in answer, answer
    writer.close()


async def test_an_upload_that_asks_first_gets_100_continue(place: Place) -> None:
    body = form_of(*text(place), *files())
    reader, writer = await begun(place, len(body))
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(body)
    answer = await reader.readuntil(b"\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 201 "), answer
    assert b"Location: /api/v1/jobs/" in answer
    writer.close()


LONG = [f"{name:0>60}" for name in range(3)]
"""Names count, too: one such bundle fits into 1000 bytes, and not a second."""


async def test_a_full_queue_is_429_and_says_when_to_come_back(place: Place) -> None:
    await place.configure(queued_per_user=1)
    body = form_of(*text(place), text_part("not_before", LATER), *files())
    status, _, first = await post(place, body)
    assert status == 201
    before = left(place.warm.data, "bundles", "staging")
    status, headers, reply = await post(place, body)
    assert (status, reply["code"]) == (429, "queue_full")
    assert int(headers["Retry-After"]) > 0
    assert left(place.warm.data, "bundles", "staging") == before
    await place.api("POST", f"/jobs/{first['id']}/cancel")
    assert (await post(place, body))[0] == 201


@each(
    "user, status, code, says",
    [
        ("full", 413, "storage_full", " of the 1000 B that one user has here (stored_"),
        ("daily", 429, "upload_quota", "T00:00:00"),
    ],
)
async def test_a_user_who_has_stored_or_uploaded_enough_is_told_what_is_left(
    place: Place, user: str, status: int, code: str, says: str
) -> None:
    key = {"Idempotency-Key": f"{place.user}-{user}"}
    body, told = form_of(*text(place, user), *files(*LONG)), set[str]()
    status_, _, first = await post(place, body, **key)
    assert status_ == 201
    await place.job(first["id"])  # its result counts from then on
    for _ in range(2):
        found, headers, reply = await post(place, body)
        assert (found, reply["code"]) == (status, code)
        assert says in reply["message"]
        assert (0 < int(headers.get("Retry-After", 0)) <= 86_400) == (status == 429)
        told.add(reply["message"])
        assert (await post(place, body, **key))[0] == 201, "a repeat"
    assert len(told) == 1, "neither a refusal nor a repeat counts"
    reader, writer = await begun(place, 1_000, f"?user_id={user}&service={place.service}")
    assert f" {status} ".encode() in await reader.readline(), "before the body"
    writer.close()
    assert (await post(place, form_of(*text(place), *files(*LONG))))[0] == 201, "another user"
    found, headers, reply = await post(place, form_of(*text(place, "small"), *files(*LONG)))
    assert (found, reply["code"]) == (413, "upload_over_quota"), "no day allows it"
    assert "Retry-After" not in headers


async def test_an_operator_may_refuse_names_that_only_linux_can_store(tmp_path) -> None:
    portable = "[server]\nnames = 'portable'\n"
    async with driving(tmp_path, FakeOrchestrator(), extra=portable) as caller:
        for name in ("chr1:1000-2000.bed", "RUN.sh"):
            status, _, reply = await post(caller, form_of(*FIELDS, *files(name)))
            assert (status, reply["part"]) == (400, name)
        assert left(tmp_path / "data") == set()


async def test_an_upload_whose_content_was_removed_a_moment_ago_is_stored(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []

    def removed_since(tx: Tx, *content: Any) -> bool:
        asked.append(content)
        return True

    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        monkeypatch.setattr("server.store.bundles.can_share", removed_since)
        for _ in range(2):
            large = {"run.sh": b"true", "large": bytes(ROW_BYTES)}
            await caller.job(await caller.upload(large), until="Running")
            assert len(left(tmp_path / "data")) == 1
        assert asked
