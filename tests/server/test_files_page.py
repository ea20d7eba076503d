"""The pages of a job's files, over HTTP."""

import io
import json
import re
import zipfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import aiohttp
import pytest

from server.http import files as http_files
from server.web.job.files import quoted
from shared.files.archives.zip_reader import ZipIndex
from tests.kit.fake_agent import Served
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.pages import Browser, Page, browsing
from tests.kit.server_http import ServerClient, driving
from tests.kit.store import Jobs
from tests.kit.warm import Place
from tests.server.held_jobs import ShownJob, ended, running, zipped
from tests.server.warm_jobs import done, leaving

pytestmark = pytest.mark.asyncio(loop_scope="module")

EVIL = "<img src=x onerror=alert(1)>"


class Files(Browser):
    """Somebody who looks at the files of a job."""

    def __init__(self, url: str, session: aiohttp.ClientSession, job_id: int) -> None:
        super().__init__(url, session)
        self.job_id = job_id

    async def open(self, there: str = "", status: int = 200) -> Page:
        """A page below them, or one to which a link leads."""
        here = f"/jobs/{self.job_id}/files"
        page = await self.ask(there if there.startswith(here) else f"{here}{there}")
        assert (page.status, page.scripts()) == (status, []), page.text
        assert EVIL not in page.source
        return page

    async def all(self, there: str, most: int = 200) -> list[str]:
        """The names on all pages of a folder."""
        found = list[str]()
        while there:
            page = await self.open(there)
            assert len(names(page)) <= most
            found += names(page)
            there = next(iter(page.main.links("after=")), "")
        return found


@asynccontextmanager
async def looking(caller: ServerClient, job_id: int) -> AsyncIterator[Files]:
    async with browsing(caller.url) as browser:
        yield Files(browser.url, browser.session, job_id)


@asynccontextmanager
async def left(place: Place, files: dict[str, bytes]) -> AsyncIterator[Files]:
    """A job whose script has left these."""
    async with looking(place, await done(place, leaving(files))) as here:
        yield here


@asynccontextmanager
async def packed(served: Served, result: bytes) -> AsyncIterator[Files]:
    """A job whose agent sends this for its result."""
    async with ended(served, result) as setting, looking(setting.caller, setting.job_id) as here:
        yield here


def names(page: Page) -> list[str]:
    """Of the files and folders listed."""
    return [row[0] for table in page.main.all("table", kind="files") for row in table.rows()]


def lines(page: Page) -> list[str]:
    return [one.text for one in page.main.one("ol", kind="lines").all("li")]


# -- folders


async def test_a_folder_lists_its_folders_first_and_leads_to_each_file(place: Place) -> None:
    """In pages, of which formats/test_shown_text.py has more; and by a part of its name."""
    files = {"z.txt": b"1", "out/b.csv": b"12", "out/a": b"", "out/c": b"", "out/deep/c": b"123"}
    many = [f"{n:05}.dat" for n in range(201)]
    async with left(place, files | {f"many/{name}": b"" for name in many}) as here:
        page = await here.open()
        rows = {row[0]: row[1:3] for row in page.main.all("table", kind="files")[0].rows()}
        assert list(rows)[:2] == ["many/", "out/"]
        assert (rows["out/"], rows["z.txt"][0]) == (["5 B", "4 files"], "1 B")
        assert "210 files in all" in page.text
        (folder,) = page.main.links("folder=out")
        page = await here.open(folder)
        assert names(page) == ["deep/", "a", "b.csv", "c"]
        assert page.main.one("nav", kind="crumbs").text == "All files out"
        assert page.main.links("folder=out%2Fdeep")
        page = await here.open(page.main.links("/files/out/b.csv")[0])
        beside = {one["rel"]: one["href"].rpartition("/")[2] for one in page.main.all("a")}
        assert (beside["prev"], beside["next"]) == ("a", "c")
        assert "CRC-32" in page.text
        assert (await here.open("/out/c")).main.all("a", rel="next") == []
        assert await here.all("?folder=many") == many
        assert names(await here.open("?name=00123.DAT")) == ["many/00123.dat"]
        for query, says in (
            ("folder=nowhere", "There is no file here"),
            ("name=none", "No file whose"),
        ):
            page = await here.open(f"?{query}")
            assert (names(page), says in page.text) == ([], True)


