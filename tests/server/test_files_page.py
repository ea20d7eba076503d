"""The pages of a job's files, over HTTP."""

from __future__ import annotations

import html
import io
import re
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from server.http import files as http_files
from server.web.job.files import quoted
from shared.files.archives.zip_index import ListedFile, ZipIndex
from tests.kit.fake_agent import RETRIED
from tests.kit.fake_orchestrator import FakeOrchestrator
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.server_http import driving
from tests.kit.warm import Place
from tests.server.held_jobs import Setting, ended, running, zipped
from tests.server.test_files import running_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
EVIL = "<img src=x onerror=alert(1)>"


async def get(here: Setting, end: str = "", status: int = 200) -> str:
    """The text of a page below the job's files."""
    url = f"{here.caller.url}/jobs/{here.job_id}/files{end}"
    async with here.caller.session.get(url, headers=BROWSER) as answer:
        text = await answer.text()
        assert answer.status == status, text
        assert EVIL not in text
        return text


class Left(Setting):
    """A job on a warm server whose script has left these files."""

    def __init__(self, place: Place, job_id: int) -> None:
        self.caller, self.job_id = place, job_id


@asynccontextmanager
async def left(place: Place, files: dict[str, bytes]) -> AsyncIterator[Setting]:
    def script(process: FakeProcess) -> None:
        for name, content in files.items():
            process.write(name, content)
        process.finish()

    place.does(script)
    job_id = await place.upload()
    await place.job(job_id)
    yield Left(place, job_id)


def folder(parent: Path, name: str) -> Path:
    """For another server of the test."""
    (parent / name).mkdir()
    return parent / name


def links(page: str, within: str = "") -> list[str]:
    found = map(html.unescape, re.findall(r'href="([^"]*)"', page))
    return [one for one in found if within in one]


def words(page: str) -> str:
    """What is read on the page."""
    body = page[page.index('id="job"') :]
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


# -- folders


async def test_a_folder_lists_its_folders_first_and_leads_to_each_file(place) -> None:
    files = {"z.txt": b"1", "out/b.csv": b"12", "out/deep/c": b"123", "a.txt": b""}
    async with left(place, files) as here:
        page = await get(here)
        assert (
            page.index("out/</span></a>")
            < page.index("a.txt</span></a>")
            < page.index("z.txt</span></a>")
        )
        assert "5 B 2 files" in words(page)
        assert "8 files in all" in words(page)
        (folder,) = set(links(page, "folder=out"))
        assert folder.endswith("/files?folder=out")
        inside = await get(here, folder.rpartition("/files")[2])
        assert "b.csv</span></a>" in inside
        assert "a.txt</span></a>" not in inside
        assert links(inside, "folder=out/deep".replace("/", "%2F"))
        assert links(inside, "/files/out/b.csv")
        assert "All files out" in words(inside)
        assert "There is no file here" in words(await get(here, "?folder=nowhere"))


async def test_a_large_folder_comes_in_pages_and_is_searched_by_name(place) -> None:
    files = {f"many/{number:05}.dat": b"" for number in range(450)}
    files |= {f"folders/{number:03}/x": b"" for number in range(201)}
    async with left(place, files) as here:
        for folder, one in (
            ("many", r"(\d{5}\.dat)</span></a>"),
            ("folders", r"(\d{3})/</span></a>"),
        ):
            seen: list[str] = []
            end: str | None = f"?folder={folder}"
            while end:
                page = await get(here, end)
                found = re.findall(one, page)
                assert len(found) <= 200
                seen += found
                nexts = links(page, "after=")
                end = nexts[0].rpartition("/files")[2] if nexts else None
            assert seen == sorted(set(seen))
            assert len(seen) == {"many": 450, "folders": 201}[folder]
        page = await get(here, "?name=00123.DAT")
        assert re.findall(r"(many/\d+\.dat)</span></a>", page) == ["many/00123.dat"]
        assert "No file whose name" in words(await get(here, "?name=nothing"))


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


