"""The page with the log of a job, over HTTP."""

from __future__ import annotations

import re
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from typing import Any

import pytest
from aiohttp import web

from server.web.job import log as log_follow
from tests.kit.fake_agent import RETRIED, FakeAgent, page, serving
from tests.kit.fake_sandbox import FakeProcess
from tests.kit.warm import Place
from tests.server.held_jobs import Setting, followed, log_events, running

pytestmark = pytest.mark.asyncio(loop_scope="module")

_LINE = re.compile(r'id="L(\d+)".*?<span class="t">(.*?)</span></div>')


async def shown(here: Setting, query: str = "") -> tuple[int, str]:
    url = f"{here.caller.url}/jobs/{here.job_id}/log?{query}"
    async with here.caller.session.get(url) as answer:
        return answer.status, await answer.text()


class Ended(Setting):
    def __init__(self, place: Place, job_id: int) -> None:
        self.caller, self.job_id = place, job_id


@asynccontextmanager
async def ended(place: Place, text: str) -> AsyncIterator[Setting]:
    """A job on a warm server that has written this."""

    def script(process: FakeProcess) -> None:
        process.log(stdout=text.encode())
        process.finish()

    place.does(script)
    job_id = await place.upload()
    await place.job(job_id)
    yield Ended(place, job_id)


def lines(text: str) -> dict[int, str]:
    return {int(number): line for number, line in _LINE.findall(text)}


def followed_at(text: str) -> str:
    found = re.search(r'\sdata-follow="([^"]+)"', text)
    assert found
    return unescape(found[1])


async def test_hostile_lines_are_text(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b'<script>alert(1)</script>\n</pre></div>" onclick=x\n')
        await here.agent.write(
            here.held(), b"\x1b[31m<b>\x1b]8;;javascript:alert(1)\x07x\n\xff\x00\n"
        )
        await here.agent.write(here.held(), b"::error::<i>\n::output name=<u>::v\nno end")
        status, text = await shown(here)
        assert status == 200
        assert lines(text) == {
            1: "&lt;script&gt;alert(1)&lt;/script&gt;",
            2: "&lt;/pre&gt;&lt;/div&gt;&#34; onclick=x",
            3: '<span class="f1">&lt;b&gt;x</span>',
            4: '<span class="f1">\ufffd\u2400</span>',
            5: '<b class="word"><span aria-hidden="true">✕</span> Error</b> '
            '<span class="f1">&lt;i&gt;</span>',
            6: '<b class="word"><span aria-hidden="true">=</span> Output &lt;u&gt;</b> '
            '<span class="f1">v</span>',
            7: '<span class="f1">no end</span>',
        }
        assert " style=" not in text
        assert 'title="stderr"' not in text
        await here.agent.write(here.held(), b"::error::no command here\n", "stderr")
        _, text = await shown(here, "stream=stderr")
        assert lines(text) == {1: "::error::no command here"}
        assert 'title="stderr"' in text


async def test_windows_have_links_to_what_is_before_and_behind(place) -> None:
    async with ended(place, "".join(f"line {number}\n" for number in range(1, 5001))) as here:
        _, text = await shown(here)
        assert list(lines(text)) == list(range(4001, 5001))
        assert "stream=stdout&amp;attempt=1&amp;to=4000" in text
        assert "attempt=1&amp;line=4100#L4100" in text
        assert "End of the log. Attempt 1: Completed" in text
        assert "data-follow" not in text
        _, text = await shown(here, "to=4000")
        assert list(lines(text)) == list(range(3001, 4001))
        assert "from=4001" in text
        _, text = await shown(here, "line=120")
        assert list(lines(text)) == list(range(1, 1001))
        assert lines(text)[120] == "line 120"
        _, text = await shown(here, "line=4611686018427387904")
        assert lines(text)[5000] == "line 5000"
        _, text = await shown(here, "from=4990")
        assert list(lines(text)) == list(range(4990, 5001))


