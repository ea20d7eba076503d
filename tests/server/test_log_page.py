"""The page with the log of a job, and the first lines and files on its first page, over HTTP."""

import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from server.web.job import log as log_follow
from tests.kit.fake_agent import FakeAgent, Served, page, serving
from tests.kit.pages import Browser, Page, browsing
from tests.kit.warm import Place
from tests.server.held_jobs import Setting, followed, log_events, running
from tests.server.warm_jobs import done, leaving

pytestmark = pytest.mark.asyncio(loop_scope="module")

_LINE = re.compile(r'id="L(\d+)".*?<span class="t">(.*?)</span></div>')


def lines(text: str) -> dict[int, str]:
    """Number -> what of a line is in the page, as it is sent: its colours are elements."""
    return {int(number): line for number, line in _LINE.findall(text)}


async def log(browser: Browser, job_id: int, query: str = "") -> Page:
    return await browser.see(f"/jobs/{job_id}/log?{query}")


def followed_at(found: Page) -> str:
    return found.main.one(id="log")["data-follow"]


@asynccontextmanager
async def ended(place: Place, text: str) -> AsyncIterator[tuple[Browser, int]]:
    """A job on a warm server that has written this."""
    async with browsing(place.url) as browser:
        yield browser, await done(place, leaving(stdout=text.encode()))


async def test_lines_are_text_with_colours_and_the_words_of_commands(served: Served) -> None:
    """What else they may hold: formats/test_shown_text.py, test_pages.py."""
    async with running(served) as here, browsing(here.caller.url) as browser:
        text = b'</pre></div>" onclick=x\n\x1b[31m<b>\n\xff\x00\n::error::<i>\n'
        await here.agent.write(here.held(), text)
        await here.agent.write(here.held(), b"::output name=<u>::v\nno end")
        found = await log(browser, here.job_id)
        assert lines(found.source) == {
            1: "&lt;/pre&gt;&lt;/div&gt;&#34; onclick=x",
            2: '<span class="f1">&lt;b&gt;</span>',
            3: '<span class="f1">\ufffd\u2400</span>',
            4: '<b class="word"><span aria-hidden="true">✕</span> Error</b> '
            '<span class="f1">&lt;i&gt;</span>',
            5: '<b class="word"><span aria-hidden="true">=</span> Output &lt;u&gt;</b> '
            '<span class="f1">v</span>',
            6: '<span class="f1">no end</span>',
        }
        assert found.main.all(title="stderr") == []
        await here.agent.write(here.held(), b"::error::no command here\n", "stderr")
        found = await log(browser, here.job_id, "stream=stderr")
        assert lines(found.source) == {1: "::error::no command here"}
        assert len(found.main.all(title="stderr")) == 1


async def test_windows_have_links_to_what_is_before_and_behind(place: Place) -> None:
    text = "".join(f"line {number}\n" for number in range(1, 5001))
    async with ended(place, text) as (browser, job):
        found = await log(browser, job)
        start = f"/jobs/{job}/log?stream=stdout&attempt=1"
        assert found.main.one(id="earlier").links() == [f"{start}&to=4000"]
        assert f"{start}&line=4100#L4100" in found.main.links()
        the_end = found.main.one(id="log-end").text
        assert the_end == "End of the log. Attempt 1: Completed, exit code 0"
        assert followed_at(found) == ""
        for query, first, last in (
            ("", 4001, 5000),
            ("to=4000", 3001, 4000),
            ("line=120", 1, 1000),
            ("line=4611686018427387904", 4800, 5000),
            ("from=4990", 4990, 5000),
        ):
            there = lines((await log(browser, job, query)).source)
            assert there == {n: f"line {n}" for n in range(first, last + 1)}, query
        later = (await log(browser, job, "to=4000")).main.links("&from=")
        assert later == [f"{start}&from=4001"]
        for wrong in (
            *("stream=both", "line=0", "line=x", "from=-1", "to=1.5", "attempt=0"),
            *(f"line={10**30}", "search=" + "x" * 201, "search=a%0Ab"),
        ):
            assert (await browser.ask(f"/jobs/{job}/log?{wrong}")).status == 400, wrong


async def test_a_huge_line_is_cut(place: Place) -> None:
    async with ended(place, "one\n" + "x" * 3_000_000 + "\nthree") as (browser, job):
        found = await log(browser, job, "line=2")
        assert ("2,995,904 more bytes" in found.text, len(found.source) < 50_000) == (True, True)
        assert lines((await log(browser, job)).source) == {3: "three"}


async def test_logs_are_searched(place: Place) -> None:
    text = "".join(f"<i> {number}\n" for number in range(1, 2001))
    async with ended(place, f"{text}The End\n") as (browser, job):
        for query, heading, matches in (
            ("the+end", "1 line with “the end”", ["The End"]),
            ("%3Ci%3E", "500+ lines with “<i>”", [f"<i> {n}" for n in range(1, 501)]),
            ("%3Ci%3E&from=501", "500+ lines with “<i>”", [f"<i> {n}" for n in range(501, 1001)]),
            ("nowhere", "0 lines with “nowhere”", []),
        ):
            found = (await log(browser, job, f"search={query}")).main.one("section", kind="found")
            assert found.one("h2").text == heading
            assert [one.all("span")[0].text for one in found.all("li")] == matches, query
            assert all(one.all("mark") for one in found.all("li"))
        hits = (await log(browser, job, "search=the+end")).main.all(kind="hit")
        assert [one["id"] for one in hits] == ["L2001"]
        assert (await log(browser, job, "search=%3Ci%3E")).main.links("search=%3Ci%3E&from=501")


