"""What programs say that do not start, cannot be reached, or do not fit, as the page quotes it."""

from __future__ import annotations

import shutil
import socket
import sqlite3
import uuid
from contextlib import AsyncExitStack, closing
from datetime import timedelta
from pathlib import Path

from aiohttp import web

from ferryman import Client
from ferryman.cli.doctor import Examination
from server.data_folder import write_record
from server.store.copies import Marks
from shared.clock import RealClock, utc
from tests.contract.test_webhooks_http import delivered
from tests.docs.symptoms import said
from tests.support.agent_http import calling
from tests.support.command_line import ferryman
from tests.support.fake_orchestrator import FakeOrchestrator
from tests.support.programs import Program
from tests.support.server_http import ServerClient, driving


def ends(program: Program, code: int) -> str:
    """Start it; it must end with the code. What it said."""
    program.begin()
    assert program.process is not None
    assert program.process.wait(60) == code, program.log
    return program.log


def made(folder: Path, name: str = "server", *flags: str, settings: str = "") -> Program:
    folder.mkdir(exist_ok=True)
    if settings:
        (folder / "ferryman.toml").write_text(settings)
        flags = (*flags, "--config", str(folder / "ferryman.toml"))
    return Program(name, folder, uuid.uuid4().hex, *flags)


def test_programs_that_do_not_start(tmp_path: Path) -> None:
    first = made(tmp_path / "one")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", first.port))
        taken.listen()
        said("port-in-use", ends(first, 69))
    first.start()
    second = made(tmp_path / "two")
    second.data = first.data
    said("folder-in-use", ends(second, 73))
    first.kill()
    said("unknown-setting", ends(made(tmp_path / "a", settings="[server]\nprot = 1\n"), 2))
    said("no-tokens", ends(made(tmp_path / "b", "server", "--host", "0.0.0.0"), 69))
    damaged = made(tmp_path / "c")
    damaged.data.mkdir()
    (damaged.data / "ferryman.sqlite").write_bytes(b"not a database at all" * 500)
    said("database-damaged", ends(damaged, 74))
    away = made(tmp_path / "e")
    away.data.mkdir()
    write_record(away.data, Marks("0" * 32, 17, 90, 3))
    said("database-missing", ends(away, 74))
    closed = made(tmp_path / "d")
    closed.data = Path("/proc/ferryman")
    said("folder-not-writable", ends(closed, 73))


def test_an_agent_whose_sandbox_is_not_as_it_must_be(tmp_path: Path) -> None:
    soft = "[agent.sandboxing]\nrequire_hard_limits = true\ndisk_images = false\n"
    said("sandbox", ends(made(tmp_path / "one", "client_agent", settings=soft), 69))


async def trouble(caller: ServerClient, name: str, has: str) -> str:
    """Of the agent, once it has a word."""
    while True:
        async with caller.session.get(f"{caller.url}/api/v1/agents/{name}") as answer:
            found = await answer.json()
        if has in found["trouble"]:
            return str(found["trouble"])


async def test_agents_that_get_no_jobs(tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        tokens = ["a-token-of-the-agent-only"]
        guarded = await stack.enter_async_context(calling(tmp_path / "one", tokens=tokens))
        plain = await stack.enter_async_context(calling(tmp_path / "two"))

        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<html>It works!", content_type="text/html")

        runner = web.AppRunner(web.Application())
        runner.app.router.add_route("*", "/{path:.*}", page)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        same = str(plain.http._base_url).replace("127.0.0.1", "localhost")
        agents = {
            "guarded": f"url = '{guarded.http._base_url}'\ntoken = 'another-token-of-16'",
            "unproved": f"url = '{plain.http._base_url}'\nidentity_secret = 'a-long-secret-text'",
            "page": f"url = 'http://127.0.0.1:{runner.addresses[0][1]}'",
            "drained": f"url = '{same}'\ndrain = true",
        }
        extra = "".join(f"[agents.{name}]\n{lines}\n" for name, lines in agents.items())
        caller = await stack.enter_async_context(
            driving(tmp_path, FakeOrchestrator(), gone=True, extra=extra)
        )
        said("agent-token", await trouble(caller, "guarded", "cannot be reached"))
        said("agent-unproved", await trouble(caller, "unproved", "cannot be reached"))
        said("agent-is-a-page", await trouble(caller, "page", "cannot be reached"))
        said("agent-drained", await trouble(caller, "drained", "no new jobs"))
        said("agent-refused", await trouble(caller, "my_service", "cannot be reached"))


async def test_a_copy_of_a_data_folder_takes_the_agents(tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    async with calling(tmp_path) as agent:
        extra = f"[agents.node]\nurl = '{agent.http._base_url}'\n"
        client = FakeOrchestrator()
        async with driving(tmp_path, client, extra=extra):
            pass
        shutil.copytree(tmp_path / "data", tmp_path / "copy" / "data")
        with closing(sqlite3.connect(tmp_path / "copy" / "data" / "ferryman.sqlite")) as database:
            database.execute("UPDATE leases SET token = token + 5")  # it is started seconds later
            database.commit()
        async with (
            driving(tmp_path, client, gone=True, extra=extra) as first,
            driving(tmp_path / "copy", client, gone=True, extra=extra) as copy,
        ):
            await copy.job(await copy.upload(), until="Submitted")
            await first.upload()
            said("agent-excluded", await trouble(first, "node", "taken over"))


async def test_results_and_webhooks(tmp_path: Path) -> None:
    soon = '[services.my_service]\nexpires_after = "1ms"\n'
    soon += "[services.my_service.webhook]\nurl = 'http://127.0.0.1:9/hook'\n"
    async with driving(tmp_path, FakeOrchestrator(), extra=soon, cleaner_interval=0.02) as caller:
        job_id = await caller.upload()
        found = await delivered(caller, job_id, "failed")
        said("webhook", found["message"])
        seen: list[str] = []
        while "Cleaned" not in seen:
            seen = await caller.states(job_id, more_than=len(seen))
        path = f"{caller.url}/api/v1/jobs/{job_id}/result"
        async with caller.session.get(path) as answer:
            reply = await answer.json()
        said("result-gone", f"{answer.status} {reply['code']}: {reply['detail']}")


async def test_the_command_line(tmp_path: Path) -> None:
    code, _, err = await ferryman("--url", "http://127.0.0.1:9", "list")
    assert code == 69
    said("cli-unreachable", err)
    async with calling(tmp_path / "agent") as agent, AsyncExitStack() as stack:
        _, out, _ = await ferryman("--url", str(agent.http._base_url), "doctor")
        said("cli-agent", out)

        async def page(_: web.Request) -> web.Response:
            return web.Response(text="<html>It works!", content_type="text/html")

        runner = web.AppRunner(web.Application())
        runner.app.router.add_route("*", "/{path:.*}", page)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        _, _, err = await ferryman("--url", f"http://127.0.0.1:{runner.addresses[0][1]}", "list")
        said("cli-foreign", err)


async def test_what_doctor_says_of_clocks_and_versions(tmp_path: Path) -> None:
    async with (
        driving(tmp_path, FakeOrchestrator()) as caller,
        Client(caller.url) as client,
    ):
        hour = timedelta(hours=1)
        doctor = Examination(
            client,
            lambda words: f"ferryman {words}",
            False,
            "9.9.0",
            lambda: utc(RealClock().now()) + hour,
        )
        found = {one.about: one.text async for one in doctor.findings()}
        said("clock", found["clock"])
        said("version", found["version"])
