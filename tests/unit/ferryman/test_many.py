"""Commands that do the same to several jobs."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from aiohttp import web

from ferryman import JobState
from ferryman.cli.show import event_line
from shared.wire import EventDoc, JobPage
from tests.unit.ferryman.fake_server import answer, job, serving


class Bulk:
    """Takes bulk requests, and says that one job of them cannot be done."""

    def __init__(self) -> None:
        self.asked: list[dict[str, Any]] = []

    async def bulk(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.asked.append(body)
        more = "filter" in body and len(self.asked) == 1
        ids = body.get("ids", [20 + len(self.asked)])
        said = {18: "Job 18 not found in the database", 19: "job 19 is deleted"}
        items = [
            {"id": one, "ok": one != 18, "code": "", "message": said.get(one, "")} for one in ids
        ]
        return web.json_response({"items": items, "more": more, "next": "21" if more else None})

    def serving(self):
        return serving(("POST", "/api/v1/jobs/bulk", self.bulk))


async def test_several_numbers_are_one_request_and_one_failure_is_said(ferryman) -> None:
    host = Bulk()
    async with host.serving() as url:
        done = await ferryman("retry", 17, 18, 19, "--url", url)
    assert host.asked == [{"action": "retry", "ids": [17, 18, 19]}]
    assert done.code == 1
    assert done.err.splitlines() == [
        "job 17: retry: done",
        "Job 18 not found in the database",
        "job 19 is deleted",
    ]


async def test_a_filter_goes_on_behind_the_jobs_that_were_done(ferryman) -> None:
    host = Bulk()
    async with host.serving() as url:
        done = await ferryman(
            "delete", "--all", "--dead-letters", "--tag", "t", "--yes", "--url", url
        )
    first = {"action": "delete", "filter": {"tag": "t", "dead_letter": "true"}}
    assert host.asked == [first, first | {"cursor": "21"}]
    assert done.code == 0
    assert done.err.splitlines() == ["job 21: delete: done", "job 22: delete: done"]


async def test_states_are_taken_in_any_case(ferryman) -> None:
    host = Bulk()
    async with host.serving() as url:
        await ferryman("retry", "--all", "--state", "failed", "--yes", "--url", url)
        wrong = await ferryman("list", "--state", "broken", "--url", url)
    assert host.asked[0]["filter"] == {"state": "Failed"}
    assert wrong.code == 2
    assert "--state broken: there are Queued, " in wrong.err
    nearly = await ferryman("list", "--state", "fail", "--url", "http://127.0.0.1:1")
    assert "--state fail: did you mean Failed? there are Queued, " in nearly.err


@pytest.mark.parametrize(
    "words",
    [
        ("retry",),
        ("cancel", 17, 18, "--tag", "t"),
        ("delete", 17, "--all"),
        ("cancel", 17, "-s", "e"),
    ],
)
async def test_numbers_or_a_filter_but_not_both(ferryman, words) -> None:
    done = await ferryman(*words, "--yes")
    assert done.code == 2
    assert "give the numbers of jobs, or --all and options that choose; not both" in done.err


async def test_a_filter_alone_changes_nothing(ferryman) -> None:
    done = await ferryman("cancel", "--user", "ada", "--yes")
    assert done.code == 2
    assert done.err.splitlines() == [
        "ferryman: to cancel all jobs with user ada, add --all",
        "all of one user: ferryman cancel --all --user NAME",
    ]


async def test_all_alone_is_every_job_that_one_may_see(ferryman) -> None:
    host = Bulk()
    async with host.serving() as url:
        done = await ferryman("cancel", "--all", "--yes", "--url", url)
    assert host.asked[0] == {"action": "cancel", "all": True}
    assert done.code == 0


async def test_a_filter_without_a_terminal_needs_a_yes(ferryman, monkeypatch) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: False)
    done = await ferryman("cancel", "--all", "--user", "ann")
    assert done.code == 2
    assert "cancel asks first: give --yes where there is no terminal" in done.err


@pytest.mark.parametrize(
    ("words", "query"),
    [
        (("--parent", 1, "--state", "failed"), {"parent": "1", "state": "Failed"}),
        (("--batches", "--since", "2h"), {"batch": "true", "since": "2h"}),
        (("--dead-letters", "--reason", "timeout"), {"dead_letter": "true", "reason": "timeout"}),
    ],
)
async def test_a_list_is_chosen_by_the_filters_of_the_server(ferryman, words, query) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        assert {**query, "limit": "51"} == request.query
        return answer(JobPage(items=[job(id=3)], next=None))

    async with serving(("GET", "/api/v1/jobs", page)) as url:
        done = await ferryman("list", *words, "--url", url)
    assert [line.split("\t")[:2] for line in done.out.splitlines()] == [
        ["ID", "STATUS"],
        ["3", "Running"],
    ]


def test_what_happens_in_a_state_is_called_by_its_own_name() -> None:
    at = datetime(2026, 11, 20, 10, tzinfo=UTC)
    event = EventDoc(
        seq=3,
        at=at,
        attempt=1,
        before=None,
        status=JobState.RUNNING,
        event="job.notice",
        message="all is well",
    )
    assert event_line(event, at) == "   +0.00s  notice      all is well"
    given = event.model_copy(update={"fields": {"page": "3"}})
    assert event_line(given, at) == "   +0.00s  notice      all is well page=3"
    more = {"event": "pages.done", "source": "run.sh", "fields": {"page": "3\n4"}}
    line = event_line(event.model_copy(update=more), at)
    assert line == "   +0.00s  pages.done  all is well page=3 4"
