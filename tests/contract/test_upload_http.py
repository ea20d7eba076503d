"""Uploads that are refused: a clear 4xx that names the part, and nothing left."""

from __future__ import annotations

import asyncio
import io
import stat
import tarfile
import zipfile
from pathlib import Path

import pytest
import pytest_asyncio

from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.server_http import RUN, ServerClient, driving

FIELDS = {"user_id": "7", "service": "my_service"}
HEAD = b'--b\r\nContent-Disposition: form-data; name="user_id"\r\n\r\n7\r\n'
HEAD += b'--b\r\nContent-Disposition: form-data; name="service"\r\n\r\nmy_service\r\n'


def part(filename: str, content: bytes = RUN, name: str = "file") -> bytes:
    head = f'--b\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n\r\n'
    return head.encode("utf-8", "surrogateescape") + content + b"\r\n"


def form(*parts: bytes, head: bytes = HEAD) -> bytes:
    return head + b"".join(parts) + b"--b--\r\n"


def files(*names: str) -> bytes:
    return form(part("run.sh"), *(part(name) for name in names))


def field(name: str, value: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def zipped(*entries: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries:
            archive.writestr(name, content)
    return packed.getvalue()


def with_a_link(name: str, target: bytes, *more: tuple[str, bytes]) -> bytes:
    """A ZIP as ``zip --symlinks`` writes it."""
    packed = io.BytesIO(zipped(*more))
    with zipfile.ZipFile(packed, "a") as archive:
        entry = zipfile.ZipInfo(name)
        entry.create_system, entry.external_attr = 3, (stat.S_IFLNK | 0o777) << 16
        archive.writestr(entry, target)
    return packed.getvalue()


def tarred(*members: tarfile.TarInfo) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        run = tarfile.TarInfo("run.sh")
        run.size = len(RUN)
        archive.addfile(run, io.BytesIO(RUN))
        for member in members:
            archive.addfile(member)
    return packed.getvalue()


def link(kind: bytes) -> tarfile.TarInfo:
    found = tarfile.TarInfo("odd")
    found.type, found.linkname = kind, "/etc/passwd"
    return found


def bundle(content: bytes, name: str) -> bytes:
    return form(part(name, content, name="bundle"))


REFUSED: dict[str, tuple[bytes, str]] = {
    # body, what the message must name
    "no run.sh": (form(part("data.txt")), "run.sh"),
    "no file": (form(), "no file"),
    "a file where its meta goes": (
        form(part("d/run.sh"), part("d/.ferryman-meta.json"), field("meta", "{}")),
        ".ferryman-meta.json",
    ),
    "a folder where its meta goes": (
        form(part("run.sh"), part(".ferryman-meta.json/x"), field("meta", "{}")),
        ".ferryman-meta.json",
    ),
    "unknown service": (
        form(part("run.sh"), head=field("user_id", "7") + field("service", "x")),
        "x",
    ),
    "no service": (form(part("run.sh"), head=field("user_id", "7")), "Missing service field"),
    "no user": (form(part("run.sh"), head=field("service", "my_service")), "Missing user_id field"),
    "bad user": (
        form(part("run.sh"), head=field("service", "my_service") + field("user_id", "a b")),
        "Invalid user_id",
    ),
    "memory that is none": (form(part("run.sh"), field("memory", "lots")), "'lots'"),
    "memory for nobody": (form(part("run.sh"), field("memory", "1MiB")), "at least 32.0 MiB"),
    "half a process": (form(part("run.sh"), field("pids", "8.5")), "Invalid pids"),
    "no CPU": (form(part("run.sh"), field("cpus", "-inf")), "Invalid cpus"),
    "no disk": (form(part("run.sh"), field("disk", "0")), "Invalid disk"),
    "negative time": (form(part("run.sh"), field("timeout", "-5s")), "negative"),
    "a field that nobody knows": (form(part("run.sh"), field("cpu", "2")), "did you mean cpus?"),
    "traversal": (files("../evil"), "evil"),
    "absolute": (files("/etc/passwd"), "passwd"),
    "control": (files("a\x01b"), "a"),
    "backslash": (files("a\\b"), "a"),
    "over-long": (files("x" * 300), "xxx"),
    "duplicate": (files("a", "a"), "a"),
    "duplicate once composed": (files("e\u0301", "\u00e9"), "\u00e9"),
    "bidirectional": (files("a\u202eb"), "a"),
    "a path of combining marks": (files("\u0301" * 5000), "longer than 1024"),
    "file and folder": (files("a", "a/b"), "a"),
    "too many parts": (files(*[f"f{number}" for number in range(60)]), "50"),
    "bad UTF-8 in a name": (files("x\udce9"), "UTF-8"),
    "preamble without end": (b"x" * 200_000, "boundary"),
    "header without end": (HEAD + b"--b\r\nX: " + b"y" * 200_000, "header"),
    "cut short": (HEAD + part("run.sh"), "cut short"),
    "zip with traversal": (bundle(zipped(("run.sh", RUN), ("../x", b"")), "b.zip"), "../x"),
    "zip whose run.sh is a link": (
        bundle(with_a_link("run.sh", b"/bin/sh", ("a", b"")), "b.zip"),
        "“run.sh”: it is a symbolic link",
    ),
    "zip with a link to a file of its own": (
        bundle(with_a_link("in.txt", b"run.sh", ("run.sh", RUN)), "b.zip"),
        "“in.txt”: it is a symbolic link",
    ),
    "zip with a link in a folder": (
        bundle(with_a_link("d/run.sh", b"../run.sh", ("run.sh", RUN)), "b.zip"),
        "“d/run.sh”: it is a symbolic link",
    ),
    "zip bomb": (bundle(zipped(("run.sh", RUN), ("big", b"\0" * (64 << 20))), "b.zip"), "b.zip"),
    "truncated zip": (bundle(zipped(("run.sh", RUN))[:-9], "b.zip"), "b.zip"),
    "tar with a symlink": (bundle(tarred(link(tarfile.SYMTYPE)), "b.tar.gz"), "odd"),
    "tar with a hard link": (bundle(tarred(link(tarfile.LNKTYPE)), "b.tar.gz"), "odd"),
    "tar with a device": (bundle(tarred(link(tarfile.CHRTYPE)), "b.tar.gz"), "odd"),
    "truncated tar": (bundle(tarred()[:-20], "b.tar.gz"), "b.tar.gz"),
}


def server(folder: Path, extra: str = ""):
    return driving(folder, FakeOrchestrator(then="Running"), extra=extra, max_files=50)


def left(folder: Path) -> list[str]:
    places = [folder / "data" / kind for kind in ("staging", "bundles", "results")]
    return [str(path) for place in places for path in place.rglob("*") if path.is_file()]


async def post(
    caller: ServerClient, body: bytes, path: str = "/upload", **headers: str
) -> tuple[int, dict[str, str], dict[str, object]]:
    kind = {"Content-Type": "multipart/form-data; boundary=b"}
    async with caller.session.post(
        f"{caller.url}{path}", data=io.BytesIO(body), headers=kind | headers
    ) as answer:
        return answer.status, dict(answer.headers), await answer.json()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def unused(module_folder):
    """One for all uploads that are refused."""
    async with server(module_folder) as caller:
        yield caller


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("case", REFUSED)
async def test_what_is_refused_is_named_and_leaves_nothing(unused, module_folder, case):
    body, named = REFUSED[case]
    status, _, reply = await post(unused, body)
    assert 400 <= status < 500, reply
    assert named in str(reply["message"]) or named == reply.get("part"), reply
    assert (reply["id"], reply["status"]) == (0, "Unknown")
    assert reply["code"]
    assert left(module_folder) == []
    _, _, body = await unused.get("/api/v1/jobs")
    assert b'"items":[]' in body


async def test_unknown_fields_in_the_query_are_refused_and_empty_ones_left_out(tmp_path):
    async with server(tmp_path) as caller:
        status, _, reply = await post(caller, form(part("run.sh")), "/upload?timeoutt=5m")
        assert (status, reply["code"], reply["part"]) == (400, "unknown_field", "timeoutt")
        empty = field("timeout", "") + field("name", "") + field("memory", "")
        empty += field("bundle", "") + field("file", "")  # as Swagger's page, with no file chosen
        status, _, reply = await post(caller, form(part("run.sh"), empty), "/upload?cpus=&tags=")
        assert status == 201, reply


async def test_what_is_cut_to_the_services_limit_is_reported(tmp_path):
    async with server(tmp_path) as caller:
        asked = field("timeout", "10d") + field("memory", "1TB")
        _, _, reply = await post(caller, form(part("run.sh"), asked))
        job = await caller.job(int(str(reply["id"])), until="Running")
        assert job["warnings"] == [
            "timeout: 10d was asked for, service my_service allows 1h",
            "memory: 1TB was asked for, service my_service allows 2.0 GiB",
        ]


ODD = ("chr1:1000-2000.bed", "aux.h", "Makefile", "makefile", "end.")


async def test_what_only_linux_can_store_is_taken_with_a_lasting_warning(tmp_path):
    async with server(tmp_path) as caller:
        status, _, reply = await post(caller, files(*ODD))
        assert status == 201, reply
        job = await caller.job(int(str(reply["id"])), until="Running")
        (warning,) = job["warnings"]
        assert warning.startswith("portable_names: 4 names are not for every system (“chr1:1000-")


@pytest.mark.parametrize("folder", ["", "mine/"])
async def test_windows_line_endings_of_run_sh_are_taken_with_a_warning(tmp_path, folder):
    other = zipped(("run.sh", b"echo\n"), ("data/run.sh", b"a\r\n"), ("table.csv", b"1\r\n"))
    script = zipped((f"{folder}run.sh", b"#!/bin/bash\r\necho hello\r\n"))
    async with server(tmp_path) as caller:
        for bundle, warned in ((other, False), (script, True)):
            body = form(part("a.zip", bundle, "bundle"))
            status, _, reply = await post(caller, body)
            assert status == 201, reply
            job = await caller.job(int(str(reply["id"])), until="Running")
            said = [one for one in job["warnings"] if one.startswith("run.sh has Windows line")]
            assert bool(said) is warned


@pytest.mark.parametrize("name", ["chr1:1000-2000.bed", "RUN.sh"])
async def test_an_operator_may_refuse_them(tmp_path, name):
    async with server(tmp_path, "[server]\nnames = 'portable'\n") as caller:
        status, _, reply = await post(caller, files(name))
        assert (status, reply["part"]) == (400, name)
        assert left(tmp_path) == []


async def test_limits_of_an_upload_lower_the_services_and_never_raise_them(tmp_path):
    own = "limits = { memory = '1GiB', cpus = 2, pids = 100, disk = '1GiB' }\n"
    asked = {"memory": "64MiB", "cpus": "64", "disk": "2TiB", "timeout": "90s"}
    async with server(tmp_path, f"[services.my_service]\n{own}") as caller:
        fields = b"".join(field(name, value) for name, value in asked.items())
        status, _, reply = await post(caller, form(part("run.sh"), fields), "/upload?pids=20")
        assert status == 201, reply
        job = await caller.job(int(str(reply["id"])), until="Running")
        limits = job["limits"]
        assert (limits["memory"], limits["cpus"], limits["pids"]) == (64 << 20, 2.0, 20)
        assert (limits["disk"], job["timeout_s"]) == (1 << 30, 90.0)


async def raw(caller: ServerClient, request: bytes, *, close: bool = False) -> bytes:
    """Send bytes as they are; all that comes back."""
    port = int(caller.url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    await writer.drain()
    if close:
        writer.write_eof()
    answer = await reader.read(65_536)
    writer.close()
    return answer


def request(length: int, *, path: str = "/upload", more: str = "") -> bytes:
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n{more}"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    ).encode()


async def test_a_declared_length_that_lies_is_refused(tmp_path):
    body = files()
    async with server(tmp_path) as caller:
        answer = await raw(caller, request(len(body) + 10) + body, close=True)
        assert answer == b"" or b" 400 " in answer[:20]
        await caller.upload()  # goes on serving
        assert len(left(tmp_path)) == 1


@pytest.mark.parametrize(
    ("length", "path", "status"),
    [
        (10**15, "/upload", b" 413 "),
        (1_000, "/upload?service=nope", b" 400 "),
        (1_000, "/upload?user_id=a%20b", b" 400 "),
    ],
)
@pytest.mark.parametrize("more", ["", "Expect: 100-continue\r\n"])
async def test_what_is_known_from_the_head_is_refused_before_the_body(
    tmp_path, length, path, status, more
):
    async with server(tmp_path) as caller:
        answer = await raw(caller, request(length, path=path, more=more))
        assert status in answer[:20], answer
        assert b"100 Continue" not in answer


async def test_an_upload_that_asks_first_gets_100_continue(tmp_path):
    body = files()
    async with server(tmp_path) as caller:
        port = int(caller.url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request(len(body), more="Expect: 100-continue\r\n"))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 201 "), head
        assert b"Location: /api/v1/jobs/1" in head
        writer.close()


async def test_a_full_queue_is_429_and_says_when_to_come_back(tmp_path):
    few = "[services.my_service]\nqueued_per_user = 1\n"
    async with server(tmp_path, few) as caller:
        for _ in range(2):  # both places of the user
            await caller.job(await caller.upload(), until="Running")
        await caller.upload()
        status, headers, reply = await post(caller, files())
        assert (status, reply["code"]) == (429, "queue_full")
        assert int(headers["Retry-After"]) > 0
        assert len(left(tmp_path)) == 1  # the three have the same bundle


async def test_an_upload_whose_content_was_removed_a_moment_ago_is_stored(tmp_path, monkeypatch):
    async with server(tmp_path) as caller:
        jobs = caller.server.context.jobs
        seen = []

        async def removed_since(digest: str, size: int) -> bool:
            seen.append((digest, size))
            return True

        monkeypatch.setattr(jobs, "can_share_bundle", removed_since)
        await caller.job(await caller.upload(), until="Running")
        assert len(seen) == 1
        assert len(left(tmp_path)) == 1
        await caller.job(await caller.upload(), until="Running")
        assert len(left(tmp_path)) == 1


async def test_a_user_who_has_stored_enough_is_refused_with_what_is_left(tmp_path):
    body = files(*(f"{name:0>60}" for name in range(3)))  # names count, too
    room = "[server]\nstored_per_user = 1000\n"  # one such bundle, and not a second
    async with server(tmp_path, room) as caller:
        assert (await post(caller, body, **{"Idempotency-Key": "k"}))[0] == 201
        status, _, reply = await post(caller, body)
        assert (status, reply["code"]) == (413, "storage_full")
        assert " of the 1000 B that one user has here (stored_per_user), so " in str(
            reply["message"]
        )
        assert (await post(caller, body, **{"Idempotency-Key": "k"}))[0] == 201, "a repeat"
        async with caller.session.post(
            f"{caller.url}/upload?user_id=7&service=my_service",
            data=b"never read, but as long as that: " + body,
            headers={"Content-Type": "multipart/form-data; boundary=b"},
            expect100=True,
        ) as answer:
            assert (answer.status, (await answer.json())["code"]) == (413, "storage_full")
        assert len(left(tmp_path)) == 1


async def test_a_user_who_has_uploaded_enough_today_is_told_what_is_left_and_until_when(tmp_path):
    body = files(*(f"{name:0>60}" for name in range(3)))
    room = "[server]\nupload_per_user_per_day = 1000\n[users.9]\nupload_per_user_per_day = 300\n"
    async with server(tmp_path, room) as caller:
        context = caller.server.context
        assert (await post(caller, body, **{"Idempotency-Key": "k"}))[0] == 201
        status, headers, reply = await post(caller, body)
        assert (status, reply["code"]) == (429, "upload_quota")
        used = await context.jobs.uploaded("7", context.clock.now())
        assert f"so {1000 - used} B is left" in str(reply["message"])
        assert 0 < int(headers["Retry-After"]) <= 86_400
        assert "T00:00:00" in str(reply["message"])
        assert (await post(caller, body, **{"Idempotency-Key": "k"}))[0] == 201, "a repeat"
        assert await context.jobs.uploaded("7", context.clock.now()) == used
        assert (await post(caller, files().replace(b"\r\n7\r\n", b"\r\n8\r\n")))[0] == 201
        small = body.replace(b"\r\n7\r\n", b"\r\n9\r\n")
        status, headers, reply = await post(caller, small)
        assert (status, reply["code"]) == (413, "upload_over_quota")
        assert "Retry-After" not in headers


async def test_a_key_makes_one_job_and_another_body_under_it_is_422(tmp_path):
    async with server(tmp_path) as caller:
        results = await asyncio.gather(
            *(post(caller, files(), **{"Idempotency-Key": "k"}) for _ in range(4))
        )
        assert {status for status, _, _ in results} == {201}
        assert len({reply["id"] for _, _, reply in results}) == 1
        assert [h.get("Idempotent-Replayed") for _, h, _ in results].count("true") == 3
        status, _, reply = await post(caller, files("more"), **{"Idempotency-Key": "k"})
        assert (status, reply["code"]) == (422, "idempotency_key_reused")
        assert len(left(tmp_path)) == 1


async def test_folders_and_archives_become_the_bundle_that_was_meant(tmp_path):
    client = FakeOrchestrator()
    bodies = [
        form(part("mine/run.sh"), part("mine/data/in.pdb", b"ATOM")),
        bundle(zipped(("run.sh", RUN), ("data/in.pdb", b"ATOM")), "b.zip"),
        bundle(zipped(("mine/run.sh", RUN), ("mine/data/in.pdb", b"ATOM")), "b.zip"),
    ]
    async with driving(tmp_path, client) as caller:
        for body in bodies:
            status, _, reply = await post(caller, body)
            assert status == 201, reply
            await caller.job(int(str(reply["id"])))
    sent = [held.files for held in client.payloads.values()]
    assert sent == [{"run.sh": RUN, "data/in.pdb": b"ATOM"}] * 3


async def test_with_tokens_only_who_shows_one_is_answered(tmp_path):
    async with driving(tmp_path, FakeOrchestrator(), tokens=("a-secret-of-users",)) as caller:
        status, kind, _ = await caller.get("/api/v1/jobs")
        assert (status, kind) == (401, "application/problem+json")
        assert (await caller.get("/health"))[0] == 200
        shown = {"Authorization": "Bearer a-secret-of-users"}
        async with caller.session.get(f"{caller.url}/api/v1/jobs", headers=shown) as answer:
            assert answer.status == 200


async def test_a_field_has_a_length(tmp_path):
    async with driving(tmp_path, FakeOrchestrator()) as caller:
        for name, longest in {"retry_on": 4 << 10, "meta": 16 << 10, "priority": 1 << 10}.items():
            text = "exit:1," * (longest // 7 + 1)
            body = form(field(name, text), part("run.sh"))
            kind = {"Content-Type": "multipart/form-data; boundary=b"}
            async with caller.session.post(
                f"{caller.url}/upload", data=body, headers=kind
            ) as answer:
                reply = await answer.json()
            assert (answer.status, reply["code"]) == (400, f"invalid_{name}")
            assert reply["message"] == f"Invalid {name}: it is longer than {longest} characters"


async def test_names_with_a_percent_sign_are_kept(tmp_path):
    """aiohttp, which quotes whole names, is known by what it calls itself."""
    agents = {"curl/8.5.0": "page%2Findex.html", "Python/3.11 aiohttp/3.9.1": "page/index.html"}
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        for agent, name in agents.items():
            kind = {"Content-Type": "multipart/form-data; boundary=b", "User-Agent": agent}
            body = form(part("run.sh"), part("page%2Findex.html"))
            async with caller.session.post(
                f"{caller.url}/upload", data=body, headers=kind
            ) as answer:
                job = await caller.server.context.jobs.get((await answer.json())["id"])
            assert job.bundle is not None
            folder = tmp_path / "data"
            (bundle,) = [one for one in folder.rglob("*") if one.name == job.bundle.file]
            with zipfile.ZipFile(bundle) as archive:
                assert name in archive.namelist()