async def test_a_file_is_reached_whatever_it_is_called_and_its_name_is_only_text(tmp_path) -> None:
    content = {name: f"content {number}".encode() for number, name in enumerate(HOSTILE)}
    async with ended(tmp_path, zipped(content)) as here:
        for name in HOSTILE:
            page = await get(here, f"?name={quoted(name.rpartition('/')[2])}")
            found = links(page, f"/jobs/{here.job_id}/files/")
            pages = [await get(here, there.partition("/files")[2]) for there in found]
            its = re.compile(rf"{content[name].decode()}\b")
            shown = next(one for one in pages if its.search(words(one)))
            assert "\u202e" not in shown + re.sub('value="[^"]*"', "", page)  # as it was typed
            assert "=&#34;odd" not in shown + page
            assert not re.search(r'="[^"]*<span', shown + page)  # marks are no part of attributes
            raw = links(shown, "/api/v1/")[0]
            assert (await here.caller.get(raw))[2] == content[name]


async def test_a_name_that_no_address_can_have_is_listed_without_a_link(tmp_path) -> None:
    async with ended(tmp_path, zipped({"..": b"x"})) as here:
        assert not links(await get(here), "/files/..")


# -- previews


async def test_text_is_shown_with_numbers_of_its_lines_in_windows(place) -> None:
    text = b"".join(b"line %d <b>\n" % number for number in range(1, 30_001))
    async with left(place, {"log.txt": text}) as here:
        page = await get(here, "/log.txt")
        assert 'start="1"' in page
        assert "<li>line 1 &lt;b&gt;</li>" in page
        seen, end = 0, "/log.txt"
        while end:
            page = await get(here, end)
            numbers = [int(one) for one in re.findall(r"<li>line (\d+) ", page)]
            (first,) = re.findall(r'<ol class="lines" start="(\d+)"', page)
            assert (numbers[0], numbers[0]) == (seen + 1, int(first))
            assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
            seen = numbers[-1]
            more = links(page, "&from=")
            end = more[0].partition("/files")[2] if more and "line=" in more[0] else ""
        assert seen == 30_000
        windows = links(await get(here, "/log.txt"), "&from=")
        (the_end,) = [one for one in windows if "line=" not in one]
        page = await get(here, the_end.partition("/files")[2])
        assert "<li>line 30000 &lt;b&gt;</li>" in page
        assert "lines are not numbered" in words(page)
        for wrong in ("from=-1", "from=x", "line=1e9", "encoding=utf-7"):
            await get(here, f"/log.txt?{wrong}", 400)
        assert "nothing here now" in words(await get(here, "/log.txt?from=999999999"))


async def test_a_window_in_a_huge_file_of_one_line_costs_one_window(tmp_path) -> None:
    packed = io.BytesIO()
    size = 1 << 27
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        with archive.open("big.txt", "w", force_zip64=True) as file:
            for _ in range(size >> 24):
                file.write(b"x" * (1 << 24))
        archive.writestr("ferryman.json", "{}")
    async with ended(tmp_path, packed.getvalue()) as here:
        for start in (0, 5_000_000):
            page = await get(here, f"/big.txt?from={start}")
            assert len(page) < 200_000
            assert "64.0 KiB of 128.0 MiB shown" in words(page)


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
]


async def test_characters_of_a_text_are_shown_and_run_nothing(place) -> None:
    files = {f"{number}.txt": content for number, (content, _) in enumerate(CHARACTERS)}
    async with left(place, files) as here:
        for number, (_, says) in enumerate(CHARACTERS):
            assert says in words(await get(here, f"/{number}.txt")), says


async def test_bytes_that_are_no_text_are_shown_as_numbers(place) -> None:
    async with left(place, {"a.txt": bytes(range(256)) * 4, "b": b"\x7fELF\0"}) as here:
        page = words(await get(here, "/a.txt"))
        assert "00000010 10 11 12" in page
        assert "000001f0" in page
        assert "00000200" not in page
        assert "·ELF·" in words(await get(here, "/b"))


async def test_a_table_is_cut_to_what_a_page_can_show_and_its_cells_are_text(place) -> None:
    rows = [f'm{number},{number}.5,"{EVIL}, ""x"""' for number in range(1_000)]
    content = "name,score,note\n" + "\n".join(rows) + "\n"
    wide = ",".join(map(str, range(300))) + "\n" + "x" * 5_000 + ",short\n"
    files = {
        "a.csv": content.encode(),
        "wide.csv": wide.encode(),
        "semi.csv": b"a;b\n1,5;2,5\nonly one\n",
        "tabs.tsv": b"x\ty\n1\t2\n",
        "odd.csv": b'a,"b\nno end' + b"x" * 140_000,
        "bytes.csv": b"\0\1\2",
    }
    async with left(place, files) as here:
        page = await get(here, "/a.csv")
        assert page.count("<tr>") == 201
        assert "&lt;img src=x onerror=alert(1)&gt;, &#34;x&#34;" in page
        assert '<th scope="col" class="number">score</th>' in page
        assert '<td class="number">0.5</td>' in page
        assert "All of it as text" in page
        assert "separated by commas" in words(page)
        page = await get(here, "/wide.csv")
        assert "300 columns (50 shown)" in words(page)
        assert "x" * 201 not in page
        page = await get(here, "/semi.csv")
        assert "separated by semicolons" in words(page)
        assert '<td class="number">1,5</td>' not in page  # "only one" is no number
        assert "separated by tabs" in words(await get(here, "/tabs.tsv"))
        await get(here, "/odd.csv")
        assert "00000000" in await get(here, "/bytes.csv")
        assert "<li>name,score,note</li>" in await get(here, "/a.csv?view=text")