async def test_the_page_says_why_there_is_no_log(tmp_path: Path) -> None:
    agent = FakeAgent(ends="Running", slots=1)
    missing = page(404, '{"code": "not_found", "message": "?"}', "application/json")
    async with serving(tmp_path, agent) as caller, browsing(caller.url) as browser:
        first = Setting(caller, agent, await caller.upload())
        await caller.job(first.job_id, until="Running")
        waits = Setting(caller, agent, await caller.upload())
        assert lines((await log(browser, first.job_id)).source) == {}
        found = await log(browser, waits.job_id)
        assert "no attempt of it has started" in found.text
        async with followed(caller, followed_at(found)) as (_, messages):
            for trick, says in (
                (page(502), "Its log is shown here as soon as"),
                (missing, "does not show the log"),
            ):
                agent.trick = trick
                assert says in (await log(browser, first.job_id)).text
            agent.trick = None
            await first.end("")
            await caller.job(first.job_id)
            assert "Nothing was written to stdout" in (await log(browser, first.job_id)).text
            for job, query in ((first.job_id, "attempt=2"), (99, "")):
                assert (await browser.ask(f"/jobs/{job}/log?{query}")).status == 404
            # A page that is open follows the log from the start on.
            await agent.until(lambda: agent.starts[f"{waits.job_id}.1"] == 1)
            await agent.write(waits.held(), b"hello\n")
            assert lines((await anext(messages)).data["html"]) == {1: "hello"}


async def test_each_attempt_has_its_own_page(served: Served) -> None:
    async with running(served) as here, browsing(here.caller.url) as browser:
        await here.fail("first")
        await here.agent.write(here.held(2), b"second")
        found = await log(browser, here.job_id)
        assert lines(found.source) == {1: "second"}
        assert [one.text for one in found.main.one("select").all("option")] == ["1", "2"]
        assert "attempt=2" in followed_at(found)
        found = await log(browser, here.job_id, "attempt=1")
        assert lines(found.source) == {1: "first"}
        assert "Attempt 1: Failed, exit code 3" in found.main.one(id="log-end").text
        found = await browser.see(f"/jobs/{here.job_id}")
        rows = found.main.one(id="attempts").rows()
        failed = [(row[0], "exit code 3" in " ".join(row)) for row in rows]
        assert failed == [("2", False), ("1", True)]


async def test_a_page_follows_the_log_without_losing_or_repeating_lines(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And its lines are not made on the event loop."""
    threads, made = set(), log_follow._event

    def event(*given: Any) -> bytes:
        threads.add(threading.get_ident())
        return made(*given)

    monkeypatch.setattr(log_follow, "_event", event)
    async with running(served) as here, browsing(here.caller.url) as browser:
        await here.agent.write(here.held(), b"\x1b[32mone\ntw")
        found = await log(browser, here.job_id)
        assert list(lines(found.source)) == [1, 2]
        path = followed_at(found)
        assert path.endswith("offset=9&first=2")
        async with followed(here.caller, path) as (_, messages):
            one = (await anext(messages)).data
            assert one["first"] == 2
            assert lines(one["html"]) == {2: '<span class="f2">tw</span>'}
            await here.agent.write(here.held(), b"o\n<3")
            two = (await anext(messages)).data
            colour = '<span class="f2">{}</span>'.format
            assert lines(two["html"]) == {2: colour("two"), 3: colour("&lt;3")}
            assert two["next"] == {"offset": 13, "first": 3}
        again = re.sub(r"offset=.*", "offset=13&first=3", path)
        async with followed(here.caller, again) as (_, messages):
            await here.end("\x1b[32mone\ntwo\n<3 four\n")
            *rows, (_, name, last) = await log_events(messages)
            rest = [lines(data["html"]) for _, event, data in rows if event == "rows"]
            assert {3: '<span class="f2">&lt;3 four</span>'} in rest
            assert {number for one in rest for number in one} == {3}
            assert (name, last["text"]) == ("end", "End of the log. Attempt 1: Completed")
    assert threads
    assert threading.get_ident() not in threads


async def test_the_first_page_shows_last_lines_then_first_files(served: Served) -> None:
    async with running(served) as here, browsing(here.caller.url) as browser:

        async def parts() -> list[str]:
            found = (await browser.see(f"/jobs/{here.job_id}")).main
            assert found is not None
            return [one["id"] for one in found if one["id"] in ("last-lines", "first-files")]

        assert await parts() == []
        styles = (await browser.see(f"/jobs/{here.job_id}")).tree.all("link", rel="stylesheet")
        assert any("/log.css" in one["href"] for one in styles), "it stays open as lines come"
        text = "".join(f"line {number}\n" for number in range(1, 20))
        await here.agent.write(here.held(), f"{'x' * 5000}\n{text}<b>no end".encode())
        found = (await browser.see(f"/jobs/{here.job_id}")).main.one(id="last-lines")
        written = [one.text for one in found.all(kind="t")]
        assert written == [*(f"line {n}" for n in range(13, 20)), "<b>no end"]
        found = (await log(browser, here.job_id, "head=1")).main
        assert (len(found.all(id="job-head")), found.all(id="log")) == (1, [])

        async def fails(_: web.Request) -> web.StreamResponse | None:
            raise web.HTTPServiceUnavailable

        here.agent.trick = fails
        assert await parts() == [], "it does without lines of an agent that is away"
        here.agent.trick = None
        assert await parts() == ["last-lines"]
        await here.end(text)
        await here.caller.job(here.job_id)
        assert await parts() == ["first-files"]
        found = (await browser.see(f"/jobs/{here.job_id}")).main.one(id="first-files")
        assert f"/jobs/{here.job_id}/files" in found.links()