async def test_a_huge_line_is_cut(place) -> None:
    async with ended(place, "one\n" + "x" * 3_000_000 + "\nthree") as here:
        _, text = await shown(here, "line=2")
        assert "2,995,904 more bytes" in text
        assert len(text) < 50_000
        _, text = await shown(here)
        assert lines(text) == {3: "three"}


async def test_logs_are_searched(place) -> None:
    text = "".join(f"<i> {number}\n" for number in range(1, 2001))
    async with ended(place, f"{text}The End\n") as here:
        _, text = await shown(here, "search=the+end")
        assert "1 line with “the end”" in text
        assert "<mark>The End</mark>" in text
        assert '<div class="row hit" id="L2001">' in text
        _, text = await shown(here, "search=%3Ci%3E")
        assert "500+ lines with “&lt;i&gt;”" in text
        assert "<mark>&lt;i&gt;</mark> 500" in text
        assert "search=%3Ci%3E&amp;from=501" in text
        _, text = await shown(here, "search=%3Ci%3E&from=501")
        assert "<mark>&lt;i&gt;</mark> 501" in text
        _, text = await shown(here, "search=nowhere")
        assert "0 lines with “nowhere”" in text
        for bad in ("search=" + "x" * 201, "search=a%0Ab"):
            assert (await shown(here, bad))[0] == 400


async def test_bad_values_are_refused(place) -> None:
    wrong = ("stream=both", "line=0", "line=x", "from=-1", "to=1.5", "attempt=0", f"line={10**30}")
    async with ended(place, "text") as here:
        for query in wrong:
            assert (await shown(here, query))[0] == 400, query


async def test_the_page_says_why_there_is_no_log(tmp_path) -> None:
    agent = FakeAgent(ends="Running", slots=1)
    async with serving(tmp_path, agent) as caller:
        first = Setting(caller, agent, await caller.upload())
        await caller.job(first.job_id, until="Running")
        status, text = await shown(first)
        assert (status, lines(text)) == (200, {})
        here = Setting(caller, agent, await caller.upload())
        status, text = await shown(here)
        assert status == 200
        assert "no attempt of it has started" in text
        assert "offset=0" in followed_at(text)
        agent.trick = page(502)
        status, text = await shown(first)
        assert status == 200
        assert "Its log is shown here as soon as" in text
        agent.trick = page(404, '{"code": "not_found", "message": "?"}', "application/json")
        status, text = await shown(first)
        assert status == 200
        assert "does not show the log" in text
        agent.trick = None
        await first.end("")
        await caller.job(first.job_id)
        status, text = await shown(first)
        assert status == 200
        assert "Nothing was written to stdout" in text
        assert (await shown(first, "attempt=2"))[0] == 404
        assert (await shown(Setting(caller, agent, 99)))[0] == 404


async def test_each_attempt_has_its_own_page(tmp_path) -> None:
    async with running(tmp_path, extra=RETRIED) as here:
        await here.end("first", "Failed")
        await here.agent.until(lambda: here.agent.starts[f"{here.job_id}.2"] == 1)
        await here.caller.job(here.job_id, until="Running")
        await here.agent.write(here.held(2), b"second")
        _, text = await shown(here)
        assert lines(text) == {1: "second"}
        assert "<option>1</option>" in text
        assert "attempt=2" in followed_at(text)
        _, text = await shown(here, "attempt=1")
        assert lines(text) == {1: "first"}
        assert "Attempt 1: Failed, exit code 3" in text


async def test_lines_that_are_followed_are_not_made_on_the_event_loop(
    tmp_path, monkeypatch
) -> None:
    threads, made = set(), log_follow._event

    def event(*given: Any) -> bytes:
        threads.add(threading.get_ident())
        return made(*given)

    monkeypatch.setattr(log_follow, "_event", event)
    async with running(tmp_path) as here:
        await here.end("\x1b[1mone\n")
        await here.caller.job(here.job_id)
        url = f"{here.caller.url}/live/{here.job_id}/log"
        async with here.caller.session.get(url) as answer:
            assert "one" in await answer.text()
    assert threads
    assert threading.get_ident() not in threads


