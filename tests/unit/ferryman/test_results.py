"""What a job left, unpacked and file by file."""

from __future__ import annotations

import asyncio
import copy
import inspect
import io
import os
import pickle
import zipfile
from pathlib import Path, PureWindowsPath

import pytest
from aiohttp import web

from ferryman import (
    BadArgument,
    Client,
    JobDoc,
    JobState,
    NoResult,
    NotFound,
    NotReady,
    NotUnderstood,
    Result,
    SyncClient,
    SyncResult,
)
from ferryman.download import leads_elsewhere, target_path, unpack
from ferryman.models.jobs import FileDoc, FilePage
from tests.unit.ferryman.fake_server import answer, job, problem, repr_digest, serving

ENDED = job(JobState.COMPLETED)
FILES = {"out/table.csv": b"a,b\n" * 1_000, "stdout": b"hi\n", "é #?.txt": b"odd"}


def zipped(files: dict[str, bytes], mode: int = 0o644) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = mode << 16
            archive.writestr(entry, content)
    return target.getvalue()


async def ended(_: web.Request) -> web.StreamResponse:
    return answer(ENDED)


async def whole(_: web.Request) -> web.StreamResponse:
    body = zipped(FILES)
    return web.Response(
        body=body, content_type="application/zip", headers={"Repr-Digest": repr_digest(body)}
    )


async def listed(request: web.Request) -> web.StreamResponse:
    at = int(request.query.get("cursor", 0))
    names = list(FILES)
    items = [FileDoc(path=names[at], size=len(FILES[names[at]]), type="text/plain")]
    following = str(at + 1) if at + 1 < len(names) else None
    return answer(FilePage(attempt=1, running=False, items=items, next=following))


async def one(request: web.Request) -> web.StreamResponse:
    path = request.match_info["path"]
    if path not in FILES:
        return problem(404, "file_not_found", f"no {path}")
    return web.Response(body=FILES[path], content_type="text/csv")


def left():
    return serving(
        ("GET", "/api/v1/jobs/17", ended),
        ("GET", "/api/v1/jobs/17/result", whole),
        ("GET", "/api/v1/jobs/17/files", listed),
        ("GET", "/api/v1/jobs/17/files/{path:.+}", one),
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


async def test_a_folder_gets_the_files_and_nothing_else(tmp_path):
    folder = tmp_path / "new" / "out"
    async with left() as url, Client(url) as client:
        result = await client.wait(17)
        assert result.status is JobState.COMPLETED
        assert await result.save(folder) == folder
        assert tree(folder) == FILES
        (folder / "stdout").write_text("old and longer")
        (folder / "own.txt").write_text("mine")
        await result.save(f"{folder}/")
    assert tree(folder) == FILES | {"own.txt": b"mine"}


async def test_a_name_that_ends_with_zip_gets_the_zip(tmp_path):
    async with left() as url, Client(url) as client:
        assert await (await client.wait(17)).save(tmp_path / "r.zip") == tmp_path / "r.zip"
    with zipfile.ZipFile(tmp_path / "r.zip") as archive:
        assert sorted(archive.namelist()) == sorted(FILES)


async def test_files_are_listed_and_fetched_alone(tmp_path):
    async with left() as url, Client(url) as client:
        result = await client.wait(17)
        assert [file.path async for file in result.files()] == list(FILES)
        for name, content in FILES.items():
            file = io.BytesIO()
            await client.fetch(17, name, file)
            assert file.getvalue() == content
        with pytest.raises(NotFound, match="no absent"):
            await client.fetch(17, "absent", io.BytesIO())
        done = await client.fetch(17, "out/table.csv", tmp_path)
        assert done.path == tmp_path / "table.csv"
        assert tree(tmp_path) == {"table.csv": FILES["out/table.csv"]}


async def test_the_error_says_whether_there_will_be_files():
    kinds = {"not_started": NotReady, "files_move": NotReady, "no_result": NoResult}
    for code, kind in kinds.items():

        async def refuse(_: web.Request, code: str = code) -> web.StreamResponse:
            return problem(409, code, "why")

        routes = [("GET", f"/api/v1/jobs/17/files{more}", refuse) for more in ("", "/a")]
        async with serving(*routes) as url, Client(url) as client:
            with pytest.raises(kind):
                _ = [file async for file in client.files(17)]
            with pytest.raises(kind):
                await client.fetch(17, "a", io.BytesIO())


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
def test_what_could_be_run_can_be_run(tmp_path):
    unpack(io.BytesIO(zipped({"tool": b"#!/bin/sh"}, 0o755)), tmp_path)
    unpack(io.BytesIO(zipped({"text": b"text"}, 0o644)), tmp_path)
    assert os.access(tmp_path / "tool", os.X_OK)
    assert not (tmp_path / "text").stat().st_mode & 0o111
    assert not (tmp_path / "tool").stat().st_mode & 0o7000


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a//x", "a/./x", ".."])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(name, tmp_path):
    folder = tmp_path / "out"
    folder.mkdir()
    with pytest.raises(NotUnderstood, match="leads elsewhere"):
        unpack(io.BytesIO(zipped({"good": b"x", name: b"x"})), folder)
    assert tree(tmp_path) == {}


@pytest.mark.parametrize(
    "name",
    ["C:x.bat", "D:/x", "a/C:x", "a\\b", "..\\x", "x:hidden", "chr1:1000-2000.bed", ".. /x", "..."],
)
def test_on_windows_more_names_lead_elsewhere(name):
    assert leads_elsewhere(name, PureWindowsPath)


@pytest.mark.parametrize("name", ["a", "a/b.txt", "a b/.c", "a/", "é", "con.txt", "..a"])
def test_other_names_do_not(name):
    assert not leads_elsewhere(name, PureWindowsPath)
    assert not leads_elsewhere(name)


def test_a_file_whose_name_leads_elsewhere_is_not_fetched_into_a_folder(tmp_path):
    with pytest.raises(BadArgument, match="leads elsewhere"):
        target_path(tmp_path, "..")


def test_what_is_no_zip_is_said_to_be_none(tmp_path):
    with pytest.raises(NotUnderstood, match="cannot be read"):
        unpack(io.BytesIO(b"PK\x03\x04 and then something else"), tmp_path)


async def test_in_another_process_a_result_is_the_document_alone():
    async with left() as url, Client(url) as client:
        result = await client.wait(17)
        assert copy.deepcopy(result).status is JobState.COMPLETED
    again = pickle.loads(pickle.dumps(result))
    assert type(again) is JobDoc
    assert again == ENDED
    assert result.model_dump_json() == ENDED.model_dump_json()


async def test_the_synchronous_results_fetch_the_same(tmp_path):
    def fetch(url: str) -> None:
        with SyncClient(url) as client:
            result = client.wait(17)
            assert isinstance(result, SyncResult)
            assert result.save(tmp_path) == tmp_path
            assert [file.path for file in result.files()] == list(FILES)

    async with left() as url:
        await asyncio.to_thread(fetch, url)
    assert tree(tmp_path) == FILES


def surface(kind: type) -> dict[str, list[str]]:
    return {
        name: list(inspect.signature(value).parameters)
        for name, value in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_") and name not in dir(JobDoc)
    }


@pytest.mark.parametrize(("one", "other"), [(Client, SyncClient), (Result, SyncResult)])
def test_both_kinds_have_the_same_surface(one, other):
    ours, theirs = surface(one), surface(other)
    assert ours == theirs
    properties = [
        {name for name, value in inspect.getmembers(kind) if isinstance(value, property)}
        for kind in (one, other)
    ]
    assert properties[0] == properties[1]