HOSTILE = (
    f"{EVIL}.txt",
    "quote\"'.txt",
    "a #1 ?b=1&c 50%.txt",
    "%2e%2e%2fx",
    "out/ü 中/é.txt",
    "../up.txt",
    "a/./b",
    "/etc/passwd",
    "a//b",
    "new\nline",
    "turned \u202e gnp.exe",
    "back\\slash",
)


async def test_a_file_is_reached_by_any_name_which_is_only_text(served: Served) -> None:
    content = {name: f"content {number}".encode() for number, name in enumerate(HOSTILE)}
    async with packed(served, zipped(content | {"..": b"x"})) as here:
        page = await here.open()
        assert (".." in names(page), page.main.links("/files/..")) == (True, []), "no address"
        for name in HOSTILE:
            page = await here.open(f"?name={quoted(name.rpartition('/')[2])}")
            links = page.main.links(f"/jobs/{here.job_id}/files/")
            found = [await here.open(one) for one in links if not one.startswith("/api")]
            its = re.compile(rf"{content[name].decode()}\b")
            shown = next(one for one in found if its.search(one.text))
            typed = re.sub('value="[^"]*"', "", page.source)
            assert "\u202e" not in shown.source + typed
            # Marks of what cannot be seen are no part of attributes.
            assert not re.search(r'="[^"]*<span', shown.source + page.source)
            raw = next(iter(shown.main.links("/api/v1/")))
            assert (await here.ask(raw)).body == content[name]


# -- previews


async def test_text_is_shown_with_numbers_of_its_lines_in_windows(place: Place) -> None:
    written = [f"line {number} <b>" for number in range(1, 10_001)]
    async with left(place, {"log.txt": "\n".join([*written, ""]).encode()}) as here:
        page = first = await here.open("/log.txt")
        shown = lines(first)
        (following,) = [one for one in first.main.links("&from=") if "line=" in one]
        page = await here.open(following)
        assert page.main.one("ol", kind="lines")["start"] == str(len(shown) + 1)
        shown += lines(page)
        assert shown == written[: len(shown)]
        (the_end,) = [one for one in first.main.links("&from=") if "line=" not in one]
        page = await here.open(the_end)
        assert lines(page)[-1] == written[-1]
        assert "lines are not numbered" in page.text
        for wrong in ("from=-1", "from=x", "line=1e9", "encoding=utf-7"):
            await here.open(f"/log.txt?{wrong}", 400)
        assert "nothing here now" in (await here.open("/log.txt?from=999999999")).text


async def test_a_window_in_a_huge_file_of_one_line_costs_one_window(served: Served) -> None:
    result = io.BytesIO()
    with zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("big.txt", "w", force_zip64=True) as file:
            for _ in range(8):
                file.write(b"x" * (1 << 24))
        archive.writestr("ferryman.json", "{}")
    async with packed(served, result.getvalue()) as here:
        for start in (0, 5_000_000):
            page = await here.open(f"/big.txt?from={start}")
            assert len(page.source) < 200_000
            assert "64.0 KiB of 128.0 MiB shown" in page.text


CHARACTERS = [
    ("Größe".encode(), "Größe"),
    ("Größe".encode("latin-1"), "Größe"),
    ("\ufeffGröße".encode(), "Größe"),
    ("Größe\nzwei".encode("utf-16"), "Größe"),
    (b"red \x1b[31m alert", "red \\u{1b} [31m alert"),
    ("turn \u202e back".encode(), "turn \\u{202e} back"),
    (EVIL.encode(), EVIL),
    (b"+ADw-script+AD4-alert(1)+ADw-/script+AD4-", "+ADw-script+AD4-"),
    (b"", "The file is empty"),
    (b"\x7fELF\0", "·ELF·"),
]


async def test_characters_are_shown_and_bytes_that_are_no_text_as_numbers(place: Place) -> None:
    files = {f"{number}.txt": content for number, (content, _) in enumerate(CHARACTERS)}
    async with left(place, files | {"bytes": bytes(range(256)) * 4}) as here:
        for number, (_, says) in enumerate(CHARACTERS):
            assert says in (await here.open(f"/{number}.txt")).text, says
        rows = (await here.open("/bytes")).main.one("table", kind="hex").rows()
        assert (rows[1][0], rows[1][1][:8], rows[-1][0]) == ("00000010", "10 11 12", "000001f0")