async def test_a_page_follows_the_log_without_losing_or_repeating_lines(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"\x1b[32mone\ntw")
        _, text = await shown(here)
        assert list(lines(text)) == [1, 2]
        path = followed_at(text)
        assert path.endswith("offset=9&first=2")
        async with followed(here.caller, path) as (_, messages):
            one = (await anext(messages)).data
            assert one["first"] == 2
            assert lines(one["html"]) == {2: '<span class="f2">tw</span>'}
            await here.agent.write(here.held(), b"o\n<3")
            two = (await anext(messages)).data
            assert lines(two["html"]) == {
                2: '<span class="f2">two</span>',
                3: '<span class="f2">&lt;3</span>',
            }
            assert two["next"] == {"offset": 13, "first": 3}
        again = re.sub(r"offset=.*", "offset=13&first=3", path)
        async with followed(here.caller, again) as (_, messages):
            await here.end("\x1b[32mone\ntwo\n<3 four\n")
            rest = await log_events(messages)
            rows = {k: v for _, event, data in rest if event == "rows"
                    for k, v in lines(data["html"]).items()}  # fmt: skip
            assert rows == {3: '<span class="f2">&lt;3 four</span>'}
            assert rest[-1][1] == "end"
            assert rest[-1][2]["text"] == "End of the log. Attempt 1: Completed"


async def test_a_followed_page_waits_for_the_start(tmp_path) -> None:
    agent = FakeAgent(ends="Running", slots=1)
    async with serving(tmp_path, agent) as caller:
        first = Setting(caller, agent, await caller.upload())
        await caller.job(first.job_id, until="Running")
        here = Setting(caller, agent, await caller.upload())
        path = followed_at((await shown(here))[1])
        async with followed(caller, path) as (_, messages):
            await first.end("")
            await agent.until(lambda: agent.starts[f"{here.job_id}.1"] == 1)
            await agent.write(here.held(), b"hello\n")
            assert lines((await anext(messages)).data["html"]) == {1: "hello"}


async def test_what_stands_above_the_log_is_loaded_without_it(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"much\n")
        status, text = await shown(here, "head=1")
        assert status == 200
        assert 'id="job-head"' in text
        assert lines(text) == {}


async def overview(here: Setting) -> str:
    async with here.caller.session.get(f"{here.caller.url}/jobs/{here.job_id}") as answer:
        assert answer.status == 200
        return await answer.text()


async def test_the_first_page_shows_the_last_lines_and_then_the_first_files(tmp_path) -> None:
    async with running(tmp_path) as here:
        first_page = await overview(here)
        assert 'id="last-lines"' not in first_page
        assert "/log.css" in first_page  # the page stays open when the lines come
        long = "x" * 5000
        text = "".join(f"line {number}\n" for number in range(1, 20))
        await here.agent.write(here.held(), f"{long}\n{text}<b>no end".encode())
        page_of_it = await overview(here)
        shown_lines = re.findall(r'<div class="row"><span class="t">(.*?)</span></div>', page_of_it)
        assert shown_lines == [*(f"line {n}" for n in range(13, 20)), "&lt;b&gt;no end"]
        assert 'id="first-files"' not in page_of_it
        await here.end(text)
        await here.caller.job(here.job_id)
        page_of_it = await overview(here)
        assert 'id="last-lines"' not in page_of_it
        files = page_of_it[page_of_it.index('id="first-files"') :]
        assert f'href="/jobs/{here.job_id}/files"' in files


async def test_the_first_page_does_without_lines_of_an_agent_that_is_away(tmp_path) -> None:
    async with running(tmp_path) as here:
        await here.agent.write(here.held(), b"a line\n")
        assert 'id="last-lines"' in await overview(here)

        async def fails(_: web.Request) -> web.StreamResponse | None:
            raise web.HTTPServiceUnavailable

        here.agent.trick = fails
        assert 'id="last-lines"' not in await overview(here)