async def test_pictures_pages_and_documents_are_never_part_of_the_page(place) -> None:
    svg = f"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'>{EVIL}</svg>".encode()
    page = f"<h1>Report</h1>{EVIL}<script>alert(1)</script>".encode()
    files = {"a.svg": svg, "b.png": b"\x89PNG", "c.html": page, "d.pdf": b"%PDF-1.4"}
    async with left(place, files) as here:
        drawing = await get(here, "/a.svg")
        assert f'<img src="/api/v1/jobs/{here.job_id}/files/a.svg" alt="a.svg">' in drawing
        assert "&lt;svg" in await get(here, "/a.svg?view=text")
        assert "/files/b.png?inline=1" in await get(here, "/b.png")
        assert "&lt;script&gt;" in await get(here, "/c.html")
        framed = await get(here, "/c.html?view=rendered")
        assert '<iframe class="rendered" sandbox="" ' in framed
        document = await get(here, "/d.pdf")
        assert "<iframe" not in document
        assert "Save the PDF" in document


async def test_what_a_frame_renders_may_do_nothing_and_only_in_a_frame(place) -> None:
    files = {"a.html": b"<script>alert(1)</script>", "b.svg": b"<svg/>", "c.txt": b"<script>"}
    async with left(place, files) as here:
        url = f"{here.caller.url}/jobs/{here.job_id}/rendered"
        framed = {"Sec-Fetch-Dest": "iframe"}
        async with here.caller.session.get(f"{url}/a.html", headers=framed) as answer:
            assert (answer.status, await answer.read()) == (200, files["a.html"])
            policy = answer.headers["Content-Security-Policy"]
            assert policy.startswith("sandbox; default-src 'none'; ")
            assert "allow-" not in policy
            assert "frame-ancestors 'self'" in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
        for other in ("b.svg", "c.txt"):
            async with here.caller.session.get(f"{url}/{other}", headers=framed) as answer:
                assert answer.status == 409
        opened = {"Sec-Fetch-Dest": "document"}
        async with here.caller.session.get(
            f"{url}/a.html", headers=opened, allow_redirects=False
        ) as answer:
            assert answer.status == 303
            assert answer.headers["Location"].endswith("/files/a.html?view=rendered")


async def test_a_file_leads_to_those_beside_it(place) -> None:
    files = {"x/b": b"b", "x/a": b"a", "x/c": b"c", "x/y/d": b"d", "z": b"z"}
    async with left(place, files) as here:
        page = await get(here, "/x/b")
        assert re.search(r'rel="prev" href="[^"]*/files/x/a"', page)
        assert re.search(r'rel="next" href="[^"]*/files/x/c"', page)
        assert 'rel="next"' not in await get(here, "/x/c")
        assert "CRC-32 71beeff9" in words(page)


async def test_the_names_in_a_large_result_are_read_once(place, monkeypatch) -> None:
    scans = 0
    scan = ZipIndex.scan

    def counted(index: ZipIndex) -> Iterator[ListedFile]:
        nonlocal scans
        scans += 1
        return scan(index)

    monkeypatch.setattr(ZipIndex, "scan", counted)
    monkeypatch.setattr(ZipIndex, "files", None)
    monkeypatch.setattr(http_files, "_NEIGHBOURS", 50)
    files = {f"x/{number:03}.txt": b"text" for number in range(100)}
    async with left(place, files) as here:
        assert f"{here.job_id}/files/x/007.txt" in await get(here, "?folder=x")
        assert scans == 1
        assert "008.txt" in await get(here, "?folder=x&name=8")
        page = await get(here, "/x/007.txt")
        assert 'rel="next"' not in page  # none are looked for among so many
        missing = await get(here, "/y/007.txt", 404)
        assert "x/007.txt" in missing
        assert scans == 1