async def test_a_table_is_cut_to_a_page_and_its_cells_are_text(place: Place) -> None:
    rows = [f'm{number},{number}.5,"{EVIL}, ""x"""' for number in range(1_000)]
    wide = ",".join(map(str, range(300))) + "\n" + "x" * 5_000 + ",short\n"
    files = {
        "a.csv": "\n".join(["name,score,note", *rows, ""]).encode(),
        "wide.csv": wide.encode(),
        "semi.csv": b"a;b\n1,5;2,5\nonly one\n",
        "tabs.tsv": b"x\ty\n1\t2\n",
        "odd.csv": b'a,"b\nno end' + b"x" * 140_000,
        "bytes.csv": b"\0\1\2",
        "cut.csv": b"".join(b"%d,%s\n" % (row, b"x" * 30_000) for row in range(9)),
    }
    async with left(place, files) as here:
        page = await here.open("/a.csv")
        assert page.main.rows()[0] == ["1", "m0", "0.5", f'{EVIL}, "x"']
        assert len(page.main.rows()) == 200
        numbers = [one.text for one in page.main.all("th", kind="number", scope="col")]
        assert numbers == ["Row", "score"]
        assert "All of it as text" in page.text
        assert lines(await here.open("/a.csv?view=text"))[0] == "name,score,note"
        for name, says in (
            ("a.csv", "separated by commas"),
            ("wide.csv", "300 columns (50 shown)"),
            ("semi.csv", "separated by semicolons"),
            ("tabs.tsv", "separated by tabs"),
            ("bytes.csv", "00000000"),
        ):
            page = await here.open(f"/{name}")
            assert (says in page.text, "x" * 201 in page.source) == (True, False), name
        await here.open("/odd.csv")
        assert len((await here.open("/cut.csv")).main.rows()) == 4, "whole rows only"
        page = await here.open("/semi.csv")
        assert page.main.all("td", kind="number")[0].text == "2,5", '"only one" is no number'


async def test_pictures_pages_and_documents_are_never_part_of_the_page(place: Place) -> None:
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>{EVIL}</svg>"
    html = f"<h1>Report</h1>{EVIL}<script>alert(1)</script>"
    files = {"a.svg": svg.encode(), "b.png": b"\x89PNG", "c.html": html.encode()}
    async with left(place, files | {"d.pdf": b"%PDF-1.4"}) as here:
        raw = f"/api/v1/jobs/{here.job_id}/files"
        for name, source in (("a.svg", f"{raw}/a.svg"), ("b.png", f"{raw}/b.png?inline=1")):
            picture = (await here.open(f"/{name}")).main.one("p", kind="picture").one("img")
            assert (picture["src"], picture["alt"]) == (source, name)
        assert lines(await here.open("/a.svg?view=text")) == [svg]
        assert lines(await here.open("/c.html")) == [html]
        frame = (await here.open("/c.html?view=rendered")).main.one("iframe")
        assert frame.attributes["sandbox"] == ""
        page = await here.open("/d.pdf")
        assert (page.main.all("iframe"), "Save the PDF" in page.text) == ([], True)
        # What a frame renders may do nothing, and only in a frame.
        there = f"/jobs/{here.job_id}/rendered/"
        page = await here.ask(f"{there}c.html", Sec_Fetch_Dest="iframe")
        assert (page.status, page.body) == (200, files["c.html"])
        policy = page.headers["Content-Security-Policy"]
        assert policy.startswith("sandbox; default-src 'none'; ")
        assert ("allow-" in policy, "frame-ancestors 'self'" in policy) == (False, True)
        assert page.headers["X-Content-Type-Options"] == "nosniff"
        for other in ("a.svg", "d.pdf"):
            assert (await here.ask(f"{there}{other}", Sec_Fetch_Dest="iframe")).status == 409
        page = await here.ask(f"{there}c.html", Sec_Fetch_Dest="document")
        assert (page.status, page.location.rpartition("/")[2]) == (303, "c.html?view=rendered")


