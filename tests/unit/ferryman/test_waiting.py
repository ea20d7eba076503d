"""Waiting for jobs, ``last``, and several numbers at once."""

from __future__ import annotations

import asyncio
import json

import pytest
from aiohttp import web

from ferryman import Client, JobState
from ferryman.cli.follow import wait_for
from ferryman.cli.options import Server
from ferryman.models.jobs import JobPage
from ferryman.states import Reason
from tests.unit.ferryman.conftest import Host
from tests.unit.ferryman.fake_server import answer, job, problem, serving


class Jobs:
    """Serves jobs by number; those that have not ended are cancelled when that is asked for."""

    def __init__(self, **states: JobState) -> None:
        self.states = {int(name[1:]): state for name, state in states.items()}
        self.asked: list[str] = []
        self.queries: list[dict[str, str]] = []
        self.bulk: list[object] = []
        self.seen = asyncio.Event()

    async def read(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["id"])
        self.seen.set()
        if number not in self.states:
            return problem(404, "job_not_found", f"Job {number} not found in the database")
        state = self.states[number]
        if request.query.get("wait") not in {None, "0.000"} and state == JobState.RUNNING:
            await asyncio.Event().wait()
        reason = Reason.EXIT_CODE if state == JobState.FAILED else None
        code = 3 if state == JobState.FAILED else None
        return answer(job(state, id=number, message="m", reason=reason, exit_code=code))

    async def events(self, request: web.Request) -> web.StreamResponse:
        if float(request.query["wait"]):
            await asyncio.Event().wait()
        return web.json_response({"items": []})

    async def log(self, request: web.Request) -> web.StreamResponse:
        return web.Response(text=f"log {request.match_info['id']}\n", content_type="text/plain")

    async def page(self, request: web.Request) -> web.StreamResponse:
        self.queries.append(dict(request.query))
        whose = [job(id=19, parent_id=18)] if request.query["user"] == "ada" else []
        return answer(JobPage(items=whose, next=None))

    async def cancel(self, request: web.Request) -> web.StreamResponse:
        number = int(request.match_info["id"])
        self.states[number] = JobState.CANCELLED
        return answer(job(JobState.CANCELLED, id=number))

    async def cancel_many(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.bulk.append(body)
        items = [{"id": one, "ok": True, "code": "", "message": ""} for one in body["ids"]]
        return web.json_response({"items": items, "more": False, "next": None})

    def serving(self):
        return serving(
            ("GET", "/api/v1/jobs", self.page),
            ("POST", "/api/v1/jobs/bulk", self.cancel_many),
            ("GET", "/api/v1/jobs/{id}", self.read),
            ("GET", "/api/v1/jobs/{id}/events", self.events),
            ("GET", "/api/v1/jobs/{id}/logs", self.log),
            ("POST", "/api/v1/jobs/{id}/cancel", self.cancel),
        )


async def test_waiting_for_several_says_each_end_and_takes_the_first_bad_code(ferryman) -> None:
    host = Jobs(_1=JobState.COMPLETED, _2=JobState.FAILED, _3=JobState.CANCELLED)
    async with host.serving() as url:
        done = await ferryman("wait", 1, 2, 3, "--url", url)
        other = await ferryman("wait", 3, 2, "--json", "-q", "--url", url)
        fine = await ferryman("status", 1, 1, "--wait", "-q", "--url", url)
    assert (done.code, done.out) == (3, "")
    assert done.err.splitlines() == [
        "job 1 Completed: m",
        "job 2 Failed (exit_code): m",
        "job 3 Cancelled: m",
    ]
    assert (other.code, other.err) == (143, "")
    assert [one["id"] for one in json.loads(other.out)] == [3, 2]
    assert (fine.code, fine.out.count("job 1: Completed")) == (0, 2)


async def test_waiting_for_one_follows_it_and_takes_its_code(ferryman) -> None:
    async with Host(job(JobState.FAILED, exit_code=7, message="broke")).serving() as url:
        done = await ferryman("wait", 17, "--url", url)
    assert (done.code, done.out) == (7, "")
    assert "   +1.50s  Running     step 1" in done.err.splitlines()
    assert done.err.splitlines()[-1].endswith(f"ferryman download 17 --partial --url {url}")


@pytest.mark.parametrize("ids", [(2,), (1, 2)])
async def test_a_wait_that_is_over_is_124_and_the_job_goes_on(ferryman, ids) -> None:
    host = Jobs(_1=JobState.COMPLETED, _2=JobState.RUNNING)
    async with host.serving() as url:
        done = await ferryman("wait", *ids, "--timeout", "0s", "-q", "--url", url)
    assert (done.code, done.out) == (124, "")
    words = " ".join(map(str, ids))
    assert done.err.splitlines() == [
        "ferryman: job 2 is still Running after 0s; it goes on",
        f"wait again: ferryman wait {words} --url {url}",
    ]


@pytest.mark.parametrize("text", ["soon", "", "-1s", "5", "1m1h", "9" * 40])
async def test_what_is_no_duration_is_bad_usage(ferryman, text) -> None:
    done = await ferryman("wait", 1, "--timeout", text)
    assert done.code == 2
    assert "such as 90s, 1h30m or 10d" in done.err


async def interrupted(host: Jobs, url: str, ids: list[int], *, cancel: bool) -> None:
    async with Client(url, retry_for=0) as client:
        server = Server(url, None)
        host.seen.clear()
        waiting = asyncio.create_task(wait_for(client, server, ids, quiet=True, cancel=cancel))
        await host.seen.wait()
        waiting.cancel()  # what asyncio.run does at Ctrl-C
        with pytest.raises(asyncio.CancelledError):
            await waiting


async def test_ctrl_c_leaves_the_jobs_running_and_says_so(capfd) -> None:
    host = Jobs(_1=JobState.RUNNING, _2=JobState.RUNNING)
    async with host.serving() as url:
        await interrupted(host, url, [1], cancel=False)
        assert capfd.readouterr().err == f"the job goes on: ferryman status 1 --url {url}\n"
        await interrupted(host, url, [1, 2], cancel=False)
        assert capfd.readouterr().err == f"the jobs go on: ferryman status 1 2 --url {url}\n"
    assert host.states[1] == JobState.RUNNING
    assert host.bulk == []


async def test_ctrl_c_cancels_where_that_was_asked_for(capfd) -> None:
    host = Jobs(_1=JobState.RUNNING, _2=JobState.RUNNING)
    async with host.serving() as url:
        await interrupted(host, url, [1], cancel=True)
        assert capfd.readouterr().err == "cancelling job 1\njob 1 is cancelled\n"
        await interrupted(host, url, [2, 1], cancel=True)
        assert capfd.readouterr().err == "2 jobs cancelled\n"
    assert host.states[1] == JobState.CANCELLED
    assert host.bulk == [{"action": "cancel", "ids": [2, 1]}]


async def test_last_is_the_newest_job_of_whoever_asks_and_of_a_child_the_parent(
    ferryman, monkeypatch
) -> None:
    host = Jobs(_1=JobState.COMPLETED, _18=JobState.COMPLETED)
    monkeypatch.setattr("getpass.getuser", lambda: "ada")
    async with host.serving() as url:
        alone = await ferryman("status", "last", "--json", "--url", url)
        both = await ferryman("status", 1, "Last", "--json", "--url", url)
        monkeypatch.setenv("FERRYMAN_USER", "grace")
        nobody = await ferryman("logs", "last", "--url", url)
    assert json.loads(alone.out)["id"] == 18
    assert [one["id"] for one in json.loads(both.out)] == [1, 18]
    assert host.queries[0] == {"user": "ada", "limit": "1"}
    assert nobody.code == 2
    assert nobody.err.startswith(f"ferryman: last: user grace has no jobs at {url}")


async def test_last_is_of_the_user_that_the_token_is_for(ferryman, monkeypatch) -> None:
    host = Jobs(_18=JobState.COMPLETED)
    monkeypatch.setattr("getpass.getuser", lambda: "root")
    who = {"name": "t", "role": "user", "user_id": "ada", "scopes": [], "token_needed": True}

    async def whoami(_: web.Request) -> web.StreamResponse:
        return web.json_response(who)

    routes = (("GET", "/api/v1/jobs", host.page), ("GET", "/api/v1/jobs/{id}", host.read))
    async with serving(*routes, ("GET", "/api/v1/whoami", whoami)) as url:
        assert (await ferryman("status", "last", "--token", "t", "--url", url)).code == 0
        who |= {"role": "operator", "user_id": None}
        operator = await ferryman("status", "last", "--token", "t", "--url", url)
    assert host.queries[0]["user"] == "ada"
    assert "last: user root has no jobs" in operator.err


async def test_a_number_that_only_looks_like_the_sign_of_last_is_not_replaced(
    ferryman, bundle
) -> None:
    host = Host(job(JobState.QUEUED))
    async with host.serving() as url:
        words = ("submit", bundle, "-s", "e", "-u", "a", "--priority", "-1", "--url", url)
        assert (await ferryman(*words)).code == 0
    assert host.uploads[0].fields["priority"] == "-1"


async def test_logs_of_several_jobs_have_heads_and_json_has_their_numbers(ferryman) -> None:
    host = Jobs(_1=JobState.COMPLETED, _2=JobState.COMPLETED)
    async with host.serving() as url:
        words = ("logs", 1, 2, "--attempt", 1, "--url", url)
        plain = await ferryman(*words)
        quiet = await ferryman(*words, "-q")
        parsed = await ferryman(*words, "--json", "--stderr")
        one = await ferryman("logs", 1, "--attempt", 1, "--json", "--url", url)
        follow = await ferryman(*words, "-f")
    assert plain.out == "log 1\nlog 2\n"
    assert plain.err == "==> job 1, stdout <==\n==> job 2, stdout <==\n"
    assert (quiet.out, quiet.err) == (plain.out, "")
    assert json.loads(parsed.out)[1] == {
        "job_id": 2,
        "attempt": 1,
        "stream": "stderr",
        "text": "log 2\n",
    }
    assert json.loads(one.out)["text"] == "log 1\n"
    assert (follow.code, follow.out) == (2, "")