# -- what is not there


async def test_each_attempt_shows_its_own_files(tmp_path) -> None:
    async with running(tmp_path, RETRIED) as here:
        await here.end(zipped({"a.txt": b"first", "old": b""}), "Failed")
        await here.agent.until(lambda: here.agent.starts[f"{here.job_id}.2"] == 1)
        await here.end(zipped({"a.txt": b"second"}), attempt=2)
        await here.caller.job(here.job_id)
        page = await get(here, "?attempt=1")
        assert "old</span></a>" in page
        there = links(page, "/files/a.txt?")[0]
        assert "first" in words(await get(here, there.partition("/files")[2]))
        assert "old</span></a>" not in await get(here)
        assert "second" in words(await get(here, "/a.txt"))
        await get(here, "?attempt=3", 404)
        await get(here, "?attempt=x", 400)


async def test_why_there_are_no_files_is_said_on_the_page(tmp_path) -> None:
    async with ended(tmp_path, b"no zip at all") as here:
        assert "downloaded as a whole only" in words(await get(here))
        assert "as a whole only" in await get(here, "/a.txt", 409)
    damaged = bytearray(zipped({"a.txt": b"x" * 5_000}, stored=("a.txt",)))
    damaged[damaged.index(b"x" * 4_000) + 3_000] ^= 1
    async with ended(folder(tmp_path, "2"), bytes(damaged)) as here:
        assert "is damaged" in await get(here, "/a.txt", 409)
        await get(here, "/b.txt", 404)
    async with driving(folder(tmp_path, "3"), FakeOrchestrator(then="Running")) as caller:
        job_id = await caller.upload()
        await caller.job(job_id, until="Running")
        status, _, body = await caller.get(f"/jobs/{job_id}/files")
        assert (status, b"when the attempt has ended" in body) == (200, True)
    async with driving(folder(tmp_path, "4"), FakeOrchestrator(), gone=True) as caller:
        job_id = await caller.upload()
        status, _, body = await caller.get(f"/jobs/{job_id}/files")
        assert (status, b"looks again by itself" in body) == (200, True)


async def test_the_files_of_a_cleaned_job_are_gone(tmp_path) -> None:
    short = '[services.my_service]\nexpires_after = "10ms"\n'
    async with driving(tmp_path, FakeOrchestrator(), extra=short, cleaner_interval=0.02) as caller:
        job_id = await caller.upload()
        states = await caller.states(job_id)
        while states[-1] != "Cleaned":
            states = await caller.states(job_id, more_than=len(states))
        status, _, body = await caller.get(f"/jobs/{job_id}/files")
        assert (status, b"its files are removed" in body) == (200, True)
        assert (await caller.get(f"/jobs/{job_id}/files/a.txt"))[0] == 410


async def test_the_files_of_a_running_job_are_those_of_now(tmp_path) -> None:
    async with running_job(tmp_path) as (job, process):
        url = f"{job.caller.url}/jobs/{job.job_id}/files"

        async def page(end: str = "") -> str:
            async with job.caller.session.get(url + end, headers=BROWSER) as answer:
                text = await answer.text()
                assert answer.status == 200, text
                return text

        for number in range(700):
            process.write(f"a many/{number:04}", b"x")
        process.write("out/half 50%.csv", b"a,b\n1,2\n")
        process.write("out/deep/er/x", b"x")
        process.log(b"step 1\n")
        found = words(await page())
        assert "as of now" in found
        assert "at least 500 files" in found
        assert "out/ 9 B 2 files" in found
        assert "stdout.log" in found
        found = await page("?folder=out")
        assert "deep/</span></a>" in found
        assert "stdout.log" not in found
        assert "a many" not in words(found).partition("All files")[2]
        assert "<td" in await page("/out/half%2050%25.csv")
        assert "step 1" in await page("/stdout.log")
        seen, end = [], "?folder=a%20many"
        while end:
            found = await page(end)
            seen += re.findall(r"(\d{4})</span></a>", found)
            nexts = links(found, "after=")
            end = nexts[0].partition("/files")[2] if nexts else ""
        assert seen == [f"{number:04}" for number in range(700)]
        assert re.findall(r"(a many/\d{4})</span></a>", await page("?name=0123")) == ["a many/0123"]


# -- who sees them