async def test_the_names_in_a_large_result_are_read_once(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    scan = mock.create_autospec(ZipIndex.scan, side_effect=ZipIndex.scan)
    monkeypatch.setattr(ZipIndex, "scan", scan)
    monkeypatch.setattr(ZipIndex, "files", None)
    monkeypatch.setattr(http_files, "_NEIGHBOURS", 50)
    async with left(place, {f"x/{number:03}.txt": b"text" for number in range(100)}) as here:
        assert "007.txt" in names(await here.open("?folder=x"))
        assert "008.txt" in "".join(names(await here.open("?folder=x&name=8")))
        page = await here.open("/x/007.txt")
        assert page.main.all("a", rel="next") == [], "none are looked for among so many"
        assert "x/007.txt" in (await here.open("/y/007.txt", 404)).text
        assert scan.call_count == 2, "of the result and of its bundle"


# -- what is not there


async def test_each_attempt_shows_its_own_files(served: Served) -> None:
    async with running(served) as job, looking(job.caller, job.job_id) as here:
        await job.fail(zipped({"a.txt": b"first", "old": b""}))
        await job.end(zipped({"a.txt": b"second"}), attempt=2)
        await job.caller.job(job.job_id)
        page = await here.open("?attempt=1")
        assert "old" in names(page)
        assert lines(await here.open(page.main.links("/files/a.txt?")[0])) == ["first"]
        assert "old" not in names(await here.open())
        assert lines(await here.open("/a.txt")) == ["second"]
        for attempt, status in (("3", 404), ("x", 400)):
            await here.open(f"?attempt={attempt}", status)


async def test_why_there_are_no_files_is_said_on_the_page(
    served: Served, place: Place, tmp_path: Path
) -> None:
    async with packed(served, b"no zip at all") as here:
        assert "downloaded as a whole only" in (await here.open()).text
        assert "as a whole only" in (await here.open("/a.txt", 409)).text
    damaged = bytearray(zipped({"a.txt": b"x" * 5_000}, stored=("a.txt",)))
    damaged[damaged.index(b"x" * 4_000) + 3_000] ^= 1
    async with packed(served, bytes(damaged)) as here:
        assert "is damaged" in (await here.open("/a.txt", 409)).text
        await here.open("/b.txt", 404)
    async with driving(tmp_path, FakeOrchestrator(then="Running")) as caller:
        job = ShownJob(caller, await caller.upload())
        await caller.job(job.job_id, until="Running")
        async with looking(caller, job.job_id) as here:
            assert "when the attempt has ended" in (await here.open()).text
        for what in ("files", "files/run.sh"):
            assert await job.refused(what) == (409, "no_live_files")
        status, _, body = await job.get("logs?follow=1")
        assert (status, json.loads(body)["code"]) == (409, "no_live_log")
        assert "job-orchestrator" in json.loads(body)["detail"]
    waits = await place.upload(not_before="in 1h")
    async with looking(place, waits) as here:
        assert "looks again by itself" in (await here.open()).text
    async with left(place, {"a.txt": b""}) as here:
        jobs, now = Jobs(place.server.context.core.database), place.server.context.core.clock.now()
        assert (await jobs.clean([await jobs.get(here.job_id)], now))[0] == 1
        assert "its files are removed" in (await here.open()).text
        await here.open("/a.txt", 410)


async def test_the_files_of_a_running_job_are_those_of_now(place: Place) -> None:
    place.does(None)
    job_id = await place.upload()
    process = await place.process(job_id)
    await place.job(job_id, until="Running")
    for number in range(700):
        process.write(f"a many/{number:04}", b"x")
    process.write("out/half 50%.csv", b"a,b\n1,2\n")
    process.write("out/deep/er/x", b"x")
    process.log(b"step 1\n")
    async with looking(place, job_id) as here:
        page = await here.open()
        assert "as of now" in page.text
        rows = {row[0]: row[1:3] for row in page.main.one("table", kind="files").rows()}
        assert rows["out/"] == ["9 B", "2 files"]
        assert rows["a many/"][1] == "at least 500 files"
        assert "stdout.log" in rows
        assert names(await here.open("?folder=out")) == ["deep/", "half 50%.csv"]
        assert (await here.open("/out/half%2050%25.csv")).main.rows() == [["1", "1", "2"]]
        assert lines(await here.open("/stdout.log")) == ["step 1"]
        assert await here.all("?folder=a%20many", 500) == [f"{number:04}" for number in range(700)]
        assert names(await here.open("?name=0123")) == ["a many/0123"]
